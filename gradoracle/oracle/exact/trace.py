"""Trace: a program of tensors as a graph of few ATen operators, in which a recurrence is one node."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor

from gradoracle.model.recurrence import read_by
from gradoracle.oracle.exact.graph import Graph
from gradoracle.oracle.exact.recording import record, writes
from gradoracle.oracle.exact.recurrence import extracted, read, recorded, recurrences


def trace(program: Callable[..., Sequence[Tensor]], *examples: Tensor) -> Graph:
    """Trace ``program`` to few ATen operators at the shapes of ``examples`` (float64 tensors; values are not kept).

    Raises:
        ValueDependent: it takes a number, a branch or a shape from the values of its inputs.
        RecurrenceError: it has a scan that is no recurrence.
    """
    with read_by(read):
        graph = record(program, examples, pure=True)
    if writes(graph):
        graph = record(graph, examples, pure=True)  # in-place operators of decompositions, which the first does not see
    return extracted(graph)


def is_recurrent(graph: Graph) -> bool:
    """Whether a graph has a recurrence: derivatives of its program are those of the graph (``differentiated``)."""
    return next(recurrences(graph), None) is not None


def differentiated(program: Callable[..., Sequence[Tensor]], *examples: Tensor) -> Graph:
    """Trace a program that transforms a recurrent graph by ``torch.func``."""
    return recorded(program, examples)
