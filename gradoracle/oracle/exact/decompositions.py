"""Decompositions: compound operators in terms of the few that every reading has a rule for.

PyTorch's core table does most; the functions here decompose what it leaves whole. Constants that are not exact in
float64 (the root of 1/2 in gelu) are written as operations on exact ones, so that an exact reading computes them.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch._decomp import core_aten_decompositions

from gradoracle.oracle.exact import complex_numbers

aten = torch.ops.aten


@functools.cache
def table() -> Any:
    """The decompositions that ``trace`` applies, by operator; softmax and log_softmax stay whole."""
    core = core_aten_decompositions()
    decompositions = _Decompositions(
        {operator: core[operator] for operator in core}
    )  # ``get`` of ``core`` finds nothing
    decompositions.update(
        {
            aten.gelu.default: _gelu,
            aten.gelu_backward.default: _gelu_backward,
            aten.leaky_relu.default: _leaky_relu,
            aten.native_layer_norm.default: _layer_norm,
            aten.native_group_norm.default: _group_norm,
            aten.var.correction: _var,
            aten.var_mean.correction: _var_mean,
            aten.mean.default: _mean,
            aten.mean.dim: _mean,
            aten.hypot.default: _hypot,
            aten.linalg_vector_norm.default: _vector_norm,
            aten.embedding.default: _embedding,
            aten.eye.default: _eye,
            aten.eye.m: _eye,
            aten.addmm.default: _addmm,
            aten.addmv.default: _addmv,
            aten.repeat.default: _repeat,
            aten.elu.default: _elu,
            aten.hardtanh.default: _hardtanh,
            aten.select_scatter.default: _select_scatter,
            **complex_numbers.of_real(),
        }
    )
    return decompositions


@functools.cache
def of_movements() -> Any:
    """Those of operators that only move values: their derivatives are the same."""
    moving = (
        *(aten.stack.default, aten.select_scatter.default, aten.unbind.int, aten.split.Tensor),
        *(aten.squeeze.dim, aten.squeeze.default, aten.transpose.int, aten.t.default, aten._unsafe_view.default),
    )
    return {operator: table()[operator] for operator in moving if operator in table()}


class _Decompositions(dict[Any, Any]):
    """By operator. What ``get`` finds also decomposes each operator of complex tensors into real ones."""

    def get(self, operator: Any, default: Any = None) -> Any:
        return functools.partial(complex_numbers.decomposed, operator, super().get(operator, default))


def _constant(x: Tensor, value: float) -> Tensor:
    return torch.full((), value, dtype=x.dtype, device=x.device)


def _normal_cdf(x: Tensor) -> Tensor:
    return (torch.erf(x * _constant(x, 2.0).rsqrt()) + 1.0) * 0.5


def _gelu(x: Tensor, approximate: str = "none") -> Tensor:
    if approximate == "none":
        return x * _normal_cdf(x)
    return x * (torch.tanh(_gelu_argument(x)) + 1.0) * 0.5


def _root_of_two_over_pi(x: Tensor) -> Tensor:
    return (_constant(x, 0.5) * math.pi).rsqrt()


def _gelu_argument(x: Tensor) -> Tensor:
    return (x + x * x * x * 0.044715) * _root_of_two_over_pi(x)


def _gelu_backward(cotangent: Tensor, x: Tensor, approximate: str = "none") -> Tensor:
    if approximate == "none":
        density = torch.exp(x * x * -0.5) * _root_of_two_over_pi(x) * 0.5
        return cotangent * (_normal_cdf(x) + x * density)
    bend = torch.tanh(_gelu_argument(x))
    slope = (x * x * (3.0 * 0.044715) + 1.0) * _root_of_two_over_pi(x)
    return cotangent * ((bend + 1.0) * 0.5 + x * 0.5 * (1.0 - bend * bend) * slope)


def _leaky_relu(x: Tensor, negative_slope: float = 0.01) -> Tensor:
    return torch.where(x > 0, x, x * negative_slope)


def _dims(x: Tensor, dim: Sequence[int] | int | None) -> list[int]:
    if dim is None or (not isinstance(dim, int) and len(dim) == 0):
        return list(range(x.dim()))
    return [d % max(x.dim(), 1) for d in ([dim] if isinstance(dim, int) else dim)]


def _mean(x: Tensor, dim: Sequence[int] | None = None, keepdim: bool = False, *, dtype: Any = None) -> Tensor:
    over = _dims(x, dim)
    return x.sum(over, keepdim=keepdim) / _terms(x, over)


def _terms(x: Tensor, over: Sequence[int]) -> float:
    return float(math.prod(x.shape[d] for d in over)) if x.dim() else 1.0


def _var_mean(
    x: Tensor, dim: Sequence[int] | None = None, *, correction: float | None = None, keepdim: bool = False
) -> tuple[Tensor, Tensor]:
    over = _dims(x, dim)
    mean = _mean(x, over, keepdim=True)
    centred = x - mean
    freedom = max(_terms(x, over) - (1.0 if correction is None else float(correction)), 0.0)
    var = (centred * centred).sum(over, keepdim=keepdim) / freedom
    return var, mean if keepdim else mean.view(var.shape)


def _var(
    x: Tensor, dim: Sequence[int] | None = None, *, correction: float | None = None, keepdim: bool = False
) -> Tensor:
    return _var_mean(x, dim, correction=correction, keepdim=keepdim)[0]


def _layer_norm(
    x: Tensor, normalized_shape: Sequence[int], weight: Tensor | None, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    over = list(range(x.dim() - len(normalized_shape), x.dim()))
    var, mean = _var_mean(x, over, correction=0, keepdim=True)
    inverse = (var + eps).rsqrt()
    out = (x - mean) * inverse
    if weight is not None:
        out = out * weight
    if bias is not None:
        out = out + bias
    return out, mean, inverse


def _group_norm(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, batch: int, channels: int, area: int, groups: int, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    rows = x.reshape(batch, groups, -1)
    var, mean = _var_mean(rows, [2], correction=0, keepdim=True)
    inverse = (var + eps).rsqrt()
    out = ((rows - mean) * inverse).reshape(x.shape)
    per_channel = (1, channels, *[1] * (x.dim() - 2))
    if weight is not None:
        out = out * weight.reshape(per_channel)
    if bias is not None:
        out = out + bias.reshape(per_channel)
    return out, mean.reshape(batch, groups), inverse.reshape(batch, groups)


def _hypot(x: Tensor, y: Tensor) -> Tensor:
    return (x * x + y * y).sqrt()


def _vector_norm(
    x: Tensor, ord: float = 2, dim: Sequence[int] | None = None, keepdim: bool = False, *, dtype: Any = None
) -> Tensor:
    over = _dims(x, dim)
    if ord == math.inf:
        return x.abs().amax(over, keepdim=keepdim)
    if ord == -math.inf:
        return x.abs().amin(over, keepdim=keepdim)
    if ord == 0:
        return (x != 0).to(x.dtype).sum(over, keepdim=keepdim)
    if ord == 1:
        return x.abs().sum(over, keepdim=keepdim)
    if ord == 2:
        return (x * x).sum(over, keepdim=keepdim).sqrt()
    return x.abs().pow(ord).sum(over, keepdim=keepdim).pow(1.0 / ord)


def _embedding(
    weight: Tensor, indices: Tensor, padding_idx: int = -1, scale_grad_by_freq: bool = False, sparse: bool = False
) -> Tensor:
    return weight.index_select(0, indices.reshape(-1)).view(*indices.shape, weight.shape[1])


def _eye(n: int, m: int | None = None, *, dtype: torch.dtype | None = None, **options: Any) -> Tensor:
    # PyTorch's own counts rows in uint16 if there are more than 256, which arange does not implement on the CPU
    rows, columns = torch.arange(n), torch.arange(n if m is None else m)
    return (rows[:, None] == columns).to(dtype or torch.get_default_dtype())


def _addmm(c: Tensor, a: Tensor, b: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    product = a @ b
    product = product if alpha == 1 else product * alpha
    return product + (c if beta == 1 else c * beta)


def _addmv(c: Tensor, a: Tensor, b: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
    return _addmm(c[:, None], a, b[:, None], beta=beta, alpha=alpha)[:, 0]


def _elu(x: Tensor, alpha: float = 1, scale: float = 1, input_scale: float = 1) -> Tensor:
    below = torch.expm1(x if input_scale == 1 else x * input_scale)
    out = torch.where(x > 0, x, below if alpha == 1 else below * alpha)
    return out if scale == 1 else out * scale


def _hardtanh(x: Tensor, min_val: float = -1, max_val: float = 1) -> Tensor:
    return torch.clamp(x, min_val, max_val)


def _select_scatter(x: Tensor, source: Tensor, dim: int, index: int) -> Tensor:
    index = index % x.shape[dim]
    return torch.slice_scatter(x, source.unsqueeze(dim), dim, index, index + 1)


def _repeat(x: Tensor, repeats: Sequence[int]) -> Tensor:
    # [d0, d1] repeated (r0, r1): view [1, d0, 1, d1], expand [r0, d0, r1, d1], then flatten
    shape = [1] * (len(repeats) - x.dim()) + list(x.shape)
    split = [size for pair in zip([1] * len(shape), shape, strict=True) for size in pair]
    spread = [size for pair in zip(repeats, shape, strict=True) for size in pair]
    return x.reshape(split).expand(spread).reshape([r * size for r, size in zip(repeats, shape, strict=True)])
