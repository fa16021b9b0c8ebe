"""Recording: one run of a program on examples, as a graph of the operators that reach the backend.

The program is run once, on the examples, under a dispatch mode that records each ATen operator that remains after
autograd, ``torch.func`` and the decompositions. (PyTorch's ``make_fx`` gives the same graph; it took ten times as long,
most of it for fake tensors and stack traces that no reading needs.)
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack
from torch.fx import Graph as Nodes
from torch.fx import Node
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from gradoracle.oracle.exact.decompositions import of_movements, table
from gradoracle.oracle.exact.graph import Graph, pruned
from gradoracle.oracle.exact.trees import followed, leaves

_aten = torch.ops.aten


class ValueDependent(RuntimeError):
    """A program takes a number, a branch or a shape from the values of its inputs; no graph holds for other values."""


_pure: ContextVar[bool] = ContextVar("pure", default=False)
# operator -> what its node is: the target, its arguments, the value, and whether it may be a constant; it is given
# whether all sources are constants, whether operators are decomposed, and the arguments
OPAQUE: dict[Any, Callable[..., tuple[Any, tuple[Any, ...], Any, bool]]] = {}


def record(program: Callable[..., Any], examples: Sequence[Tensor], *, pure: bool, decomposed: bool = True) -> Graph:
    """The graph of ``program`` at the shapes of ``examples``, with dead code removed.

    Args:
        program: of the examples; what else is recorded or transformed around this call does not see it.
        examples: float64 tensors (or integers, or bools); values are not kept.
        pure: whether in-place operators are replaced by functional ones. Without, a program may differentiate
            recurrences; in-place operators of what PyTorch decomposes stay in the graph.
        decomposed: whether operators are replaced by the few that readings know. Without, PyTorch's own derivatives of
            them are still to be had.

    Raises:
        ValueDependent: the program takes a number, a branch or a shape from the values of its inputs.
    """
    if pure:
        program = torch.func.functionalize(program, remove="mutations")
    token = _pure.set(pure)
    try:
        with temporarily_clear_interpreter_stack(), _disable_current_modes():
            recorder = _Recorder(decomposed)
            inputs = [recorder.input(example) for example in examples]
            with sdpa_kernel(SDPBackend.MATH), recorder:  # else PyTorch's attention is one operator, without a JVP
                outputs = program(*inputs)
            recorder.nodes.output(tuple(recorder.node(torch.as_tensor(output)) for output in outputs))
    finally:
        _pure.reset(token)
    pruned(recorder.nodes)
    return Graph(recorder.nodes, recorder.constants)


def is_pure() -> bool:
    """Whether a program is being recorded whose in-place operators are replaced."""
    return _pure.get()


def writes(graph: Graph) -> bool:
    """Whether a graph has in-place operators."""
    schemas = (getattr(node.target, "_schema", None) for node in graph.nodes)
    return any(schema is not None and schema.is_mutable for schema in schemas)


_OF_SHAPE = {_aten.squeeze_.dim: _aten.squeeze.dims, _aten.unsqueeze_.default: _aten.unsqueeze.default}


class _Recorder(TorchDispatchMode):
    """Records each operator that reaches the backend; a tensor holds its node in an attribute."""

    def __init__(self, decomposed: bool) -> None:
        super().__init__()
        self.decomposed = decomposed
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
        decomposition = (table() if self.decomposed else of_movements()).get(func)
        for simpler in (decomposition, func.decompose):
            if simpler is not None:
                with self:
                    found = simpler(*args, **kwargs)
                if found is not NotImplemented:
                    return found
        if func is _aten._to_copy.default and not isinstance(args[0], Tensor):  # a number, which batching converts
            func, args, kwargs = _aten.full.default, ([], args[0]), {"dtype": kwargs.get("dtype")}
        if func is _aten.slice_scatter.default:
            args = _within(*args)  # batching it asks for every place that an open end stands for
        func = _aten.lift_fresh_copy.default if func is _aten.lift_fresh.default else func
        given, named = followed(self.node, tuple(args)), followed(self.node, dict(kwargs))
        sources = [leaf for leaf in leaves((given, named)) if isinstance(leaf, Node)]
        if not all(source in self.fixed for source in sources):
            _refuse_values(func, args)
        if func in OPAQUE:
            fixed = all(source in self.fixed for source in sources)
            target, given, value, constant = OPAQUE[func](fixed, self.decomposed, *args)
            node = self.nodes.create_node("call_function", target, followed(self.node, given))
            self._mark(value, node, sources if constant else (node,))
            return value
        value = func(*args, **kwargs)
        if func in _OF_SHAPE:  # no number is written
            func, given = _OF_SHAPE[func], (given[0], [given[1]] if func is _aten.squeeze_.dim else given[1])
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


def _within(
    x: Tensor, source: Tensor, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> tuple[Any, ...]:
    """The arguments of slice_scatter with both ends inside the dim."""
    low, high, step = slice(start, end, step).indices(x.shape[dim])
    return x, source, dim, low, high, step


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
