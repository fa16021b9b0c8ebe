"""Attention with a backward written out, correct and with one fault each: what test_diagnosis.py checks."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor

import gradoracle


@gradoracle.family(
    outputs=("o",),
    dims={
        "B": gradoracle.sizes(1, 2),
        "H": gradoracle.sizes(1, 4),
        "G": gradoracle.sizes(1, 4),
        "T": gradoracle.sizes(1, 40),
        "M": gradoracle.sizes(1, 40),
        "D": gradoracle.sizes(2, 8),
    },
    divides={"G": "H"},
    dtypes=("float32",),
    joint={"large logits": {"q": "normal:100", "k": "normal:100"}},
)
def attend(
    q: Float[Tensor, "B H T D"], k: Float[Tensor, "B G M D"], v: Float[Tensor, "B G M D"]
) -> Float[Tensor, "B H T D"]:
    """softmax(q k^T / sqrt(D)) v without future keys, H / G heads of queries to each head of keys."""
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    s = q @ k.mT / math.sqrt(q.shape[-1])
    return torch.softmax(torch.where(_is_past(s), s, -math.inf), -1) @ v


def _is_past(s: Tensor) -> Tensor:
    """Which keys a query sees: those before it, and the first two."""
    return torch.arange(s.shape[-2])[:, None] + 1 >= torch.arange(s.shape[-1])


class Right:
    """Forward and backward in pieces, each of which a fault replaces."""

    def scores(self, q: Tensor, k: Tensor) -> Tensor:
        s = q @ k.mT / math.sqrt(q.shape[-1])
        return torch.where(self.seen(s), s, -math.inf)

    def seen(self, s: Tensor) -> Tensor:
        return _is_past(s)

    def weights(self, s: Tensor) -> Tensor:
        return torch.softmax(s, -1)

    def output(self, o: Tensor) -> Tensor:
        return o

    def cotangent(self, g: Tensor) -> Tensor:
        return g

    def score_gradient(self, p: Tensor, dp: Tensor) -> Tensor:
        return p * (dp - (p * dp).sum(-1, keepdim=True))

    def scaled(self, x: Tensor) -> Tensor:
        return x / math.sqrt(x.shape[-1])

    def queries(self, q: Tensor, g: Tensor) -> Tensor:
        return q

    def key_gradient(self, dk: Tensor) -> Tensor:
        return dk

    def grouped(self, x: Tensor, groups: int) -> Tensor:
        return x.unflatten(1, (groups, -1)).sum(2)


def attention(parts: Right):
    """The attention of these parts, differentiable once."""

    class Attention(torch.autograd.Function):
        @staticmethod
        def forward(ctx, q, k, v):
            ctx.save_for_backward(q, k, v)
            k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
            return parts.output(parts.weights(parts.scores(q, k)) @ v)

        @staticmethod
        @torch.autograd.function.once_differentiable
        def backward(ctx, g):
            q, k, v = ctx.saved_tensors
            groups, g = k.shape[1], parts.cotangent(g)
            k, v = (x.repeat_interleave(q.shape[1] // groups, 1) for x in (k, v))
            p = parts.weights(parts.scores(q, k))
            ds = parts.score_gradient(p, g @ v.mT)
            dq, dk = parts.scaled(ds @ k), parts.key_gradient(ds.mT @ parts.queries(q, g) / math.sqrt(q.shape[-1]))
            return dq, parts.grouped(dk, groups), parts.grouped(p.mT @ g, groups)

    def attend(q, k, v):
        return Attention.apply(q, k, v)

    return attend


def declared(name: str, **faults):
    """A kernel with some parts replaced by functions of the same arguments."""
    members = {part: (lambda function: lambda self, *args: function(*args))(f) for part, f in faults.items()}
    return gradoracle.kernel(attend, name=name)(attention(type(name, (Right,), members)()))


def noise(x: Tensor) -> Tensor:
    """Other factors for all elements, the same in every run."""
    places = torch.arange(x.numel(), dtype=torch.float64).reshape(x.shape)
    return (x * (1 + 0.4 * torch.sin(places * places * 12.9898 + 78.233))).to(x.dtype)


def _last_tile(o: Tensor) -> Tensor:
    rows = torch.arange(o.shape[2])[:, None]
    return torch.where(rows >= o.shape[2] // 16 * 16, noise(o), o)


def _second_head(o: Tensor) -> Tensor:
    heads = torch.arange(o.shape[1])[:, None, None]
    return torch.where(heads == 0, noise(o), o)


def _reach(x: Tensor) -> int:
    """How many elements the last lies behind the first."""
    return sum((size - 1) * stride for size, stride in zip(x.shape, x.stride(), strict=True))


def _largest_rounded(o: Tensor) -> Tensor:
    """Scaled by its largest element, which was rounded, and back."""
    largest = o.abs().max()
    return o / largest * largest.bfloat16().float()


right = declared("right")
tail = declared("tail", output=_last_tile)
slice_ = declared("slice_", output=_second_head)
ratio = declared("ratio", scaled=lambda x: x)
sign = declared("sign", key_gradient=lambda dk: -dk)
transpose = declared("transpose", output=lambda o: o.flip(2))
shift = declared("shift", output=lambda o: o.roll(1, 2))
sum_ = declared("sum_", grouped=lambda x, groups: x.unflatten(1, (groups, -1))[:, :, 0])
dtype = declared("dtype", weights=lambda s: torch.softmax(s, -1).bfloat16().float())
term = declared("term", score_gradient=lambda p, dp: p * dp)
offset = declared("offset", cotangent=lambda g: noise(g) if _reach(g) >= 2**31 else g)
unclear = declared("unclear", output=noise)
nearly = declared("nearly", output=lambda o: o * (1 + 2**-10))
rounded_factor = declared("rounded_factor", output=_largest_rounded)
comparison = declared("comparison", seen=lambda s: torch.arange(s.shape[-2])[:, None] + 1 > torch.arange(s.shape[-1]))
operands = declared("operands", queries=lambda q, g: g)
thrice = declared("thrice", key_gradient=lambda dk: 3 * dk)
