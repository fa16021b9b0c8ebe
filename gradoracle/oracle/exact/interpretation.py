"""Interpretation: a graph walked once over a number field, at a cost that is known before it starts.

Importing this registers the rules of all operators.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from torch import Tensor
from torch.fx import Node

from gradoracle.oracle.exact import (
    operators_elementwise,
    operators_logic,
    operators_movement,
    operators_reduction,
)
from gradoracle.oracle.exact.scalars import CONSTANT, RULES, Array, Field, Reader, Truths, Value
from gradoracle.oracle.exact.trace import Graph, UnsupportedOperator, operator_name, widened
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
        found = graph.interpreted(
            inputs, lambda node, *given: _call(Reader(field, node), *given), lambda constant: constant.cpu()
        )
        return [Reader(field, node).real(value) for node, value in zip(graph.outputs, found, strict=True)]


def _call(reader: Reader, args: Sequence[Value], kwargs: Mapping[str, Value]) -> Value:
    node, name = reader.node, operator_name(reader.node)
    if name == "<built-in function getitem>":
        return args[0][args[1]]
    computed = any(isinstance(x, (np.ndarray, Truths)) for x in leaves((args, kwargs)))
    makes_floats = any(isinstance(x, Tensor) and x.is_floating_point() for x in leaves(node.meta["val"]))
    if not computed and (name in CONSTANT or not makes_floats):
        operator: Any = node.target
        return operator(*args, **widened(kwargs))
    if name not in RULES:
        raise UnsupportedOperator(name, reader.field.reading)
    return RULES[name](reader, *args, **kwargs)
