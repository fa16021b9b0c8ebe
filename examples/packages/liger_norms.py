r"""Norms, softmax and sparsemax of Liger: `liger_kernel.transformers.functional`.

    pip install --no-deps liger-kernel==0.8.5
    gradoracle check examples/packages/liger_norms.py:rms_norm
    gradoracle check examples/packages/liger_norms.py:softmax --dtype float32

Liger's norms with ``in_place`` write the gradient of x over the cotangent; they are called as by default.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

import gradoracle

with gradoracle.cuda_claimed():
    import liger_kernel.transformers.functional as liger

EPS = 1e-6
ROWS = {"B": gradoracle.sizes(1, 20), "N": gradoracle.sizes(1, 150)}
MEMBERS = {"B": gradoracle.sizes(1, 6), "T": gradoracle.sizes(1, 6), "N": gradoracle.sizes(1, 100)}
OFFSET = {"offset": (0.0, 1.0)}


def over_rms(x: Tensor) -> Tensor:
    """X divided by its root mean square over the last dim."""
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + EPS)


@gradoracle.family(dims=ROWS, options=OFFSET)
def rms(x: Float[Tensor, "B N"], w: Float[Tensor, "N"], *, offset: float = 0.0) -> Float[Tensor, "B N"]:
    """x / rms(x) (w + offset)."""
    return over_rms(x) * (w + offset)


@gradoracle.kernel(rms)
def rms_norm(x, w, *, offset=0.0):
    """In the casting mode of Llama."""
    return liger.liger_rms_norm(x, w, EPS, offset)


@gradoracle.kernel(rms)
def rms_norm_gemma(x, w, *, offset=0.0):
    """All in float32, rounded once."""
    return liger.liger_rms_norm(x, w, EPS, offset, "gemma")


@gradoracle.family(dims=ROWS, outputs=("y", "s"), options=OFFSET)
def add_rms(
    x: Float[Tensor, "B N"], r: Float[Tensor, "B N"], w: Float[Tensor, "N"], *, offset: float = 0.0
) -> tuple[Float[Tensor, "B N"], Float[Tensor, "B N"]]:
    """The norm of s = x + r, and s."""
    return over_rms(x + r) * (w + offset), x + r


@gradoracle.kernel(add_rms)
def fused_add_rms_norm(x, r, w, *, offset=0.0):
    return liger.liger_fused_add_rms_norm(x, r, w, EPS, offset)


@gradoracle.family(dims=MEMBERS, options=OFFSET)
def modulated_rms(
    x: Float[Tensor, "B T N"],
    w: Float[Tensor, "N"],
    scale: Float[Tensor, "B N"],
    shift: Float[Tensor, "B N"],
    *,
    offset: float = 0.0,
) -> Float[Tensor, "B T N"]:
    """x / rms(x) (w + offset) (1 + scale) + shift, with a scale and a shift of each member."""
    return over_rms(x) * (w + offset) * (1 + scale[:, None]) + shift[:, None]


@gradoracle.kernel(modulated_rms)
def modulated_rms_norm(x, w, scale, shift, *, offset=0.0):
    return liger.liger_modulated_rms_norm(x, w, scale, shift, EPS, offset)


def standardised(x: Tensor, dims: tuple[int, ...]) -> Tensor:
    """X without its mean, over its standard deviation."""
    centred = x - x.mean(dims, keepdim=True)
    return centred * torch.rsqrt(centred.square().mean(dims, keepdim=True) + EPS)


@gradoracle.family(dims=ROWS)
def layer(x: Float[Tensor, "B N"], w: Float[Tensor, "N"], b: Float[Tensor, "N"]) -> Float[Tensor, "B N"]:
    """(x - mean) / deviation w + b."""
    return standardised(x, (-1,)) * w + b


@gradoracle.kernel(layer)
def layer_norm(x, w, b):
    return liger.liger_layer_norm(x, w, b, EPS)


@gradoracle.family(
    dims={
        "B": gradoracle.sizes(1, 6),
        "G": gradoracle.sizes(1, 3),
        "C": gradoracle.sizes(1, 4),
        "N": gradoracle.sizes(1, 40),
    }
)
def group(x: Float[Tensor, "B G C N"], w: Float[Tensor, "G C"], b: Float[Tensor, "G C"]) -> Float[Tensor, "B G C N"]:
    """The layer norm over the channels of each group, with a weight and a bias of each channel."""
    return standardised(x, (-1, -2)) * w[:, :, None] + b[:, :, None]


@gradoracle.kernel(group)
def group_norm(x, w, b):
    groups, channels = w.shape
    flat = x.flatten(1, 2)
    y = liger.liger_group_norm(flat, w.flatten(), b.flatten(), groups * channels, groups, EPS)
    return y.unflatten(1, (groups, channels))


@gradoracle.family(dims=ROWS)
def poly(x: Float[Tensor, "B N"], w: Float[Tensor, "3"], b: Float[Tensor, "1"]) -> Float[Tensor, "B N"]:
    """w0 norm(x^3) + w1 norm(x^2) + w2 norm(x) + b."""
    return w[0] * over_rms(x**3) + w[1] * over_rms(x**2) + w[2] * over_rms(x) + b


@gradoracle.kernel(poly)
def poly_norm(x, w, b):
    return liger.liger_poly_norm(x, w, b.sum(), EPS)


@gradoracle.family(dims=ROWS)
def softmax_of(x: Float[Tensor, "B N"]) -> Float[Tensor, "B N"]:
    """softmax(x)."""
    return torch.softmax(x, -1)


@gradoracle.kernel(softmax_of)
def softmax(x):
    return liger.liger_softmax(x)


def on_simplex(x: Tensor) -> Tensor:
    """The point of the probability simplex nearest to x: relu(x - tau), with tau from the sorted scores."""
    shifted = torch.sort(x, -1, descending=True).values - x.amax(-1, keepdim=True)
    counts = torch.arange(1, x.shape[-1] + 1)
    support = (counts * shifted > shifted.cumsum(-1) - 1).to(x.dtype)
    size = support.sum(-1, keepdim=True)
    tau = x.amax(-1, keepdim=True) + ((shifted * support).sum(-1, keepdim=True) - 1) / size
    return torch.relu(x - tau)


@gradoracle.family(dims=ROWS)
def sparsemax_of(x: Float[Tensor, "B N"]) -> Float[Tensor, "B N"]:
    """The point of the probability simplex nearest to x."""
    return on_simplex(x)


@gradoracle.kernel(sparsemax_of)
def sparsemax(x):
    return liger.liger_sparsemax(x, -1)


@gradoracle.family(dims=ROWS)
def tanh_scaled(
    x: Float[Tensor, "B N"], alpha: Float[Tensor, "1"], gamma: Float[Tensor, "N"], beta: Float[Tensor, "N"]
) -> Float[Tensor, "B N"]:
    """tanh(alpha x) gamma + beta: a norm without statistics."""
    return torch.tanh(alpha * x) * gamma + beta


@gradoracle.kernel(tanh_scaled, needs_cuda=True)
def dyt(x, alpha, gamma, beta):
    return liger.liger_dyt(x, alpha, gamma, beta)
