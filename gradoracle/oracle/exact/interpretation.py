"""Interpretation: a graph walked once over a number field; importing this registers the rules of all operators."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from torch import Tensor

from gradoracle.oracle.exact import (
    operators_elementwise,
    operators_logic,
    operators_movement,
    operators_product,
    operators_reduction,
)
from gradoracle.oracle.exact.cost import demand
from gradoracle.oracle.exact.scalars import CONSTANT, RULES, Array, Field, Reader, Truths, Value
from gradoracle.oracle.exact.trace import Graph, UnsupportedOperator, operator_name, widened
from gradoracle.oracle.exact.trees import leaves

__all__ = [  # importing the operators fills RULES
    "RULES",
    "interpret",
    "operators_elementwise",
    "operators_logic",
    "operators_movement",
    "operators_product",
    "operators_reduction",
]


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
    demand(graph, operations, field.reading)
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
