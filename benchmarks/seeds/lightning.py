"""Seed 003: linear attention in chunks and micro-chunks: forward, backward, and dtypes of what is stored."""

from __future__ import annotations

import torch
from torch import Tensor

from .figures import Rows, Tensors, normal, off, rounded, vjp, zeros


def rows() -> Rows:
    B, H, T, D, C, N = 2, 3, 256, 64, 64, 16
    tiles = C // N
    q, k, v, g = (normal(B, H, T, D) for _ in range(4))

    def chunks(*x: Tensor) -> list[list[Tensor]]:
        return [[each[:, :, start : start + C] for each in x] for start in range(0, x[0].shape[2], C)]

    def micro(x: Tensor, index: int) -> Tensor:
        return x[:, :, index * N : (index + 1) * N]

    def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return torch.tril(q @ k.mT) @ v

    def forward(q: Tensor, k: Tensor, v: Tensor, before: bool = True, kept: torch.dtype = torch.float64) -> Tensor:
        """In chunks, with the state stored in a dtype and read before the chunk is added to it, or after (the seed)."""
        state, out = zeros(*q.shape[:2], D, D), []
        for qc, kc, vc in chunks(q, k, v):
            own = kc.mT @ vc
            out.append(qc @ (state if before else state + own) + attention(qc, kc, vc))
            state = rounded(state + own, kept)
        return torch.cat(out, 2)

    def backward(after: bool, turned: bool) -> Tensors:
        """dkv is updated after dK and dV read it, or before (the seed); dK = V dkv^T, or dkv V^T (the seed)."""
        state, dkv, found = zeros(B, H, D, D), zeros(B, H, D, D), []
        states = []
        for kc, vc in chunks(k, v):
            states.append(state)
            state = state + kc.mT @ vc
        for (qc, kc, vc, gc), state in reversed(list(zip(chunks(q, k, v, g), states, strict=True))):
            own, da = qc.mT @ gc, torch.tril(gc @ vc.mT)
            read = dkv if after else dkv + own
            dk = (vc @ read.mT if turned else read @ vc.mT) + da.mT @ qc
            found.append((gc @ state.mT + da @ kc, dk, kc @ read + torch.tril(qc @ kc.mT).mT @ gc))
            dkv = dkv + own
        return tuple(torch.cat(parts[::-1], 2) for parts in zip(*found, strict=True))

    def sketched(k: Tensor, v: Tensor, g: Tensor) -> Tensor:
        """dQ of one chunk by the seed's Triton sketch, with the most favourable store: row i when it is complete.

        The accumulator is set to 0 at i = j and adds dA_ij K_j for i = j, j + 1, ..., so it holds sums over queries i.
        """
        dq = torch.zeros_like(g)
        for j in range(tiles):
            total = torch.zeros_like(micro(g, 0))
            for i in range(j, tiles):
                da = micro(g, i) @ micro(v, j).mT
                total = total + (torch.tril(da) if i == j else da) @ micro(k, j)
                micro(dq, i)[:] = total
        return dq

    def in_memory(k: Tensor, v: Tensor, g: Tensor, dtype: torch.dtype) -> Tensor:
        """dQ in bfloat16; the contributions of the state and of each tile are added to a dq in a dtype."""
        state, dq = zeros(*k.shape[:2], D, D), []
        for kc, vc, gc in chunks(k, v, g):
            part, da = rounded(gc @ state.mT, dtype), torch.tril(gc @ vc.mT)
            for j in range(tiles):
                part = rounded(part + da[..., j * N : (j + 1) * N] @ micro(kc, j), dtype)
            dq.append(part)
            state = state + kc.mT @ vc
        return rounded(torch.cat(dq, 2), torch.bfloat16)

    o, true = attention(q, k, v), vjp(attention, (q, k, v), g)
    yield "forward, state updated before it is read (the seed)", off(forward(q, k, v, False), o)
    yield "forward, state read first", off(forward(q, k, v), o)
    for name, after, turned in (
        ("dkv updated before use (the seed), dK turned", False, True),
        ("dkv updated after use, dK = dkv V^T (the seed)", True, False),
        ("both as in the seed", False, False),
        ("dkv updated after use, dK = V dkv^T", True, True),
    ):
        errors = [off(a, b) for a, b in zip(backward(after, turned), true, strict=True)]
        yield name, ", ".join(f"{each} {e:.1e}" for each, e in zip(("dQ", "dK", "dV"), errors, strict=True))
    qc, kc, vc, gc = chunks(q, k, v, g)[0]
    yield "dQ of a chunk by the Triton sketch", off(sketched(kc, vc, gc), vjp(attention, (qc, kc, vc), gc)[0])
    q, k, v, g = (normal(1, 1, 4096, D) for _ in range(4))
    o, dq = attention(q, k, v), vjp(attention, (q, k, v), g)[0]
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        yield f"o, all exact but the state in {str(dtype)[6:]}", off(forward(q, k, v, kept=dtype), o)
    parts = [torch.frexp(x) for x in (q, k, v)]
    tf32 = [torch.ldexp(torch.round(fraction * 2048) / 2048, exponent) for fraction, exponent in parts]
    yield "o, all exact but q, k, v rounded to TF32", off(attention(*tf32), o)
    for dtype in (torch.bfloat16, torch.float32):
        yield f"dQ in bfloat16, added up in memory in {str(dtype)[6:]}", off(in_memory(k, v, g, dtype), dq)
    square, rows = C * C * 4, C * D * 4
    yield "KB at [64, 64] in float32", f"q, k, v {3 * rows >> 10}; dq, dk, dv {3 * rows >> 10}; do {rows >> 10}"
    yield "KB in all, with three squares", f"{(3 * square + 7 * rows) >> 10}"
    yield "KB of micro-chunks of 16", f"{(7 * N * D * 4 + 2 * N * N * 4) >> 10}"
    loads = 2 * (2 * tiles + 2 * tiles * (tiles + 1) // 2)
    yield f"tile loads of a chunk of {tiles} micro-chunks in the sketch", f"{loads}, of {4 * tiles} different ones"
    for length in (8192, 131072):
        name = f"bytes of a state before each chunk of 64, N = {length}, 32 heads, D = Dv = 128"
        yield name, f"{length // 64 * 32 * 128 * 128 * 4}"
