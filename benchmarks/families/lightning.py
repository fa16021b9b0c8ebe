"""Lightning's rows of ``gradoracle bench lightning``: the kernels beside flash-linear-attention's, where installed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import torch
from gradoracle.kernels import lightning as kernels
from gradoracle.properties.lightning import FAMILY, KERNELS
from torch import Tensor

from gradoracle.execution.bench import Row, Work

from .oracle import certified_vjp
from .record import recorded_vjp

OURS, FLA, EAGER = "gradoracle", "flash-linear-attention", "torch eager, quadratic"
Function = Callable[[Tensor, Tensor, Tensor], Tensor]


def _fla(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """o of `chunk_linear_attn`; all [B, N, H, .], the layout that it wants."""
    from fla.ops.linear_attn import chunk_linear_attn

    return chunk_linear_attn(q, k, v, normalize=False, scale=1)[0]  # type: ignore[no-any-return]


def _quadratic(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """o [B, H, N, Dv] by operators that write every score."""
    return torch.tril(q @ k.transpose(-1, -2)) @ v


def rows(device: str, seconds: float | None = None) -> Iterator[Row]:
    """On CUDA the kernels' rows; on the CPU the oracle's and the record's."""
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

    def given(function: Function, *tensors: Tensor) -> list[Tensor]:
        """Tensors in the layout that a function wants."""
        return [x.transpose(1, 2).contiguous() if function is _fla else x for x in tensors]

    def forward(function: Function) -> Work:
        inputs = given(function, q, k, v)

        def call() -> Tensor:
            with torch.no_grad():
                return function(*inputs)

        call()
        return call

    def backward(function: Function) -> Work:
        leaves = [x.detach().requires_grad_() for x in given(function, q, k, v)]
        (cotangent,) = given(function, g)
        out = function(*leaves)
        return lambda: torch.autograd.grad(out, leaves, cotangent, retain_graph=True)

    def jvp(function: Function) -> Work:
        return partial(torch.func.jvp, function, (q, k, v), (tq, tk, tv))

    def hvp(function: Function) -> Work:
        leaves = [x.detach().requires_grad_() for x in (q, k, v)]

        def call() -> object:
            first = torch.autograd.grad(function(*leaves), leaves, g, create_graph=True)
            return torch.autograd.grad(first, leaves, (tq, tk, tv))

        return call

    for what, how, peer in (
        ("forward", forward, True),
        ("backward", backward, True),
        ("JVP", jvp, False),
        ("exact HVP (forward and backward included)", hvp, False),
    ):
        entries: dict[str, Callable[[], Work]] = {OURS: partial(how, kernels.lightning)}
        if peer:
            entries[FLA] = partial(how, _fla)
        if quadratic:
            entries[EAGER] = partial(how, _quadratic)
        yield Row(f"lightning {what} {label}", entries)
