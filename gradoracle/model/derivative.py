"""The four derivatives that gradoracle knows, as functions of plain tensors made by ``torch.func``.

A definition ``f(*inputs, **options) -> Tensor | tuple of Tensors`` becomes one flat program per derivative. A program
takes float64 (or any float) tensors in the order *primals, tangents, cotangents* (those that its derivative needs) and
returns a tuple of tensors. Nothing here knows how the tensors are read: the oracle traces these programs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import TypeVar

import torch
from torch import Tensor


class Derivative(str, Enum):
    """The function itself, J^T g, J t, or the Hessian of <g, f> times t."""

    FORWARD = "forward"
    VJP = "vjp"
    JVP = "jvp"
    HVP = "hvp"

    @property
    def order(self) -> int:
        """Their order from the least to the most that a kernel must compute for it."""
        return tuple(Derivative).index(self)

    @property
    def named(self) -> str:
        """As in reports: the forward, or its abbreviation."""
        return {Derivative.FORWARD: "the forward", Derivative.HVP: "an HVP"}.get(self, f"a {self.name}")

    @property
    def takes_tangents(self) -> bool:
        """Whether the program takes one tangent for each float primal."""
        return self in (Derivative.JVP, Derivative.HVP)

    @property
    def takes_cotangents(self) -> bool:
        """Whether the program takes one cotangent for each float output."""
        return self in (Derivative.VJP, Derivative.HVP)


Definition = Callable[..., Tensor | Sequence[Tensor]]
Program = Callable[..., tuple[Tensor, ...]]
T = TypeVar("T", bound=Tensor | None)


def as_tuple(outputs: Tensor | Sequence[T]) -> tuple[Tensor | T, ...]:
    """What a function returns as a tuple, also where it returns one tensor."""
    return (outputs,) if isinstance(outputs, Tensor) else tuple(outputs)


def program(
    definition: Definition,
    derivative: Derivative,
    primals: int,
    *,
    constants: Mapping[int, Tensor] | None = None,
    options: Mapping[str, object] | None = None,
) -> Program:
    """One derivative of ``definition`` as a flat function of tensors.

    Args:
        definition: called as ``definition(*inputs, **options)``.
        derivative: which one.
        primals: how many differentiable (float) inputs there are.
        constants: inputs that are not differentiated (integer tensors), by position in the definition's call.
        options: passed by keyword, unchanged.

    Returns:
        ``f(*primals, *tangents, *cotangents)`` with tangents for JVP and HVP, cotangents for VJP and HVP. It returns:
        FORWARD the outputs; VJP the outputs and then one gradient per primal (so that one graph serves both); JVP one
        tangent per output; HVP one product per primal.
    """
    fixed, keywords = dict(constants or {}), dict(options or {})

    def call(*floats: Tensor) -> tuple[Tensor, ...]:
        floats_left, inputs = list(floats), []
        for position in range(len(floats) + len(fixed)):
            inputs.append(fixed[position] if position in fixed else floats_left.pop(0))
        return as_tuple(definition(*inputs, **keywords))

    def forward(*args: Tensor) -> tuple[Tensor, ...]:
        return call(*args)

    def vjp(*args: Tensor) -> tuple[Tensor, ...]:
        outputs, pull = torch.func.vjp(call, *args[:primals])[:2]
        return (*outputs, *pull(tuple(args[primals:])))

    def jvp(*args: Tensor) -> tuple[Tensor, ...]:
        return tuple(torch.func.jvp(call, tuple(args[:primals]), tuple(args[primals:]))[1])

    def hvp(*args: Tensor) -> tuple[Tensor, ...]:
        tangents, cotangents = args[primals : 2 * primals], args[2 * primals :]

        def gradients(*points: Tensor) -> tuple[Tensor, ...]:
            return torch.func.vjp(call, *points)[1](tuple(cotangents))

        return tuple(torch.func.jvp(gradients, tuple(args[:primals]), tuple(tangents))[1])

    return {Derivative.FORWARD: forward, Derivative.VJP: vjp, Derivative.JVP: jvp, Derivative.HVP: hvp}[derivative]
