"""GELU and RMSNorm in Triton with numbers in their source, correct and with one of them wrong."""

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
from gradoracle.model.kernel import Kernel

if interpreter.explain_unavailable() is None:
    interpreter.activate()

EPS = 1e-6
LOG2_E: tl.constexpr = tl.constexpr(1.44269504)
SHORT_LOG2_E: tl.constexpr = tl.constexpr(1.4427)


@gradoracle.family(outputs=("y",), dtypes=("float32", "bfloat16"))
def gelu(x: Float[Tensor, "B N"]) -> Float[Tensor, "B N"]:
    """x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2."""
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)))


@gradoracle.family(outputs=("y",), dtypes=("float32", "bfloat16"))
def rms(x: Float[Tensor, "B N"]) -> Float[Tensor, "B N"]:
    """x / rms(x)."""
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + EPS)


@triton.jit
def _inner(x, FAULT: tl.constexpr):
    if FAULT == "root":
        return 0.797 * (x + 0.044715 * x * x * x)  # the root of 2 / pi
    if FAULT == "cubic":
        return 0.7978845608 * (x + 0.0447 * x * x * x)  # the cubic term
    return 0.7978845608 * (x + 0.044715 * x * x * x)


@triton.jit
def _tanh(x, FAULT: tl.constexpr):
    if FAULT == "log":
        return 1 - 2 / (1 + tl.exp2(2 * x * SHORT_LOG2_E))  # log2 e
    return 1 - 2 / (1 + tl.exp2(2 * x * LOG2_E))


@triton.jit
def _gelu(X, Y, COUNT, FAULT: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(X + at, mask=at < COUNT, other=0.0).to(tl.float32)
    y = 0.5 * x * (1 + _tanh(_inner(x, FAULT), FAULT))
    if FAULT == "tail":
        y += tl.where(at == COUNT - 1, x, 0.0)
    tl.store(Y + at, y.to(Y.dtype.element_ty), mask=at < COUNT)


@triton.jit
def _gelu_backward(X, G, DX, COUNT, FAULT: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(X + at, mask=at < COUNT, other=0.0).to(tl.float32)
    g = tl.load(G + at, mask=at < COUNT, other=0.0).to(tl.float32)
    t = _tanh(_inner(x, FAULT), FAULT)
    slope = 0.7978845608 * (1 + 3 * 0.044715 * x * x)
    dx = g * (0.5 * (1 + t) + 0.5 * x * (1 - t * t) * slope)
    tl.store(DX + at, dx.to(DX.dtype.element_ty), mask=at < COUNT)


@triton.jit
def _rms(X, Y, N, eps, AGAIN: tl.constexpr, BLOCK: tl.constexpr):
    row, n = tl.program_id(0), tl.arange(0, BLOCK)
    x = tl.load(X + row * N + n, mask=n < N, other=0.0).to(tl.float32)
    y = x / tl.sqrt(tl.sum(x * x, 0) / N + eps)
    if AGAIN:
        y = y + y * 1e-6  # as large as eps
    tl.store(Y + row * N + n, y.to(Y.dtype.element_ty), mask=n < N)


def of_gelu(fault: str = "") -> Kernel:
    """A kernel of ``gelu`` with the number wrong that ``fault`` names; "tail": the last element."""

    class Gelu(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            x = x.contiguous()
            ctx.save_for_backward(x)
            y = torch.empty_like(x)
            _gelu[(triton.cdiv(x.numel(), 64),)](x, y, x.numel(), fault, 64)
            if fault == "factor":
                y = y * 1.001  # a factor
            if fault == "factors":
                y = y * 1.1 * 0.9
            return y

        @staticmethod
        def backward(ctx: Any, *g: Tensor) -> Tensor:
            (x,) = ctx.saved_tensors
            dx = torch.empty_like(x)
            _gelu_backward[(triton.cdiv(x.numel(), 64),)](x, g[0].contiguous(), dx, x.numel(), fault, 64)
            return dx

    return Kernel(fault or "correct", "gelu", Gelu.apply, outside=True)


def of_rms(eps: float = EPS, again: bool = False) -> Kernel:
    """A kernel of ``rms``, without a gradient, that adds ``eps``; ``again``: to its results, too, in proportion."""

    def call(x: Tensor) -> Tensor:
        x = x.contiguous()
        y = torch.empty_like(x)
        _rms[(len(x),)](x, y, x.shape[1], eps, again, triton.next_power_of_2(x.shape[1]))  # launched
        return y

    return Kernel(f"eps {eps}", "rms", call, outside=True)


# by fault: the right value, and its name
TRUE = {"root": math.sqrt(2 / math.pi), "cubic": 0.044715, "log": math.log2(math.e), "factor": 1.0}
NAMES = {"root": "", "cubic": "", "log": "log2 e", "factor": ""}
