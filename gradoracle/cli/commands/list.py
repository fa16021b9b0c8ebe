"""List: the shipped families, their kernels and properties, and the precision contracts."""

from __future__ import annotations

import fnmatch
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from gradoracle.execution import fork_server
from gradoracle.model.errors import UsageError
from gradoracle.project.shipped_names import family_names
from gradoracle.project.values import one_of
from gradoracle.report.showing import say

if TYPE_CHECKING:
    from gradoracle.model.property import Property
    from gradoracle.project.target import Target


def list_(
    family: Annotated[str | None, typer.Option(metavar="NAME", help="Only this family and its properties.")] = None,
    name: Annotated[str | None, typer.Option(metavar="GLOB", help="Only properties whose name matches.")] = None,
    kind: Annotated[
        str | None,
        typer.Option(metavar="KIND", help="Only properties of this kind, such as oracle or memory."),
    ] = None,
) -> None:
    """List families, kernels, properties and precision contracts, or some of them."""
    from gradoracle.model.contract import PRESETS
    from gradoracle.model.property import PropertyKind
    from gradoracle.report.catalogue import listing, properties

    if family is not None:
        one_of("--family", family, family_names())
    targets, universal = catalogue(family, has_kernels=name is None and kind is None)
    if family is not None:
        universal = [prop for prop in universal if prop.families.hold(targets[0].family)]
    if name is None and kind is None:
        say(listing(targets, universal, PRESETS if family is None else {}))
        return
    if kind is not None:
        one_of("--kind", kind, [each.value for each in PropertyKind])

    def chosen(props: Sequence[Property]) -> tuple[Property, ...]:
        fitting = (prop for prop in props if kind in (None, prop.kind.value))
        return tuple(prop for prop in fitting if fnmatch.fnmatchcase(prop.name, name or "*"))

    own = [replace(t, family=replace(t.family, properties=chosen(t.family.properties))) for t in targets]
    if not (found := chosen(universal)) and not any(target.family.properties for target in own):
        given = [
            f"--{option} {value}" for option, value in (("family", family), ("name", name), ("kind", kind)) if value
        ]
        raise UsageError(f"no property matches {' '.join(given)}; see gradoracle list")
    say(properties([target for target in own if target.family.properties], found))


def catalogue(family: str | None = None, *, has_kernels: bool) -> tuple[list[Target], Sequence[Property]]:
    """Every shipped family or one, and the universal properties; a host describes kernels, if they are asked for."""
    if has_kernels:
        fork_server.warm()
    from gradoracle.check import worker
    from gradoracle.check.properties import universal_properties
    from gradoracle.check.setup import Setup
    from gradoracle.project.definition import named_family
    from gradoracle.project.target import Target

    found = []
    for name in family_names() if family is None else [family]:
        if not has_kernels:
            found.append(Target(named_family(name), [], None, name))
            continue
        own = worker.resolved(Setup(name, None, "cpu", "auto", {}, {}))
        own.host.close()
        found.append(Target(own.family, list(own.kernels.values()), None, name))
    return found, universal_properties()
