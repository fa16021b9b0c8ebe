"""Trace: a program of tensors as an ATen graph, the input of every reading.

The program is run once, on the examples, under a dispatch mode that records each ATen operator that remains after
autograd, ``torch.func`` and the decompositions. (PyTorch's ``make_fx`` gives the same graph; it took ten times as long,
most of it for fake tensors and stack traces that no reading needs.)
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph as Nodes
from torch.fx import Node
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode

from gradoracle.oracle.exact.decompositions import table
from gradoracle.oracle.exact.trees import followed, leaves, looked_up

_aten = torch.ops.aten


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


class ValueDependent(RuntimeError):
    """A program takes a number, a branch or a shape from the values of its inputs; no graph holds for other values."""


def _run(node: Node, args: Any, kwargs: Any) -> Any:
    operator: Any = node.target
    return operator(*args, **kwargs)


def _itself(value: Tensor) -> Tensor:
    return value


@dataclass(frozen=True)
class Graph:
    """An ATen graph over flat tensor inputs and outputs, at the shapes it was traced with.

    It has no in-place operators: every node's value is made once and never changed. Each call node's ``meta["val"]`` is
    a tensor without storage (device ``meta``) of the shape, dtype and strides of its value.

    Attributes:
        graph: placeholders, ``get_attr`` nodes for constants, call nodes, and one output node with a tuple.
        constants: the tensors of ``get_attr`` nodes, by target: those of a closure, such as an integer input.
    """

    graph: Nodes
    constants: Mapping[str, Tensor]

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


def trace(program: Callable[..., Sequence[Tensor]], *examples: Tensor) -> Graph:
    """Trace ``program`` to few ATen operators at the shapes of ``examples`` (float64 tensors; values are not kept).

    Raises:
        ValueDependent: it takes a number, a branch or a shape from the values of its inputs.
    """
    graph = _traced(program, examples)
    if any(_writes(node) for node in graph.nodes):
        graph = _traced(graph, examples)  # in-place operators of decompositions, which the first pass does not see
    return graph


def _traced(program: Callable[..., Any], examples: Sequence[Tensor]) -> Graph:
    pure: Callable[..., Any] = torch.func.functionalize(program, remove="mutations")
    recorder = _Recorder()
    inputs = [recorder.input(example) for example in examples]
    with sdpa_kernel(SDPBackend.MATH), recorder:  # else PyTorch's attention is one opaque operator, without a JVP
        outputs = pure(*inputs)
    recorder.nodes.output(tuple(recorder.node(torch.as_tensor(output)) for output in outputs))
    recorder.nodes.eliminate_dead_code()
    return Graph(recorder.nodes, recorder.constants)


class _Recorder(TorchDispatchMode):
    """Records each operator that reaches the backend; a tensor holds its node in an attribute."""

    def __init__(self) -> None:
        super().__init__()
        self.nodes = Nodes()
        self.constants: dict[str, Tensor] = {}
        self.fixed: set[Node] = set()  # nodes that do not depend on any input
        self._constants: dict[int, tuple[Tensor, Node]] = {}  # by id; the tensor is kept, so that no other gets its id

    def input(self, example: Tensor) -> Tensor:
        """A placeholder for one example."""
        fresh = example.detach()
        self._mark(fresh, self.nodes.placeholder(f"input_{len(self.nodes.nodes)}"), ())
        return fresh

    def node(self, value: Any) -> Any:
        """The node of a tensor, or that of a new constant if it has none; any other value is returned as it is."""
        if not isinstance(value, Tensor):
            return value
        known = getattr(value, "_traced_as", None)
        if isinstance(known, Node) and known.graph is self.nodes:
            return known
        if id(value) not in self._constants:
            target = f"constant_{len(self.constants)}"
            self.constants[target] = value.detach()
            constant = self.nodes.create_node("get_attr", target)
            constant.meta["val"] = _without_storage(value)
            self.fixed.add(constant)
            self._constants[id(value)] = value, constant
        return self._constants[id(value)][1]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        decomposition = table().get(func)
        for simpler in (decomposition, func.decompose):
            if simpler is not None:
                with self:
                    found = simpler(*args, **kwargs)
                if found is not NotImplemented:
                    return found
        func = _aten.lift_fresh_copy.default if func is _aten.lift_fresh.default else func
        given, named = followed(self.node, tuple(args)), followed(self.node, dict(kwargs))
        sources = [leaf for leaf in leaves((given, named)) if isinstance(leaf, Node)]
        if not all(source in self.fixed for source in sources):
            _refuse_values(func, args)
        value = func(*args, **kwargs)
        if _is_tensors(value):
            self._mark(value, self.nodes.create_node("call_function", func, given, named), sources)
        return value

    def _mark(self, value: Any, node: Node, sources: Sequence[Node]) -> None:
        """Tie tensors to their node and the node to their shapes; each of several results is an item of it."""
        if node.op != "placeholder" and all(source in self.fixed for source in sources):
            self.fixed.add(node)
        node.meta["val"] = followed(lambda x: _without_storage(x) if isinstance(x, Tensor) else x, value)
        if isinstance(value, Tensor):
            value._traced_as = node  # type: ignore[attr-defined]
        else:
            for position, item in enumerate(value):
                if isinstance(item, Tensor):
                    one = self.nodes.create_node("call_function", operator.getitem, (node, position))
                    self._mark(item, one, (node,))


def _without_storage(value: Tensor) -> Tensor:
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")


def _is_tensors(value: Any) -> bool:
    """Whether an operator returned tensors (and not a size or a number)."""
    return isinstance(value, Tensor) or (
        isinstance(value, (tuple, list)) and any(isinstance(item, Tensor) for item in value)
    )


def _refuse_values(func: Any, args: Sequence[Any]) -> None:
    """Raise for operators whose Python result or shape depends on the values of an input."""
    shaping = torch.Tag.dynamic_output_shape in func.tags
    if func is _aten.index.Tensor:
        shaping = any(isinstance(index, Tensor) and index.dtype in (torch.bool, torch.uint8) for index in args[1])
    if shaping or torch.Tag.data_dependent_output in func.tags:
        raise ValueDependent(f"{func} takes a number, a branch or a shape from the values of a traced tensor")


def _writes(node: Node) -> bool:
    schema = getattr(node.target, "_schema", None)
    return schema is not None and schema.is_mutable


def widened(options: Mapping[str, Any]) -> dict[str, Any]:
    """Keyword arguments of a node with float64 for narrower floats: a cast in a definition must not round truth."""
    narrow = {n for n, value in options.items() if isinstance(value, torch.dtype) and value.is_floating_point}
    return {name: torch.float64 if name in narrow else value for name, value in options.items()}


def operator_name(node: Node) -> str:
    """The operator of a call node as messages and tables write it, such as ``aten.mul.Tensor``."""
    return str(node.target)
