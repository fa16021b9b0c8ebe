"""Adverse roundings: errors to few bits that only some numbers give, and that are large; drawn probes miss them.

A correct kernel may multiply by any number before it rounds. Of two things a few numbers in a hundred make far more
than the others do, so that sixteen that are drawn show too little of it:

- values nearer to one another than the spacing straddle the middle of two neighbours of the format: their errors are
  then as large as can be, and signed by the very differences that the next sum multiplies them with (``splitting``);
- values of few significands are nearly all halfway between neighbours, and err one way throughout (``leaning``).

Two probes take these numbers: SPLIT and, where errors lean by more than chance, LITERAL.
"""

from __future__ import annotations

import functools
import math

import torch
from torch import Tensor

from gradoracle.oracle.rounding.probes import EVEN_SPREAD, LITERAL, SPLIT, Dice, rounding_errors
from gradoracle.oracle.rounding.subnormals import LEAST_SQUARE

_LEANING = 5.0  # standard deviations of a sum of free errors, beyond which errors lean
_LOOKED_AT = 2048  # values at most of which it is asked whether they lean
_NUMBERS = torch.exp2(-torch.arange(128, dtype=torch.float64) / 128)


def redraw(
    noise: Tensor,
    dice: Dice,
    key: Tensor,
    bits: int,
    width: Tensor,
    onto: Tensor | None,
    along: int,
    part: tuple[Tensor, Tensor] | None,
) -> None:
    """Replace what the adverse probes among ``noise`` hold.

    Args:
        noise: [R, *shape], from ``probes.rounding_errors``.
        dice: what was drawn.
        key: [*shape] or [R, *shape], what is rounded.
        bits: of the format.
        width: [*shape], an error of 2^-bits.
        onto: [*shape] or [R, *shape], what errors were added to.
        along: the dim along which values are one group.
        part: the variances of this rounding and of all so far, [*shape] each; None: nothing is asked about leaning.
    """
    if width.dim() == 0:
        return

    def of(x: Tensor, probe: int) -> Tensor:
        return x if x.dim() == width.dim() else x[probe]

    def again(probe: int, factors: Tensor) -> None:
        added = None if onto is None else of(onto, probe)
        once = torch.ones(1, dtype=torch.float64)
        noise[probe] = rounding_errors(of(key, probe) * factors, bits, once, width, added)[0]

    literal, split = dice.position(LITERAL), dice.position(SPLIT)
    if split is not None and width.shape[along] > 1:
        again(split, splitting(of(key, split), bits, along))
    if literal is not None and part is not None:
        factor = leaning(of(key, literal), bits, part[0] / part[1].clamp_min(LEAST_SQUARE))
        if factor is not None:
            again(literal, factor)


def splitting(key: Tensor, bits: int, axis: int) -> Tensor:
    """The factors, near 1, that bring the median size of each group of values to the middle of its two neighbours.

    One and the same significand for the medians of all groups would have errors lean by how values are spread.

    Args:
        key: [*shape]; what is 0 or not finite belongs to no group.
        bits: of the format.
        axis: the dim along which values are one group.

    Returns:
        What broadcasts to [*shape].
    """
    sizes = torch.where((key == 0) | ~key.isfinite(), torch.nan, key.abs())
    median = torch.nan_to_num(sizes.nanmedian(axis, keepdim=True).values, nan=1.0)
    fraction, exponent = torch.frexp(median)
    middle = torch.floor(fraction * 2.0**bits) + 0.5
    return torch.ldexp(middle * 2.0**-bits, exponent) / median


def leaning(key: Tensor, bits: int, weights: Tensor) -> Tensor | None:
    """The factor in (1/2, 1] with which the errors of rounding ``key`` lean one way most; None: as chance has it.

    Values of few significands times one number do so for some numbers: nearly 3/2 makes half of them nearly ties.

    Args:
        key: [*shape].
        bits: of the format.
        weights: [*shape], of the relative error of each.
    """
    key, weights = key.reshape(-1), weights.reshape(-1)
    if key.numel() > _LOOKED_AT:
        some = _some(key.numel())
        key, weights = key[some], weights[some]
    weights = torch.where((key == 0) | ~key.isfinite(), 0.0, weights)
    chance = (torch.linalg.vector_norm(weights) / EVEN_SPREAD / math.sqrt(3)).item()
    if chance == 0:
        return None
    sums = (rounding_errors(key.abs(), bits, _NUMBERS, torch.ones_like(key)) @ weights).abs()  # in units of u
    best = int(sums.argmax())
    return _NUMBERS[best] if float(sums[best]) > _LEANING * chance else None


@functools.lru_cache(maxsize=64)
def _some(count: int) -> Tensor:
    """Which of ``count`` values are looked at: drawn, so that no stride of a shape can come in step with it."""
    return torch.randint(count, (_LOOKED_AT,), generator=torch.Generator().manual_seed(count))
