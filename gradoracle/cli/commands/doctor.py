"""Doctor: what is installed and what works on this machine."""

from __future__ import annotations

from typing import Annotated

import typer

from gradoracle.project.options import OPTIONS
from gradoracle.report.showing import say


def doctor(
    python: Annotated[
        str | None, typer.Option(metavar="PATH", help="Check a Python in which kernels are to run, for --python.")
    ] = None,
) -> None:
    """List what is installed and what works on this machine."""
    from gradoracle.execution.environment import facilities, facilities_of

    found = facilities() if python is None else facilities_of(OPTIONS["python"].read(python))
    for facility in found:
        mark = "ok     " if facility.found else "MISSING" if facility.required else "absent "
        say(f"{mark}  {facility.name:<18} {facility.found or '-':<44} {facility.purpose}\n")
        if not facility.found and facility.remedy:
            say(f"{'':<9}{'':<18} {facility.remedy}\n")
    lacking = [facility.name for facility in found if facility.required and not facility.found]
    if lacking:
        what = "gradoracle cannot run here" if python is None else f"kernels cannot run in {python}"
        say(f"{what}: {', '.join(lacking)} missing (exit code 1)\n")
    raise typer.Exit(1 if lacking else 0)
