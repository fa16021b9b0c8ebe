"""Kernels that are wrong with one member of a batch, or where a tensor lies far: of ``pick`` and of LSE."""

from __future__ import annotations

from dataclasses import replace

import torch
from gradoracle.properties.universal.offsets import FAR
from jaxtyping import Float
from torch import Tensor

import gradoracle
from gradoracle.model.kernel import Kernel
from tests.properties.faults import edited
from tests.properties.lse import logsumexp
from tests.properties.toys import right

SIZES = "case:1 lse cpu float32 B=2 H=4 G=2 T=9 M=13 D=8"
SHARED = f"{SIZES} seed=11"
SINKS = f"{SIZES} sinks~normal seed=12"
SEGMENTS = "case:1 lse cpu float32 B=2 H=4 G=2 T=9 M=2 D=8 q_segments~index kv_segments~index seed=15"
BLIND = "case:1 lse cpu float32 B=2 H=2 G=2 T=17 M=5 D=8 --causal=true seed=17"
CORRECT_LSE = logsumexp.kernel()


def first_member_apart(x, y):
    p, s = right(x, y)
    return torch.cat([p[:1] * 1.001, p[1:]]), s


def leaking(x, y):
    p, s = right(x, y)
    return p + 0 * x.sum(), s


def odd_tail(x, y):
    p, s = right(x, y)
    rows = len(p) // 2 * 2
    return torch.cat([p[:rows], p[rows:] * 1.001]), s


def changed(change):
    """The correct kernel of LSE with its output changed by a function of (lse, q, the named inputs)."""
    own = logsumexp.LogSumExp()
    return replace(CORRECT_LSE, name="wrong", call=lambda q, k, **named: change(own(q, k, **named), q, named))


def last_member_apart(lse, q, named):
    return torch.cat([lse[:-1], lse[-1:] + 0.01])


def last_head_apart(lse, q, named):
    return torch.cat([lse[:, :-1], lse[:, -1:] + 0.01], 1)


def large_number_in_the_last_member(lse, q, named):
    last = torch.arange(len(lse))[:, None, None] == len(lse) - 1
    return torch.where(lse.isinf() & last, -1e30, lse)


def leaking_lse(lse, q, named):
    return lse + 0 * q.sum()


def wraps(tensor):
    return any(stride * (size - 1) >= FAR for size, stride in zip(tensor.shape, tensor.stride(), strict=True))


def wrapping(x, y):
    return right(*(t[:1].expand_as(t) if wraps(t) else t for t in (x, y)))


def cotangent_wrapping(x, y):
    p, s = right(x, y)
    return edited(p, lambda g: g[:1].expand_as(g) if wraps(g) else g), s


@gradoracle.family
def sparse(x: Float[Tensor, "B H N"]) -> Float[Tensor, "B H N"]:
    """Sparsemax: small members have no weight, and leave the others as they are."""
    ranked, rank = x.sort(-1, descending=True).values, torch.arange(1, x.shape[-1] + 1)
    kept = rank * ranked > ranked.cumsum(-1) - 1
    return torch.relu(x - ((ranked * kept).sum(-1, keepdim=True) - 1) / kept.sum(-1, keepdim=True))


class Bisected(torch.autograd.Function):
    """Sparsemax by bisection; ``squeezed`` loses H = 1 with the dim summed over, so that counts of members mix."""

    @staticmethod
    def forward(ctx, x, squeezed):
        high = x.amax(-1, keepdim=True)
        low = high - 1
        for _ in range(60):
            middle = (low + high) / 2
            more = torch.relu(x - middle).sum(-1, keepdim=True) >= 1
            low, high = torch.where(more, middle, low), torch.where(more, high, middle)
        p = torch.relu(x - low)
        ctx.squeezed = squeezed
        ctx.save_for_backward(p)
        return p / p.sum(-1, keepdim=True)

    @staticmethod
    def backward(ctx, g):
        kept = ctx.saved_tensors[0] > 0
        count = kept.sum(-1)
        mean = (g * kept).sum(-1) / (count.squeeze(-1) if ctx.squeezed else count)
        return torch.where(kept, g - mean[..., None], 0.0), None


def sorted_sparse(x):
    """The definition, which raises where a NaN leaves no member that counts."""
    ranked, rank = x.sort(-1, descending=True).values, torch.arange(1, x.shape[-1] + 1)
    kept = (rank * ranked > ranked.cumsum(-1) - 1).sum(-1, keepdim=True)
    tau = (ranked.cumsum(-1).gather(-1, kept - 1) - 1) / kept
    return torch.relu(x - tau)


SPARSE_CASES = ["case:1 sparse cpu float32 B=5 H=1 N=9 seed=13"]
WRONG_SPARSE = Kernel("counts of members mix", "sparse", lambda x: Bisected.apply(x, True))
CORRECT_SPARSE = [Kernel("bisected", "sparse", lambda x: Bisected.apply(x, False))]
SORTED_SPARSE = Kernel("sorted", "sparse", sorted_sparse)
