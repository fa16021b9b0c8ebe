"""float64: the graph run by PyTorch in double precision, on the CPU or a GPU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node

from gradoracle.oracle.exact.trace import Graph, widened


def read(graph: Graph, args: Sequence[Tensor], *, device: torch.device | str = "cpu") -> list[Tensor]:
    """Every output of the graph in float64; casts to narrower floats are skipped.

    Args:
        graph: from ``trace``, on any device.
        args: tensors in the shapes that the graph was traced at; floats are converted to float64 (exactly).
        device: where the outputs are computed and stay.
    """
    where = torch.device(device)

    def call(node: Node, positional: Any, named: Any) -> Any:
        named = widened(named)
        if "device" in named:
            named["device"] = where
        target: Any = node.target
        return target(*positional, **named)

    given = (arg.detach().to(where) for arg in args)
    inputs = [arg.double() if arg.is_floating_point() else arg for arg in given]
    with torch.no_grad():
        return graph.interpreted(inputs, call, lambda constant: constant.to(where))
