"""Probes: runs of a graph in float64 in which each rounding error is a function of the value that is rounded.

A rounding to p bits is imitated by a rounding to p bits of the value times a factor, sampled once per probe and place.
The factor stands for what a budget cannot know (a kernel may hold P or P times l, S or S log2 e), and the known
behaviour of rounding is kept: equal values err alike, values closer than the spacing err alike, and an odd function has
odd errors. A quantity that is broadcast keeps one error.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import torch
from torch import Tensor

from gradoracle.model.machine_code import HAS_NUMBA, jitted
from gradoracle.oracle.rounding.quantity import all_finite

_MASK = (1 << 64) - 1
LOG2_E = 0x1062E  # the place of a constant that exp is computed with: one rounding wherever exp is
LN_2 = 0x11712  # likewise of log
_CUT = 0xC077  # the place of how much of its sums a kernel truncates
# The mean square of a rounding error in units of u |x| is 3 / (8 ln 2) / 3 for significands that are uniform in their
# logarithm (docs/background/budgets.md): this factor brings it to the 1/3 of a uniform error of half-width u |x|.
EVEN_SPREAD = math.sqrt(8 * math.log(2) / 3)
LITERAL = 0  # the probe that rounds each value as it is; to few bits, times a number for which errors lean one way
SPLIT = 1  # with a format of few bits, the probe in which each group of values straddles two neighbours of the format
_IN_CACHE = 1 << 15  # float64 numbers; several arrays of this size fit into a core's second-level cache


def mixed(*keys: int) -> int:
    """A 64-bit hash of some integers (the finaliser of splitmix64 after each)."""
    state = 0
    for key in keys:
        state = (state + (key & _MASK) + 0x9E3779B97F4A7C15) & _MASK
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & _MASK
        state ^= state >> 31
    return state


class Dice:
    """The random numbers of probes: [R] for each place, a function of (seed, probe, place), the same on any machine.

    Args:
        seed: the seed of all numbers.
        probes: the numbers of the probes.
        splits: whether the probe of number SPLIT is the splitting one, and not a random one.
    """

    def __init__(self, seed: int, probes: range, splits: bool = False) -> None:
        self.seed, self.probes, self.splits = seed, probes, splits

    def factors(self, place: int) -> Tensor:
        """[R] factors in (1/2, 1], log-uniform; 1 in the probe LITERAL."""
        return _factors(self.seed, place, self.probes)

    def position(self, probe: int) -> int | None:
        """The position of LITERAL or SPLIT among the probes; None if it is not one of them."""
        return self.probes.index(probe) if probe in self.probes and (self.splits or probe != SPLIT) else None

    def constant(self, place: int) -> Tensor:
        """[R] errors in (-1, 1), for a constant that is rounded once and used everywhere."""
        return _constants(self.seed, place, self.probes)

    def cut(self, rank: int) -> Tensor:
        """[R, 1, ..] shares in (0, 1) of what a kernel may truncate, one for all its sums; LITERAL has all of it.

        A contract does not say how often a kernel starts a new accumulator, which truncates less.
        """
        return _cuts(self.seed, self.probes).view(-1, *[1] * rank)


def _uniform(seed: int, place: int, probes: range) -> Tensor:
    numbers = [mixed(seed, place, probe) >> 11 for probe in probes]
    return torch.tensor(numbers, dtype=torch.float64) * 2.0**-53


@functools.lru_cache(maxsize=4096)  # graphs of one family have the same places, whatever their shapes
def _factors(seed: int, place: int, probes: range) -> Tensor:
    return _but_literal(torch.exp2(-_uniform(seed, place, probes)), probes)


@functools.lru_cache(maxsize=4096)
def _constants(seed: int, place: int, probes: range) -> Tensor:
    return 2 * _uniform(seed, place, probes) - 1


@functools.lru_cache(maxsize=64)
def _cuts(seed: int, probes: range) -> Tensor:
    return _but_literal(_uniform(seed, _CUT, probes), probes)


def _but_literal(sampled: Tensor, probes: range) -> Tensor:
    """The numbers of the probes, 1 in LITERAL."""
    return torch.where(torch.tensor([probe == LITERAL for probe in probes]), 1.0, sampled)


def rounding_errors(
    key: Tensor, bits: int, factors: Tensor, width: Tensor, onto: Tensor | None = None, each: bool = False
) -> Tensor:
    """[R, *shape] errors of rounding ``key`` times a factor to ``bits`` bits, scaled so that 2^-bits is ``width``.

    All elements with a ``key`` that is 0 or not finite have the same error, that of a key of 1.

    Args:
        key: [*shape], or [R, *shape] with ``each``.
        bits: of the format.
        factors: [R].
        width: [*shape], or what broadcasts to it.
        onto: a tensor that the errors are added to, [*shape] or [R, *shape].
        each: whether each probe has its own key.
    """
    if int(key.count_nonzero()) < key.numel() or not all_finite(key):
        key = torch.where((key == 0) | ~key.isfinite(), 1.0, key)
    shape, runs = key.shape[1:] if each else key.shape, len(factors)
    splitter = 2.0 ** (53 - bits) + 1  # Veltkamp's split: the upper ``bits`` bits, to nearest
    units = (width * 2.0**bits).expand(shape).reshape(-1)
    keys = _rows(key, shape, runs)
    rows = factors.view(-1, 1)
    onto = None if onto is None else _rows(onto, shape, runs)
    errors = torch.empty((runs, units.numel()), dtype=key.dtype)
    if (loop := compiled()) is not None:
        given = (keys, factors, units, keys[:0] if onto is None else onto)
        numbers, times, widths, added = (tensor.contiguous().numpy() for tensor in given)
        loop(numbers, times, widths, splitter, added, errors.numpy())
        return errors.view(runs, *shape)
    step = max(_IN_CACHE // runs, 1)
    for at in range(0, units.numel(), step):  # in blocks that fit the cache: twice as fast as all at once
        some = slice(at, at + step)
        scaled, block = keys[:, some] * rows, errors[:, some]
        torch.mul(scaled, splitter, out=block)
        block.sub_(block - scaled).sub_(scaled).div_(scaled).mul_(units[some])
        if onto is not None:
            block.add_(onto[:, some])
    return errors.view(runs, *shape)


@functools.cache
def compiled() -> Any:
    """The loop of ``rounding_errors`` in one pass over memory, by numba; None if it is not installed (extra ``fast``).

    The same operations in the same order as those of torch: the same bits, in a quarter of the time.
    """
    return jitted(_loop) if HAS_NUMBA else None


def _loop(keys, factors, units, splitter, onto, out):  # type: ignore[no-untyped-def]
    """One row of ``out`` for each factor, of ``keys`` and ``onto``, which have one row for all or one each."""
    for run in range(out.shape[0]):
        key = run if keys.shape[0] > 1 else 0
        row = run if onto.shape[0] > 1 else 0
        for i in range(keys.shape[1]):
            scaled = keys[key, i] * factors[run]
            split = scaled * splitter
            error = ((split - (split - scaled)) - scaled) / scaled * units[i]
            out[run, i] = error + onto[row, i] if onto.shape[0] else error


def _rows(x: Tensor, shape: torch.Size, runs: int) -> Tensor:
    """[1, n] if all probes share x, else [R, n]."""
    own = x.dim() > len(shape)
    return x.expand([runs, *shape] if own else shape).reshape(runs if own else 1, -1)
