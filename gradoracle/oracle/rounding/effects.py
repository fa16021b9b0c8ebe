"""Effects: the operators of a graph, sorted by what they do to a rounding error."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.fx import Node


def names(text: str) -> frozenset[str]:
    """A set of operator names from one string."""
    return frozenset(text.split())


# Nothing of the inputs' values goes in: constants and index bookkeeping.
CREATE = names(
    "arange full full_like zeros zeros_like ones ones_like new_zeros new_ones new_full scalar_tensor eye empty "
    "empty_like new_empty new_empty_strided empty_strided empty_permuted _new_zeros_with_same_feature_meta "
    "_efficientzerotensor iota linspace sym_size"
)
# Values are moved, copied or dropped; none is computed. Fill values are 0 in the error of the result.
MOVE = names(
    "view _unsafe_view reshape _reshape_alias permute transpose t expand alias clone detach unsqueeze squeeze slice "
    "select split split_with_sizes unbind cat stack gather index index_select embedding constant_pad_nd tril triu flip "
    "roll repeat slice_scatter select_scatter diagonal diagonal_copy diagonal_scatter as_strided as_strided_scatter "
    "unfold scatter copy lift_fresh_copy contiguous movedim broadcast_in_dim view_of index_put _unsafe_index "
    "_unsafe_index_put masked_scatter narrow chunk reflection_pad1d replication_pad1d pixel_shuffle channel_shuffle "
    "view_copy"
)
VIEW = names(
    "view _unsafe_view reshape _reshape_alias permute transpose t expand alias clone detach unsqueeze squeeze "
    "contiguous movedim _to_copy view_copy"
)
# The result is one of the operands or its mirror image: exact.
KEEP = names("neg abs relu sign sgn floor ceil round trunc clamp clamp_min clamp_max hardtanh positive conj_physical")
CHOOSE = names("maximum minimum fmax fmin")
COMPARE = names("eq ne lt le gt ge equal isnan isinf isfinite")
LOGIC = names(
    "logical_and logical_or logical_xor logical_not bitwise_and bitwise_or bitwise_xor bitwise_not any all "
    "is_same_size _has_same_storage_numel"
)
# One rounding of a result that is correct to the given number of units: IEEE operations.
ARITHMETIC = names("add sub rsub mul div reciprocal sqrt square addcmul addcdiv fma lerp")
EXPONENTIAL = names("exp exp2 expm1")
LOGARITHM = names("log log2 log10 log1p")
SPECIAL = names(
    "pow rsqrt tanh sigmoid erf erfc erfinv sin cos tan asin acos atan atan2 sinh cosh asinh acosh atanh gelu silu elu "
    "celu selu mish softplus leaky_relu hardsigmoid hardswish log_sigmoid_forward lgamma digamma fmod remainder hypot "
    "special_i0 logit xlogy sinc"
)
SUM = names("sum mean cumsum")
PRODUCT = names("mm bmm addmm baddbmm mv dot matmul")
EXTREME = names("amax amin max min sort topk")
ACCUMULATE = names("scatter_add index_add index_put _unsafe_index_put scatter_reduce embedding_dense_backward")
PRODUCT_OF_ONE = names("prod cumprod")


def plain_name(node: Node) -> str:
    """The operator's name without namespace, overload and the underscore of an in-place variant: ``div``."""
    return _plain_name(node.target)


@functools.cache
def _plain_name(target: Any) -> str:
    full = str(target)
    name = full.split(".")[1] if "." in full else str(getattr(target, "__name__", full))
    return name[:-1] if name.endswith("_") and not name.startswith("__") else name


_VIEWS = (torch.ops.aten.view.default, torch.ops.aten._unsafe_view.default)


def functional(node: Node) -> Callable[..., Any]:
    """The operator of a node; for an in-place variant the one that returns its result instead.

    A view is one of any layout: values that are computed anew may lie otherwise than those that were traced.
    """
    target: Any = node.target
    if target in _VIEWS:
        return torch.ops.aten.reshape.default
    if plain_name(node) == "copy":  # into a tensor whose own values are lost
        return lambda into, source, non_blocking=False: source.to(into.dtype).expand(into.shape).clone()
    if not isinstance(target, torch._ops.OpOverload):
        return target  # type: ignore[no-any-return]
    base = target.overloadpacket.__name__
    if not base.endswith("_") or base.startswith("__"):
        return target
    packet = getattr(getattr(torch.ops, target.namespace), base[:-1])
    return getattr(packet, target._overloadname, packet.default)  # type: ignore[no-any-return]
