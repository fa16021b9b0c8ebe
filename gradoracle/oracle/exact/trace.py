"""Trace: a program of tensors as an ATen graph, the one thing that every reading reads.

The program is run once, on the examples, under a dispatch mode that writes down each ATen operator which is left when
autograd, ``torch.func`` and the decompositions have done their part. (PyTorch's ``make_fx`` gives the same graph; it
took ten times as long, most of it for fake tensors and stack traces that no reading looks at.)
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

NARROW = (torch.float32, torch.bfloat16, torch.float16)
_aten = torch.ops.aten


class UnsupportedOperator(Exception):
    """A reading lacks an operator of the graph; names both, so that the user knows which of them to change."""

    def __init__(self, operator: str, reading: str) -> None:
        self.operator, self.reading = operator, reading
        other = "" if reading == "rounding" else ", or choose --oracle float64"  # budgets have no other reading
        super().__init__(
            f"the {reading} reading has no rule for the operator {operator}; "
            "write the definition with elementwise functions, reductions, matrix products, indexing and torch.where"
            f"{other}"
        )


class ValueDependent(RuntimeError):
    """A program takes a number, a branch or a shape from the values of its inputs: no graph holds for other values."""


def _run(node: Node, args: Any, kwargs: Any) -> Any:
    operator: Any = node.target
    return operator(*args, **kwargs)


def _itself(value: Tensor) -> Tensor:
    return value


@dataclass(frozen=True)
class Graph:
    """An ATen graph over flat tensor inputs and outputs; shapes are those it was traced with.

    Free of in-place operators: every node's value is made once and never changed. Each call node's ``meta["val"]`` is a
    tensor without storage (device ``meta``) of the shape, dtype and strides of its value.

    Attributes:
        graph: placeholders, ``get_attr`` nodes for constants, call nodes, and one output node with a tuple.
        constants: the tensors of ``get_attr`` nodes, by target: a closure's, such as an integer input.
    """

    graph: Nodes
    constants: Mapping[str, Tensor]

    @property
    def nodes(self) -> Any:
        """The nodes in the order in which they are computed."""
        return self.graph.nodes

    @property
    def outputs(self) -> Sequence[Node]:
        """The nodes whose values the graph gives."""
        (output,) = (node for node in self.nodes if node.op == "output")
        return tuple(output.args[0])

    @functools.cached_property
    def positions(self) -> Mapping[Node, int]:
        """Which of the nodes each one is; inputs come first."""
        return {node: position for position, node in enumerate(self.nodes)}

    @functools.cached_property
    def spent(self) -> Mapping[Node, Sequence[Node]]:
        """By node: those whose values nobody needs once it is computed, itself among them where nobody ever does."""
        last: dict[Node, Node] = {}
        for node in self.nodes:
            for used in (node, *node.all_input_nodes):
                last[used] = node
        spent: dict[Node, list[Node]] = {}
        for used, node in last.items():
            spent.setdefault(node, []).append(used)
        return spent

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
            inputs: the placeholders' values, in order; an iterator may make them as they are asked for.
            call: gives the value of a call node from the values of its arguments and keyword arguments.
            constant: what a tensor of the closure is among those values.
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
        graph = _traced(graph, examples)  # in-place operators of a decomposition, which the first pass did not see
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
    """Writes down each operator that reaches the backend; a tensor knows its node by an attribute of its own."""

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
        """The node of a tensor, that of a new constant where it has none; anything else is itself."""
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
        """Tie tensors to their node, and it to their shapes; each of several results is an item of it."""
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
    """Whether an operator gave tensors (and not, say, a size or a number)."""
    return isinstance(value, Tensor) or (
        isinstance(value, (tuple, list)) and any(isinstance(item, Tensor) for item in value)
    )


def _refuse_values(func: Any, args: Sequence[Any]) -> None:
    """Refuse operators whose Python result, or whose shape, comes from the values of an input."""
    shaping = torch.Tag.dynamic_output_shape in func.tags
    if func is _aten.index.Tensor:
        shaping = any(isinstance(index, Tensor) and index.dtype in (torch.bool, torch.uint8) for index in args[1])
    if shaping or torch.Tag.data_dependent_output in func.tags:
        raise ValueDependent(f"{func} takes a number, a branch or a shape from the values of a traced tensor")


def _writes(node: Node) -> bool:
    schema = getattr(node.target, "_schema", None)
    return schema is not None and schema.is_mutable


def widened(options: Mapping[str, Any]) -> dict[str, Any]:
    """Keyword arguments of a node with float64 for every narrower float: a cast in a definition rounds no truth."""
    narrow = {name for name, value in options.items() if isinstance(value, torch.dtype) and value in NARROW}
    return {name: torch.float64 if name in narrow else value for name, value in options.items()}


def operator_name(node: Node) -> str:
    """The operator of a call node as written in messages and rule tables, such as ``aten.mul.Tensor``."""
    return str(node.target)
