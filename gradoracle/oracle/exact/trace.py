"""Trace: a program of tensors as a graph of few ATen operators, in which a recurrence is one node."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from torch import Tensor

from gradoracle.model.recurrence import read_by
from gradoracle.oracle.exact.graph import Graph, has_complex
from gradoracle.oracle.exact.recording import record, writes
from gradoracle.oracle.exact.recurrence import extracted, prepared, read, recorded, recurrences
from gradoracle.oracle.exact.rolling import rolled

Program = Callable[..., Sequence[Tensor]]


def trace(program: Program, *examples: Tensor) -> Graph:
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


def recurrent(program: Program, *examples: Tensor) -> Graph | None:
    """Trace a program that has scans, or loops that are long enough to be read as such; None if it has none.

    Derivatives of the program are those of the graph's ``source``, traced by ``differentiated``.

    Raises:
        ValueDependent, RecurrenceError: as ``trace``.
    """
    with read_by(read):
        source, decomposed = record(program, examples, pure=True, decomposed=False), False
        if has_complex(source):  # whose operators are replaced while they are recorded
            source, decomposed = record(program, examples, pure=True), True
    source = rolled(extracted(source, decomposed), decomposed)
    if next(recurrences(source), None) is None:
        return None
    prepared(source)
    return replace(recorded(source, examples), source=source)


def differentiated(program: Program, *examples: Tensor) -> Graph:
    """Trace a program that transforms the source of a recurrent graph by ``torch.func``."""
    return recorded(program, examples)
