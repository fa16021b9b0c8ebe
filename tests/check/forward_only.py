"""Kernels that have a forward alone, such as decoding: right ones, and such with a fault."""

from __future__ import annotations

import itertools

import torch
from jaxtyping import Float
from torch import Tensor

import gradoracle

_calls = itertools.count()


@gradoracle.family(dims={"B": gradoracle.sizes(1, 6), "N": gradoracle.sizes(1, 40)})
def square(x: Float[Tensor, "B N"]) -> Float[Tensor, "B N"]:
    return x * x


class _Backwardless(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * x

    @staticmethod
    def backward(ctx, g):
        raise NotImplementedError("no backward")


class _Silent(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * x

    @staticmethod
    def backward(ctx, g):
        return None


@gradoracle.kernel(square)
def detached(x):
    return (x * x).detach()


@gradoracle.kernel(square, no_gradient=("x",))
def without_gradients(x):
    return (x * x).detach()


@gradoracle.kernel(square, claims=("forward",))
def with_a_backward_that_raises(x):
    return _Backwardless.apply(x)


@gradoracle.kernel(square, claims=("forward",))
def with_a_backward_of_nothing(x):
    return _Silent.apply(x)


@gradoracle.kernel(square)
def ignores_strides(x):
    return x.detach().as_strided(x.shape, (x.shape[1], 1)).square()


@gradoracle.kernel(square, claims=("forward",))
def differs_from_call_to_call(x):
    return x.detach() * x.detach() * (1 + 1e-3 * (next(_calls) % 2))


@gradoracle.kernel(square, claims=("forward",))
def scales_by_the_whole_batch(x):
    x = x.detach()
    return x * x + 0 * x.sum()
