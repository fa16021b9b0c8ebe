"""Trace: a program of tensors as an ATen graph, the one thing that every reading reads."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.attention import SDPBackend, sdpa_kernel

from gradoracle.oracle.decompositions import table

NARROW = (torch.float32, torch.bfloat16, torch.float16)


class UnsupportedOperator(Exception):
    """A reading lacks an operator of the graph; names both, so that the user knows which of them to change."""

    def __init__(self, operator: str, reading: str) -> None:
        self.operator, self.reading = operator, reading
        super().__init__(
            f"the {reading} reading has no rule for the operator {operator}; "
            "write the definition with operators from docs/operators.md, or choose another reading"
        )


@dataclass(frozen=True)
class Graph:
    """An ATen graph over flat tensor inputs and outputs; shapes are those it was traced with.

    Free of in-place operators: every node's value is made once and never changed. Each call node's ``meta["val"]`` has
    the shape, dtype and strides of its value.
    """

    module: GraphModule

    def __call__(self, *args: Tensor) -> tuple[Tensor, ...]:
        """Run the graph as PyTorch would, in the dtype of the arguments (shapes as traced)."""
        return tuple(self.module(*args))

    def constant(self, node: Node) -> Tensor:
        """The tensor of a ``get_attr`` node: a closure's constant, such as an integer input."""
        found: Any = self.module
        for name in str(node.target).split("."):
            found = getattr(found, name)
        tensor: Tensor = found.detach()
        return tensor


def trace(program: Callable[..., Sequence[Tensor]], *examples: Tensor) -> Graph:
    """Trace ``program`` to few ATen operators at the shapes of ``examples`` (float64 tensors; values are not kept)."""
    module = _traced(program, examples)
    if any(_writes(node) for node in module.graph.nodes):
        module = _traced(module, examples)  # in-place operators of a decomposition, which the first pass did not see
    module.graph.eliminate_dead_code()
    module.recompile()
    return Graph(module)


def _traced(program: Callable[..., Any], examples: Sequence[Tensor]) -> GraphModule:
    pure: Callable[..., Any] = torch.func.functionalize(program, remove="mutations")
    with sdpa_kernel(SDPBackend.MATH):  # else PyTorch's attention is one opaque operator, without a JVP
        return make_fx(pure, decomposition_table=table())(*examples)


def _writes(node: Node) -> bool:
    schema = getattr(node.target, "_schema", None)
    return schema is not None and schema.is_mutable


def widened(options: Mapping[str, Any]) -> dict[str, Any]:
    """Keyword arguments of a node with float64 for every narrower float: a cast in a definition rounds no truth."""
    return {name: torch.float64 if value in NARROW else value for name, value in options.items()}


def operator_name(node: Node) -> str:
    """The operator of a call node as written in messages and rule tables, such as ``aten.mul.Tensor``."""
    return str(node.target)
