"""Doctor: what is installed and what works on this machine."""

from __future__ import annotations

import typer

from gradoracle.report.showing import say


def doctor() -> None:
    """List what is installed and what works on this machine."""
    from gradoracle.execution.environment import facilities

    found = facilities()
    for facility in found:
        mark = "ok     " if facility.found else "MISSING" if facility.required else "absent "
        say(f"{mark}  {facility.name:<18} {facility.found or '-':<44} {facility.purpose}\n")
        if not facility.found and facility.remedy:
            say(f"{'':<9}{'':<18} {facility.remedy}\n")
    lacking = [facility.name for facility in found if facility.required and not facility.found]
    if lacking:
        say(f"gradoracle cannot run here: {', '.join(lacking)} missing (exit code 1)\n")
    raise typer.Exit(1 if lacking else 0)
