"""Annotations in a program of tensors that mark where an algorithm loses accuracy, for budgets only.

``stored(x, "output")`` is ``x`` plus the rounding error of storing it. That error is 0 in every exact reading and what
the contract says in the rounding reading. It survives ``make_fx``, ``torch.func`` and autograd; its derivative is that
of x.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

PLACES = ("operand", "accumulate", "elementwise", "output", "residuals")
FAST_EXP = "fast_exp"


@torch.library.custom_op("gradoracle::storing_error", mutates_args=())
def _storing_error(x: Tensor, place: str) -> Tensor:
    return torch.zeros_like(x)


@torch.library.custom_op("gradoracle::storing_errors", mutates_args=())
def _storing_errors(x: Tensor, place: str) -> Tensor:
    return x.new_zeros(x.shape[1:])


@torch.library.custom_op("gradoracle::running_errors", mutates_args=())
def _running_errors(x: Tensor, dim: int, terms: int) -> Tensor:
    return torch.zeros_like(x)


@torch.library.custom_op("gradoracle::accumulating_errors", mutates_args=())
def _accumulating_errors(x: Tensor, terms: list[int]) -> Tensor:
    return x.new_zeros(x.shape[1:])


_storing_error.register_fake(lambda x, place: torch.zeros_like(x))
_running_errors.register_fake(lambda x, dim, terms: torch.zeros_like(x))
_storing_errors.register_fake(lambda x, place: x.new_zeros(x.shape[1:]))
_accumulating_errors.register_fake(lambda x, terms: x.new_zeros(x.shape[1:]))


def stored(x: Tensor, place: str = "output") -> Tensor:
    """``x``, stored at ``place``: a field of Contract that names a format.

    Raises:
        ValueError: ``place`` is not such a field.
    """
    return x + _storing_error(x.detach(), _checked(place))


def fast_exp(x: Tensor) -> Tensor:
    """``x``, the result of an exponential that trades accuracy for speed (``Contract.fast_exp``)."""
    return x + _storing_error(x.detach(), FAST_EXP)


def stored_sum(x: Tensor, place: str = "output") -> Tensor:
    """The sum over the leading axis of ``x``, stored at ``place`` after each term.

    Raises:
        ValueError: ``place`` is not a field of Contract that names a format.
    """
    return x.sum(0) + _storing_errors(x.detach(), _checked(place))


def running_sums(x: Tensor, dim: int, terms: int) -> Tensor:
    """``x.cumsum(dim)``, where each entry but the first stands for ``terms`` numbers that are added one by one."""
    return x.cumsum(dim) + _running_errors(x.detach(), dim, terms)


def accumulated(parts: Sequence[Tensor], terms: Sequence[int]) -> Tensor:
    """The sum of ``parts`` in one accumulator: the ``terms`` of each are added one by one to those before it.

    A kernel may start from either end. The error that each part has in an accumulator of its own comes with the part.
    """
    x = torch.stack(list(parts))
    return x.sum(0) + _accumulating_errors(x.detach(), list(terms))


def _checked(place: str) -> str:
    if place not in PLACES:
        raise ValueError(f"no precision contract has a format for {place!r}; choose one of: {', '.join(PLACES)}")
    return place
