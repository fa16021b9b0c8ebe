"""Lightning's rows: the kernels against flash-linear-attention, if installed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import torch
from gradoracle.kernels import lightning as kernels
from kernel_speed.stopwatch import Work
from torch import Tensor

from . import truth, works

SPLIT = f"gradoracle {works.ON_TENSOR_CORES}"
OURS, EAGER, COMPILED = "gradoracle", "torch eager, quadratic", "torch.compile, quadratic"
FLA, FUSED = "fla chunk", "fla fused_chunk"
TOKENS = 65_536  # B N of a scan
CHUNK = 256  # positions of the truth whose scores are stored at a time
BEYOND = 8192.0  # times q: scores and states go beyond float16, which ends at 65504, where o does not


def _chunk(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """o of flash-linear-attention's `chunk_linear_attn`; all [B, N, H, .], the layout that it expects."""
    from fla.ops.linear_attn import chunk_linear_attn

    return chunk_linear_attn(q, k, v, normalize=False, scale=1)[0]  # type: ignore[no-any-return]


def _fused(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The same of its `fused_chunk_linear_attn`."""
    from fla.ops.linear_attn import fused_chunk_linear_attn

    return fused_chunk_linear_attn(q, k, v, normalize=False, scale=1)[0]  # type: ignore[no-any-return]


def _quadratic(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """o [B, H, N, Dv] by operators that store every score."""
    return torch.tril(q @ k.transpose(-1, -2)) @ v


def _chunked(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The same at lengths at which the scores of all positions do not fit into memory."""
    state, parts = k[..., :0, :].transpose(-1, -2) @ v[..., :0, :], []  # of no position: zeros [B H D Dv]
    for queries, keys, values in zip(*(x.split(CHUNK, -2) for x in (q, k, v)), strict=True):
        parts.append(queries @ state + _quadratic(queries, keys, values))
        state = state + keys.transpose(-1, -2) @ values
    return torch.cat(parts, -2)


def rows() -> Iterator[works.Row]:
    for dtype, width in ((torch.bfloat16, 64), (torch.bfloat16, 128), (torch.float16, 64), (torch.float32, 64)):
        yield from timed(dtype, 4, 16, 8192, width)
    yield from timed(torch.bfloat16, 1, 4, 131_072, 64)


def scans() -> Iterator[works.Row]:
    """Forward and backward over N, B N fixed, 16 heads; the quadratic peers compiled at some N only."""
    for N in works.SCANNED:
        without = () if N in works.COMPILED_AT else (COMPILED,)
        found = timed(torch.bfloat16, TOKENS // N, 16, N, 64, without=without)
        yield from (row for row in found if row.derivative in ("forward", "backward"))


def timed(
    dtype: torch.dtype, B: int, H: int, N: int, D: int, device: str = "cuda", without: tuple[str, ...] = ()
) -> Iterator[works.Row]:
    """Every derivative of q, k, v [B H N D].

    Operations are those of the recursion, position by position, each of 2 D Dv: in forward an update of the state and a
    product with it; in backward two updates and three products; for the JVP, with o, three of each; for the HVP four
    updates and five products.
    """
    shape = (B, H, N, D)
    inputs, tangents = (works.Normal([shape] * 3, dtype, device, seed=seed) for seed in (0, 2))
    g, others = works.Normal([shape], dtype, device, seed=1), works.columns(inputs)
    ours = {OURS: "ieee"} | ({SPLIT: works.ON_TENSOR_CORES} if dtype == torch.float32 else {})
    product, scores = 2.0 * B * H * N * D * D, 1.0 * B * H * N * N
    tensor = 1.0 * B * H * N * D * dtype.itemsize

    layout: dict[str, Callable[[works.Function], Work]] = {
        "forward": partial(works.forward, inputs=others),
        "backward": partial(works.backward, inputs=others, g=works.columns(g)),
    }
    for derivative, how, whole, products, tensors in (
        ("forward", partial(works.forward, inputs=inputs), None, 2, 4),
        ("backward", partial(works.backward, inputs=inputs, g=g), None, 5, 7),
        (
            "JVP",
            partial(works.jvp, inputs=inputs, tangents=tangents),
            works.compiled_jvp(_quadratic, inputs, tangents),
            6,
            8,
        ),
        (
            works.HVP,
            partial(works.hvp, inputs=inputs, g=g, tangents=tangents),
            works.compiled_hvp(_quadratic, inputs, g, tangents),
            9,
            10,
        ),
    ):
        beyond = dtype == torch.float16 and derivative == "forward"
        entries: dict[str, works.Factory] = {
            who: partial(how, partial(kernels.lightning, precision=precision)) for who, precision in ours.items()
        }
        if derivative in layout:
            entries[FLA] = partial(layout[derivative], _chunk)
            entries[FUSED] = partial(layout[derivative], _fused)
        entries[EAGER] = works.unless_large(partial(how, _quadratic), scores)
        entries[COMPILED] = works.unless_large(whole or partial(how, works.compiled(_quadratic)), scores)
        yield works.row(
            "lightning",
            derivative,
            dtype,
            {"B": B, "H": H, "N": N, "D": D, "Dv": D},
            {who: factory for who, factory in entries.items() if who not in without},
            operations=products * product,
            moved=tensors * tensor,
            arithmetic={SPLIT: works.ON_TENSOR_CORES},
            ready=(EAGER,),
            ours=tuple(ours),
            truth=truth.Truth(
                truth.names(derivative, "o", "qkv"),
                truth.exact(how, _chunked),
                parts=dict.fromkeys((FLA, FUSED), truth.first_heads_of_columns),
                stress=f"q x {BEYOND:.0f}, v / {BEYOND:.0f}" if beyond else "",
                stressed=partial(inputs.scaled, BEYOND, 1.0, 1 / BEYOND),
            ),
        )
