"""Interpretation: a graph walked once over a number field, at a cost that is known before it starts.

Importing this registers the rules of all operators.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.fx import Node

from gradoracle.oracle.exact import (
    operators_elementwise,
    operators_logic,
    operators_movement,
    operators_reduction,
)
from gradoracle.oracle.exact.graph import Graph, UnsupportedOperator, operator_name, widened
from gradoracle.oracle.exact.recurrence import Recurrence
from gradoracle.oracle.exact.scalars import CONSTANT, RULES, Array, Field, Reader, Truths, Value, boxed
from gradoracle.oracle.exact.trees import leaves

__all__ = [  # importing the operators fills RULES
    "RULES",
    "TooLarge",
    "cost",
    "interpret",
    "operators_elementwise",
    "operators_logic",
    "operators_movement",
    "operators_reduction",
]


class TooLarge(Exception):
    """A graph takes more scalar operations than are allowed."""


def cost(graph: Graph) -> int:
    """The scalar operations of an exact reading of the graph; moving numbers is not counted.

    About 0.05 to 0.5 microseconds each for certified balls at 128 bits, 20 times that for mpmath.
    """
    return sum(_of_node(node) for node in graph.nodes)


def _of_node(node: Node) -> int:
    if node.op == "placeholder":
        return _elements(node)
    if isinstance(node.target, Recurrence):
        return len(_values(node.args[1][0])) * cost(node.target.body)  # type: ignore[index, arg-type]
    if node.op != "call_function" or operator_name(node) in CONSTANT:
        return 0
    if not any(isinstance(x, Tensor) and x.is_floating_point() for x in leaves(_values(node))):
        return 0  # bookkeeping, or a comparison
    name = operator_name(node)
    if name in ("aten.mm.default", "aten.bmm.default"):
        return 2 * _elements(node) * int(_values(node.args[0]).shape[-1])
    if name == "aten.linalg_solve_triangular.default":
        return _elements(node) * int(_values(node.args[0]).shape[-1])
    sizes = [_elements(x) for x in node.all_input_nodes]
    return max([_elements(node), *sizes])


def _values(node: Any) -> Any:
    return node.meta.get("val")


def _elements(node: Node) -> int:
    return sum(math.prod(x.shape) for x in leaves(_values(node)) if isinstance(x, Tensor))


def interpret(graph: Graph, args: Sequence[Tensor], field: Field, operations: int) -> list[Array]:
    """The graph's outputs over the field.

    Args:
        graph: what ``trace`` made.
        args: float (and integer) tensors, read exactly, in the shapes that the graph was traced at.
        field: the number system, at its precision.
        operations: how many operations on single numbers are allowed.

    Raises:
        TooLarge: the graph takes more than ``operations``.
        UnsupportedOperator: an operator has no rule.
        Undecided: an index or a shape depends on a comparison that is not decided at the field's precision.
    """
    count = cost(graph)
    if count > operations:
        raise TooLarge(
            f"the {field.reading} reading would take {count:.1e} operations on single numbers and is limited to "
            f"{operations:.1e}; choose smaller dims, or the float64 reading"
        )
    inputs = (field.lift(arg) if arg.is_floating_point() else arg.detach().cpu() for arg in args)
    with field.context(), np.errstate(all="ignore"):
        found = _walked(graph, inputs, field)
        return [Reader(field, node).real(value) for node, value in zip(graph.outputs, found, strict=True)]


def _walked(graph: Graph, inputs: Iterable[Value], field: Field) -> list[Value]:
    return graph.interpreted(
        inputs, lambda node, *given: _call(Reader(field, node), *given), lambda constant: constant.cpu()
    )


def _call(reader: Reader, args: Sequence[Value], kwargs: Mapping[str, Value]) -> Value:
    node, name = reader.node, operator_name(reader.node)
    if name == "<built-in function getitem>":
        return args[0][args[1]]
    if isinstance(node.target, Recurrence):
        return _stepwise(reader, node.target, *args)
    computed = any(isinstance(x, (np.ndarray, Truths)) for x in leaves((args, kwargs)))
    makes_floats = any(isinstance(x, Tensor) and x.is_floating_point() for x in leaves(node.meta["val"]))
    if not computed and (name in CONSTANT or not makes_floats):
        operator: Any = node.target
        return operator(*args, **widened(kwargs))
    if name not in RULES:
        raise UnsupportedOperator(name, reader.field.reading)
    return RULES[name](reader, *args, **kwargs)


def _stepwise(
    reader: Reader, recurrence: Recurrence, init: Sequence[Value], xs: Sequence[Value], constants: Sequence[Value]
) -> list[Value]:
    """A recurrence, one step after the other."""
    carry, length = list(init), len(reader.node.args[1][0].meta["val"])  # type: ignore[index, union-attr]
    found: list[list[Value]] = [[] for _ in recurrence.yielded]
    for at in recurrence.order(range(length)):
        after = _walked(recurrence.body, [*carry, *(_slice(x, at) for x in xs), *constants], reader.field)
        carry = after[: recurrence.carries]
        for values, value in zip(found, after[recurrence.carries :], strict=True):
            values.append(value)
    ordered = [values[::-1] if recurrence.reverse else values for values in found]
    stacked = [_stacked(reader, node, values) for node, values in zip(recurrence.yielded, ordered, strict=True)]
    return [*carry, *stacked]


def _slice(x: Value, at: int) -> Value:
    """One slice along the first dim."""
    if isinstance(x, Truths):
        return Truths(x.values[at], x.unknown[at])
    return boxed(x[at]) if isinstance(x, np.ndarray) else x[at]


def _stacked(reader: Reader, of: Node, values: Sequence[Value]) -> Value:
    """The values of all steps along a first dim."""
    meta = of.meta["val"]
    if not values:
        return torch.empty((0, *meta.shape), dtype=meta.dtype)
    if any(isinstance(value, Truths) for value in values):
        known = [value if isinstance(value, Truths) else Truths(value, value & False) for value in values]
        return Truths(torch.stack([x.values for x in known]), torch.stack([x.unknown for x in known]))
    if all(isinstance(value, Tensor) for value in values):
        return torch.stack(list(values))
    return np.stack([reader.real(value) for value in values])
