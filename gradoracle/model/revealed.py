"""Revealed inputs: integers that a definition takes and a kernel makes itself, and shows, such as a dropout mask."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from gradoracle.model.signature import Defined, Signature

_ENTRY = "revealed "
Function = Callable[..., Any]


@dataclass(frozen=True)
class Unrevealed:
    """A family as a kernel sees it that is not given some inputs: its name and a signature without them."""

    name: str
    signature: Signature


def unrevealed(family: Defined, names: Collection[str]) -> Defined:
    """The family without the inputs that a kernel reveals."""
    if not names:
        return family
    inputs = tuple(spec for spec in family.signature.inputs if spec.name not in names)
    return Unrevealed(family.name, replace(family.signature, inputs=inputs))


def require_revealable(label: str, family: Defined, names: Collection[str]) -> None:
    """Check that revealed inputs are integer inputs that every case has.

    Raises:
        ValueError: one is another input, or none.
    """
    own = [spec.name for spec in family.signature.inputs if spec.kind == "int" and not spec.optional]
    if wrong := [name for name in names if name not in own]:
        expected = f"expected some of its integer inputs {', '.join(own)}" if own else "it has no integer input"
        raise ValueError(f"kernel {label}: reveals names {', '.join(wrong)} of family {family.name}; {expected}")


def without(function: Function, family: Defined, names: Collection[str]) -> Function:
    """A function of all inputs of a family that gives ``function`` those which are not revealed."""
    if not names:
        return function
    left_out = [place for place, specs in enumerate(family.signature.places) if specs[0].name in names]

    def call(*inputs: Any, **named: Any) -> Any:
        own = [each for place, each in enumerate(inputs) if place not in left_out]
        return function(*own, **{name: each for name, each in named.items() if name not in names})

    call.__name__ = getattr(function, "__name__", "kernel")
    call.__doc__, call.__module__ = function.__doc__, function.__module__
    call.__wrapped__ = function  # type: ignore[attr-defined]
    return call


def entries(
    reveals: Mapping[str, Function], family: Defined, barred: Mapping[str, Collection[str]]
) -> dict[str, Function]:
    """The entry points of a kernel that reveal inputs, by their names among its ``extras``.

    Args:
        reveals: by input: ``function(*inputs, **options)``, which gives it; as the kernel, it is not given the inputs
            that are revealed.
        family: that of the kernel.
        barred: by input, the options that its function does not take.
    """
    keyword = {spec.name for spec in family.signature.inputs if spec.keyword}

    def made(name: str, function: Function) -> Function:
        takes_blocks = "blocks" in inspect.signature(function).parameters

        def entry(inputs: Mapping[str, Tensor], options: Mapping[str, Any], blocks: object) -> Any:
            given = {each: tensor for each, tensor in inputs.items() if each not in reveals}
            named = {each: value for each, value in options.items() if each not in barred[name]}
            named |= {each: given[each] for each in given if each in keyword}
            named |= {"blocks": blocks} if takes_blocks and blocks is not None else {}
            found = function(*(tensor for each, tensor in given.items() if each not in keyword), **named)
            return found.to(torch.float64) if isinstance(found, Tensor) else found

        return entry

    return {f"{_ENTRY}{name}": made(name, function) for name, function in reveals.items()}


def revealed_by(extras: Collection[str]) -> tuple[str, ...]:
    """The inputs that some of a kernel's ``extras`` reveal."""
    return tuple(name.removeprefix(_ENTRY) for name in extras if name.startswith(_ENTRY))


def entry_of(name: str) -> str:
    """The entry point that reveals an input."""
    return f"{_ENTRY}{name}"
