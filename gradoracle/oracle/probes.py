"""Probes: runs of a graph in float64 in which every rounding takes a value of its own, a function of what is rounded.

A rounding to p bits is imitated by a rounding to p bits: of the value times a factor that is drawn once for each probe
and each place. The factor stands for what a budget cannot know (a kernel may hold P or P times l, S or S log2 e), and
what a rounding is known to do stays: equal values err alike, values nearer to one another than the spacing err
alike, and an odd function has odd errors. A quantity that is broadcast keeps one error.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from gradoracle.oracle.quantity import Quantity, all_finite, any_error, is_quantity, values

_MASK = (1 << 64) - 1
# The mean square of a rounding error in units of u |x| is 3 / (8 ln 2) / 3 for significands that are uniform in their
# logarithm (docs/budgets.md): this factor brings it to the 1/3 of a uniform error of half-width u |x|.
LOG2_E = 0x1062E  # the place of a constant that exp is computed with: one rounding wherever exp is
EVEN_SPREAD = math.sqrt(8 * math.log(2) / 3)


def mixed(*keys: int) -> int:
    """64 well mixed bits of some integers (the finaliser of splitmix64 after each)."""
    state = 0
    for key in keys:
        state = (state + (key & _MASK) + 0x9E3779B97F4A7C15) & _MASK
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & _MASK
        state ^= state >> 31
    return state


class Dice:
    """What is drawn for each probe: [R] numbers, a function of (seed, probe, place) alone, the same on any machine."""

    def __init__(self, seed: int, probes: range) -> None:
        self.seed, self.probes = seed, probes

    def factors(self, place: int) -> Tensor:
        """[R] factors in (1/2, 1], uniform in their logarithm."""
        return torch.exp2(-self._uniform(place))

    def constant(self, place: int) -> Tensor:
        """[R] errors in (-1, 1), for a number that is rounded once and then used everywhere."""
        return 2 * self._uniform(place) - 1

    def _uniform(self, place: int) -> Tensor:
        drawn = [mixed(self.seed, place, probe) >> 11 for probe in self.probes]
        return torch.tensor(drawn, dtype=torch.float64) * 2.0**-53


def rounding_errors(key: Tensor, bits: int, factors: Tensor) -> Tensor:
    """[R, *shape] relative errors, in units of 2^-bits, of rounding ``key`` times a factor to ``bits`` bits.

    Where ``key`` is 0 or not finite the error is that of a value of its own, the same for all such elements.
    """
    if int(key.count_nonzero()) < key.numel() or not all_finite(key):
        key = torch.where((key == 0) | ~key.isfinite(), 1.0, key)
    scaled = key * factors.view(-1, *[1] * key.dim())
    shifted = scaled * (2.0 ** (53 - bits) + 1)  # Veltkamp's split: the upper ``bits`` bits, to nearest
    return (shifted - (shifted - scaled)).sub_(scaled).div_(scaled).mul_(2.0**bits)


def run_lifted(operator: Callable[..., Any], args: Any, kwargs: Any, lifted: Any) -> Any:
    """One operator over all probes at once: where ``lifted`` marks an argument, its leading axis is the probe's.

    Args:
        operator: an ATen operator (or any function of tensors) that returns a tensor or a tuple of tensors.
        args: its positional arguments; tensors of [R, *shape] where marked, else of [*shape].
        kwargs: its keyword arguments; never lifted.
        lifted: booleans, the same tree as ``args``.
    """
    flat, tree = tree_flatten(args)
    marks, _ = tree_flatten(lifted)
    axes = tuple(0 if mark else None for mark in marks)
    moving = [leaf for leaf, mark in zip(flat, marks, strict=True) if mark]

    def once(*leaves: Tensor) -> Any:
        fed = iter(leaves)
        filled = [next(fed) if axis == 0 else leaf for leaf, axis in zip(flat, axes, strict=True)]
        return operator(*tree_unflatten(filled, tree), **kwargs)

    try:
        return torch.vmap(once)(*moving)
    except RuntimeError:  # an operator without a batching rule
        runs = [once(*(leaf[probe] for leaf in moving)) for probe in range(len(moving[0]))]
        if isinstance(runs[0], Tensor):
            return torch.stack(runs)
        return [torch.stack(parts) for parts in zip(*runs, strict=True)]


def probed(operator: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """The operator over the probes of its arguments, [R, *shape]; None where none of them has any."""
    if not any_error((args, kwargs), "probes"):
        return None
    lifted = tree_map(lambda x: isinstance(x, Quantity) and x.probes is not None, args, is_leaf=is_quantity)
    filled = tree_map(
        lambda x: x if not isinstance(x, Quantity) else x.value if x.probes is None else x.probes,
        args,
        is_leaf=is_quantity,
    )
    return run_lifted(operator, filled, values(kwargs), lifted)
