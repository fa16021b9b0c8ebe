"""Norms that are wrong, lose precision, or do both, in their own ways."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

import gradoracle
from gradoracle.model.contract import PRESETS

SIZES = {"B": gradoracle.sizes(1, 8), "N": gradoracle.sizes(1, 32)}


@gradoracle.family(dims=SIZES)
def normalised(x: Float[Tensor, "B N"], w: Float[Tensor, "N"], *, eps: float = 1e-6) -> Float[Tensor, "B N"]:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * w


def rounded(x, w, eps):
    wide = x.float()
    return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)).to(x.dtype) * w


@gradoracle.kernel(normalised)
def loses_precision(x, w, *, eps=1e-6):
    return rounded(x, w, eps)


@gradoracle.kernel(normalised, contracts={"bfloat16": PRESETS["bf16"]})
def declares_more_than_it_keeps(x, w, *, eps=1e-6):
    return rounded(x, w, eps)


@gradoracle.kernel(normalised, contracts={"bfloat16": PRESETS["eager-bf16"]})
def declares_what_it_keeps(x, w, *, eps=1e-6):
    return rounded(x, w, eps)


@gradoracle.kernel(normalised)
def loses_precision_and_some_tails(x, w, *, eps=1e-6):
    """Its error is that of a rounding on most cases, and on some the last element is lost."""
    out = rounded(x, w, eps)
    return out if x.shape[1] % 5 else torch.cat([out[:, :-1], out[:, -1:] * 1.25], 1)


@gradoracle.kernel(normalised)
def loses_precision_in_other_layouts(x, w, *, eps=1e-6):
    if not x.is_contiguous():
        return rounded(x, w, eps)
    return normalised.definition(x.float(), w.float(), eps=eps).to(x.dtype)


@gradoracle.kernel(normalised)
def is_wrong_in_other_layouts(x, w, *, eps=1e-6):
    factor = 1.0 if x.is_contiguous() else 1.05
    return factor * normalised.definition(x.float(), w.float(), eps=eps).to(x.dtype)


@gradoracle.kernel(normalised)
def reads_bits(x, w, *, eps=1e-6):
    out = rounded(x, w, eps)
    return out if torch.is_grad_enabled() else (out.view(torch.int16) & ~1).view(out.dtype)


@gradoracle.kernel(normalised, contracts={"bfloat16": PRESETS["bf16"]})
def declares_and_reads_bits(x, w, *, eps=1e-6):
    return reads_bits.call(x, w, eps=eps)


@gradoracle.kernel(normalised)
def reads_bits_and_is_wrong(x, w, *, eps=1e-6):
    return 1.25 * reads_bits.call(x, w, eps=eps)


@gradoracle.kernel(normalised)
def returns_nan(x, w, *, eps=1e-6):
    out = rounded(x, w, eps)
    return torch.where(torch.arange(x.shape[1]) == 4, torch.nan, out)


@gradoracle.kernel(normalised)
def squares_in_the_dtype(x, w, *, eps=1e-6):
    """The sum of squares above 65504 is infinite in float16, and the result 0."""
    return (x.float() * torch.rsqrt((x * x).sum(-1, keepdim=True) / x.shape[1] + eps).float() * w.float()).to(x.dtype)


@gradoracle.kernel(normalised)
def squares_apart_in_the_dtype(x, w, *, eps=1e-6):
    """The same rounding where nothing overflows: squares of a row divided by its largest element."""
    top = x.float().abs().amax(-1, keepdim=True)
    top = torch.where(top > 0, top, 1.0)
    unit = (x.float() / top).to(x.dtype)
    mean = (unit * unit).float().mean(-1, keepdim=True)
    return (x.float() * torch.rsqrt(mean + eps / top.square()) / top * w.float()).to(x.dtype)


@gradoracle.kernel(normalised)
def has_a_wrong_constant(x, w, *, eps=1e-6):
    wide = x.float()
    return (1.0005 * (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)) * w.float()).to(x.dtype)


@gradoracle.family(dims={"B": gradoracle.sizes(1, 8), "N": gradoracle.sizes(1, 1)})
def centred(x: Float[Tensor, "B N"], w: Float[Tensor, "N"]) -> Float[Tensor, "B N"]:
    """Of a row of one element, exactly 0, as is the gradient of its weight."""
    off = x - x.mean(-1, keepdim=True)
    return off * torch.rsqrt(off.square().mean(-1, keepdim=True) + 1e-5) * w


@gradoracle.kernel(centred)
def rounds_where_nothing_rounds(x, w):
    """x * r - mean * r, of which each product is rounded: not 0 for a row of one element."""
    return torch.nn.functional.layer_norm(x, w.shape, w, None, 1e-5)


@gradoracle.kernel(centred)
def keeps_a_part_of_its_mean(x, w):
    return torch.nn.functional.layer_norm(x, w.shape, w, None, 1e-5) + 1e-6 * x.mean(-1, keepdim=True) * w


@gradoracle.kernel(normalised)
def fails_on_integers(x, w, *, eps=1e-6):
    wide = {torch.bfloat16: x, torch.float32: x}[x.dtype].float()
    return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps) * w.float()).to(x.dtype)


@gradoracle.kernel(normalised, dtypes=("bfloat16", "float32"))
def refuses_what_it_supports(x, w, *, eps=1e-6):
    if x.shape[1] > 20:
        raise ValueError("N must be at most 20")
    return normalised.definition(x.float(), w.float(), eps=eps).to(x.dtype)
