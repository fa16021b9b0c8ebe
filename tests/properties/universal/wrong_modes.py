"""Kernels of ``pick`` that are wrong in one mode of second derivatives alone."""

from __future__ import annotations

from typing import Any

import torch

from tests.properties.toys import gradients


class Doubled(torch.autograd.Function):
    """(y, g) -> 2 y g, the backward of a square; its own tangent lacks the term of y."""

    @staticmethod
    def forward(y: Any, g: Any) -> Any:
        return 2 * y * g

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx: Any, cotangent: Any) -> Any:
        y, g = ctx.saved_tensors
        return 2 * g * cotangent, 2 * y * cotangent

    @staticmethod
    def jvp(ctx: Any, ty: Any, tg: Any) -> Any:
        y, _ = ctx.saved_tensors
        return 2 * y * tg if tg is not None else 0 * y


class Square(torch.autograd.Function):
    """y^2; right twice in reverse mode."""

    @staticmethod
    def forward(y: Any) -> Any:
        return y * y

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        return 2 * ctx.saved_tensors[0] * g

    @staticmethod
    def jvp(ctx: Any, t: Any) -> Any:
        return 2 * ctx.saved_tensors[0] * t


class BackwardWithoutATangent(Square):
    """Its gradient's tangent is wrong."""

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        return Doubled.apply(ctx.saved_tensors[0], g)


class TangentWithoutAGradient(Square):
    """Its tangent's gradient lacks the term of y."""

    @staticmethod
    def jvp(ctx: Any, t: Any) -> Any:
        return 2 * ctx.saved_tensors[0].detach() * t


class Handed(torch.autograd.Function):
    """g, whose gradient is left out."""

    @staticmethod
    def forward(ctx: Any, g: Any) -> Any:
        return g.clone()

    @staticmethod
    def backward(ctx: Any, cotangent: Any) -> None:
        return None


class DropsItsCotangent(torch.autograd.Function):
    """The identity, whose gradient has no gradient in the cotangent."""

    @staticmethod
    def forward(ctx: Any, o: Any) -> Any:
        return o.clone()

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        return Handed.apply(g)


class NeedsBoth(torch.autograd.Function):
    """softmax(x) y^2, whose gradients can be differentiated where both inputs need one."""

    @staticmethod
    def forward(ctx: Any, x: Any, y: Any) -> Any:
        ctx.save_for_backward(x, y)
        return torch.softmax(x, -1) * y * y

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        x, y = ctx.saved_tensors
        if not all(ctx.needs_input_grad):
            y = y.detach()
        return gradients(x, y, g)


class Detached(torch.autograd.Function):
    """``pick``, whose gradients are differentiable in the cotangents and constant in x and y."""

    @staticmethod
    def forward(ctx: Any, x: Any, y: Any) -> Any:
        ctx.save_for_backward(x, y)
        return torch.softmax(x, -1) * y * y, torch.logsumexp(x, -1)

    @staticmethod
    def backward(ctx: Any, g: Any, h: Any) -> Any:
        return gradients(*(tensor.detach() for tensor in ctx.saved_tensors), g, h)


class InNewMemory(Detached):
    """Its gradients are written into memory of their own, as by a program."""

    @staticmethod
    def backward(ctx: Any, g: Any, h: Any) -> Any:
        found = Detached.backward(ctx, g.detach(), h.detach())
        return tuple(torch.empty_like(each).copy_(each) for each in found)


class Once(Detached):
    """Its backward says that it cannot be differentiated."""

    backward = staticmethod(torch.autograd.function.once_differentiable(Detached.backward))


class RaisesATypeError(Detached):
    """Its backward cannot run where it is to be differentiated."""

    @staticmethod
    def backward(ctx: Any, g: Any, h: Any) -> Any:
        if torch.is_grad_enabled():
            raise TypeError("tensors that require grad have no address")
        return Detached.backward(ctx, g, h)


def of_square(function: type) -> Any:
    """``pick`` with its square by that function."""
    return lambda x, y: (torch.softmax(x, -1) * function.apply(y), torch.logsumexp(x, -1))


def dropping_its_cotangent(x: Any, y: Any) -> Any:
    return DropsItsCotangent.apply(torch.softmax(x, -1) * y * y), torch.logsumexp(x, -1)


def needing_both(x: Any, y: Any) -> Any:
    return NeedsBoth.apply(x, y), torch.logsumexp(x, -1)
