r"""Activations and rotary embeddings of Liger: `liger_kernel.transformers.functional`.

    pip install --no-deps liger-kernel==0.8.5
    gradoracle check examples/packages/liger_activations.py:swiglu

The products write the gradients of a and b over a and b, which ``mutates`` declares; the rotations happen in place.
"""

from __future__ import annotations

import liger_kernel.transformers.functional as liger
import torch
from jaxtyping import Float
from torch import Tensor

import gradoracle

ROWS = {"B": gradoracle.sizes(1, 20), "N": gradoracle.sizes(1, 150)}


@gradoracle.family(dims=ROWS)
def gelu_times(a: Float[Tensor, "B N"], b: Float[Tensor, "B N"]) -> Float[Tensor, "B N"]:
    """gelu(a) b, with gelu's formula in tanh."""
    return torch.nn.functional.gelu(a, approximate="tanh") * b


@gradoracle.kernel(gelu_times, mutates=("a", "b"))
def geglu(a, b):
    return liger.liger_geglu(a, b)


@gradoracle.family(dims=ROWS)
def silu_times(a: Float[Tensor, "B N"], b: Float[Tensor, "B N"]) -> Float[Tensor, "B N"]:
    """a sigmoid(a) b."""
    return a * torch.sigmoid(a) * b


@gradoracle.kernel(silu_times, mutates=("a", "b"))
def swiglu(a, b):
    return liger.liger_swiglu(a, b)


@gradoracle.family(dims=ROWS)
def squared_relu(x: Float[Tensor, "B N"]) -> Float[Tensor, "B N"]:
    """relu(x)^2."""
    return torch.relu(x).square()


@gradoracle.kernel(squared_relu)
def relu_squared(x):
    return liger.liger_relu_squared(x)


HEADS = {
    "B": gradoracle.sizes(1, 3),
    "H": gradoracle.sizes(1, 4),
    "G": gradoracle.sizes(1, 2),
    "T": gradoracle.sizes(1, 12),
    "D": gradoracle.choices(2, 6, 16, 32),
}


def rotated(x: Tensor, angles: Tensor) -> Tensor:
    """The pairs (x_i, x_(i + D / 2)) turned by angles [.. T D / 2]."""
    left, right = x.chunk(2, -1)
    cos, sin = torch.cos(angles), torch.sin(angles)
    return torch.cat([left * cos - right * sin, right * cos + left * sin], -1)


def table(x: Tensor, *, pace: float) -> Tensor:
    """Angles [T D / 2] of the positions."""
    frequencies = pace ** torch.arange(x.shape[-1] // 2, device=x.device)
    return torch.arange(x.shape[-2], device=x.device)[:, None] * frequencies


def doubled(angles: Tensor, like: Tensor) -> tuple[Tensor, Tensor]:
    """Cosines and sines [.. T D], each written twice, as the callers of these kernels make them."""
    twice = torch.cat([angles, angles], -1)
    return twice.cos().to(like.dtype), twice.sin().to(like.dtype)


@gradoracle.family(dims=HEADS, outputs=("rotated_q", "rotated_k"), dtypes=("float32",))
def rotations(
    q: Float[Tensor, "B H T D"], k: Float[Tensor, "B G T D"]
) -> tuple[Float[Tensor, "B H T D"], Float[Tensor, "B G T D"]]:
    """q and k turned by angles that grow with the position, by a pace of 1/2 from pair to pair."""
    angles = table(q, pace=0.5)
    return rotated(q, angles), rotated(k, angles)


@gradoracle.kernel(rotations)
def rope(q, k):
    cos, sin = doubled(table(q, pace=0.5), q)
    return liger.liger_rope(q, k, cos[None], sin[None])


@gradoracle.kernel(rotations)
def qwen2vl_mrope(q, k):
    """Time, height and width at the same positions: then it is the same rotation."""
    cos, sin = (x.expand(3, q.shape[0], -1, -1) for x in doubled(table(q, pace=0.5), q))
    half = q.shape[-1] // 2
    return liger.liger_qwen2vl_mrope(q, k, cos.contiguous(), sin.contiguous(), [half - half // 2, half // 2, 0])
