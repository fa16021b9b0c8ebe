"""Kernels of ``pick`` that are wrong in a derivative, or in an output."""

from __future__ import annotations

from typing import Any

import torch

from tests.properties.faults import edited
from tests.properties.toys import gradients, right


def wrong_output(x, y):
    p, s = right(x, y)
    return torch.cat([p[:, :-1], p[:, -1:] * 1.0001], 1), s


def wrong_gradient(x, y):
    return right(edited(x, lambda g: g * 1.001), y)


def overflowing(x, y):
    e = torch.exp(x)
    return e / e.sum(-1, keepdim=True) * y * y, torch.logsumexp(x, -1)


def clamped_cotangent(x, y):
    return right(edited(x, lambda g: g.clamp(-0.05, 0.05)), y)


def dropped_cotangent(x, y):
    p, s = right(x, y)
    return p, edited(s, torch.zeros_like)


def frozen_in_backward(x, y):
    """The gradient is right; differentiated once more, softmax is a constant."""

    class Softmax(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x):
            p = torch.softmax(x, -1)
            ctx.save_for_backward(p)
            return p

        @staticmethod
        def backward(ctx: Any, g):
            p = ctx.saved_tensors[0].detach()
            return p * (g - (g * p).sum(-1, keepdim=True))

    return Softmax.apply(x) * y * y, torch.logsumexp(x, -1)


class NeedsEveryCotangent(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x, y):
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(x, y)
        return torch.softmax(x, -1) * y * y, torch.logsumexp(x, -1)

    @staticmethod
    def backward(ctx: Any, dp, ds):
        x, y = ctx.saved_tensors
        return gradients(x, y, torch.zeros_like(x) if dp is None else dp, ds[:])  # no check of ds


def jvp_of(scale=1.0, drop=()):
    """An explicit JVP of ``pick``, scaled, or without the tangents of some inputs."""

    def jvp(inputs, tangents, options, blocks):
        x, y = inputs["x"], inputs["y"]
        tx, ty = (torch.zeros_like(tangents[name]) if name in drop else tangents[name] for name in "xy")
        (p, s), (tp, ts) = torch.func.jvp(lambda x, y: right(x, y), (x, y), (tx, ty))
        return (p, s), (tp * scale, ts * scale)

    return jvp


def jvp_with_other_outputs(inputs, tangents, options, blocks):
    (p, s), moved = jvp_of()(inputs, tangents, options, blocks)
    return (p * 1.0001, s), moved


def hvp_without_cross_terms(inputs, tangents, cotangents, options, blocks):
    """Hxx tx + Hxy ty, but Hyy ty alone: the cross term is there on one side only."""
    x, y = inputs["x"], inputs["y"]

    def gradient(x, y):
        return torch.func.vjp(right, x, y)[1]((cotangents["p"], cotangents["s"]))

    hx = torch.func.jvp(gradient, (x, y), (tangents["x"], tangents["y"]))[1][0]
    hy = torch.func.jvp(gradient, (x, y), (torch.zeros_like(x), tangents["y"]))[1][1]
    return hx, hy


def stale_statistics():
    """softmax with the maximum and sum of the first call at each shape and dtype."""
    kept: dict[Any, Any] = {}

    def stale(x, y):
        key = (tuple(x.shape), x.dtype)
        if key not in kept:
            kept[key] = torch.logsumexp(x.detach(), -1, keepdim=True)
        p = torch.softmax(x, -1)
        frozen = torch.exp(x.detach() - kept[key])
        return (p - p.detach() + frozen) * y * y, torch.logsumexp(x, -1)

    return stale


def noisy_gradient(x, y):
    return right(edited(x, lambda g: g * (1 + 6e-8 * g.abs())), y)


def single_inside(x, y):
    """Correct in float32; in float64 it computes in float32."""
    return tuple(t.to(x.dtype) for t in right(x.float(), y.float()))
