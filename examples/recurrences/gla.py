r"""Gated linear attention (arXiv 2312.06635).

    gradoracle check examples/recurrences/gla.py:right --dim T=4096

The kernel works in chunks of 16: products within a chunk in PyTorch, and a Triton kernel that carries states from
chunk to chunk, and their gradients back.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import logsigmoid, pad

from gradoracle import family, kernel, scan, sizes


@family(dims={"B": sizes(1, 2), "T": sizes(1, 300, asked=1 << 20), "K": sizes(1, 16), "V": sizes(1, 16)})
def gla(
    q: Float[Tensor, "B T K"], k: Float[Tensor, "B T K"], v: Float[Tensor, "B T V"], g: Float[Tensor, "B T K"]
) -> Float[Tensor, "B T V"]:
    """q_t S_t, where S_t = sigmoid(g_t)^(1/16) S_{t-1} + k_t v_t^T."""

    def step(state, x):  # [B K V]
        q, k, v, a = x
        state = a[..., None] * state + k[..., None] * v[:, None]
        return state, (q[..., None] * state).sum(1)

    return scan(step, q.new_zeros(*q[:, 0].shape, v.shape[2]), (q, k, v, torch.exp(logsigmoid(g) / 16)), dim=1)[1]


@triton.jit
def _carry(A, X, S, size, chunks, BLOCK: tl.constexpr):
    n = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    at, state = tl.program_id(0).to(tl.int64) * chunks * size + n, tl.zeros((BLOCK,), tl.float32)
    for _ in range(chunks):
        tl.store(S + at, state, mask=n < size)
        state = tl.load(A + at, mask=n < size) * state + tl.load(X + at, mask=n < size)
        at += size


class _Carry(torch.autograd.Function):
    @staticmethod
    def forward(ctx, a, x):
        """The states [B N K V] that N chunks are given, where a chunk leaves a s + x of a state s."""
        s, size = torch.empty(x.shape, device=x.device), x[0, 0].numel()
        _carry[len(x), triton.cdiv(size, 128)](a.contiguous(), x.contiguous(), s, size, x.shape[1], BLOCK=128)
        ctx.save_for_backward(a, s)
        return s

    @staticmethod
    def backward(ctx, ds):
        dx = _Carry.apply(ctx.saved_tensors[0].flip(1), ds.flip(1)).flip(1)
        return dx * ctx.saved_tensors[1], dx


@kernel(gla)
def right(q, k, v, g, late=0):
    """Float32 inside."""
    cut, gates = (0, 0, 0, -q.shape[1] % 16), logsigmoid(g.float()) / 16
    q, k, u, g = (pad(x.float(), cut).unflatten(1, (-1, 16)) for x in (q, k, v, gates))  # [B N 16 K]
    decay = g.mT[..., None].expand(-1, -1, -1, -1, 16).tril(-1).cumsum(3).exp().tril()  # [B N K 16 16], of j up to i
    a = g.sum(2).exp()[..., None].roll(late, 1).expand(-1, -1, -1, u.shape[3])
    s = _Carry.apply(a, (k.mT * decay[..., -1, :]) @ u)
    o = torch.einsum("bnik,bnjk,bnkij,bnjv->bniv", q, k, decay, u) + (q * g.cumsum(2).exp()) @ s
    return o.flatten(1, 2)[:, : v.shape[1]].to(v.dtype)


@kernel(gla)
def wrong(q, k, v, g):
    """It decays a state by the gates of the chunk before the one that it crosses: T > 32."""
    return right(q, k, v, g, late=1)
