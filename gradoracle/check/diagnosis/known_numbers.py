"""Known numbers: those that a definition has, by which a kernel may be wrong and that a reader recognises."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

from gradoracle.oracle.exact.graph import Graph
from gradoracle.oracle.rounding.effects import ARITHMETIC, plain_name

CONSTANTS: Mapping[str, float] = MappingProxyType(
    {"2": 2.0, "1 / 2": 0.5, "log2 e": math.log2(math.e), "ln 2": math.log(2.0)}
)
_SAME = 1e-12  # relative: a scale that the definition computes in float64, and its name's value


def known_numbers(graph: Graph | None, dims: Mapping[str, int], options: Mapping[str, Any]) -> dict[str, float]:
    """Positive numbers other than 1 by name: constants, options, dims, literals of a graph; and their reciprocals.

    Args:
        graph: the graph of the definition; None where it is not traced.
        dims: their sizes.
        options: their values.

    Returns:
        Several names may have one value: a name says the same of each case, a value of one.
    """
    found = dict(CONSTANTS)
    for name, value in (*options.items(), *dims.items()):
        if _is_number(value):
            found |= {name: abs(float(value)), f"1 / {name}": 1 / abs(float(value))}
    for value in dict.fromkeys(map(abs, _literals(graph))):
        for size in (value, 1 / value):
            roots = [name for name, x in dims.items() if math.isclose(size, math.sqrt(x), rel_tol=_SAME)]
            found |= {f"sqrt({name})": size for name in roots} | {f"1 / sqrt({name})": 1 / size for name in roots}
        if not any(math.isclose(value, known, rel_tol=_SAME) for known in found.values()):
            found |= {f"{value:.9g}": value, f"1 / {value:.9g}": 1 / value}
    return found


def _literals(graph: Graph | None) -> Iterator[float]:
    """The numbers that a graph adds or multiplies by, and its constants of one element."""
    for node in () if graph is None else graph.nodes:
        numbers: list[Any] = []
        if node.op == "call_function" and plain_name(node) in ARITHMETIC:
            numbers = list(node.args)
        elif node.op == "get_attr" and graph is not None and graph.constant(node).numel() == 1:
            numbers = [graph.constant(node).item()]
        yield from (float(x) for x in numbers if _is_number(x))


def _is_number(value: object) -> bool:
    """Whether a value is a number by which something may be multiplied: finite, and neither 0, 1 nor -1."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    return math.isfinite(value) and value not in (0, 1, -1) and math.isfinite(1 / value)
