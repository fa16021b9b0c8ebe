"""Setup: what a worker process needs to resolve a target, and the kernels and properties that it resolves to."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

from gradoracle.check.properties import properties_of
from gradoracle.execution.hosted import HostSetup, Outline, tuners
from gradoracle.model.contract import contract
from gradoracle.model.description import Asked, Elsewhere, HostedTarget, kernel_of
from gradoracle.model.dims import Sizes
from gradoracle.model.errors import UsageError
from gradoracle.model.family import Family
from gradoracle.model.kernel import Kernel, claims_of
from gradoracle.model.location import place_of
from gradoracle.model.property import Property
from gradoracle.project.base_overlay import Places, inside
from gradoracle.project.definition import sources
from gradoracle.project.import_closure import contents
from gradoracle.project.target import resolve

CALL_SECONDS = 60.0  # a kernel call that takes longer counts as hanging
IMPORT_SECONDS = 600.0  # for importing the kernels; where a run has a time limit, so much longer than that:
IMPORT_GRACE = 15.0


@dataclass(frozen=True)
class Setup:
    """What a worker process needs to resolve the target by itself."""

    target: str
    family: str | None
    device: str
    oracle: str
    contracts: Mapping[str, str]
    arguments: Mapping[str, Any]
    call_seconds: float = CALL_SECONDS
    import_seconds: float = IMPORT_SECONDS
    inputs: str | None = None
    places: Places | None = None
    called_in: str = ""  # a folder: which of its functions the kernel's calls run is noted
    claims: tuple[str, ...] = ()
    hosted: HostedTarget | None = None  # what its host says of it, where that is known
    barred: str = ""  # a folder that no module of the target may come from
    sources: Mapping[str, str] = field(default_factory=dict)  # digests of its files before any kernel ran
    python: str | None = None  # the interpreter that its host runs in
    dims: Mapping[str, Sizes] = field(default_factory=dict)  # narrower sizes, by dim


def subjects(setup: Setup) -> tuple[Family, dict[str, Kernel], dict[str, Property]]:
    """Resolve a target in this process: its family, its kernels with what the setup says of them, and all properties.

    Raises:
        TargetError: the target or its family cannot be resolved.
        UsageError: a contract or argument does not fit.
    """
    target = resolve(setup.target, setup.family)
    kernels = {kernel.name: _configured(kernel, target.family, setup) for kernel in target.kernels}
    return target.family, kernels, {prop.name: prop for prop in properties_of(target.family)}


def judged(
    setup: Setup, family: Family, hosted: HostedTarget, ask: Asked
) -> tuple[Family, dict[str, Kernel], dict[str, Property]]:
    """As ``subjects``, of kernels that a host has: none of them is imported here.

    Raises:
        UsageError: a contract or argument does not fit.
    """
    kernels = {each.name: _configured(kernel_of(each, ask), family, setup) for each in hosted.kernels}
    return family, kernels, {prop.name: prop for prop in properties_of(family)}


def host_setup(setup: Setup, family: Family | None) -> HostSetup:
    """What the host of a setup's kernels is asked to load; ``family``: as of ``definition.family_apart``."""
    outline = None if family is None else Outline(family.name, family.signature)
    own = (setup.target, setup.family, setup.device, outline, setup.places, setup.called_in, setup.barred)
    return HostSetup(*own)


def sources_of(setup: Setup) -> dict[str, str]:
    """Digests of the files of a setup's target, in the folder of what judges."""
    with inside(setup.places.judge) if setup.places is not None else nullcontext():
        return sources(setup.target, setup.family)


def require_unchanged(setup: Setup) -> None:
    """Check that no file of the target has changed since the digests of a setup were taken.

    Raises:
        UsageError: one has; what was judged by it is worthless.
    """
    now = contents(setup.sources)
    changed = [os.path.relpath(name) for name in now if now[name] != setup.sources[name]]
    if changed:
        raise UsageError(
            f"{', '.join(changed)} changed while {setup.target} was judged, so that no result counts; expected files "
            "that stay as they are: check again, and look at what the kernel writes"
        )


def _configured(kernel: Kernel, family: Family, setup: Setup) -> Kernel:
    """A kernel with the contracts, claims and arguments of a setup."""
    contracts = {dtype: contract(name, dtype) for dtype, name in setup.contracts.items()}
    kernel = replace(kernel, contracts={**kernel.contracts, **contracts})
    if not isinstance(kernel.call, Elsewhere):
        kernel = replace(kernel, autotuners=tuners(kernel))
    if setup.claims:
        kernel = replace(kernel, claims=claims_of(setup.claims))
    return _with_arguments(kernel, family, setup.arguments)


def within(kernel: Kernel, dims: Mapping[str, Sizes]) -> Kernel:
    """A kernel that supports no sizes but these, so that a property's variant of a case has no others."""
    sizes = {dim: own.intersect(kernel.dims[dim]) if dim in kernel.dims else own for dim, own in dims.items()}
    return replace(kernel, dims={**kernel.dims, **sizes}) if sizes else kernel


def functions_of(
    family: Family, kernels: Mapping[str, Kernel], properties: Iterable[Property]
) -> list[Callable[..., Any]]:
    """The functions that a run calls: the definition, the kernels and the properties."""
    return [family.definition, *(kernel.call for kernel in kernels.values()), *(prop.judge for prop in properties)]


def _with_arguments(kernel: Kernel, family: Family, arguments: Mapping[str, Any]) -> Kernel:
    """A kernel with the values of ``--arg``: an option of the family is fixed, others are passed on."""
    own = {spec.name for spec in family.signature.options}
    fixed = {name: (value,) for name, value in arguments.items() if name in own}
    passed = {name: value for name, value in arguments.items() if name not in own}
    for name in (*passed, *(option for option in fixed if kernel.options.get(option) == ())):
        _require_parameter(kernel, name)
    is_here = not isinstance(kernel.call, Elsewhere)  # one elsewhere gets them with each call
    call = functools.partial(kernel.call, **passed) if passed and is_here else kernel.call
    return replace(kernel, call=call, options={**kernel.options, **fixed}, arguments={**kernel.arguments, **passed})


def _require_parameter(kernel: Kernel, name: str) -> None:
    """Refuse a keyword that the callable does not have, where its signature can be read."""
    own = place_of(kernel.call).parameters
    if own is None:
        return
    parameters = own.signature.parameters
    if name not in parameters and not any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        raise UsageError(f"--arg {name}: {kernel.name} takes no such argument; it takes {', '.join(parameters)}")
