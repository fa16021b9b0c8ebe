"""Cross-entropy of rows of logits, and with a projection before it: the correct kernels, and released bugs.

Arithmetic is in float32, with a backward by hand; gradients are rounded once.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float, Float32, Int
from torch import Tensor

import gradoracle
from gradoracle.mutation.bugs import Bugs

EPSILON = 2.0**-12  # shares below it do not show in a sum of bfloat16
ROWS, CLASSES = 16, 128  # of a tile
RANKS = 2


@gradoracle.family(
    outputs=("loss",),
    dims={"B": gradoracle.sizes(1, 40), "V": gradoracle.sizes(2, 200)},
    domains={"target": gradoracle.IndexDomain("V")},
    joint={"confident": {"logits": "normal:6"}, "common offset": {"logits": "largemean:10000"}},
)
def cross_entropy(logits: Float[Tensor, "B V"], target: Int[Tensor, "B"]) -> Float32[Tensor, "B"]:
    """Minus the log of the target's share, row by row."""
    shares = torch.log_softmax(logits, -1)
    return -torch.where(torch.arange(logits.shape[-1]) == target[:, None], shares, 0.0).sum(-1)


class CrossEntropy:
    """The correct kernel, piece by piece; each bug overrides one piece."""

    def saved(self, logits: Tensor) -> Tensor:
        """What the forward keeps of the logits."""
        return logits

    def loss(self, top: Tensor, total: Tensor, chosen: Tensor) -> Tensor:
        """The loss, from a row's maximum, its sum of exp(x - maximum) and the target's logit, all [B 1]."""
        return torch.log(total) + (top - chosen)

    def shares(self, x: Tensor, top: Tensor, total: Tensor) -> Tensor:
        return torch.exp(x - top) / total

    def gradient(self, shares: Tensor, hit: Tensor, g: Tensor, kept: Tensor) -> Tensor:
        """g (share - 1 at the target), in the dtype of the logits."""
        return (g * (shares - hit.float())).to(kept.dtype)


class _CrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, own: CrossEntropy, logits: Tensor, target: Tensor) -> Tensor:
        x = logits.float()
        top = x.amax(-1, keepdim=True)
        total = torch.exp(x - top).sum(-1, keepdim=True)
        ctx.own = own
        ctx.save_for_backward(own.saved(logits), target, top, total)
        return own.loss(top, total, x.gather(-1, target[:, None]))[:, 0]

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Any, ...]:
        kept, target, top, total = ctx.saved_tensors
        hit = torch.arange(kept.shape[-1]) == target[:, None]
        shares = ctx.own.shares(kept.float(), top, total)
        return None, ctx.own.gradient(shares, hit, g.float()[:, None], kept), None


@gradoracle.kernel(cross_entropy)
def right(logits, target):
    """The correct kernel."""
    return _CrossEntropy.apply(CrossEntropy(), logits, target)


BUGS = Bugs(right)


class _RoundedBeforeTheTarget(CrossEntropy):
    def gradient(self, shares: Tensor, hit: Tensor, g: Tensor, kept: Tensor) -> Tensor:
        buffer = (g * shares).to(kept.dtype)
        return torch.where(hit, buffer - g.to(kept.dtype), buffer)


@BUGS.of("linkedin/Liger-Kernel#1329", "vjp_matches_the_oracle", "dtype")
@gradoracle.kernel(cross_entropy)
def share_rounded_before_the_target_is_subtracted(logits, target):
    """linkedin/Liger-Kernel#1329: the target's share was rounded to bfloat16 in a buffer, and 1 subtracted there.

    Where that share is close to 1 the difference has no right digit left.
    """
    return _CrossEntropy.apply(_RoundedBeforeTheTarget(), logits, target)


class _LossOfTheLogSum(CrossEntropy):
    def loss(self, top: Tensor, total: Tensor, chosen: Tensor) -> Tensor:
        return (torch.log(total) + top) - chosen

    def shares(self, x: Tensor, top: Tensor, total: Tensor) -> Tensor:
        return torch.exp(x - (torch.log(total) + top))


@BUGS.of("pytorch/pytorch#195829", "forward_matches_the_oracle", "range")
@gradoracle.kernel(cross_entropy)
def loss_of_the_unshifted_sum(logits, target):
    """pytorch/pytorch#195829, in review: the loss was put together from the log-sum-exp of logits that are not shifted.

    Where all logits have a large part in common, their log-sum-exp has few digits left for what the loss is.
    """
    return _CrossEntropy.apply(_LossOfTheLogSum(), logits, target)


class _Overwriting(CrossEntropy):
    def gradient(self, shares: Tensor, hit: Tensor, g: Tensor, kept: Tensor) -> Tensor:
        return kept.copy_(super().gradient(shares, hit, g, kept))


class _OverwritingACopy(_Overwriting):
    def saved(self, logits: Tensor) -> Tensor:
        return logits.clone()


@BUGS.of("unslothai/unsloth#5002", "backward_twice_with_retain_graph_gives_the_same", "stale")
@gradoracle.kernel(cross_entropy)
def gradient_written_over_the_saved_logits(logits, target):
    """unslothai/unsloth#5002: the backward wrote the gradient into the logits that the forward had saved.

    A second backward over the graph, of another head or with ``retain_graph``, took the gradient for the logits.
    """
    return _CrossEntropy.apply(_OverwritingACopy(), logits, target)


@BUGS.of("modelscope/ms-swift#10130", "inputs_and_cotangents_are_unmodified", "access")
@gradoracle.kernel(cross_entropy)
def gradient_written_over_the_logits(logits, target):
    """modelscope/ms-swift#10130: what was saved, and overwritten by the gradient, were the caller's own logits."""
    return _CrossEntropy.apply(_Overwriting(), logits, target)


class _SavedGradient(CrossEntropy):
    def gradient(self, shares: Tensor, hit: Tensor, g: Tensor, kept: Tensor) -> Tensor:
        return super().gradient(shares, hit, torch.ones_like(g), kept)


@BUGS.of("fla-org/flash-linear-attention#963", "vjp_is_linear_in_the_cotangent", "term")
@gradoracle.kernel(cross_entropy)
def gradient_without_the_cotangent(logits, target):
    """fla-org/flash-linear-attention#963: the gradient was returned as it was for a cotangent of 1."""
    return _CrossEntropy.apply(_SavedGradient(), logits, target)


@gradoracle.family(
    outputs=("loss",),
    dims={"B": gradoracle.sizes(1, 40), "V": gradoracle.sizes(2, 5000), "D": gradoracle.sizes(1, 16)},
    domains={"target": gradoracle.IndexDomain("V")},
    joint={"flat": {"e": "normal:0.01"}},
)
def projected(e: Float[Tensor, "B D"], c: Float[Tensor, "V D"], target: Int[Tensor, "B"]) -> Float32[Tensor, "B"]:
    """Cross-entropy of the logits e c^T."""
    shares = torch.log_softmax(e @ c.transpose(0, 1), -1)
    return -torch.where(torch.arange(c.shape[0]) == target[:, None], shares, 0.0).sum(-1)


class Projected:
    """The correct gradients of the logits, tile by tile; each bug overrides one piece."""

    def kept(self, ds: Tensor, shares: Tensor) -> Tensor:
        """A tile of the gradient of the logits."""
        return ds

    def reduced(self, parts: list[Tensor]) -> Tensor:
        """The gradient of e out of those of each rank's classes."""
        return torch.stack(parts).sum(0)


class _Projected(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, own: Projected, e: Tensor, c: Tensor, target: Tensor) -> Tensor:
        logits = e.float() @ c.float().mT
        lse = torch.logsumexp(logits, -1, keepdim=True)
        ctx.own = own
        ctx.save_for_backward(e, c, target, lse)
        return (lse - logits.gather(-1, target[:, None]))[:, 0]

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Any, ...]:
        e, c, target, lse = ctx.saved_tensors
        shares = torch.exp(e.float() @ c.float().mT - lse)
        ds = g.float()[:, None] * (shares - (torch.arange(c.shape[0]) == target[:, None]).float())
        for start in range(0, e.shape[0], ROWS):
            for first in range(0, c.shape[0], CLASSES):
                tile = slice(start, start + ROWS), slice(first, first + CLASSES)
                ds[tile] = ctx.own.kept(ds[tile], ds[tile].abs())
        each = -(-c.shape[0] // RANKS)
        parts = [part @ own for part, own in zip(ds.split(each, -1), c.float().split(each), strict=True)]
        return None, ctx.own.reduced(parts).to(e.dtype), (ds.mT @ e.float()).to(c.dtype), None


@gradoracle.kernel(projected)
def all_classes(e, c, target):
    """The correct kernel of ``projected``."""
    return _Projected.apply(Projected(), e, c, target)


class _Filtered(Projected):
    def kept(self, ds: Tensor, shares: Tensor) -> Tensor:
        return torch.zeros_like(ds) if bool((shares < EPSILON).all()) else ds


@BUGS.of(
    "apple/ml-cross-entropy@filter_eps", "vjp_matches_the_oracle", "term", right=all_classes, V="4500:5000", D="1:8"
)
@gradoracle.kernel(projected)
def small_shares_dropped(e, c, target):
    """apple/ml-cross-entropy, filter_eps: tiles of the gradient of the logits are skipped where no share is large.

    By design; but where the distribution is flat nearly all of the mass lies in such tiles.
    """
    return _Projected.apply(_Filtered(), e, c, target)


class _OwnRankAlone(Projected):
    def reduced(self, parts: list[Tensor]) -> Tensor:
        return parts[0]


@BUGS.of("apple/ml-cross-entropy#42", "vjp_matches_the_oracle", "sum", right=all_classes, V="2:64")
@gradoracle.kernel(projected)
def gradient_of_one_rank(e, c, target):
    """apple/ml-cross-entropy#42: with classes spread over ranks, the gradient of e was not summed over the ranks."""
    return _Projected.apply(_OwnRankAlone(), e, c, target)
