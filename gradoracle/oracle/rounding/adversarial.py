"""Adverse roundings: rare worst-case errors of formats of few bits, which random probes miss.

A correct kernel may multiply by any number before it rounds. A few numbers in a hundred cause far larger errors than
the others, and sixteen probes show too little of them. There are two ways:

- values closer than the spacing straddle the middle between two neighbours of the format: their errors are then as
  large as possible, with the sign of the very differences that the next sum multiplies them with (``splitting``);
- values of few significands are nearly all halfway between neighbours, and err in one direction (``leaning``).

Two probes use these numbers: SPLIT and, if errors lean by more than chance, LITERAL.
"""

from __future__ import annotations

import functools
import math

import torch
from torch import Tensor

from gradoracle.oracle.rounding.probes import EVEN_SPREAD, LITERAL, SPLIT, Dice, rounding_errors
from gradoracle.oracle.rounding.quantity import LEAST_SQUARE

_LEANING = 5.0  # standard deviations of a sum of free errors, beyond which errors lean
_LOOKED_AT = 2048  # values that are sampled, at most, to see whether they lean
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
    """Replace the errors of the adverse probes in ``noise``.

    Args:
        noise: [R, *shape], from ``probes.rounding_errors``.
        dice: the random numbers of the probes.
        key: [*shape] or [R, *shape], the values that are rounded.
        bits: of the format.
        width: [*shape], an error of 2^-bits.
        onto: [*shape] or [R, *shape], the tensor that errors were added to.
        along: the dim along which values are one group.
        part: the variances of this rounding and of all so far, [*shape] each; None: leaning is not looked for.
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

    With one significand for the medians of all groups, errors would depend on how the values are spread.

    Args:
        key: [*shape]; values that are 0 or not finite belong to no group.
        bits: of the format.
        axis: the dim along which values are one group.

    Returns:
        A tensor that broadcasts to [*shape].
    """
    sizes = torch.where((key == 0) | ~key.isfinite(), torch.nan, key.abs())
    median = torch.nan_to_num(sizes.nanmedian(axis, keepdim=True).values, nan=1.0)
    fraction, exponent = torch.frexp(median)
    middle = torch.floor(fraction * 2.0**bits) + 0.5
    return torch.ldexp(middle * 2.0**-bits, exponent) / median


def leaning(key: Tensor, bits: int, weights: Tensor) -> Tensor | None:
    """The factor in (1/2, 1] for which the errors of rounding ``key`` lean one way most; None if by chance alone.

    Values of few significands lean for some factors: one near 3/2 makes half of them nearly ties.

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
    """The sample of ``count`` values: random, so that it is not in step with any stride of a shape."""
    return torch.randint(count, (_LOOKED_AT,), generator=torch.Generator().manual_seed(count))
