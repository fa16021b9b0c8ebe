"""Lightning's rows of ``gradoracle bench lightning``: the kernels against flash-linear-attention, if installed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import torch
from gradoracle.kernels import lightning as kernels
from gradoracle.properties.lightning import FAMILY, KERNELS
from torch import Tensor

from gradoracle.execution.bench import Row, Work

from . import works
from .oracle import certified_vjp
from .record import recorded_vjp

OURS, FLA, EAGER = "gradoracle", "flash-linear-attention", "torch eager, quadratic"


def _fla(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """o of `chunk_linear_attn`; all [B, N, H, .], the layout that it expects."""
    from fla.ops.linear_attn import chunk_linear_attn

    return chunk_linear_attn(q, k, v, normalize=False, scale=1)[0]  # type: ignore[no-any-return]


def _quadratic(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """o [B, H, N, Dv] by operators that store every score."""
    return torch.tril(q @ k.transpose(-1, -2)) @ v


def rows(device: str, seconds: float | None = None) -> Iterator[Row]:
    """On CUDA the rows of the kernels; on the CPU those of the oracle and of the record of accesses."""
    if device != "cuda":
        yield certified_vjp(FAMILY, {"B": 1, "H": 2, "N": 65, "D": 32, "Dv": 32})
        yield recorded_vjp(FAMILY, KERNELS[0], {"B": 2, "H": 4, "N": 513, "D": 64, "Dv": 64})
        return
    for dtype, width in ((torch.bfloat16, 64), (torch.bfloat16, 128), (torch.float16, 64), (torch.float32, 64)):
        yield from _timed(dtype, 4, 16, 8192, width)
    yield from _timed(torch.bfloat16, 1, 4, 131_072, 64, quadratic=False)


def _timed(dtype: torch.dtype, B: int, H: int, N: int, D: int, quadratic: bool = True) -> Iterator[Row]:
    generator = torch.Generator("cuda").manual_seed(0)
    q, k, v, g, tq, tk, tv = (torch.randn(B, H, N, D, device="cuda", generator=generator).to(dtype) for _ in range(7))
    label = f"{str(dtype)[6:]} B{B} H{H} N{N} D{D} Dv{D}"

    inputs, tangents = (q, k, v), (tq, tk, tv)
    *others, cotangent = (x.transpose(1, 2).contiguous() for x in (*inputs, g))  # [B N H .]
    peer = {
        "forward": partial(works.forward, _fla, others),
        "backward": partial(works.backward, _fla, others, cotangent),
    }
    for what, how in (
        ("forward", partial(works.forward, inputs=inputs)),
        ("backward", partial(works.backward, inputs=inputs, g=g)),
        ("JVP", partial(works.jvp, inputs=inputs, tangents=tangents)),
        (works.HVP, partial(works.hvp, inputs=inputs, g=g, tangents=tangents)),
    ):
        entries: dict[str, Callable[[], Work]] = {OURS: partial(how, kernels.lightning)}
        if what in peer:
            entries[FLA] = peer[what]
        if quadratic:
            entries[EAGER] = partial(how, _quadratic)
        yield Row(f"lightning {what} {label}", entries)
