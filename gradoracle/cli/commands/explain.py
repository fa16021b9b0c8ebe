"""Explain: one property, why it holds and what it catches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from gradoracle.cli import completion
from gradoracle.cli.commands.list import catalogue
from gradoracle.model.errors import UsageError
from gradoracle.report.showing import say

if TYPE_CHECKING:
    from gradoracle.model.property import Property


def explain(
    name: Annotated[
        str,
        typer.Argument(
            metavar="PROPERTY", help="The name of a property, or a glob.", autocompletion=completion.properties
        ),
    ],
) -> None:
    """Explain a property: why it holds, what it catches."""
    import difflib
    import fnmatch

    from gradoracle.report.catalogue import explanation

    targets, universal = catalogue(has_kernels=False)
    known = [(prop, prop.families.words) for prop in universal]
    known += [(prop, target.family.name) for target in targets for prop in target.family.properties]
    owners: dict[Property, list[str]] = {}  # several families may define a name, with one text or several
    for prop, whose in known:
        owners.setdefault(prop, []).append(whose)
    properties = list(dict.fromkeys(prop.name for prop in owners))
    found = [each for each in properties if fnmatch.fnmatchcase(each, name)]
    if not found:
        close = (
            difflib.get_close_matches(name, properties, n=3, cutoff=0.5)
            or [each for each in properties if name in each][:3]
        )
        hint = f"did you mean {', '.join(close)}?" if close else "gradoracle list prints them all"
        raise UsageError(f"no property is named {name!r}: {hint}")
    say("\n".join(explanation(prop, owners[prop]) for each in found for prop in owners if prop.name == each))
