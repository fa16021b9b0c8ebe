"""What seed 001 claims of LSE's backward, measured for docs/seeds.md: ``python benchmarks/seed_lse.py`` (CPU)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

B, H, T, M, D = 2, 4, 32, 64, 16
BLOCK_Q, BLOCK_KV = 16, 16
MASK_VALUE = -0.7 * torch.finfo(torch.float32).max  # splash attention's


def logsumexp(q: Tensor, k: Tensor, softcap: float | None = None, sinks: Tensor | None = None) -> Tensor:
    """log(e^sink + sum over keys of e^score), scale 1, as in the seed."""
    s = q @ k.transpose(-1, -2)
    s = s if softcap is None else softcap * torch.tanh(s / softcap)
    s = s if sinks is None else torch.cat([s, sinks[:, None, None].expand(*s.shape[:3], 1)], -1)
    return torch.logsumexp(s, -1)


def gradients(
    q: Tensor, k: Tensor, g: Tensor, softcap: float | None = None, factor: bool = False
) -> tuple[Tensor, ...]:
    """The seed's backward, ds = g P; ``factor`` multiplies it with 1 - tanh(S / softcap)^2."""
    raw = q @ k.transpose(-1, -2)
    s = raw if softcap is None else softcap * torch.tanh(raw / softcap)
    ds = g[..., None] * torch.softmax(s, -1)
    if factor and softcap is not None:
        ds = ds * (1 - torch.tanh(raw / softcap).square())
    return ds @ k, ds.transpose(-1, -2) @ q


def steps(queries: int, keys: int) -> Iterator[tuple[int, int, int]]:
    """The grid of the fused kernel in its order, kv block outermost: (tile of keys, head, tile of queries)."""
    for tile in range(keys // BLOCK_KV):
        for head in range(H):
            for start in range(queries // BLOCK_Q):
                yield tile, head, start


def fused_dq(q: Tensor, k: Tensor, g: Tensor, buffer: Tensor, *, fill: str, causal: bool) -> Tensor:
    """dq of one batch member [H T D] from partials [kv tiles H T D], as the seed's step 1 and what is missing in it do.

    Args:
        q, k, g: [H T D], [H M D], [H T].
        buffer: the partials' memory, with what was in it.
        fill: "right"; "scratch": a tile of queries is added up in a scratch that no step sets to 0; "skipped": tiles
            that causal rules out write nothing.
        causal: the last query is aligned with the last key.
    """
    queries, keys = q.shape[1], k.shape[1]
    s = q @ k.transpose(-1, -2)
    seen = (
        torch.ones(queries, keys, dtype=torch.bool).tril(keys - queries) if causal else torch.ones(1, dtype=torch.bool)
    )
    p = torch.softmax(torch.where(seen, s, -torch.inf), -1)
    scratch = torch.zeros(BLOCK_Q, q.shape[2], dtype=q.dtype)
    for tile, head, start in steps(queries, keys):
        rows = slice(start * BLOCK_Q, (start + 1) * BLOCK_Q)
        columns = slice(tile * BLOCK_KV, (tile + 1) * BLOCK_KV)
        if fill == "skipped" and causal and not bool(seen[rows, columns].any()):
            continue
        if fill != "scratch":
            scratch = torch.zeros_like(scratch)
        scratch = scratch + (g[head, rows, None] * p[head, rows, columns]) @ k[head, columns]
        buffer[tile, head, rows] = scratch
    return buffer.sum(0)


def rounded_partials(q: Tensor, k: Tensor, g: Tensor, dtype: torch.dtype, running: bool) -> Tensor:
    """dq from partials stored in ``dtype`` and summed in float64, or by a ``running`` sum in that dtype."""
    p = torch.softmax(q @ k.transpose(-1, -2), -1)
    total = torch.zeros_like(q)
    for start in range(0, k.shape[2], BLOCK_KV):
        keys = slice(start, start + BLOCK_KV)
        part = ((g[..., None] * p[..., keys]) @ k[..., keys, :]).to(dtype).double()
        total = (total + part).to(dtype).double() if running else total + part
    return total


def off(got: tuple[Tensor, ...] | Tensor, true: tuple[Tensor, ...] | Tensor) -> float:
    """Relative error in the 2-norm, all tensors together."""
    own, whole = (x.flatten() if isinstance(x, Tensor) else torch.cat([t.flatten() for t in x]) for x in (got, true))
    return float((own - whole).norm() / whole.norm())


def vjp(function: Callable[..., Tensor], primals: tuple[Tensor, ...], g: Tensor) -> tuple[Tensor, ...]:
    """By torch.func."""
    found: tuple[Tensor, ...] = torch.func.vjp(function, *primals)[1](g)
    return found


def formulas(q: Tensor, k: Tensor, g: Tensor) -> None:
    """ds = g P, the softcap, sinks and grouped heads."""
    tell("dQ, dK of the seed, against torch.func.vjp", off(gradients(q, k, g), vjp(logsumexp, (q, k), g)))
    capped = vjp(lambda q, k: logsumexp(q, k, 2.0), (q, k), g)
    plain, right = gradients(q, k, g, 2.0), gradients(q, k, g, 2.0, True)
    tell("dQ with softcap 2, no factor", off(plain[0], capped[0]))
    tell("dK with softcap 2, no factor", off(plain[1], capped[1]))
    tell("both with the factor 1 - tanh^2", off(right, capped))
    sinks = torch.randn(H, dtype=torch.float64)
    full = vjp(lambda q, k, sinks: logsumexp(q, k, None, sinks), (q, k, sinks), g)
    shares = (g * torch.exp(sinks[:, None] - logsumexp(q, k, None, sinks))).sum((0, 2))
    tell("dsinks = sum of g e^(sink - lse), against torch.func.vjp", off(shares, full[2]))
    tell("largest of dsinks, which is returned as None", float(full[2].abs().max()))
    grouped = k[:, :1]
    shared = vjp(lambda q, k: logsumexp(q, k.expand(B, H, M, D)), (q, grouped), g)[1]
    last = gradients(q, grouped.expand(B, H, M, D), g)[1][:, -1:]
    tell("dK of 4 query heads on one key head, one head's alone", off(last, shared))


def partials(q: Tensor, k: Tensor, g: Tensor) -> None:
    """The fused dq: what is not filled, not stored, not there; and in which dtype."""
    shape = (M // BLOCK_KV, H, T, D)
    one = (q[0], k[0], g[0])
    for causal in (False, True):
        true = fused_dq(*one, torch.zeros(shape, dtype=torch.float64), fill="right", causal=causal)
        name = ", causal" if causal else ""
        if not causal:
            tell("fused dq with everything filled, against torch.func.vjp", off(true, vjp(logsumexp, (q, k), g)[0][0]))
        got = fused_dq(*one, torch.zeros(shape, dtype=torch.float64), fill="scratch", causal=causal)
        tell(f"fused dq, scratch not set to 0 at each step{name}", off(got, true))
    stale = torch.empty(shape, dtype=torch.float64)
    fused_dq(q[1], k[1], g[1], stale, fill="right", causal=False)
    got = fused_dq(*one, stale, fill="skipped", causal=True)
    tell("fused dq, causal, skipped tiles keep an earlier call's", off(got, true))
    short = k[..., : M - 8, :]
    kept = (M - 8) // BLOCK_KV * BLOCK_KV
    ds = g[..., None] * torch.softmax(q @ short.transpose(-1, -2), -1)
    lost = ds[..., :kept] @ short[..., :kept, :]
    tell(f"dq with M = {M - 8} in M // {BLOCK_KV} tiles, the tail left out", off(lost, gradients(q, short, g)[0]))


def sixteen_bit(q: Tensor, k: Tensor, g: Tensor) -> None:
    """What is rounded to bfloat16: the partial dq, and g q before the kernel; all else is exact."""
    turns = torch.tensor([1.0, -1.0], dtype=torch.float64).repeat_interleave(BLOCK_KV).repeat(M // BLOCK_KV // 2)
    pairs = k[..., :BLOCK_KV, :].repeat(1, 1, M // BLOCK_KV, 1) * turns[:, None]
    for name, own in (("", (q, k)), (", keys that cancel between tiles", (q / 10, pairs))):
        own = (own[0].bfloat16().double(), own[1].bfloat16().double())
        true = gradients(*own, g)[0]
        for kept, dtype, running in (
            ("partials in float32", torch.float32, False),
            ("partials in bfloat16", torch.bfloat16, False),
            ("a running sum in bfloat16", torch.bfloat16, True),
        ):
            got = rounded_partials(*own, g, dtype, running).bfloat16().double()
            tell(f"dq in bfloat16, {kept}{name}", off(got, true))
    q16, k16, g32 = q.bfloat16().double(), k.bfloat16().double(), g.float().double()
    p = torch.softmax(q16 @ k16.transpose(-1, -2), -1)
    exact = p.transpose(-1, -2) @ (g32[..., None] * q16)
    early = p.transpose(-1, -2) @ (g32[..., None] * q16).bfloat16().double()
    tell("dK, everything exact but g q rounded to bfloat16 beforehand", off(early, exact))


def masked_rows() -> None:
    """Rows without a key, with splash attention's large negative number for -inf, in float32."""
    s = torch.full((1, 128), MASK_VALUE, dtype=torch.float32)
    lse = torch.logsumexp(s, -1, keepdim=True)
    tell("lse - mask value of a row of 128 masked keys", float((lse - MASK_VALUE).abs()))
    p = torch.exp(s - lse)
    print(f"{'sum of the P of that row':66s} {float(p.sum()):g}")


def statistics() -> None:
    """P in float32 at logits of 2e4, rebuilt from (m, l) and from the lse."""
    s = (2e4 + 3 * torch.rand(64, 64, dtype=torch.float64)).float()
    m = s.amax(-1, keepdim=True)
    l = torch.exp(s - m).sum(-1, keepdim=True)
    true = torch.softmax(s.double(), -1)
    tell("P rebuilt from (m, l) at logits 2e4, float32", off((torch.exp(s - m) / l).double(), true))
    tell("P rebuilt from the lse at logits 2e4, float32", off(torch.exp(s - (m + l.log())).double(), true))


def memory() -> None:
    """The bytes of the partial dq, of the two examples."""
    for length, heads in ((8192, 32), (2048, 8)):
        numbers = -(-length // 128) * heads * length * 128
        print(
            f"bytes of partial dq, length {length}, {heads} heads: {4 * numbers} in float32, {2 * numbers} in bfloat16"
        )
    print(f"bytes of dq itself in float32, length 8192, 32 heads: {4 * 32 * 8192 * 128}")


def main() -> None:
    """Print one line a claim."""
    torch.manual_seed(0)
    q, k = (torch.randn(B, H, n, D, dtype=torch.float64) for n in (T, M))
    q = q / math.sqrt(D)  # the scale is in q, as in splash attention
    g = torch.randn(B, H, T, dtype=torch.float64)
    formulas(q, k, g)
    partials(q, k, g)
    sixteen_bit(q, k, g)
    masked_rows()
    statistics()
    memory()


def tell(what: str, number: float) -> None:
    """One line."""
    print(f"{what:66s} {number:.1e}")


if __name__ == "__main__":
    main()
