"""Lowering: operators that stand for several roundings, as the roundings they stand for; and mutation, as values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.fx import GraphModule, Node
from torch.fx.experimental.proxy_tensor import make_fx

from gradoracle.oracle import operators
from gradoracle.oracle.trace import Graph

aten = torch.ops.aten
_kept: WeakKeyDictionary[GraphModule, GraphModule] = WeakKeyDictionary()


def lowered(graph: Graph, args: Sequence[Tensor]) -> GraphModule:
    """The graph with operators that have a rounding rule; the graph's own module where it has none but these."""
    module = graph.module
    if module not in _kept:
        nodes = [n for n in module.graph.nodes if n.op == "call_function"]
        retrace = any(n.target in COMPOSITE for n in nodes) or any(_aliases(n) for n in nodes)
        _kept[module] = _retraced(module, args) if retrace else module
    return _kept[module]


def _retraced(module: GraphModule, args: Sequence[Tensor]) -> GraphModule:
    functional = torch.func.functionalize(module, remove="mutations")
    traced = make_fx(functional, decomposition_table=COMPOSITE)(*args)
    traced.graph.eliminate_dead_code()
    return traced


def _aliases(node: Node) -> bool:
    """Whether a node writes into a tensor that another node may see."""
    target: Any = node.target
    if not isinstance(target, torch._ops.OpOverload) or not target._schema.is_mutable:
        return False
    written = node.args[0]
    if not isinstance(written, Node) or written.op != "call_function" or len(written.users) > 1:
        return True
    return operators.plain_name(written) in operators.MOVE | {"_to_copy"}


def _var(x: Tensor, dim: Any = None, *, correction: Any = None, keepdim: bool = False) -> Tensor:
    return _var_mean(x, dim, correction=correction, keepdim=keepdim)[0]


def _var_mean(x: Tensor, dim: Any = None, *, correction: Any = None, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    dims = list(dim) if dim else list(range(x.dim()))
    count = 1
    for d in dims:
        count *= x.shape[d]
    mean = x.mean(dims, keepdim=True)
    squares = (x - mean).square().sum(dims, keepdim=keepdim)
    free = count - (1 if correction is None else correction)
    return squares / free, mean if keepdim else mean.squeeze(dims)


def _layer_norm(
    x: Tensor, shape: Sequence[int], weight: Tensor | None, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    dims = list(range(x.dim() - len(shape), x.dim()))
    variance, mean = _var_mean(x, dims, correction=0, keepdim=True)
    inverse = torch.rsqrt(variance + eps)
    out = (x - mean) * inverse
    out = out if weight is None else out * weight
    return (out if bias is None else out + bias), mean, inverse


def _group_norm(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, n: int, c: int, inner: int, groups: int, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    grouped = x.reshape(n, groups, -1)
    variance, mean = _var_mean(grouped, [2], correction=0, keepdim=True)
    inverse = torch.rsqrt(variance + eps)
    out = ((grouped - mean) * inverse).reshape(x.shape)
    wide = [1, c] + [1] * (x.dim() - 2)
    out = out if weight is None else out * weight.reshape(wide)
    out = out if bias is None else out + bias.reshape(wide)
    return out, mean.reshape(n, groups), inverse.reshape(n, groups)


def _log_softmax(x: Tensor, dim: int, half_to_float: bool) -> Tensor:
    shifted = x - x.amax(dim, keepdim=True)
    return shifted - shifted.exp().sum(dim, keepdim=True).log()


def _vector_norm(
    x: Tensor, order: float = 2, dim: Any = None, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> Tensor:
    dims = [dim] if isinstance(dim, int) else list(dim) if dim is not None else list(range(x.dim()))
    if order == 2:
        return x.square().sum(dims, keepdim=keepdim).sqrt()
    if order in (float("inf"), float("-inf")):
        return (x.abs().amax if order > 0 else x.abs().amin)(dims, keepdim=keepdim)
    if order == 1:
        return x.abs().sum(dims, keepdim=keepdim)
    return x.abs().pow(order).sum(dims, keepdim=keepdim).pow(1.0 / order)


COMPOSITE: dict[Any, Callable[..., Any]] = {
    aten.var.correction: _var,
    aten.var_mean.correction: _var_mean,
    aten.native_layer_norm.default: _layer_norm,
    aten.native_group_norm.default: _group_norm,
    aten._log_softmax.default: _log_softmax,
    aten.linalg_vector_norm.default: _vector_norm,
}
