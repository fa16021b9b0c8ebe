"""Elementwise loop: a step of sums and products alone, run over a block of steps by numba.

A call of PyTorch takes some microseconds, however few the numbers are. Here all steps are one loop, with the same
operations in the same order: the same bits.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy
import torch
from torch import Tensor
from torch.fx import Node

from gradoracle.model.machine_code import HAS_NUMBA, jitted
from gradoracle.oracle.exact.graph import Graph

_aten = torch.ops.aten
_OPERATIONS: dict[Any, int] = {
    _aten.mul.Tensor: 0,
    _aten.add.Tensor: 1,
    _aten.sub.Tensor: 2,
    _aten.div.Tensor: 3,
    _aten.neg.default: 4,
}


class ElementwiseLoop:
    """A graph that is run again and again on its own results.

    Args:
        code: [I, 3] int64: an operation and the places of its operands. Places are those of coefficients, then those of
            carries, then those of the operations before.
        scalars: numbers that are coefficients in addition, after the others.
        outputs: [K] int64, the places of the next carries.
        shape: of all carries, to which coefficients broadcast.
    """

    def __init__(self, code: Tensor, scalars: Sequence[float], outputs: Tensor, shape: torch.Size) -> None:
        self._code, self._scalars, self._outputs, self._shape = code, scalars, outputs, shape

    @staticmethod
    def of(graph: Graph, carries: int) -> ElementwiseLoop | None:
        """That of a graph, whose last inputs are the carries and whose outputs are the next; None if it has none.

        None as well where numba is not installed, since a loop of Python's would be slow.
        """
        inputs = graph.inputs
        moving = inputs[len(inputs) - carries :]
        shapes = {node.meta["val"].shape for node in moving}
        if not HAS_NUMBA or len(shapes) != 1:
            return None
        scalars = list[float]()
        shape, places = shapes.pop(), {node: place for place, node in enumerate(inputs)}
        steps = list[tuple[int, Any, Any]]()
        for node in graph.nodes:
            if node.op == "output":
                continue
            held = node.meta.get("val")
            if not isinstance(held, Tensor) or held.dtype != torch.float64:
                return None
            if node.op == "placeholder":
                if not _broadcasts(held.shape, shape):
                    return None
                continue
            operation = _OPERATIONS.get(node.target)
            if operation is None or node.kwargs or held.shape != shape:
                return None
            steps.append((operation, *(node.args if len(node.args) == 2 else (*node.args, *node.args))))
            places[node] = -len(steps)
        for step in steps:
            scalars += [float(x) for x in step[1:] if not isinstance(x, Node)]
        behind = len(inputs) - carries + len(scalars)
        fed = iter(range(len(inputs) - carries, behind))

        def place(x: Any) -> int:
            if not isinstance(x, Node):
                return next(fed)
            found = places[x]
            if found < 0:
                return behind + carries - found - 1
            return found if found < len(inputs) - carries else found + len(scalars)

        code = torch.tensor([[step[0], place(step[1]), place(step[2])] for step in steps], dtype=torch.int64)
        outputs = torch.tensor([place(node) for node in graph.outputs], dtype=torch.int64)
        return ElementwiseLoop(code.view(-1, 3), scalars, outputs, shape)

    def run(self, coefficients: Sequence[Tensor], carries: Sequence[Tensor], *, back: bool, add: bool) -> None:
        """Run all steps.

        Args:
            coefficients: by input, [n, ...] for each step or [1, ...] for all, in float64.
            carries: [n + 1, L, *shape] contiguous each, whose first are given: at the end where the loop runs ``back``.
                The others are written.
            back: whether the last step is the first.
            add: whether what a step makes is added to what is there, instead of written.
        """
        steps, lanes = carries[0].shape[0] - 1, carries[0].shape[1]
        size = self._shape.numel()
        known = torch.empty((steps, len(coefficients) + len(self._scalars), *self._shape), dtype=torch.float64)
        for place, x in enumerate(coefficients):
            known[:, place] = x.reshape(len(x), *[1] * (len(self._shape) + 1 - x.dim()), *x.shape[1:])
        for place, number in enumerate(self._scalars, len(coefficients)):
            known[:, place] = number
        one = len(carries) == 1
        held = (carries[0].unsqueeze(0) if one else torch.stack(list(carries))).view(
            len(carries), steps + 1, lanes, size
        )
        _compiled()(
            self._code.numpy(), self._outputs.numpy(), known.view(steps, -1, size).numpy(), held.numpy(), back, add
        )
        if not one:
            for carry, found in zip(carries, held, strict=True):
                carry.copy_(found.view(carry.shape))


def _broadcasts(shape: torch.Size, to: torch.Size) -> bool:
    own = to[len(to) - len(shape) :]
    return len(shape) <= len(to) and all(size in (1, wide) for size, wide in zip(shape, own, strict=True))


@functools.cache
def _compiled() -> Any:
    return jitted(_loop)


def _loop(code, outputs, known, carries, back, add):  # type: ignore[no-untyped-def]
    """Run the steps of ``ElementwiseLoop.run``: known is [n, C, N], carries are [K, n + 1, L, N]."""
    steps, given, size = known.shape
    count, _, lanes, _ = carries.shape
    made = numpy.empty((code.shape[0], size))
    for step in range(steps):
        at = steps - 1 - step if back else step
        before, after = (at + 1, at) if back else (at, at + 1)
        for lane in range(lanes):
            for i in range(code.shape[0]):
                left, right, into = code[i, 1], code[i, 2], made[i]
                if left < given:
                    a = known[at, left]
                elif left < given + count:
                    a = carries[left - given, before, lane]
                else:
                    a = made[left - given - count]
                if right < given:
                    b = known[at, right]
                elif right < given + count:
                    b = carries[right - given, before, lane]
                else:
                    b = made[right - given - count]
                operation = code[i, 0]
                if operation == 0:
                    for e in range(size):
                        into[e] = a[e] * b[e]
                elif operation == 1:
                    for e in range(size):
                        into[e] = a[e] + b[e]
                elif operation == 2:
                    for e in range(size):
                        into[e] = a[e] - b[e]
                elif operation == 3:
                    for e in range(size):
                        into[e] = a[e] / b[e]
                else:
                    for e in range(size):
                        into[e] = -a[e]
            for k in range(count):
                place, now = outputs[k], carries[k, after, lane]
                if place < given:
                    found = known[at, place]
                elif place < given + count:
                    found = carries[place - given, before, lane]
                else:
                    found = made[place - given - count]
                if add:
                    for e in range(size):
                        now[e] += found[e]
                else:
                    for e in range(size):
                        now[e] = found[e]
