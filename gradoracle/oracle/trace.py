"""Trace: a program of tensors as an ATen graph, the one thing that every reading reads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch._decomp import core_aten_decompositions
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx


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
    """An ATen graph over flat tensor inputs and outputs; shapes are those it was traced with."""

    module: GraphModule

    def __call__(self, *args: Tensor) -> tuple[Tensor, ...]:
        """Run the graph as PyTorch would, in the dtype of the arguments (shapes as traced)."""
        return tuple(self.module(*args))


def trace(program: Callable[..., Sequence[Tensor]], *examples: Tensor) -> Graph:
    """Trace ``program`` to core ATen operators at the shapes of ``examples`` (float64 tensors; values are not kept)."""
    module = make_fx(program, decomposition_table=core_aten_decompositions())(*examples)
    module.graph.eliminate_dead_code()
    module.recompile()
    return Graph(module)


def operator_name(node: torch.fx.Node) -> str:
    """The operator of a call node as written in messages and rule tables, such as ``aten.mul.Tensor``."""
    return str(node.target)
