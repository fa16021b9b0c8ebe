"""Effects: the operators that decompositions leave in a graph, by what they do to a rounding error."""

from __future__ import annotations

import functools
from typing import Any

from torch.fx import Node


def names(text: str) -> frozenset[str]:
    """A set of operator names from one string."""
    return frozenset(text.split())


# Made without the inputs' values: constants and index bookkeeping.
CREATE = names(
    "arange full full_like scalar_tensor empty new_empty_strided empty_strided empty_permuted "
    "_new_zeros_with_same_feature_meta _efficientzerotensor iota"
)
# Values are moved, copied or dropped; none is computed. Fill values are 0 in the error of the result.
MOVE = names(
    "view reshape permute transpose expand alias clone unsqueeze squeeze slice select split_with_sizes cat gather "
    "index index_select constant_pad_nd flip slice_scatter diagonal diagonal_scatter as_strided as_strided_scatter "
    "unfold scatter copy lift_fresh_copy broadcast_in_dim view_of index_put masked_scatter view_copy"
)
VIEW = names("view reshape permute transpose expand alias clone unsqueeze squeeze _to_copy view_copy")
# IEEE operations: one rounding of a correct result.
ARITHMETIC = names("add sub mul div reciprocal sqrt")
EXPONENTIAL = names("exp exp2 expm1")
LOGARITHM = names("log log2 log10 log1p")
SPECIAL = names(
    "pow rsqrt tanh sigmoid erf erfc erfinv sin cos tan asin acos atan atan2 sinh cosh asinh acosh atanh lgamma "
    "digamma fmod remainder hypot special_i0"
)
SUM = names("sum cumsum")
PRODUCT = names("mm bmm")
ACCUMULATE = names("scatter_add index_put scatter_reduce")


def plain_name(node: Node) -> str:
    """The operator's name without namespace and overload: ``div``."""
    return _plain_name(node.target)


@functools.cache
def _plain_name(target: Any) -> str:
    full = str(target)
    return full.split(".")[1] if "." in full else str(getattr(target, "__name__", full))


def multiplied_by(node: object) -> float:
    """The magnitude of the literal factor of a node's value, through views and several multiplications."""
    factor = 1.0
    while isinstance(node, Node) and node.op == "call_function":
        name = plain_name(node)
        numbers = [argument for argument in node.args if isinstance(argument, (int, float))]
        if name in ("mul", "div") and len(numbers) == 1 and numbers[0]:
            factor *= numbers[0] if name == "mul" else 1.0 / numbers[0]
            node = next(argument for argument in node.args if isinstance(argument, Node))
        elif name in VIEW:
            node = node.args[0]
        else:
            break
    return abs(factor)
