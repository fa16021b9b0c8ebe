"""LSE's rows of ``gradoracle bench lse``: the kernels beside PyTorch's own operators, eager and compiled."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import torch
from gradoracle.kernels import lse as kernels
from gradoracle.properties.lse import FAMILY, KERNELS
from torch import Tensor

from gradoracle.execution.bench import Row, Work

from .oracle import certified_vjp
from .record import recorded_vjp

OURS, EAGER, COMPILED = "gradoracle", "torch eager", "torch.compile"
Function = Callable[[Tensor, Tensor], Tensor]


def _eager(q: Tensor, k: Tensor) -> Tensor:
    """L [B, H, T] of q [B, H, T, D] and k [B, H, M, D] by operators that write every score, in float32."""
    return torch.logsumexp((q @ k.transpose(-1, -2)).float() * q.shape[-1] ** -0.5, -1)


def rows(device: str, seconds: float | None = None) -> Iterator[Row]:
    """On CUDA the kernels' rows; on the CPU the oracle's and the record's."""
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

    def forward(function: Function) -> Work:
        def call() -> Tensor:
            with torch.no_grad():
                return function(q, k)

        call()
        return call

    def backward(function: Function) -> Work:
        leaves = [x.detach().requires_grad_() for x in (q, k)]
        out = function(*leaves)
        return lambda: torch.autograd.grad(out, leaves, g, retain_graph=True)

    def jvp(function: Function) -> Work:
        return partial(torch.func.jvp, function, (q, k), (tq, tk))

    def hvp(function: Function) -> Work:
        leaves = [x.detach().requires_grad_() for x in (q, k)]

        def call() -> object:
            first = torch.autograd.grad(function(*leaves), leaves, g, create_graph=True)
            return torch.autograd.grad(first, leaves, (tq, tk))

        return call

    for what, how, compiles in (
        ("forward", forward, True),
        ("backward", backward, True),
        ("JVP", jvp, False),
        ("exact HVP (forward and backward included)", hvp, False),
    ):
        entries: dict[str, Callable[[], Work]] = {OURS: partial(how, kernels.lse), EAGER: partial(how, _eager)}
        if compiles:
            entries[COMPILED] = lambda how=how: how(torch.compile(_eager))  # type: ignore[misc]
        yield Row(f"lse {what} {label}", entries)
