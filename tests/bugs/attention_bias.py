"""Attention with a bias and keys that all heads share, read by strides: the correct one, and released bugs.

Arithmetic is in float32, with autograd's own backward.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

import gradoracle
from gradoracle.mutation.bugs import Bugs


@gradoracle.family(
    dims={"B": gradoracle.sizes(1, 3), "H": gradoracle.sizes(1, 6)}
    | {name: gradoracle.sizes(1, 40) for name in ("T", "M", "D", "Dv")}
)
def shared_keys(
    q: Float[Tensor, "B H T D"], k: Float[Tensor, "B M D"], v: Float[Tensor, "B M Dv"], bias: Float[Tensor, "B H T M"]
) -> Float[Tensor, "B H T Dv"]:
    """softmax(q k^T / sqrt(D) + bias) v, with one k and v for all heads."""
    s = q @ k.transpose(-1, -2)[:, None] * q.shape[-1] ** -0.5 + bias
    return torch.softmax(s, -1) @ v[:, None]


def _attention(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
    """o, of q [B H T D] and the bias [B H T M] that belongs to its rows."""
    s = q.float() @ k.float().mT[:, None] * q.shape[-1] ** -0.5 + bias.float()
    return (torch.softmax(s, -1) @ v.float()[:, None]).to(q.dtype)


def _one_query(q: Tensor, k: Tensor, v: Tensor, bias: Tensor, view: Callable[[Tensor], Tensor]) -> Tensor:
    """With one query a head, heads become the rows of one head, which read k once; ``view`` gives the bias's."""
    if q.shape[2] != 1:
        return _attention(q, k, v, bias)
    return _attention(q.transpose(1, 2), k, v, view(bias)).transpose(1, 2)


def right(q, k, v, bias):
    """The correct kernel."""
    return _one_query(q, k, v, bias, lambda bias: bias.transpose(1, 2))


BUGS = Bugs(right)


@BUGS.of("facebookresearch/xformers#952", "any_layout_of_inputs_is_right_or_refused", "layout", T="1")
def strides_of_the_bias_not_swapped(q, k, v, bias):
    """facebookresearch/xformers#952: with one query and shared keys, heads became rows of q, but not of the bias.

    Its rows were read by the stride of queries, which is that of heads only where the bias is dense.
    """

    def view(bias: Tensor) -> Tensor:
        b, h, _, m = bias.shape
        return bias.as_strided((b, 1, h, m), bias.stride(), bias.storage_offset())

    return _one_query(q, k, v, bias, view)


@BUGS.of("amorehead/jvp_flash_attention@d1def46", "any_layout_of_inputs_is_right_or_refused", "layout")
def strides_taken_before_contiguous(q, k, v, bias):
    """amorehead/jvp_flash_attention@d1def46: the strides of the mask were taken before it was made contiguous.

    What the launch was given is the copy, and the strides of what it was copied from.
    """
    strides = bias.stride()
    return _attention(q, k, v, bias.contiguous().as_strided(bias.shape, strides))
