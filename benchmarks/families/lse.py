"""LSE's rows: the kernels compared with PyTorch's own operators, eager and compiled."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch
from gradoracle.kernels import lse as kernels
from torch import Tensor
from torch.nn.attention.flex_attention import flex_attention

from . import truth, works

OURS, EAGER, COMPILED, FLEX = "gradoracle", "torch eager", "torch.compile", "flex_attention, values of width 16"
SPLIT = f"{OURS} {works.ON_TENSOR_CORES}"
TOKENS = 131_072  # B H T of a scan


def _eager(q: Tensor, k: Tensor) -> Tensor:
    """L [B, H, T] of q [B, H, T, D] and k [B, H, M, D] by operators that store every score, in float32 at least."""
    scores = (q @ k.transpose(-1, -2)).to(torch.promote_types(q.dtype, torch.float32))
    return torch.logsumexp(scores * q.shape[-1] ** -0.5, -1)


def _flex(q: Tensor, k: Tensor) -> Tensor:
    """L [B, H, T], which flex_attention returns with o; it needs values."""
    return flex_attention(q, k, k[..., :16].detach(), return_lse=True)[1]  # type: ignore[no-any-return]


def rows() -> Iterator[works.Row]:
    for dtype, queries in (
        (torch.bfloat16, 2048),
        (torch.float16, 2048),
        (torch.float32, 2048),
        (torch.bfloat16, 8192),
    ):
        yield from timed(dtype, 4, 16, queries, 64)


def scans() -> Iterator[works.Row]:
    """Forward and backward over T, B H T fixed: 16 heads, fewer where one batch member has more tokens than that."""
    for T in works.SCANNED:
        heads = min(16, TOKENS // T)
        others = () if T in works.COMPILED_AT else (COMPILED, FLEX)
        found = timed(torch.bfloat16, TOKENS // T // heads, heads, T, 64, without=others)
        yield from (row for row in found if row.derivative in ("forward", "backward"))


def timed(
    dtype: torch.dtype, B: int, H: int, T: int, D: int, device: str = "cuda", without: tuple[str, ...] = ()
) -> Iterator[works.Row]:
    """Every derivative of q, k [B H T D]; dots: S of forward, S, dQ and dK of backward, the two of S' in the others."""
    inputs = works.Normal([(B, H, T, D)] * 2, dtype, device)
    tangents = works.Normal([(B, H, T, D)] * 2, dtype, device, seed=2)
    g = works.Normal([(B, H, T)], torch.float32, device, seed=1)
    dot, scores = 2.0 * B * H * T * T * D, 1.0 * B * H * T * T
    tensor, line = 1.0 * B * H * T * D * dtype.itemsize, 4.0 * B * H * T
    ours = {OURS: "ieee"} | ({SPLIT: works.ON_TENSOR_CORES} if dtype == torch.float32 else {})

    for derivative, how, whole, dots, moved in (
        ("forward", partial(works.forward, inputs=inputs), None, 1, 2 * tensor + line),
        ("backward", partial(works.backward, inputs=inputs, g=g), None, 3, 4 * tensor + line),
        (
            "JVP",
            partial(works.jvp, inputs=inputs, tangents=tangents),
            works.compiled_jvp(_eager, inputs, tangents),
            3,
            4 * tensor + 2 * line,
        ),
        (
            works.HVP,
            partial(works.hvp, inputs=inputs, g=g, tangents=tangents),
            works.compiled_hvp(_eager, inputs, g, tangents),
            7,
            6 * tensor + line,
        ),
    ):
        entries: dict[str, works.Factory] = {
            who: partial(how, partial(kernels.lse, precision=precision)) for who, precision in ours.items()
        }
        entries[EAGER] = works.unless_large(partial(how, _eager), scores)
        entries[COMPILED] = works.unless_large(whole or partial(how, works.compiled(_eager)), scores)
        if whole is None:
            entries[FLEX] = partial(how, works.compiled(_flex))
        yield works.row(
            "lse",
            derivative,
            dtype,
            {"B": B, "H": H, "T": T, "M": T, "D": D},
            {who: factory for who, factory in entries.items() if who not in without},
            operations=dots * dot,
            moved=moved,
            arithmetic={SPLIT: works.ON_TENSOR_CORES},
            ready=(EAGER,),
            ours=tuple(ours),
            truth=truth.of_scores(derivative, how, _eager, inputs, "L", "qk"),
        )
