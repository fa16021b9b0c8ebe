"""Edits: small changes of a definition's graph, each of which is a fault that a kernel may have.

An edit belongs to one operator of the graph, or to all alike where a loop was unrolled, and says what that operator
gives instead. What downstream becomes of it is for ``reconstruction`` to find out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node

from gradoracle.oracle.exact.trace import Graph
from gradoracle.oracle.exact.trees import followed, leaves
from gradoracle.oracle.rounding import effects

Call = Callable[..., Any]  # (node, the values of its arguments, and of its keyword arguments) to its value
_aten = torch.ops.aten
_TILES = (16, 32, 64, 128)
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
_FACTORS = (-1.0, 2.0, 0.5, math.log2(math.e), math.log(2.0))
_NEIGHBOURS = {"le": _aten.lt.Scalar, "lt": _aten.le.Scalar, "ge": _aten.gt.Scalar, "gt": _aten.ge.Scalar}


@dataclass(frozen=True)
class Edit:
    """One change.

    Attributes:
        cause: what a kernel with it has, a name of ``causes.CAUSES``.
        words: what is changed.
        nodes: whose values are others.
        call: gives these, from a node, the values of its arguments and keyword arguments, and that of ``asks``.
        linear: whether the operand is left out, so that by how much the outputs move says by which factor it is wrong.
        rounds: whether the change is a rounding, which a kernel commits in another order.
        asks: an input whose value takes part; None where none does.
        factor: by which an operand is multiplied, where it was found by what it explains.
    """

    cause: str
    words: str
    nodes: frozenset[Node]
    call: Call
    linear: bool = False
    rounds: bool = False
    asks: Node | None = None
    factor: float | None = None


def edits(graph: Graph, named: Sequence[str]) -> Iterator[Edit]:
    """Every edit of a graph whose inputs have these names, in a fixed order."""
    wording = _Wording(graph, named)
    scalars = sorted({abs(float(x)) for node in graph.nodes for x in _factors(node)})
    factors = dict.fromkeys([*_FACTORS, *(y for x in scalars for y in (x, 1 / x))])
    inputs = [node for node in graph.nodes if node.op == "placeholder"]
    for source in inputs:
        for words, cause, change in _misread(_shape(source)) if len(source.users) > 1 else ():
            said = f"with {wording.of(source)} read {words} everywhere"
            yield Edit(cause, said, frozenset(source.users), _throughout(source, change))
    for nodes in _together(graph):  # sums that a kernel adds up in one place, and loses together
        node = next(iter(nodes))
        yield from _partial(effects.plain_name(node), nodes, f"{wording.of(node)} and similar products")
    for nodes in _alike(graph):
        node = next(iter(nodes))
        name, said = effects.plain_name(node), wording.of(node)
        if name in effects.COMPARE:
            yield from _compared(name, nodes, said)
        if name not in _COMPUTES or not _is_float(node):
            continue
        for place, operand in _operands(node):
            what = f"{wording.of(operand, 1)} in {said}"
            yield Edit("term", f"without {what}", nodes, _scaled(place, 0.0), linear=True)
            for factor in factors:
                cause, words = "ratio", f"if {what} is multiplied by {factor:.6g}"
                if factor == -1:
                    cause, words = "sign", f"with the sign of {what} changed"
                yield Edit(cause, words, nodes, _scaled(place, factor))
            yield from _instead(nodes, place, operand, inputs, wording, what)
        yield from _dropped(name, nodes, said)
        yield from _partial(name, nodes, said)
        if name in ("bmm", "mm"):
            yield Edit("transpose", f"with {said} transposed", nodes, _result_transposed)
            yield Edit("transpose", f"with the factors of {said} exchanged", nodes, _swapped)
        if name == "where":
            yield Edit("tail", f"without the mask of {said}", nodes, _unmasked)
            yield Edit("term", f"with the branches of {said} exchanged", nodes, _exchanged)
        for dtype in (torch.bfloat16, torch.float16):
            yield Edit("dtype", f"with {said} rounded to {str(dtype)[6:]}", nodes, _rounded(dtype), rounds=True)


def _together(graph: Graph) -> list[frozenset[Node]]:
    """The products that have one operator and operands of equal shapes, where there are several."""
    groups: dict[Any, list[Node]] = {}
    for node in graph.nodes:
        if node.op == "call_function" and effects.plain_name(node) in ("bmm", "mm"):
            groups.setdefault((str(node.target), tuple(_shape(x) for x in leaves(node.args))), []).append(node)
    return [frozenset(group) for group in groups.values() if len(group) > 1]


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


def _factors(node: Node) -> Iterator[float]:
    if node.op == "call_function" and effects.plain_name(node) in ("mul", "div"):
        numbers = (x for x in leaves(node.args) if isinstance(x, (int, float)) and not isinstance(x, bool))
        yield from (float(x) for x in numbers if x not in (0, 1, -1) and math.isfinite(x))


def _with(args: Sequence[Any], place: int, change: Callable[[Tensor], Tensor]) -> Any:
    """The arguments with one of their leaves changed."""
    count = iter(range(len(leaves(args))))
    return followed(lambda leaf: change(leaf) if next(count) == place else leaf, tuple(args))


def _called(node: Node, args: Sequence[Any], kwargs: Any) -> Any:
    target: Any = node.target
    return target(*args, **kwargs)


def _scaled(place: int, factor: float) -> Call:
    return lambda node, args, kwargs: _called(node, _with(args, place, lambda x: x * factor), kwargs)


def _rounded(dtype: torch.dtype) -> Call:
    return lambda node, args, kwargs: _called(node, args, kwargs).to(dtype).to(torch.float64)


def _result_transposed(node: Node, args: Sequence[Any], kwargs: Any) -> Any:
    return _transposed(_called(node, args, kwargs))


def _unmasked(node: Node, args: Sequence[Any], kwargs: Any) -> Any:
    _, kept, masked = args
    value = kept if kept.numel() >= masked.numel() else masked
    return value.expand(node.meta["val"].shape)


def _exchanged(node: Node, args: Sequence[Any], kwargs: Any) -> Any:
    return _called(node, (args[0], args[2], args[1]), kwargs)


def _compared(name: str, nodes: frozenset[Node], said: str) -> Iterator[Edit]:
    """A comparison whose first operand is off by one."""
    node = next(iter(nodes))
    if len(node.args) != 2 or name not in _NEIGHBOURS:
        return

    def moved(step: int) -> Call:
        return lambda node, args, kwargs: _called(node, (args[0] + step, args[1]), kwargs)

    first = node.args[0]
    if isinstance(first, Node) and not _is_float(first):
        for step in (1, -1):
            yield Edit("shift", f"with {said} off by one", nodes, moved(step))


def _instead(
    nodes: frozenset[Node],
    place: int,
    operand: Node,
    inputs: Sequence[Node],
    wording: _Wording,
    what: str,
) -> Iterator[Edit]:
    """Another input in the place of one, or an operand that is read from other places."""
    shape = _shape(operand)
    source = _source(operand)
    for other in inputs if source is not None else ():
        if other is not source and _shape(other) == _shape(source):
            words = f"with {wording.of(other)} in place of {what}"
            yield Edit("term", words, nodes, _another(place, operand), asks=other)
    for read, cause, change in _misread(_shape(source)) if source is not None else ():
        words = f"with {wording.of(source)} read {read} in place of {what}"
        yield Edit(cause, words, nodes, _another(place, operand, change), asks=source)
    if effects.plain_name(next(iter(nodes))) in effects.PRODUCT and len(shape) > 1:
        yield Edit("transpose", f"with {what} transposed", nodes, _changed(place, _transposed))
    for dim, size in enumerate(shape):
        if size > 2:
            for step in (1, -1):
                words = f"with {what} shifted by one along its dim {dim}"
                yield Edit("shift", words, nodes, _changed(place, _mover(dim, step)))


def _misread(shape: Sequence[int]) -> Iterator[tuple[str, str, Callable[[Tensor], Tensor]]]:
    """Ways to read a contiguous tensor at wrong addresses, with causes: one element off, by another dim's stride."""
    yield "one element later", "shift", lambda x: x.flatten().roll(-1).view(x.shape)
    yield "one element earlier", "shift", lambda x: x.flatten().roll(1).view(x.shape)
    for dim, size in enumerate(shape):
        for other in range(len(shape)):
            if other != dim and size > 1:
                yield f"with the stride of dim {other} along dim {dim}", "layout", _strider(dim, other)


def _throughout(source: Node, change: Callable[[Tensor], Tensor]) -> Call:
    """Changes an input wherever a node takes it."""

    def call(node: Node, args: Sequence[Any], kwargs: Any) -> Any:
        for place, leaf in enumerate(leaves(node.args)):
            args = _with(args, place, change) if leaf is source else args
        return _called(node, args, kwargs)

    return call


def _strider(dim: int, other: int) -> Callable[[Tensor], Tensor]:
    """Reads a tensor by a wrong stride; 0 stands outside of it."""

    def read(x: Tensor) -> Tensor:
        x = x.contiguous()
        places = torch.zeros(x.shape, dtype=torch.int64)
        for each, size in enumerate(x.shape):
            step = x.stride(other if each == dim else each)
            places += (torch.arange(size) * step).view(-1, *[1] * (x.dim() - 1 - each))
        inside = places < x.numel()
        return torch.where(inside, x.flatten()[torch.where(inside, places, 0)], 0.0)

    return read


def _transposed(x: Tensor) -> Tensor:
    """The transpose within a tile that is larger than the matrix: 0 outside, and cut to the same shape."""
    rows, columns = x.shape[-2:]
    most = max(rows, columns)
    square = torch.nn.functional.pad(x, (0, most - columns, 0, most - rows))
    return square.mT[..., :rows, :columns]


def _swapped(node: Node, args: Sequence[Any], kwargs: Any) -> Any:
    """The product of two matrices in the other order, within tiles that are larger than both."""
    one, two = args[0], args[1]
    (rows, inner), columns = one.shape[-2:], two.shape[-1]
    most = max(rows, inner, columns)
    pad = torch.nn.functional.pad
    one = pad(one, (0, most - inner, 0, most - rows))
    two = pad(two, (0, most - columns, 0, most - inner))
    return (two @ one)[..., :rows, :columns]


def _changed(place: int, change: Callable[[Tensor], Tensor]) -> Call:
    return lambda node, args, kwargs: _called(node, _with(args, place, change), kwargs)


def _mover(dim: int, step: int) -> Callable[[Tensor], Tensor]:
    return lambda x: x.roll(step, dim)


def _source(node: Node) -> Node | None:
    """The input that a node is a view of."""
    while node.op == "call_function" and effects.plain_name(node) in effects.VIEW and isinstance(node.args[0], Node):
        node = node.args[0]
    return node if node.op == "placeholder" else None


def _another(place: int, operand: Node, change: Callable[[Tensor], Tensor] = lambda x: x) -> Call:
    """Puts another input of the same shape, or a changed one, in the place of the one that an operand is a view of."""

    def call(node: Node, args: Sequence[Any], kwargs: Any, other: Tensor) -> Any:
        views, below, other = [], operand, change(other)
        while below.op == "call_function":
            views.append(below)
            below = below.args[0]  # type: ignore[assignment]
        for view in reversed(views):
            other = _called(view, (other, *view.args[1:]), view.kwargs)
        return _called(node, _with(args, place, lambda _: other), kwargs)

    return call


def _dropped(name: str, nodes: frozenset[Node], said: str) -> Iterator[Edit]:
    """A factor or an elementwise function that is left out."""
    if name in ("mul", "div"):
        both = name == "mul"
        yield Edit("ratio", f"without the second factor of {said}", nodes, _passed(0))
        if both and len(list(_operands(next(iter(nodes))))) == 2:
            yield Edit("ratio", f"without the first factor of {said}", nodes, _passed(1))
    elif name in effects.SPECIAL | effects.EXPONENTIAL | effects.LOGARITHM | {"sqrt", "reciprocal", "square"}:
        yield Edit("term", f"without the function of {said}", nodes, _passed(0))


def _passed(place: int) -> Call:
    return lambda node, args, kwargs: torch.as_tensor(args[place]).to(torch.float64).expand(node.meta["val"].shape)


def _partial(name: str, nodes: frozenset[Node], said: str) -> Iterator[Edit]:
    """A sum that stops early, begins late or has one member alone."""
    node = next(iter(nodes))
    ranges = {"sum": _summed, "_softmax": _last, "amax": _summed, "bmm": _inner, "mm": _inner, "cumsum": _last}
    if name not in ranges or not isinstance(node.args[0], Node):
        return
    fill = -torch.inf if name in ("_softmax", "amax") else 0.0
    shape = _shape(node.args[0])
    for dim in ranges[name](node, shape):
        size = shape[dim]
        cuts = [cut for cut in _TILES if cut < size]
        for cut in cuts:
            yield Edit("tail", f"with {said} ending after {cut} of {size}", nodes, _kept(dim, 0, cut, fill))
            yield Edit("sum", f"with {said} without its first {cut} of {size}", nodes, _kept(dim, cut, size, fill))
            last = (size - 1) // cut * cut
            if last != cut:
                yield Edit("tail", f"with {said} ending after {last} of {size}", nodes, _kept(dim, 0, last, fill))
                yield Edit("sum", f"with {said} over its last {size - last} only", nodes, _kept(dim, last, size, fill))
        for parts in (2, 3, 4, 8) if size > 3 else ():  # heads of a group, of which each has as many members
            if size % parts == 0:
                one = size // parts
                yield Edit("sum", f"with {said} over its first {one} only", nodes, _kept(dim, 0, one, fill))
                yield Edit("sum", f"with {said} over its last {one} only", nodes, _kept(dim, size - one, size, fill))
        if size > 1:
            if size - 1 not in cuts:
                yield Edit("tail", f"with {said} without its last member", nodes, _kept(dim, 0, size - 1, fill))
            yield Edit("shift", f"with {said} without its first member", nodes, _kept(dim, 1, size, fill))
            for one in (0, size - 1) if size > 2 else ():
                yield Edit("sum", f"with {said} over one member only", nodes, _kept(dim, one, one + 1, fill))


def _summed(node: Node, shape: Sequence[int]) -> list[int]:
    dims: Any = node.args[1] if len(node.args) > 1 else range(len(shape))
    return [dim % len(shape) for dim in ([dims] if isinstance(dims, int) else dims)]


def _last(node: Node, shape: Sequence[int]) -> list[int]:
    return [int(str(node.args[1])) % len(shape)]


def _inner(node: Node, shape: Sequence[int]) -> list[int]:
    return [len(shape) - 1]


def _kept(dim: int, low: int, high: int, fill: float) -> Call:
    """The operator on its first operand, of which one dim is ``fill`` outside of a range."""

    def cut(x: Tensor) -> Tensor:
        place = torch.arange(x.shape[dim]).view(-1, *[1] * (x.dim() - 1 - dim))
        return torch.where((place >= low) & (place < high), x, fill)

    return _changed(0, cut)


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
