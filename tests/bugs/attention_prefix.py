"""Attention that masks the first keys of each member (left padding), online and in splits: correct, and released bugs.

A block of keys may be masked as a whole, so that running statistics are -inf for a while. Arithmetic is in float32.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

import gradoracle
from gradoracle.mutation.bugs import Bugs

BLOCK, SPLIT = 8, 16  # keys of a step of the running softmax, and of a split


@gradoracle.family(
    dims={"B": gradoracle.sizes(1, 4)}
    | {name: gradoracle.sizes(1, 70) for name in ("T", "M")}
    | {name: gradoracle.sizes(1, 32) for name in ("D", "Dv")},
    domains={"starts": gradoracle.IndexDomain("M")},
)
def left_padded(
    q: Float[Tensor, "B T D"], k: Float[Tensor, "B M D"], v: Float[Tensor, "B M Dv"], starts: Int[Tensor, "B"]
) -> Float[Tensor, "B T Dv"]:
    """softmax(q k^T / sqrt(D)) v over the keys from starts[b] on."""
    s = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
    seen = torch.arange(k.shape[1])[None, None, :] >= starts[:, None, None]
    return torch.softmax(torch.where(seen, s, -torch.inf), -1) @ v


class Attention:
    """The correct kernel, piece by piece; each bug overrides one piece."""

    def masked(self, s: Tensor, seen: Tensor) -> Tensor:
        return torch.where(seen, s, -torch.inf)

    def shrink(self, old: Tensor, new: Tensor) -> Tensor:
        """By what earlier sums are multiplied when the largest score grows from old to new."""
        return torch.where(old == -torch.inf, 0.0, torch.exp(old - new))

    def weights(self, s: Tensor, new: Tensor) -> Tensor:
        """exp(s - the largest score so far)."""
        return torch.where(new == -torch.inf, 0.0, torch.exp(s - new))

    def split(self, s: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(m, l, unnormalised o) of the keys of one split, block after block."""
        m = torch.full((*s.shape[:-1], 1), -torch.inf)
        l, o = torch.zeros_like(m), torch.zeros((*s.shape[:-1], v.shape[-1]))
        for block, values in zip(s.split(BLOCK, -1), v.split(BLOCK, -2), strict=True):
            new = torch.maximum(m, block.amax(-1, keepdim=True))
            p, shrink = self.weights(block, new), self.shrink(m, new)
            m, l, o = new, l * shrink + p.sum(-1, keepdim=True), o * shrink + p @ values
        return m, l, o

    def forward(self, s: Tensor, seen: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(o, m, l) of all splits together; every row sees a key."""
        s = self.masked(s, seen)
        parts = [self.split(*part) for part in zip(s.split(SPLIT, -1), v.split(SPLIT, -2), strict=True)]
        m = torch.stack([part[0] for part in parts]).amax(0)
        factors = [torch.exp(part[0] - m) for part in parts]
        l = sum(part[1] * factor for part, factor in zip(parts, factors, strict=True))
        return sum(part[2] * factor for part, factor in zip(parts, factors, strict=True)) / l, m, l


class _LeftPadded(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, own: Attention, q: Tensor, k: Tensor, v: Tensor, starts: Tensor) -> Tensor:
        ctx.factor = q.shape[-1] ** -0.5
        seen = torch.arange(k.shape[1])[None, None, :] >= starts[:, None, None]  # [B 1 M]
        o, m, l = own.forward(q.float() @ k.float().mT * ctx.factor, seen, v.float())
        ctx.save_for_backward(q, k, v, seen, o, m, l)
        return o.to(q.dtype)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Any, ...]:
        q, k, v, seen, o, m, l = ctx.saved_tensors
        s = q.float() @ k.float().mT * ctx.factor
        p = torch.where(seen, torch.exp(s - m) / l, 0.0)
        wide = g.float()
        ds = p * (wide @ v.float().mT - (wide * o).sum(-1, keepdim=True)) * ctx.factor
        return None, (ds @ k.float()).to(q.dtype), (ds.mT @ q.float()).to(k.dtype), (p.mT @ wide).to(v.dtype), None


def right(q, k, v, starts):
    """The correct kernel."""
    return _LeftPadded.apply(Attention(), q, k, v, starts)


BUGS = Bugs(right)


class _ShrinkOfNothing(Attention):
    def shrink(self, old: Tensor, new: Tensor) -> Tensor:
        return torch.exp(old - new)


@BUGS.of("facebookresearch/xformers@540fcbfd", "finite_where_the_truth_is_finite", "range")
def prefix_longer_than_a_block(q, k, v, starts):
    """facebookresearch/xformers@540fcbfd: NaN where a bias of -inf masks more first keys than a block has.

    Both the old and the new maximum are -inf then, and their difference is NaN.
    """
    return _LeftPadded.apply(_ShrinkOfNothing(), q, k, v, starts)


class _WeightsOfNothing(Attention):
    def weights(self, s: Tensor, new: Tensor) -> Tensor:
        return torch.exp(s - new)


@BUGS.of("facebookresearch/xformers@fairinternal-1185", "finite_where_the_truth_is_finite", "range")
def split_masked_as_a_whole(q, k, v, starts):
    """facebookresearch/xformers, fairinternal 1185: split-K gave NaN where a bias masked a whole block of keys.

    The block's weights were the exponential of -inf less its own maximum, which is -inf too.
    """
    return _LeftPadded.apply(_WeightsOfNothing(), q, k, v, starts)


class _FiniteMask(Attention):
    """Right as well: finfo.min for -inf, so that no statistic is -inf and nothing needs to be looked at."""

    def masked(self, s: Tensor, seen: Tensor) -> Tensor:
        return s + torch.where(seen, 0.0, torch.finfo(s.dtype).min)

    def shrink(self, old: Tensor, new: Tensor) -> Tensor:
        return torch.exp(old - new)

    def weights(self, s: Tensor, new: Tensor) -> Tensor:
        return torch.exp(s - new)


class _FiniteMaskAddedTwice(_FiniteMask):
    def masked(self, s: Tensor, seen: Tensor) -> Tensor:
        return super().masked(super().masked(s, seen), seen)


def finite_mask(q, k, v, starts):
    """The correct kernel with a mask of finfo.min."""
    return _LeftPadded.apply(_FiniteMask(), q, k, v, starts)


@BUGS.of("pytorch/pytorch#109517", "finite_where_the_truth_is_finite", "range", right=finite_mask)
def finite_mask_added_twice(q, k, v, starts):
    """pytorch/pytorch#109517: NaN where a mask of finfo.min covers the first 128 keys.

    The report names no cause; by the corpus's the mask is added twice, so that what was finite is -inf.
    """
    return _LeftPadded.apply(_FiniteMaskAddedTwice(), q, k, v, starts)
