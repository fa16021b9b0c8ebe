"""LSE's rows of ``gradoracle bench lse``: the kernels compared with PyTorch's own operators, eager and compiled."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import torch
from gradoracle.kernels import lse as kernels
from gradoracle.properties.lse import FAMILY, KERNELS
from torch import Tensor

from gradoracle.execution.bench import Row, Work

from . import works
from .oracle import certified_vjp
from .record import recorded_vjp

OURS, EAGER, COMPILED = "gradoracle", "torch eager", "torch.compile"


def _eager(q: Tensor, k: Tensor) -> Tensor:
    """L [B, H, T] of q [B, H, T, D] and k [B, H, M, D] by operators that store every score, in float32."""
    return torch.logsumexp((q @ k.transpose(-1, -2)).float() * q.shape[-1] ** -0.5, -1)


def rows(device: str, seconds: float | None = None) -> Iterator[Row]:
    """On CUDA the rows of the kernels; on the CPU those of the oracle and of the record of accesses."""
    if device != "cuda":
        yield certified_vjp(FAMILY, {"B": 1, "H": 2, "G": 2, "T": 33, "M": 65, "D": 32})
        yield recorded_vjp(FAMILY, KERNELS[0], {"B": 2, "H": 4, "G": 2, "T": 257, "M": 257, "D": 64})
        return
    for dtype, queries in (
        (torch.bfloat16, 2048),
        (torch.float16, 2048),
        (torch.float32, 2048),
        (torch.bfloat16, 8192),
    ):
        yield from _timed(dtype, 4, 16, queries, 64)


def _timed(dtype: torch.dtype, B: int, H: int, T: int, D: int) -> Iterator[Row]:
    generator = torch.Generator("cuda").manual_seed(0)
    q, k, tq, tk = (torch.randn(B, H, T, D, device="cuda", generator=generator).to(dtype) for _ in range(4))
    g = torch.randn(B, H, T, device="cuda", generator=generator)
    label = f"{str(dtype)[6:]} B{B} H{H} T{T} M{T} D{D}"

    inputs, tangents = (q, k), (tq, tk)
    for what, how, compiles in (
        ("forward", partial(works.forward, inputs=inputs), True),
        ("backward", partial(works.backward, inputs=inputs, g=g), True),
        ("JVP", partial(works.jvp, inputs=inputs, tangents=tangents), False),
        (works.HVP, partial(works.hvp, inputs=inputs, g=g, tangents=tangents), False),
    ):
        entries: dict[str, Callable[[], Work]] = {OURS: partial(how, kernels.lse), EAGER: partial(how, _eager)}
        if compiles:
            entries[COMPILED] = lambda how=how: how(torch.compile(_eager))  # type: ignore[misc]
        yield Row(f"lse {what} {label}", entries)
