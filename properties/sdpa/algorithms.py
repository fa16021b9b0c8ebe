"""Algorithms of SDPA's VJP: a kernel's own order of roundings, for budgets only and never as truth.

Each is a program ``(q, k, v, do, *, scale, causal) -> (o, dq, dk, dv)`` that gives exactly what the definition and its
VJP give, and marks with ``stored`` what a kernel of that kind writes to memory and reads again.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from gradoracle.oracle.rounding.annotations import fast_exp, stored, stored_sum

KEY_BLOCK = 512


def query_block(queries: int) -> int:
    """How many queries PyTorch's flash kernel on the CPU takes at once (2.7 to 2.13, forward and backward)."""
    return 256 if queries >= 768 else 64 if queries >= 192 else 32


def definition(
    q: Tensor, k: Tensor, v: Tensor, do: Tensor, *, scale: float | None = None, causal: bool = False
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """z = rowsum(dP * P), from a P that forward and backward share: what the VJP of the definition does.

    Args:
        q: [B H T D]
        k: [B H M D]
        v: [B H M Dv]
        do: [B H T Dv], the cotangent of o.
        scale: of the logits; None: 1 / sqrt(D).
        causal: mask with the last query aligned with the last key.
    """
    factor = q.shape[-1] ** -0.5 if scale is None else scale
    s, visible = _scores(q, k, factor, causal)
    p = _masked(torch.softmax(s, -1), visible)  # [B H T M]
    dp = do @ v.transpose(-1, -2)
    ds = p * (dp - (dp * p).sum(-1, keepdim=True))
    return p @ v, ds @ k * factor, ds.transpose(-1, -2) @ q * factor, p.transpose(-1, -2) @ do


def flash(
    q: Tensor, k: Tensor, v: Tensor, do: Tensor, *, scale: float | None = None, causal: bool = False
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """z = rowsum(dO * O) from an O that is already rounded, P from a stored log-sum-exp, gradients summed in memory.

    The last is what PyTorch's flash kernel on the CPU does: dq after each block of keys and dk, dv after each block of
    queries are written to tensors of the inputs' dtype. So is its forward exponential, a cubic between powers
    of two, off by up to 1.1e-4 in 16 bit (measured), and of 20 bits in float32. Arguments as for ``definition``.
    """
    factor = q.shape[-1] ** -0.5 if scale is None else scale
    s, visible = _scores(q, k, factor, causal)
    p = torch.softmax(s, -1)
    peak = p.amax(-1, keepdim=True)
    e = _masked(fast_exp(p / peak), visible)  # exp(s - m)
    total = e.sum(-1, keepdim=True)
    total = total if visible is None else torch.where(visible.any(-1, keepdim=True), total, 1.0)
    operand = _masked(torch.where(p < peak, e, 1.0), visible)  # exp(0) rounds to 1 in 16 bit
    o = stored(operand @ v / total, "output")
    p = _masked(torch.exp(s - stored(s.amax(-1, keepdim=True) + torch.log(total), "residuals")), visible)
    ds = p * (do @ v.transpose(-1, -2) - (do * o).sum(-1, keepdim=True))
    rows = query_block(q.shape[-2])
    dq = stored_sum(_blocks(ds, -1, KEY_BLOCK) @ _blocks(k, -2, KEY_BLOCK) * factor, "output")
    dk = stored_sum(_blocks(ds, -2, rows).transpose(-1, -2) @ _blocks(q, -2, rows) * factor, "output")
    dv = stored_sum(_blocks(p, -2, rows).transpose(-1, -2) @ _blocks(do, -2, rows), "output")
    return o, dq, dk, dv


def _scores(q: Tensor, k: Tensor, factor: float, causal: bool) -> tuple[Tensor, Tensor | None]:
    """The scaled logits [B H T M] in natural log units, masked ones -inf, and what each query sees [T M]."""
    s = q @ k.transpose(-1, -2) * factor
    if not causal:
        return s, None
    queries, keys = q.shape[-2], k.shape[-2]
    visible = torch.arange(keys)[None, :] <= torch.arange(queries)[:, None] + (keys - queries)
    blind = ~visible.any(-1, keepdim=True)  # a row without a key: finite logits, so that nothing is -inf - -inf
    return torch.where(visible, s, torch.where(blind, 0.0, -torch.inf)), visible


def _masked(p: Tensor, visible: Tensor | None) -> Tensor:
    return p if visible is None else torch.where(visible, p, 0.0)


def _blocks(x: Tensor, dim: int, size: int) -> Tensor:
    """[.. n ..] -> [blocks .. size ..]: cut along ``dim``, the last block filled up with zeros."""
    count = -(-x.shape[dim] // size)
    size = min(size, x.shape[dim])
    missing = count * size - x.shape[dim]
    if missing:
        x = pad(x, (0, missing) if dim == -1 else (0, 0, 0, missing))
    axis = x.dim() + dim
    return x.unflatten(axis, (count, size)).movedim(axis, 0)


ALGORITHMS = {"flash": {"vjp": flash}}
