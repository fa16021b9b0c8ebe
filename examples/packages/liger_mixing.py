r"""Attention and residual mixing of Liger: `liger_kernel.transformers.functional`.

pip install --no-deps liger-kernel==0.8.5
gradoracle check examples/packages/liger_mixing.py:attn_res
"""

from __future__ import annotations

import math

import liger_kernel.transformers.functional as liger
import torch
from jaxtyping import Float, Float32
from liger_norms import EPS, on_simplex, over_rms
from torch import Tensor

import gradoracle

HEADS = {
    "B": gradoracle.sizes(1, 3),
    "H": gradoracle.sizes(1, 3),
    "T": gradoracle.sizes(16, 40),
    "D": gradoracle.choices(16, 32),
}
WINDOW = 5  # keys that a query sees


@gradoracle.family(dims=HEADS, options={"dilation": (1, 2)})
def neighbourhood(
    q: Float[Tensor, "B H T D"], k: Float[Tensor, "B H T D"], v: Float[Tensor, "B H T D"], *, dilation: int = 1
) -> Float[Tensor, "B H T D"]:
    """Attention of each position to every dilation-th of its neighbours."""
    positions = torch.arange(q.shape[-2])
    apart = positions[None, :] - positions[:, None]
    seen = (apart.abs() <= WINDOW // 2 * dilation) & (apart % dilation == 0)
    scores = torch.where(seen, q @ k.mT / math.sqrt(q.shape[-1]), -torch.inf)
    return torch.softmax(scores, -1) @ v


@gradoracle.kernel(neighbourhood)
def fused_neighborhood_attention(q, k, v, *, dilation=1):
    return liger.liger_fused_neighborhood_attention(q, k, v, WINDOW, dilation)


@gradoracle.family(
    dims={"B": gradoracle.sizes(1, 3), "C": gradoracle.sizes(1, 3), "T": gradoracle.sizes(2, 20)},
    options={"sparse": (False, True)},
)
def convolved_attention(
    scores: Float[Tensor, "B C T T"], w: Float[Tensor, "C C 3 3"], b: Float[Tensor, "C"], *, sparse: bool = False
) -> Float[Tensor, "B C T T"]:
    """Causal softmax, or sparsemax, of the scores, then a convolution over queries and keys; 0 above the diagonal."""
    size = scores.shape[-1]
    later = torch.ones(size, size, dtype=torch.bool).triu(1)
    masked = torch.where(later, -1e9, scores)
    p = on_simplex(masked) if sparse else torch.softmax(masked, -1)
    padded = torch.nn.functional.pad(p, (1, 1, 1, 1))
    windows = [padded[..., i : i + size, j : j + size] for i in range(3) for j in range(3)]  # each [B C T T]
    mixed = torch.einsum("wbcij,dcw->bdij", torch.stack(windows), w.flatten(2)) + b[:, None, None]
    return torch.where(later, 0.0, mixed)


@gradoracle.kernel(convolved_attention)
def multi_token_attention(scores, w, b, *, sparse=False):
    return liger.liger_multi_token_attention(scores, w, b, padding=1, sparse=sparse)


@gradoracle.family(dims={"L": gradoracle.sizes(1, 9), "T": gradoracle.sizes(1, 9), "N": gradoracle.sizes(1, 80)})
def depth_attention(v: Float[Tensor, "L T N"], wq: Float[Tensor, "N"], wn: Float[Tensor, "N"]) -> Float[Tensor, "T N"]:
    """Attention over the L blocks, whose keys are the normed values."""
    weights = torch.softmax((over_rms(v) * wn * wq).sum(-1), 0)
    return (weights[..., None] * v).sum(0)


@gradoracle.kernel(depth_attention)
def attn_res(v, wq, wn):
    return liger.liger_attn_res(v[:, None], wq, wn, EPS)[0]


STREAMS = 4  # a power of 2
WIDE = {"B": gradoracle.sizes(1, 9), "C": gradoracle.sizes(1, 40)}
SMALL = 1 / 16  # of alpha: with larger logits a column of the matrix nearly vanishes, and its norm is ill-conditioned


def coefficients(x: Tensor, phi: Tensor, b: Tensor, alpha: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Weights [B 4], [B 4], [B 4 4] of streams x [B 4 C]; the last nearly doubly stochastic, by Sinkhorn's steps."""
    mixed = over_rms(x.flatten(1)) @ phi.flatten(0, 1)
    pre = torch.sigmoid(alpha[0] * mixed[:, :STREAMS] + b[:STREAMS])
    post = 2 * torch.sigmoid(alpha[1] * mixed[:, STREAMS : 2 * STREAMS] + b[STREAMS : 2 * STREAMS])
    logits = (alpha[2] * mixed[:, 2 * STREAMS :] + b[2 * STREAMS :]).unflatten(1, (STREAMS, STREAMS))
    matrix = torch.softmax(logits, -1) + EPS
    matrix = matrix / (matrix.sum(-2, keepdim=True) + EPS)
    for _ in range(19):
        matrix = matrix / (matrix.sum(-1, keepdim=True) + EPS)
        matrix = matrix / (matrix.sum(-2, keepdim=True) + EPS)
    return pre, post, matrix


def combined(x: Tensor, f: Tensor, post: Tensor, matrix: Tensor) -> Tensor:
    """What a layer gave, f [B C], sent to the streams, and the streams x [B 4 C] mixed."""
    return post[..., None] * f[:, None] + matrix @ x


@gradoracle.family(dims=WIDE, outputs=("pre", "post", "matrix"))
def stream_weights(
    x: Float[Tensor, "B 4 C"], phi: Float[Tensor, "4 C 24"], b: Float32[Tensor, "24"], alpha: Float32[Tensor, "3"]
) -> tuple[Float32[Tensor, "B 4"], Float32[Tensor, "B 4"], Float32[Tensor, "B 4 4"]]:
    """The weights of the streams."""
    return coefficients(x, phi, b, SMALL * alpha)


@gradoracle.kernel(stream_weights)
def mhc_coeffs(x, phi, b, alpha):
    return liger.liger_mhc_coeffs(x, phi.flatten(0, 1), b, *(SMALL * alpha), allow_fp32=True)


@gradoracle.family(dims=WIDE)
def streams_into_layer(x: Float[Tensor, "B 4 C"], pre: Float32[Tensor, "B 4"]) -> Float[Tensor, "B C"]:
    """The weighted sum of the streams."""
    return (pre[..., None] * x).sum(1)


@gradoracle.kernel(streams_into_layer)
def mhc_pre(x, pre):
    return liger.liger_mhc_pre(x, pre)


@gradoracle.family(dims=WIDE)
def layer_into_streams(
    x: Float[Tensor, "B 4 C"],
    f: Float[Tensor, "B C"],
    post: Float32[Tensor, "B 4"],
    matrix: Float32[Tensor, "B 4 4"],
) -> Float[Tensor, "B 4 C"]:
    """The mixed streams and what the layer gave."""
    return combined(x, f, post, matrix)


@gradoracle.kernel(layer_into_streams)
def mhc_post_res(x, f, post, matrix):
    return liger.liger_mhc_post_res(x, f, post, matrix)


@gradoracle.family(dims=WIDE, outputs=("y", "x_in"))
def streams_through_layer(
    x: Float[Tensor, "B 4 C"],
    f: Float[Tensor, "B C"],
    pre: Float32[Tensor, "B 4"],
    post: Float32[Tensor, "B 4"],
    matrix: Float32[Tensor, "B 4 4"],
) -> tuple[Float[Tensor, "B 4 C"], Float[Tensor, "B C"]]:
    """Both of the above; f does not depend on what goes into the layer."""
    return combined(x, f, post, matrix), (pre[..., None] * x).sum(1)


@gradoracle.kernel(streams_through_layer)
def mhc_apply(x, f, pre, post, matrix):
    return liger.liger_mhc_apply(x, f, pre, post, matrix, return_x_in=True)


@gradoracle.family(dims=WIDE)
def residual_streams(
    x: Float[Tensor, "B 4 C"], phi: Float[Tensor, "4 C 24"], b: Float32[Tensor, "24"], alpha: Float32[Tensor, "3"]
) -> Float[Tensor, "B 4 C"]:
    """All of it around the layer sin."""
    pre, post, matrix = coefficients(x, phi, b, SMALL * alpha)
    return combined(x, torch.sin((pre[..., None] * x).sum(1)), post, matrix)


@gradoracle.kernel(residual_streams)
def mhc_forward(x, phi, b, alpha):
    return liger.liger_mhc_forward(x, torch.sin, phi.flatten(0, 1), b, *(SMALL * alpha), allow_fp32=True)
