"""Catalogue: the shipped families and properties, one property explained, and what works on this machine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from gradoracle.cli import completion
from gradoracle.model.errors import UsageError
from gradoracle.report.showing import say

if TYPE_CHECKING:
    from gradoracle.model.property import Property
    from gradoracle.project.target import Target


def list_() -> None:
    """List families, kernels, properties and precision contracts."""
    from gradoracle.model.contract import PRESETS
    from gradoracle.report.catalogue import listing

    targets, universal = _catalogue()
    say(listing(targets, universal, PRESETS))


def explain(
    name: Annotated[
        str,
        typer.Argument(metavar="PROPERTY", help="The name of a property, or a glob.", autocompletion=completion.laws),
    ],
) -> None:
    """Explain a property: why it holds, what it catches."""
    import difflib
    import fnmatch

    from gradoracle.report.catalogue import explanation

    targets, universal = _catalogue()
    known = [(law, law.families.words) for law in universal]
    known += [(law, target.family.name) for target in targets for law in target.family.properties]
    owners: dict[Property, list[str]] = {}  # several families may define a name, with one text or several
    for law, whose in known:
        owners.setdefault(law, []).append(whose)
    laws = list(dict.fromkeys(law.name for law in owners))
    found = [each for each in laws if fnmatch.fnmatchcase(each, name)]
    if not found:
        close = difflib.get_close_matches(name, laws, n=3, cutoff=0.5) or [each for each in laws if name in each][:3]
        hint = f"did you mean {', '.join(close)}?" if close else "gradoracle list prints them all"
        raise UsageError(f"no property is named {name!r}: {hint}")
    say("\n".join(explanation(law, owners[law]) for each in found for law in owners if law.name == each))


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


def _catalogue() -> tuple[list[Target], Sequence[Property]]:
    """Every shipped family, and the universal properties."""
    from gradoracle.check.judge_case import universal_laws
    from gradoracle.execution import device as devices
    from gradoracle.project.target import shipped

    devices.prepare(devices.choose("auto"))
    return list(shipped().values()), universal_laws()
