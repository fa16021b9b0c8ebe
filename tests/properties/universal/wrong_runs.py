"""Kernels of ``pick`` that write where they should not, or give other results when they run again."""

from __future__ import annotations

import itertools
from typing import Any

import torch

from gradoracle.model.kernel import Kernel
from tests.properties.toys import kernel, right


class Pick(torch.autograd.Function):
    """``pick`` with a backward of its own, whose faults are switched on by name."""

    @staticmethod
    def forward(ctx: Any, x, y, fault: str):
        p = torch.empty_like(x)
        p.copy_(torch.softmax(x, -1))
        out = torch.empty(x.shape, dtype=x.dtype)
        rows = len(x) - 1 if fault == "tail unwritten" else len(x)
        out[:rows] = (p * y * y)[:rows]
        if fault == "writes behind":
            out.as_strided((1,), (1,), out.storage_offset() + out.numel()).fill_(1.0)
        if fault == "writes before":
            out.as_strided((1,), (1,), out.storage_offset() - 1).fill_(1.0)
        if fault == "scales its input":
            x.detach().mul_(0.5)
        if fault == "writes around its input":
            x.detach().as_strided((1,), (1,), x.storage_offset() - 1).fill_(0.0)
        ctx.fault, ctx.kept, ctx.returned = fault, p, None
        ctx.save_for_backward(p, y)
        return out, torch.logsumexp(x, -1)

    @staticmethod
    def backward(ctx: Any, dp, ds):
        p, y = ctx.saved_tensors
        if ctx.fault == "keeps on ctx":
            p = ctx.kept
        inner = dp * y * y
        dx = p * (inner - (inner * p).sum(-1, keepdim=True)) + ds[:, None] * p
        dy = 2 * dp * p * y
        if ctx.fault in ("overwrites what it saved", "keeps on ctx"):
            p.data.mul_(0.5)
        if ctx.fault == "overwrites its cotangent":
            dp.data.mul_(0.5)
        if ctx.fault == "gradient unwritten":
            return torch.empty_like(dx), dy, None
        if ctx.fault == "y by way of x" and not ctx.needs_input_grad[0]:
            dy = torch.zeros_like(dy)
        if ctx.fault == "scales what it returned":
            ctx.returned = dx if ctx.returned is None else ctx.returned.mul_(2)
            return ctx.returned, dy, None
        return dx, dy, None


def with_fault(fault: str, **fields: Any) -> Kernel:
    def call(x, y):
        return Pick.apply(x, y, fault)

    return kernel(call, **fields)


def counting():
    calls = []

    def drifting(x, y):
        p, s = right(x, y)
        calls.append(1)
        return p * (1 + 1.2e-7 * len(calls)), s

    return drifting


def cached():
    kept: dict[int, Any] = {}

    def by_address(x, y):
        p, s = right(x, y)
        first = kept.setdefault(x.data_ptr(), (p.detach(), x))  # x keeps its address from being given away
        return p - p.detach() + first[0], s

    return by_address


def of_leaves():
    """The gradient of y is lost where x is the result of another operation, as it is in training."""

    def by_grad_fn(x, y):
        return right(x, y if x.grad_fn is None else y.detach() + 0 * y)

    return by_grad_fn


def of_parameters():
    kept: dict[int, Any] = {}

    def by_parameter(x, y):
        """What was computed of a parameter is kept as long as it is that parameter."""
        p, s = right(x, y)
        own = y._base if y._base is not None else y
        first = kept.setdefault(id(own), (p.detach(), own))
        return p - p.detach() + first[0], s

    return by_parameter


def noisy():
    noise = itertools.cycle((0.0, 1e-4))  # random ones may be alike

    def alternating(x, y):
        p, s = right(x, y)
        return p * (1 + next(noise)), s

    return alternating


class Once(torch.autograd.Function):
    """``pick`` with a backward that gives its workspace back."""

    @staticmethod
    def forward(ctx: Any, x, y):
        ctx.inputs = (x.detach(), y.detach())
        return right(x, y)

    @staticmethod
    def backward(ctx: Any, dp, ds):
        if ctx.inputs is None:
            raise RuntimeError("the workspace of this graph was given back")
        (x, y), ctx.inputs = ctx.inputs, None
        with torch.enable_grad():
            return torch.func.vjp(right, x, y)[1]((dp, ds))


class Reusing(torch.autograd.Function):
    """``pick`` with an output that a later call overwrites."""

    buffers: dict[Any, Any] = {}  # noqa: RUF012

    @staticmethod
    def forward(ctx: Any, x, y):
        ctx.save_for_backward(x, y)
        p, s = right(x, y)
        out = Reusing.buffers.setdefault(p.shape, torch.zeros_like(p))
        return out.copy_(p).detach(), s

    @staticmethod
    def backward(ctx: Any, dp, ds):
        return torch.func.vjp(right, *ctx.saved_tensors)[1]((dp, ds))
