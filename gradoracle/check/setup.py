"""Setup: what a worker process needs to resolve a target, and the kernels and properties that it resolves to."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from gradoracle.check.properties import properties_of
from gradoracle.host.autotuned import autotuners
from gradoracle.model.contract import contract
from gradoracle.model.errors import UsageError
from gradoracle.model.family import Family
from gradoracle.model.kernel import Kernel, claims_of
from gradoracle.model.property import Property
from gradoracle.project.base_overlay import Places, resolved

CALL_SECONDS = 60.0  # a kernel call that takes longer counts as hanging, once it has done so again alone


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
    inputs: str | None = None
    places: Places | None = None
    called_in: str = ""  # a folder: which of its functions the kernel's calls run is noted
    claims: tuple[str, ...] = ()


def subjects(setup: Setup) -> tuple[Family, dict[str, Kernel], dict[str, Property]]:
    """Resolve a target: its family, its kernels with contracts and arguments applied, and all properties by name.

    Raises:
        TargetError: the target or its family cannot be resolved.
        UsageError: a contract or argument does not fit.
    """
    target = resolved(setup.target, setup.family, setup.places)
    kernels = {}
    for kernel in target.kernels:
        contracts = {dtype: contract(name, dtype) for dtype, name in setup.contracts.items()}
        kernel = replace(kernel, contracts={**kernel.contracts, **contracts})
        if setup.claims:
            kernel = replace(kernel, claims=claims_of(setup.claims))
        kernel = replace(kernel, autotuners={name: len(each.configs) for name, each in autotuners(kernel).items()})
        kernels[kernel.name] = _with_arguments(kernel, target.family, setup.arguments)
    return target.family, kernels, {prop.name: prop for prop in properties_of(target.family)}


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
    call = functools.partial(kernel.call, **passed) if passed else kernel.call
    return replace(kernel, call=call, options={**kernel.options, **fixed}, arguments={**kernel.arguments, **passed})


def _require_parameter(kernel: Kernel, name: str) -> None:
    """Refuse a keyword that the callable does not have, where its signature can be read."""
    try:
        parameters = inspect.signature(kernel.call).parameters
    except (TypeError, ValueError):
        return
    if name not in parameters and not any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        raise UsageError(f"--arg {name}: {kernel.name} takes no such argument; it takes {', '.join(parameters)}")
