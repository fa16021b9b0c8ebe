"""Edits: small changes of a definition's graph; each is a mistake that a kernel may have.

An edit belongs to one operator of the graph, or to all alike where a loop was unrolled, and says what that operator
gives instead. What downstream becomes of it is for ``reconstruction`` to find out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node

from gradoracle.model.finding import EditedDefinition
from gradoracle.oracle.exact.graph import Graph
from gradoracle.oracle.exact.trees import followed, leaves
from gradoracle.oracle.rounding import effects

Call = Callable[..., Any]  # (node, the values of its arguments, and of its keyword arguments) to its value
_UNROLLED = 160  # call nodes from which on nodes that are alike are changed together
_COMPUTES = (
    effects.ARITHMETIC
    | effects.EXPONENTIAL
    | effects.LOGARITHM
    | effects.SPECIAL
    | effects.PRODUCT
    | effects.SUM
    | effects.names("neg where _softmax _log_softmax amax logsumexp")
)
_COMPARED = {
    "lt": ("le", "gt"),
    "le": ("lt", "ge"),
    "gt": ("ge", "lt"),
    "ge": ("gt", "le"),
    "eq": ("ne",),
    "ne": ("eq",),
}
_SIGNS = {"lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!="}


@dataclass(frozen=True)
class Edit:
    """One change.

    Attributes:
        edited: the edited definition in words: several where a number has several names.
        nodes: the nodes whose values change.
        call: gives these, from a node, the values of its arguments and keyword arguments, and that of ``asks``.
        asks: an input whose value takes part; None where none does.
    """

    edited: tuple[EditedDefinition, ...]
    nodes: frozenset[Node]
    call: Call
    asks: Node | None = None


def edits(graph: Graph, named: Sequence[str], numbers: Mapping[str, float]) -> Iterator[Edit]:
    """Every edit of a graph, in a fixed order.

    Args:
        graph: the graph of a definition.
        named: the names of its inputs.
        numbers: the numbers that an operand may be multiplied by, by name.
    """
    wording, factors = _Wording(graph, named), by_value(numbers)
    inputs = [node for node in graph.nodes if node.op == "placeholder"]
    for nodes in _alike(graph):
        node = next(iter(nodes))
        name, said = effects.plain_name(node), wording.of(node)
        for other in _COMPARED.get(name, ()):
            words = f"with {_SIGNS[other]} instead of {_SIGNS[name]} in {said}"
            yield Edit((EditedDefinition(words, "comparison"),), nodes, _compared(other))
        if name not in _COMPUTES or not _is_float(node):
            continue
        for place, operand in _operands(node):
            what = f"{wording.of(operand, 1)} in {said}"
            yield Edit((EditedDefinition(f"with the sign of {what} changed", "sign"),), nodes, _scaled(place, -1.0))
            if name in ("add", "sub"):
                yield Edit((EditedDefinition(f"without {what}", "term"),), nodes, _scaled(place, 0.0))
            if name in ("mul", "div"):
                yield from _counted(name, nodes, place, what)
            for factor, names in factors.items():
                edited = tuple(EditedDefinition(f"if {what} is multiplied by {own}", "ratio") for own in names)
                yield Edit(edited, nodes, _scaled(place, factor))
            yield from _instead(nodes, place, operand, inputs, wording, what)
        if name in ("div", "mm", "bmm", "where"):
            yield Edit((EditedDefinition(f"with the operands of {said} exchanged", "operands"),), nodes, _exchanged)


def by_value(numbers: Mapping[str, float]) -> dict[float, list[str]]:
    """The names of each number."""
    found: dict[float, list[str]] = {}
    for name, value in numbers.items():
        found.setdefault(value, []).append(name)
    return found


def _alike(graph: Graph) -> list[frozenset[Node]]:
    """The call nodes, one by one; of a long graph those together that have one operator and operands of one shape."""
    calls = [node for node in graph.nodes if node.op == "call_function"]
    if len(calls) < _UNROLLED:
        return [frozenset([node]) for node in calls]
    groups: dict[Any, list[Node]] = {}
    for node in calls:
        shapes = tuple(_shape(x) for x in leaves(node.args))
        groups.setdefault((str(node.target), shapes, _shape(node)), []).append(node)
    return [frozenset(group) for group in groups.values()]


def _shape(x: Any) -> Any:
    value = x.meta.get("val") if isinstance(x, Node) else None
    return tuple(value.shape) if isinstance(value, Tensor) else type(x).__name__


def _is_float(node: Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, Tensor) and value.is_floating_point()


def _operands(node: Node) -> Iterator[tuple[int, Node]]:
    """Which leaves of a node's arguments are float tensors."""
    for place, leaf in enumerate(leaves(node.args)):
        if isinstance(leaf, Node) and _is_float(leaf):
            yield place, leaf


def _with(args: Sequence[Any], place: int, change: Callable[[Tensor], Tensor]) -> Any:
    """The arguments with one of their leaves changed."""
    count = iter(range(len(leaves(args))))
    return followed(lambda leaf: change(leaf) if next(count) == place else leaf, tuple(args))


def _called(node: Node, args: Sequence[Any], kwargs: Any) -> Any:
    target: Any = node.target
    return target(*args, **kwargs)


def _changed(place: int, change: Callable[[Tensor], Tensor]) -> Call:
    return lambda node, args, kwargs: _called(node, _with(args, place, change), kwargs)


def _scaled(place: int, factor: float) -> Call:
    return _changed(place, lambda x: x * factor)


def _compared(other: str) -> Call:
    function = getattr(torch, other)
    return lambda node, args, kwargs: function(*args)


def _exchanged(node: Node, args: Sequence[Any], kwargs: Any) -> Any:
    *condition, one, two = args
    return _called(node, (*condition, two, one), kwargs)


def _counted(name: str, nodes: frozenset[Node], place: int, what: str) -> Iterator[Edit]:
    """A factor or divisor that is left out, or counted twice."""
    if name == "mul" or place == 1:
        yield Edit((EditedDefinition(f"without the factor {what}", "ratio"),), nodes, _changed(place, torch.ones_like))
        yield Edit(
            (EditedDefinition(f"with the factor {what} counted twice", "ratio"),), nodes, _changed(place, torch.square)
        )


def _instead(
    nodes: frozenset[Node], place: int, operand: Node, inputs: Sequence[Node], wording: _Wording, what: str
) -> Iterator[Edit]:
    """Another input of the same shape in the place of the one that an operand is a view of."""
    source = _source(operand)
    for other in inputs if source is not None else ():
        if other is not source and _shape(other) == _shape(source):
            words = f"with {wording.of(other)} instead of {what}"
            yield Edit((EditedDefinition(words, "operands"),), nodes, _another(place, operand), other)


def _source(node: Node) -> Node | None:
    """The input that a node is a view of."""
    while node.op == "call_function" and effects.plain_name(node) in effects.VIEW and isinstance(node.args[0], Node):
        node = node.args[0]
    return node if node.op == "placeholder" else None


def _another(place: int, operand: Node) -> Call:
    """Puts another input in the place of the one that an operand is a view of."""

    def call(node: Node, args: Sequence[Any], kwargs: Any, other: Tensor) -> Any:
        views, below = [], operand
        while below.op == "call_function":
            views.append(below)
            below = below.args[0]  # type: ignore[assignment]
        for view in reversed(views):
            other = _called(view, (other, *view.args[1:]), view.kwargs)
        return _called(node, _with(args, place, lambda _: other), kwargs)

    return call


class _Wording:
    """Writes nodes as short expressions of the inputs."""

    def __init__(self, graph: Graph, named: Sequence[str]) -> None:
        inputs = (node for node in graph.nodes if node.op == "placeholder")
        self._names = dict(zip(inputs, named, strict=False))

    def of(self, node: Any, depth: int = 2) -> str:
        """A node with what goes into it, ``depth`` operators deep; views are passed over."""
        if not isinstance(node, Node):
            return f"{node:.4g}" if isinstance(node, float) else str(node)
        if node in self._names:
            return self._names[node]
        name = effects.plain_name(node)
        operands = [leaf for leaf in leaves(node.args) if isinstance(leaf, Node)]
        if name in effects.VIEW and operands:
            return self.of(operands[0], depth)
        if name in effects.CREATE or not operands:
            return "a constant"
        if name in ("bmm", "mm"):
            name = "matmul"
        inner = ", ".join(self.of(x, depth - 1) for x in operands) if depth > 0 else "..."
        return f"{name.strip('_')}({inner})"
