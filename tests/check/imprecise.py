"""softmax(x) @ w in Triton, in float32, correct and with one place each where precision is lost."""

from __future__ import annotations

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

ROWS = 16
SHARE = 8e-4  # of the error of float16 that `twice` adds at each of two statements


@gradoracle.family(outputs=("y",), dtypes=("float32",))
def mixed(x: Float[Tensor, "B N"], w: Float[Tensor, "N D"]) -> Float[Tensor, "B D"]:
    """softmax(x) @ w."""
    return torch.softmax(x, -1) @ w


@triton.jit
def rounded_to_bf16(x):
    return x.to(tl.bfloat16).to(tl.float32)  # in a helper


@triton.jit
def _forward(X, W, Y, P, N: tl.constexpr, D: tl.constexpr, ROWS: tl.constexpr, LOSS: tl.constexpr):
    row, n, d = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, N), tl.arange(0, D)
    x = tl.load(X + row[:, None] * N + n[None, :])
    e = tl.exp(x - tl.max(x, 1)[:, None])
    p = e / tl.sum(e, 1)[:, None]
    w = tl.load(W + n[:, None] * D + d[None, :])
    if LOSS == "p":
        p = p.to(tl.bfloat16).to(tl.float32)  # p before the dot
    if LOSS == "helper":
        p = rounded_to_bf16(p)
    if LOSS == "sum":
        p = e / tl.sum(e.to(tl.bfloat16), 1).to(tl.float32)[:, None]  # a sum in 16 bits
    precise: tl.constexpr = "tf32" if LOSS == "dot" else "ieee"
    y = tl.dot(p, w, input_precision=precise)  # a dot in fewer bits
    tl.store(Y + row[:, None] * D + d[None, :], y)  # the output
    tl.store(P + row[:, None] * N + n[None, :], p)  # kept for backward


@triton.jit
def _backward(P, W, G, DX, DW, rows, N: tl.constexpr, D: tl.constexpr, ROWS: tl.constexpr, LOSS: tl.constexpr):
    r, n, d = tl.arange(0, ROWS), tl.arange(0, N), tl.arange(0, D)
    w = tl.load(W + n[:, None] * D + d[None, :])
    dw = tl.zeros((N, D), tl.float32)
    for first in range(0, rows, ROWS):
        p = tl.load(P + (first + r)[:, None] * N + n[None, :]).to(tl.float32)
        g = tl.load(G + (first + r)[:, None] * D + d[None, :])
        step = tl.dot(tl.trans(p), g, input_precision="ieee")
        if LOSS == "accumulated":
            dw = (dw + step).to(tl.bfloat16).to(tl.float32)  # accumulated in 16 bits
        else:
            dw += step
        dp = tl.dot(g, tl.trans(w), input_precision="ieee")
        dx = p * (dp - tl.sum(p * dp, 1)[:, None])
        tl.store(DX + (first + r)[:, None] * N + n[None, :], dx)  # dx
    if LOSS == "atomic":
        tl.atomic_add(DW + n[:, None] * D + d[None, :], dw.to(tl.float16))  # an atomic in 16 bits
    else:
        tl.store(DW + n[:, None] * D + d[None, :], dw)


def kernel(loss: str = "") -> Kernel:
    """A kernel of ``mixed`` that loses precision at the place that ``loss`` names; "": nowhere."""
    half = torch.bfloat16

    class Mixed(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
            if loss == "input":
                x = x.to(half).float()  # the input
            x, w = x.contiguous(), w.contiguous()
            y = torch.empty(len(x), w.shape[1])
            p = torch.empty_like(x, dtype=half if loss == "saved" else x.dtype)  # memory of p
            _forward[(len(x) // ROWS,)](x, w, y, p, x.shape[1], w.shape[1], ROWS, loss)
            ctx.save_for_backward(p, w)
            return y

        @staticmethod
        def backward(ctx: Any, *g: Tensor) -> tuple[Tensor, Tensor]:
            p, w = ctx.saved_tensors
            dx = torch.empty_like(p, dtype=half if loss == "output" else w.dtype)  # memory of dx
            dw = torch.zeros_like(w, dtype=torch.float16 if loss == "atomic" else w.dtype)
            _backward[(1,)](p, w, g[0].contiguous(), dx, dw, len(p), p.shape[1], w.shape[1], ROWS, loss)
            if loss == "gradient":
                dw = dw.half()  # the gradient
            return dx.to(w.dtype), dw.to(w.dtype)

    return Kernel(loss or "correct", "mixed", Mixed.apply, outside=True)


def twice() -> Kernel:
    """PyTorch with two statements, each of which adds an error just below the budget, and both one above it."""

    def call(x: Tensor, w: Tensor) -> Tensor:
        first = w.half()  # one half
        second = w.half()  # the other
        return torch.softmax(x, -1) @ (w + SHARE * (first - w) + SHARE * (second - w))

    return Kernel("twice", "mixed", call, outside=True)
