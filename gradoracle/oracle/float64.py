"""float64: the graph run by PyTorch in double precision, on the CPU or a GPU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node

from gradoracle.oracle.trace import Graph, widened
from gradoracle.oracle.trees import looked_up


def read(graph: Graph, args: Sequence[Tensor], *, device: torch.device | str = "cpu") -> list[Tensor]:
    """Every output of the graph in float64; casts to narrower floats in it are left out.

    Args:
        graph: what ``trace`` made, on whatever device.
        args: tensors in the shapes that the graph was traced at; floats are converted to float64 (exactly).
        device: where it is computed; the outputs stay there.
    """
    where = torch.device(device)
    values: dict[Node, Any] = {}
    inputs = iter(args)
    with torch.no_grad():
        for node in graph.nodes:
            if node.op == "placeholder":
                given = next(inputs).detach().to(where)
                values[node] = given.double() if given.is_floating_point() else given
            elif node.op == "get_attr":
                values[node] = graph.constant(node).to(where)
            elif node.op == "output":
                return [values[out] for out in node.args[0]]
            else:
                positional, named = looked_up(node.args, values), looked_up(node.kwargs, values)
                named = widened(named)
                if "device" in named:
                    named["device"] = where
                values[node] = node.target(*positional, **named)
            for used in graph.spent.get(node, ()):
                del values[used]
    raise AssertionError("a graph ends in its output node")
