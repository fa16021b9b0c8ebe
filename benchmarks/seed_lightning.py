"""What seed 003 claims of linear attention, measured for docs/seeds.md: ``python benchmarks/seed_lightning.py`` (CPU).

Chunks of CHUNK rows, micro-chunks of MICRO; q, k, v and the cotangent g are [B H N D], all in float64 where no dtype is
named.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

B, H, N, D = 2, 3, 256, 64
CHUNK, MICRO = 64, 16
LONG = 4096  # rows where the dtype of the state is measured
Gradients = tuple[Tensor, Tensor, Tensor]


def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """O_i = sum over j <= i of (q_i . k_j) v_j."""
    return torch.tril(q @ k.mT) @ v


def forward(q: Tensor, k: Tensor, v: Tensor, *, before: bool) -> Tensor:
    """The seed's chunked forward: the state is read ``before`` the chunk is added to it, or after, as in its text."""
    state, out = torch.zeros(*q.shape[:2], q.shape[3], v.shape[3], dtype=q.dtype), []
    for rows in chunks(q.shape[2]):
        own = k[:, :, rows].mT @ v[:, :, rows]
        read = state if before else state + own
        out.append(q[:, :, rows] @ read + attention(q[:, :, rows], k[:, :, rows], v[:, :, rows]))
        state = state + own
    return torch.cat(out, 2)


def backward(q: Tensor, k: Tensor, v: Tensor, g: Tensor, *, after: bool, turned: bool) -> Gradients:
    """The seed's backward between and within chunks.

    Args:
        q, k, v, g: [B H N D].
        after: dkv is updated after dK and dV have read it (right), or before (the seed).
        turned: dK of the state is V dkv^T (right), or dkv V^T in the shape of V (the seed; where CHUNK = D).
    """
    state, kept = torch.zeros(*q.shape[:2], D, D, dtype=q.dtype), []
    for rows in chunks(q.shape[2]):
        kept.append(state)
        state = state + k[:, :, rows].mT @ v[:, :, rows]
    dq, dk, dv = (torch.zeros_like(x) for x in (q, k, v))
    dkv = torch.zeros_like(state)
    for rows, state in reversed(list(zip(chunks(q.shape[2]), kept, strict=True))):
        qc, kc, vc, gc = (x[:, :, rows] for x in (q, k, v, g))
        own = qc.mT @ gc
        read = dkv if after else dkv + own
        da = torch.tril(gc @ vc.mT)
        dq[:, :, rows] = gc @ state.mT + da @ kc
        dk[:, :, rows] = (vc @ read.mT if turned else read @ vc.mT) + da.mT @ qc
        dv[:, :, rows] = kc @ read + torch.tril(qc @ kc.mT).mT @ gc
        dkv = dkv + own
    return dq, dk, dv


def sketched_dq(k: Tensor, v: Tensor, g: Tensor) -> Tensor:
    """dQ of one chunk by the seed's Triton sketch, read as charitably as can be: stored at row i where it is complete.

    The accumulator is set to 0 at i = j, adds dA_ij K_j for i = j, j + 1, ..., and so holds sums over queries i.
    """
    dq, tiles = torch.zeros_like(g), CHUNK // MICRO
    for j in range(tiles):
        total = torch.zeros_like(g[:, :, :MICRO])
        for i in range(j, tiles):
            da = g[:, :, micro(i)] @ v[:, :, micro(j)].mT
            total = total + (torch.tril(da) if i == j else da) @ k[:, :, micro(j)]
            dq[:, :, micro(i)] = total
    return dq


def in_dtype(q: Tensor, k: Tensor, v: Tensor, dtype: torch.dtype) -> Tensor:
    """The chunked forward, exact but for a state that is stored in ``dtype`` after each chunk."""
    state, out = torch.zeros(*q.shape[:2], D, D, dtype=torch.float64), []
    for rows in chunks(q.shape[2]):
        out.append(q[:, :, rows] @ state + attention(q[:, :, rows], k[:, :, rows], v[:, :, rows]))
        state = (state + k[:, :, rows].mT @ v[:, :, rows]).to(dtype).double()
    return torch.cat(out, 2)


def added_in_memory(k: Tensor, v: Tensor, g: Tensor, dtype: torch.dtype) -> Tensor:
    """dQ, exact but that what the state and each tile of the chunk give is added to a dq in ``dtype``."""
    state, dq = torch.zeros(*k.shape[:2], D, D, dtype=torch.float64), torch.zeros_like(g)
    for rows in chunks(k.shape[2]):
        kc, vc, gc = (x[:, :, rows] for x in (k, v, g))
        part = (gc @ state.mT).to(dtype).double()
        da = torch.tril(gc @ vc.mT)
        for j in range(CHUNK // MICRO):
            part = (part + da[..., micro(j)] @ kc[:, :, micro(j)]).to(dtype).double()
        dq[:, :, rows] = part
        state = state + kc.mT @ vc
    return dq


def tf32(x: Tensor) -> Tensor:
    """Rounded to 11 bits of significand."""
    fraction, exponent = torch.frexp(x)
    return torch.ldexp(torch.round(fraction * 2048) / 2048, exponent)


def chunks(length: int) -> list[slice]:
    """Rows of each chunk."""
    return [slice(start, start + CHUNK) for start in range(0, length, CHUNK)]


def micro(index: int) -> slice:
    """Rows of a micro-chunk within its chunk."""
    return slice(index * MICRO, (index + 1) * MICRO)


def off(got: Tensor, true: Tensor) -> float:
    """Relative error in the 2-norm."""
    return float((got - true).norm() / true.norm())


def vjp(function: Callable[..., Tensor], primals: tuple[Tensor, ...], g: Tensor) -> Gradients:
    """By torch.func."""
    found: Gradients = torch.func.vjp(function, *primals)[1](g)
    return found


def formulas(q: Tensor, k: Tensor, v: Tensor, g: Tensor) -> None:
    """The orders of reading and updating, and what is transposed."""
    o = attention(q, k, v)
    tell("forward, state updated before it is read (the seed)", off(forward(q, k, v, before=False), o))
    tell("forward, state read first", off(forward(q, k, v, before=True), o))
    true = vjp(attention, (q, k, v), g)
    for name, after, turned in (
        ("dkv updated before use (the seed), dK turned", False, True),
        ("dkv updated after use, dK = dkv V^T (the seed)", True, False),
        ("both as in the seed", False, False),
        ("dkv updated after use, dK = V dkv^T", True, True),
    ):
        errors = [off(a, b) for a, b in zip(backward(q, k, v, g, after=after, turned=turned), true, strict=True)]
        print(f"{name:66s} dQ {errors[0]:.1e}, dK {errors[1]:.1e}, dV {errors[2]:.1e}")
    first = slice(0, CHUNK)
    whole = vjp(attention, tuple(x[:, :, first] for x in (q, k, v)), g[:, :, first])[0]
    tell("dQ of a chunk by the Triton sketch", off(sketched_dq(k[:, :, first], v[:, :, first], g[:, :, first]), whole))


def precision(q: Tensor, k: Tensor, v: Tensor, g: Tensor) -> None:
    """What the seed leaves open: the dtype of the state, TF32 dots, and gradients added up in memory."""
    o = attention(q, k, v)
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        tell(f"o, all exact but the state in {str(dtype)[6:]}", off(in_dtype(q, k, v, dtype), o))
    tell("o, all exact but q, k, v rounded to TF32", off(attention(tf32(q), tf32(k), tf32(v)), o))
    true = vjp(attention, (q, k, v), g)[0]
    for dtype in (torch.bfloat16, torch.float32):
        got = added_in_memory(k, v, g, dtype).bfloat16().double()
        tell(f"dQ in bfloat16, added up in memory in {str(dtype)[6:]}", off(got, true))


def tables() -> None:
    """The seed's tables of bytes and its count of loads, by arithmetic."""
    square, rows = CHUNK * CHUNK * 4, CHUNK * D * 4
    print(f"KB at [64, 64] in float32: q, k, v {3 * rows >> 10}; dq, dk, dv {3 * rows >> 10}; do {rows >> 10}")
    print(f"KB in all, with three squares: {(3 * square + 7 * rows) >> 10}")
    print(f"KB of micro-chunks of 16: {(7 * MICRO * D * 4 + 2 * MICRO * MICRO * 4) >> 10}")
    tiles = CHUNK // MICRO
    loads = 2 * (2 * tiles + 2 * tiles * (tiles + 1) // 2)
    print(f"tile loads of a chunk of {tiles} micro-chunks in the sketch: {loads}, of {4 * tiles} different ones")
    for length in (8192, 131072):
        kept = length // 64 * 32 * 128 * 128 * 4
        print(f"bytes of a state before each chunk of 64, N = {length}, 32 heads, D = Dv = 128: {kept}")


def main() -> None:
    """Print one line a claim."""
    torch.manual_seed(0)
    q, k, v, g = (torch.randn(B, H, N, D, dtype=torch.float64) for _ in range(4))
    formulas(q, k, v, g)
    precision(*(torch.randn(1, 1, LONG, D, dtype=torch.float64) for _ in range(4)))
    tables()


def tell(what: str, number: float) -> None:
    """One line."""
    print(f"{what:66s} {number:.1e}")


if __name__ == "__main__":
    main()
