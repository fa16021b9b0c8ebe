"""Graph: a program of tensors as ATen operators, the input of every reading."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph as Nodes
from torch.fx import Node

from gradoracle.oracle.exact.trees import leaves, looked_up


class UnsupportedOperator(Exception):
    """A reading has no rule for an operator of the graph; the message names both."""

    def __init__(self, operator: str, reading: str) -> None:
        self.operator, self.reading = operator, reading
        other = "" if reading == "rounding" else ", or choose --oracle float64"  # budgets have no other reading
        super().__init__(
            f"the {reading} reading has no rule for the operator {operator}; "
            "write the definition with elementwise functions, reductions, matrix products, indexing and torch.where"
            f"{other}"
        )


def _run(node: Node, args: Any, kwargs: Any) -> Any:
    return functional(node)(*args, **kwargs)


def _itself(value: Tensor) -> Tensor:
    return value


@dataclass(frozen=True, eq=False)
class Graph:
    """An ATen graph over flat tensor inputs and outputs, at the shapes it was traced with.

    It has no in-place operators: every node's value is made once and never changed. Each call node's ``meta["val"]`` is
    a tensor without storage (device ``meta``) of the shape, dtype and strides of its value.

    Attributes:
        graph: placeholders, ``get_attr`` nodes for constants, call nodes, and one output node with a tuple.
        constants: the tensors of ``get_attr`` nodes, by target: those of a closure, such as an integer input.
        source: where recurrences are nodes, the graph before operators were decomposed; None elsewhere.
    """

    graph: Nodes
    constants: Mapping[str, Tensor]
    source: Graph | None = None

    @property
    def nodes(self) -> Any:
        """The nodes, in order of computation."""
        return self.graph.nodes

    @property
    def outputs(self) -> Sequence[Node]:
        """The nodes whose values are the graph's outputs."""
        (output,) = (node for node in self.nodes if node.op == "output")
        return tuple(output.args[0])

    @functools.cached_property
    def positions(self) -> Mapping[Node, int]:
        """The position of each node; inputs come first."""
        return {node: position for position, node in enumerate(self.nodes)}

    @functools.cached_property
    def spent(self) -> Mapping[Node, Sequence[Node]]:
        """By node: the nodes whose values it is the last to use, itself included if its value is never used."""
        last: dict[Node, Node] = {}
        for node in self.nodes:
            for used in (node, *node.all_input_nodes):
                last[used] = node
        spent: dict[Node, list[Node]] = {}
        for used, node in last.items():
            spent.setdefault(node, []).append(used)
        return spent

    @functools.cached_property
    def fixed(self) -> frozenset[Node]:
        """The nodes whose values do not depend on the inputs."""
        found: set[Node] = set()
        for node in self.nodes:
            if node.op != "placeholder" and found.issuperset(node.all_input_nodes):
                found.add(node)
        return frozenset(found)

    def constant(self, node: Node) -> Tensor:
        """The tensor of a ``get_attr`` node."""
        return self.constants[str(node.target)]

    def __call__(self, *args: Tensor) -> tuple[Tensor, ...]:
        """Run the graph as PyTorch would, in the dtype of the arguments (shapes as traced)."""
        return tuple(self.interpreted(args, _run))

    @functools.cached_property
    def function(self) -> Callable[..., tuple[Tensor, ...]]:
        """The graph as one Python function, for many calls; no value is narrowed, and strides may be others."""
        names: dict[Node, str] = {}
        known: dict[str, Any] = {}

        def text(value: Any) -> str:
            if isinstance(value, Node):
                return names[value]
            if isinstance(value, (list, tuple)):
                inside = "".join(f"{text(item)}, " for item in value)
                return f"[{inside}]" if isinstance(value, list) else f"({inside})"
            if value is None or isinstance(value, (bool, int)):
                return repr(value)
            known[f"k{len(known)}"] = value
            return f"k{len(known) - 1}"

        inputs, lines = [], []
        for position, node in enumerate(self.nodes):
            names[node] = name = f"v{position}"
            if node.op == "placeholder":
                inputs.append(name)
            elif node.op == "get_attr":
                known[name] = self.constant(node)
            elif node.op == "output":
                lines.append(f"return {text(tuple(node.args[0]))}")
            else:
                known[f"f{position}"] = functional(node)
                given = [text(x) for x in node.args] + [f"{n}={text(x)}" for n, x in widened(node.kwargs).items()]
                lines.append(f"{name} = f{position}({', '.join(given)})")
        exec(f"def function({', '.join(inputs)}):\n    " + "\n    ".join(lines), known)
        function: Callable[..., tuple[Tensor, ...]] = known["function"]
        return function

    def without_copies(self) -> Graph:
        """The graph without those views, copies and conversions that give what they take."""
        nodes, same = Nodes(), dict[Node, Node]()
        if any(operator_name(node) in STRIDED for node in self.nodes):
            return self
        for node in self.nodes:
            if node.op == "output":
                nodes.output(tuple(same[x] for x in node.args[0]))
            elif node.op == "call_function" and operator_name(node) in _COPIES and _gives_its_argument(node):
                same[node] = same[node.args[0]]  # type: ignore[index]
            else:
                same[node] = nodes.node_copy(node, same.__getitem__)
        pruned(nodes)
        return Graph(nodes, self.constants)

    def parted(self, moving: Sequence[Node]) -> Parted:
        """The graph in two: what does not depend on some of its inputs, and what does."""
        dependent = set(moving)
        for node in self.nodes:
            if node.op != "output" and not dependent.isdisjoint(node.all_input_nodes):
                dependent.add(node)
        inputs = [node for node in self.nodes if node.op == "placeholder"]
        calls = [node for node in self.nodes if node.op not in ("placeholder", "output")]
        used = dict.fromkeys(x for node in calls if node in dependent for x in node.all_input_nodes)
        used |= dict.fromkeys(self.outputs)
        met = [node for node in used if node not in dependent]
        nodes, copies = Nodes(), dict[Node, Node]()
        for node in inputs:
            copies[node] = nodes.node_copy(node)
        for node in calls:
            if node not in dependent:
                copies[node] = nodes.node_copy(node, copies.__getitem__)
        nodes.output(tuple(copies[node] for node in met))
        pruned(nodes)
        before, nodes, copies = Graph(nodes, self.constants), Nodes(), {}
        for number, node in enumerate((*met, *moving)):
            copies[node] = nodes.placeholder(f"input_{number}")
            copies[node].meta["val"] = node.meta["val"]
        for node in calls:
            if node in dependent:
                copies[node] = nodes.node_copy(node, copies.__getitem__)
        nodes.output(tuple(copies[node] for node in self.outputs))
        return Parted(before, Graph(nodes, self.constants))

    def depending(self, on: Sequence[Node]) -> list[bool]:
        """Which outputs depend on some nodes."""
        found = set(on)
        for node in self.nodes:
            if node.op != "output" and not found.isdisjoint(node.all_input_nodes):
                found.add(node)
        return [node in found for node in self.outputs]

    @property
    def inputs(self) -> list[Node]:
        """The placeholders."""
        return [node for node in self.nodes if node.op == "placeholder"]

    def only(self, outputs: Sequence[int]) -> Graph:
        """The graph with some of its outputs and what they need; inputs are the same."""
        nodes, copies = Nodes(), dict[Node, Node]()
        nodes.graph_copy(self.graph, copies)
        nodes.output(tuple(copies[self.outputs[position]] for position in outputs))
        pruned(nodes)
        return Graph(nodes, self.constants)

    def interpreted(
        self, inputs: Iterable[Any], call: Callable[[Node, Any, Any], Any], constant: Callable[[Tensor], Any] = _itself
    ) -> list[Any]:
        """The outputs of the graph over values of any kind; each is dropped after its last use.

        Args:
            inputs: the placeholders' values, in order; consumed lazily.
            call: gives the value of a call node from the values of its arguments and keyword arguments.
            constant: converts a tensor of the closure to such a value.
        """
        known: dict[Node, Any] = {}
        given = iter(inputs)
        for node in self.nodes:
            if node.op == "placeholder":
                known[node] = next(given)
            elif node.op == "get_attr":
                known[node] = constant(self.constant(node))
            elif node.op == "output":
                return [known[out] for out in node.args[0]]
            else:
                known[node] = call(node, looked_up(node.args, known), looked_up(node.kwargs, known))
            for used in self.spent.get(node, ()):
                del known[used]
        raise AssertionError("a graph ends in its output node")


@dataclass(frozen=True, eq=False)
class Parted:
    """A graph in two parts.

    Attributes:
        before: a graph of all inputs, which gives what the second part takes.
        after: a graph of that and of the moving inputs, which gives the outputs.
    """

    before: Graph
    after: Graph


def pruned(nodes: Nodes) -> None:
    """Remove the nodes whose values are not used; inputs and in-place operators stay. (PyTorch's is much slower.)"""
    for node in reversed(list(nodes.nodes)):
        if not node.users and node.op in ("call_function", "get_attr"):
            schema = getattr(node.target, "_schema", None)
            if schema is None or not schema.is_mutable:
                nodes.erase_node(node)


def has_complex(graph: Graph) -> bool:
    """Whether any value is a complex tensor."""
    values = (x for node in graph.nodes for x in leaves(node.meta.get("val")))
    return any(isinstance(x, Tensor) and x.is_complex() for x in values)


def widened(options: Mapping[str, Any]) -> dict[str, Any]:
    """Keyword arguments of a node with float64 for narrower floats: a cast in a definition must not round truth."""
    narrow = {n for n, value in options.items() if isinstance(value, torch.dtype) and value.is_floating_point}
    return {name: torch.float64 if name in narrow else value for name, value in options.items()}


def operator_name(node: Node) -> str:
    """The operator of a call node as messages and tables write it, such as ``aten.mul.Tensor``."""
    return str(node.target)


def functional(node: Node) -> Callable[..., Any]:
    """The operator of a node, for values that are computed anew and may have other strides than the traced ones."""
    target: Any = node.target
    if target is torch.ops.aten.view.default:
        return torch.ops.aten.reshape.default
    if target is torch.ops.aten.copy.default:  # into a tensor whose own values are lost
        return lambda into, source, non_blocking=False: source.to(into.dtype).expand(into.shape).clone()
    return target  # type: ignore[no-any-return]


STRIDED = ("aten.as_strided.default", "aten.as_strided_scatter.default")  # ask for the strides of what they take
_COPIES = frozenset(
    f"aten.{name}"
    for name in (
        *("view.default", "reshape.default", "expand.default", "permute.default", "slice.Tensor", "squeeze.dims"),
        *("alias.default", "clone.default", "_to_copy.default", "lift_fresh_copy.default", "detach.default"),
    )
)


def _gives_its_argument(node: Node) -> bool:
    if not isinstance(node.args[0], Node):
        return False
    given, found = node.args[0].meta["val"], node.meta["val"]
    dims: Any = node.args[1] if operator_name(node) == "aten.permute.default" else ()
    if list(dims) != sorted(dims):
        return False
    return bool(given.shape == found.shape and given.dtype == found.dtype)
