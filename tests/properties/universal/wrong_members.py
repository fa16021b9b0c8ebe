"""Kernels that are wrong with one member of a batch, or where a tensor lies far: of ``pick`` and of LSE."""

from __future__ import annotations

from dataclasses import replace

import torch
from gradoracle.properties.universal.offsets import FAR

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
