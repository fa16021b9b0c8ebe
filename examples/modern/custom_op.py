"""A custom operator of torch.library with its backward, a fake and a rule for vmap: a Triton kernel.

gradoracle check examples/modern/custom_op.py:right --dtype float32
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from jaxtyping import Float
from torch import Tensor

import gradoracle


@gradoracle.family(dims={"B": gradoracle.sizes(1, 9), "N": gradoracle.sizes(1, 60)})
def squared_relu(x: Float[Tensor, "B N"], scale: Float[Tensor, "N"]) -> Float[Tensor, "B N"]:
    """relu(x)^2 scale."""
    return torch.relu(x).square() * scale


@triton.jit
def _forward(X, S, Y, SIZE, N, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.maximum(tl.load(X + at, at < SIZE, 0.0).to(tl.float32), 0.0)
    y = x * x * tl.load(S + at % N, at < SIZE, 0.0).to(tl.float32)
    tl.store(Y + at, y.to(Y.dtype.element_ty), at < SIZE)


@torch.library.custom_op("modern::squared_relu", mutates_args=())
def operator(x: Tensor, scale: Tensor, bug: bool) -> Tensor:
    x, scale = x.contiguous(), scale.contiguous()
    y = torch.empty_like(x)
    _forward[(triton.cdiv(x.numel(), 64),)](x, scale, y, x.numel(), x.shape[-1], 64)
    return y


@operator.register_fake
def _(x, scale, bug):
    return torch.empty_like(x, memory_format=torch.contiguous_format)


def _saved(ctx, inputs, output):
    x, scale, ctx.bug = inputs
    ctx.save_for_backward(x, scale)


def _backward(ctx, g):
    x, scale = ctx.saved_tensors
    r, g = torch.relu(x.float()), g.float()
    dx = r * g * scale.float() * (1 if ctx.bug else 2)
    return dx.to(x.dtype), (g * r * r).flatten(0, -2).sum(0).to(scale.dtype), None


operator.register_autograd(_backward, setup_context=_saved)


@operator.register_vmap
def _(info, in_dims, x, scale, bug):
    if in_dims[1] is not None:
        raise NotImplementedError("a batch of scales")
    return operator(x.movedim(in_dims[0], 0), scale, bug), 0


@gradoracle.kernel(squared_relu)
def right(x, scale):
    return operator(x, scale, False)


@gradoracle.kernel(squared_relu)
def wrong(x, scale):
    """The gradient of x lacks the factor 2."""
    return operator(x, scale, True)
