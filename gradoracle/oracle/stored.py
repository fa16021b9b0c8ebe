"""Marks in a program of tensors that say where an algorithm stores a value, for budgets only.

``stored(x, "output")`` is the identity in every exact reading; the rounding reading rounds there. ``stored_sum`` is a
sum of blocks whose running value is stored after each block. Both survive ``make_fx``, ``torch.func`` and autograd.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

PLACES = ("operand", "accumulate", "elementwise", "output", "residuals")


@torch.library.custom_op("gradoracle::stored", mutates_args=())
def _stored(x: Tensor, place: str) -> Tensor:
    return x.clone()


@torch.library.custom_op("gradoracle::stored_sum", mutates_args=())
def _stored_sum(x: Tensor, place: str) -> Tensor:
    return x.sum(0)


_stored.register_fake(lambda x, place: torch.empty_like(x))
_stored_sum.register_fake(lambda x, place: x.new_empty(x.shape[1:]))
_stored.register_vmap(lambda info, dims, x, place: (_stored(x, place), dims[0]))


@_stored_sum.register_vmap
def _(info: Any, dims: Any, x: Tensor, place: str) -> tuple[Tensor, int]:
    return _stored_sum(x.movedim(dims[0], 1), place), 0


class _Stored(torch.autograd.Function):
    """The identity with the identity's derivatives, around the operator that leaves the mark in a trace."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, place: str) -> Tensor:
        return _stored(x, place)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient, None

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor, place: None) -> Tensor:
        return tangent.clone()


def _checked(place: str) -> str:
    if place not in PLACES:
        raise ValueError(f"no precision contract has a format for {place!r}; choose one of: {', '.join(PLACES)}")
    return place


def stored(x: Tensor, place: str = "output") -> Tensor:
    """``x``, marked as stored at ``place`` (a field of Contract that names a format).

    Raises:
        ValueError: ``place`` is not such a field.
    """
    return _Stored.apply(x, _checked(place))


def stored_sum(x: Tensor, place: str = "output") -> Tensor:
    """The sum over the leading axis of ``x``, marked as stored at ``place`` after each term; no derivative of its own.

    Raises:
        ValueError: ``place`` is not a field of Contract that names a format.
    """
    return _stored_sum(x, _checked(place))
