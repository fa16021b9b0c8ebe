"""Softmax and RMSNorm in Triton, correct and with faults that 16-bit results hide, and faults of precision alone."""

from __future__ import annotations

import math
from typing import Any

import torch
import triton
import triton.language as tl
from jaxtyping import Float
from torch import Tensor

import gradoracle
from gradoracle.host import interpreter
from gradoracle.model.case import Case
from gradoracle.model.kernel import Kernel

if interpreter.explain_unavailable() is None:
    interpreter.activate()

SCALE, EPS = 0.3, 1e-5
LOG2_E = math.log2(math.e)


@gradoracle.family(outputs=("p",), dtypes=("float32", "float16", "bfloat16"))
def scaled_softmax(x: Float[Tensor, "B N"]) -> Float[Tensor, "B N"]:
    """softmax(0.3 x)."""
    return torch.softmax(SCALE * x, -1)


@gradoracle.family(outputs=("y",), dtypes=("float32", "float16", "bfloat16"))
def normed(x: Float[Tensor, "B N"]) -> Float[Tensor, "B N"]:
    """x / rms(x)."""
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + EPS)


@triton.jit
def _softmax(X, P, KEPT, N, factor, log2_e: tl.constexpr, BLOCK: tl.constexpr):
    row, n = tl.program_id(0), tl.arange(0, BLOCK)
    x = tl.load(X + row * N + n, mask=n < N, other=float("-inf")).to(tl.float32) * factor
    e = tl.exp2((x - tl.max(x, 0)) * log2_e)
    p = e / tl.sum(e, 0)
    tl.store(P + row * N + n, p.to(P.dtype.element_ty), mask=n < N)
    tl.store(KEPT + row * N + n, p.to(KEPT.dtype.element_ty), mask=n < N)


@triton.jit
def _softmax_backward(X, P, G, DX, N, factor, BLOCK: tl.constexpr):
    row, n = tl.program_id(0), tl.arange(0, BLOCK)
    p = tl.load(P + row * N + n, mask=n < N, other=0.0).to(tl.float32)
    g = tl.load(G + row * N + n, mask=n < N, other=0.0).to(tl.float32)
    dx = p * (g - tl.sum(p * g, 0)) * factor
    tl.store(DX + row * N + n, dx.to(DX.dtype.element_ty), mask=n < N)


@triton.jit
def _norm(X, Y, N, eps, OUTSIDE: tl.constexpr, BITS: tl.constexpr, BLOCK: tl.constexpr):
    row, n = tl.program_id(0), tl.arange(0, BLOCK)
    x = tl.load(X + row * N + n, mask=n < N, other=0.0).to(tl.float32)
    mean = tl.sum(x * x, 0) / N
    if BITS:  # to an integer and back: exact as written, and nothing that a float64 could do
        mean = mean.to(tl.int32, bitcast=True).to(tl.float32, bitcast=True)
    root = tl.sqrt(mean) + eps if OUTSIDE else tl.sqrt(mean + eps)
    tl.store(Y + row * N + n, (x / root).to(Y.dtype.element_ty), mask=n < N)


def softmax(
    name: str, slip: float = 0.0, log2_e: float = LOG2_E, narrow: bool = False, rounded: bool = False
) -> Kernel:
    """A kernel of ``scaled_softmax``.

    Args:
        name: of the kernel.
        slip: by which the scale is off, relative, in forward and backward.
        log2_e: the constant that the exponents are multiplied by.
        narrow: whether what backward reads is kept in the dtype of the input, and not in float32.
        rounded: whether the wrapper rounds the scaled input to its dtype before the launch.
    """
    factor = SCALE * (1 + slip)

    class Softmax(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            given, own = ((x * factor).to(x.dtype), 1.0) if rounded else (x.contiguous(), factor)
            p = torch.empty_like(given)
            kept = torch.empty_like(given, dtype=x.dtype if narrow else torch.float32)
            block = triton.next_power_of_2(x.shape[1])
            _softmax[(x.shape[0],)](given, p, kept, x.shape[1], own, log2_e, block)
            ctx.save_for_backward(x, kept)
            return p

        @staticmethod
        def backward(ctx: Any, *g: Tensor) -> Tensor:
            x, p = ctx.saved_tensors
            dx = torch.empty_like(x.contiguous())
            block = triton.next_power_of_2(x.shape[1])
            _softmax_backward[(x.shape[0],)](x, p, g[0].contiguous(), dx, x.shape[1], factor, block)
            return dx

    return Kernel(name, "scaled_softmax", Softmax.apply, outside=True)


def with_explicit_jvp(name: str, slip: float = 0.0) -> Kernel:
    """A kernel of ``scaled_softmax`` with a correct explicit JVP; in forward mode tangents are off by ``slip``."""

    def pushed(x: Tensor, t: Tensor) -> Tensor:
        p = torch.softmax(SCALE * x.float(), -1)
        moved = SCALE * p * t.float()
        return moved - p * moved.sum(-1, keepdim=True)

    class Softmax(torch.autograd.Function):
        @staticmethod
        def forward(x: Tensor) -> Tensor:
            return torch.softmax(SCALE * x.float(), -1).to(x.dtype)

        @staticmethod
        def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
            ctx.save_for_backward(*inputs)
            ctx.save_for_forward(*inputs)

        @staticmethod
        def backward(ctx: Any, *g: Tensor) -> Tensor:
            (x,) = ctx.saved_tensors
            return pushed(x, g[0]).to(x.dtype)  # the Jacobian is symmetric

        @staticmethod
        def jvp(ctx: Any, *t: Tensor) -> Tensor:
            (x,) = ctx.saved_tensors
            return ((1 + slip) * pushed(x, t[0])).to(x.dtype)

    def jvp(inputs: Any, tangents: Any, *_: Any) -> tuple[Tensor, Tensor]:
        x = inputs["x"]
        return Softmax.apply(x), pushed(x, tangents["x"]).to(x.dtype)

    return Kernel(name, "scaled_softmax", Softmax.apply, jvp=jvp)


def norm(name: str, outside: bool = False, bits: bool = False, eps: float = EPS) -> Kernel:
    """A kernel of ``normed`` with PyTorch's backward.

    Args:
        name: of the kernel.
        outside: whether eps is added to the root and not under it.
        bits: whether the mean passes through the bits of a float32.
        eps: that is added.
    """

    def call(x: Tensor) -> Tensor:
        y = torch.empty_like(x.contiguous())
        block = triton.next_power_of_2(x.shape[1])
        _norm[(x.shape[0],)](x.contiguous(), y, x.shape[1], eps, outside, bits, block)
        return y

    def vjp(inputs: Any, cotangents: Any, *_: Any) -> tuple[Tensor]:
        x = inputs["x"].detach().float().requires_grad_()
        with torch.enable_grad():
            mean = x.square().mean(-1, keepdim=True)
            y = x / (mean.sqrt() + eps) if outside else x * torch.rsqrt(mean + eps)
        (dx,) = torch.autograd.grad(y, x, cotangents["y"].float())
        return (dx.to(inputs["x"].dtype),)

    return Kernel(name, "normed", call, vjp=vjp, outside=True)


# the last two lose precision alone: what backward reads, or the scaled input, is rounded to the dtype of the input
CORRECT_SOFTMAX = [
    softmax("correct"),
    softmax("log2 e in float32", log2_e=float(torch.tensor(LOG2_E))),
    softmax("kept in 16 bits", narrow=True),
    softmax("scaled in 16 bits", rounded=True),
]


def case(family: str, dtype: str) -> Case:
    """Eight rows of 33 numbers."""
    return Case(family, {"B": 8, "N": 33}, dtype=dtype, seed=3)
