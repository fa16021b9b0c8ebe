"""Rolling: a Python loop that a trace has unrolled, as one recurrence.

Iterations are recognised as equal runs of nodes. Every argument of every node is compared: in each iteration it is a
node of the same iteration, one of an iteration before (a carry), the same outer node (a constant), or a slice whose
place moves along one tensor (a sequence). Where any argument is anything else, the nodes stay as they are.
"""

from __future__ import annotations

import operator
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import torch
from torch.fx import Graph as Nodes
from torch.fx import Node

from gradoracle.oracle.exact.graph import Graph, pruned
from gradoracle.oracle.exact.recurrence import Recurrence
from gradoracle.oracle.exact.trees import followed, leaves, refilled

_aten = torch.ops.aten

# comparisons with a number, and with a tensor of one
_COMPARED = {getattr(_aten, name).Scalar: getattr(_aten, name).Tensor for name in ("eq", "ne", "lt", "le", "gt", "ge")}

LEAST = 8  # iterations of a loop
_WORTH = 64  # nodes of a loop, or iterations of one that carries nothing
_LONGEST = 4  # how many times one operator may stand in a body for its distance to be found


def rolled(graph: Graph, decomposed: bool = False) -> Graph:
    """A graph, ``decomposed`` or not, with each loop of ``LEAST`` iterations as a recurrence; the same without one."""
    if len(graph.graph.nodes) < _WORTH or not _runs(list(graph.nodes)):
        return graph
    found = Graph(graph.only(range(len(graph.outputs))).graph, dict(graph.constants))
    _simplified(found)
    tried: set[tuple[int, Node]] = set()
    changed = False
    while True:
        nodes = list(found.nodes)
        run = next((run for run in _runs(nodes) if (run.period, nodes[run.start]) not in tried), None)
        if run is None:
            return Graph(found.graph, found.constants) if changed else graph
        tried.add((run.period, nodes[run.start]))
        loops = (_Loop.of(nodes, each) for each in run.rotations(nodes))
        changed |= any(_replaced(found, loop, decomposed) for loop in loops if loop is not None)


@dataclass(frozen=True)
class _Run:
    """Equal runs of nodes, one after the other."""

    start: int
    period: int
    count: int

    def rotations(self, nodes: Sequence[Node]) -> list[_Run]:
        """The same with other places where an iteration begins: first those that the fewest values cross."""
        end = self.start + self.period * self.count
        place = {node: i for i, node in enumerate(nodes[self.start : end])}
        middle = self.count // 2 * self.period
        crossing = [0] * self.period  # values by the cut that they cross
        for offset in range(self.period):
            producer = nodes[self.start + middle + offset]
            uses = [place[user] - middle for user in producer.users if user in place]
            last = max(uses, default=offset)
            for cut in range(offset + 1, min(last, offset + self.period) + 1):
                crossing[cut % self.period] += 1
        order = sorted(range(self.period), key=lambda cut: (crossing[cut], cut))[:3]
        found = []
        for cut in order:
            count = self.count if cut == 0 else self.count - 1
            if count >= LEAST:
                found.append(_Run(self.start + cut, self.period, count))
        return found


def _runs(nodes: Sequence[Node]) -> list[_Run]:
    """Candidates, the largest first."""
    kinds: dict[Any, int] = {}
    keys = [kinds.setdefault(_kind(node), len(kinds)) for node in nodes]
    places: dict[int, list[int]] = defaultdict(list)
    for place, key in enumerate(keys):
        places[key].append(place)
    found: set[tuple[int, int, int]] = set()
    for at in places.values():
        if len(at) < LEAST or nodes[at[0]].op != "call_function":
            continue
        for apart in range(1, _LONGEST + 1):
            for first, last, period in _steady(at, apart):
                start, end = first, last + 1
                if any(s <= start and end <= e and period % p == 0 for s, e, p in found):
                    continue
                while start > 0 and keys[start - 1] == keys[start - 1 + period]:
                    start -= 1
                while end < len(keys) and keys[end] == keys[end - period]:
                    end += 1
                if all(keys[i] == keys[i + period] for i in range(start, end - period)):
                    found.add((start, end, period))
    runs = [_Run(start, period, (end - start) // period) for start, end, period in found]
    runs = [run for run in runs if run.count >= LEAST and run.count * run.period >= _WORTH]
    return sorted(runs, key=lambda run: (-run.count * run.period, run.period, run.start))


def _steady(at: Sequence[int], apart: int) -> list[tuple[int, int, int]]:
    """Stretches of places in which each is as far from the one ``apart`` before: first, last, distance."""
    found, first = [], 0
    for i in range(apart, len(at)):
        distance = at[i] - at[i - apart]
        if i + 1 < len(at) and at[i + 1] - at[i + 1 - apart] == distance:
            continue
        if (i - first) // apart >= LEAST - 1:
            found.append((at[first], at[i], distance))
        first = i + 1 - apart
    return found


def _kind(node: Node) -> Any:
    """What nodes of different iterations have in common."""
    if node.op != "call_function" or isinstance(node.target, Recurrence):
        return node.op, node
    val = node.meta.get("val")
    shape = (tuple(val.shape), val.dtype) if isinstance(val, torch.Tensor) else None
    return node.target, shape, len(node.args), len(node.all_input_nodes)


# ---- slices ----

_SLICES = (_aten.select.int, _aten.slice.Tensor)


def _slice(node: Node) -> tuple[Node, int, int, int | None] | None:
    """Base, dim, start, and width of a slice (None: one place, without its dim)."""
    if node.target is _aten.select.int:
        base, dim, at = node.args
        return base, _dim(base, dim), _place(base, dim, at), None  # type: ignore[return-value]
    if node.target is _aten.squeeze.dims and isinstance(node.args[0], Node):
        inner = _slice(node.args[0])
        if inner is not None and inner[3] == 1 and list(node.args[1]) == [inner[1]]:  # type: ignore[arg-type]
            return (*inner[:3], None)
    if node.target is _aten.slice.Tensor and (len(node.args) < 5 or node.args[4] == 1):
        base, dim, start = node.args[:3]
        width = node.meta["val"].shape[_dim(base, dim)]
        return base, _dim(base, dim), _place(base, dim, start), int(width)  # type: ignore[return-value]
    return None


def _dim(base: Any, dim: Any) -> int:
    return int(dim) % base.meta["val"].dim()


def _place(base: Any, dim: Any, at: Any) -> int:
    at = at or 0
    return int(at) if at >= 0 else int(at) + base.meta["val"].shape[_dim(base, dim)]


def _simplified(graph: Graph) -> None:
    """Without what a write to a part of a tensor leaves: copies into what is lost, reads of what was just written."""
    for node in list(graph.nodes):
        if node.target is _aten.copy.default:
            into, source = node.args[:2]
            same = into.meta["val"].shape == source.meta["val"].shape  # type: ignore[union-attr]
            if same and into.meta["val"].dtype == source.meta["val"].dtype:  # type: ignore[union-attr]
                node.replace_all_uses_with(source)
        elif node.target in _SLICES and node.args[0].target is _aten.slice_scatter.default:  # type: ignore[union-attr]
            base, dim, start, width = _slice(node) or (None, 0, 0, None)
            source = base.args[1] if base is not None else None
            if source is None or _written_at(base) != (dim, start, width or 1):  # type: ignore[arg-type]
                continue
            if width is None and source.target is _aten.unsqueeze.default:  # type: ignore[union-attr]
                source, at = source.args  # type: ignore[union-attr]
                if int(at) % (source.meta["val"].dim() + 1) != dim:  # type: ignore[union-attr, arg-type]
                    continue
            if source.meta["val"].shape == node.meta["val"].shape:  # type: ignore[union-attr]
                node.replace_all_uses_with(source)
        elif node.target is _aten.slice_scatter.default:
            base = node.args[0]  # type: ignore[assignment]
            if base.target is _aten.slice_scatter.default and _written_at(node) == _written_at(base):  # type: ignore[union-attr, arg-type]
                node.replace_input_with(base, base.args[0])  # type: ignore[union-attr, arg-type]
    pruned(graph.graph)


# ---- a loop ----


@dataclass
class _Loop:
    """A loop, by what its nodes take in all iterations.

    Attributes:
        iterations: the nodes of each.
        arguments: for each node of an iteration, its arguments as a tree with ``_Own``, ``_Before``, ``_Outer`` or
            ``_Along`` for nodes.
        first: by carry, what the first iterations take.
        sequences: what differs from iteration to iteration.
    """

    iterations: list[Sequence[Node]]
    arguments: list[Any] = field(default_factory=list)
    first: dict[_Before, Node] = field(default_factory=dict)
    sequences: dict[_Along, None] = field(default_factory=dict)

    @staticmethod
    def of(nodes: Sequence[Node], run: _Run) -> _Loop | None:
        """That of a run; None if its iterations are not those of a loop."""
        starts = range(run.start, run.start + run.count * run.period, run.period)
        loop = _Loop([nodes[start : start + run.period] for start in starts])
        place = {node: divmod(i, run.period) for i, node in enumerate(nodes[starts[0] : starts[-1] + run.period])}
        before = set(nodes[: run.start])
        untouched = loop._untouched(before)
        for offset in range(run.period):
            each = [iteration[offset] for iteration in loop.iterations]
            if (sequence := loop._along(each, before, untouched)) is not None:
                loop.arguments.append(sequence)
                continue
            flat = [leaves((list(node.args), dict(node.kwargs))) for node in each]
            if len({len(x) for x in flat}) > 1:
                return None
            merged = []
            for position, values in enumerate(zip(*flat, strict=True)):
                one = loop._argument(each, position, values, place, before)
                if one is None:
                    return None
                merged.append(one)
            loop.arguments.append(refilled((list(each[0].args), dict(each[0].kwargs)), merged))
        if not loop.first and run.count < _WORTH:
            return None
        return loop

    def _argument(
        self, each: Sequence[Node], position: int, values: Sequence[Any], place: Mapping[Node, tuple[int, int]],
        before: set[Node],
    ) -> Any:  # fmt: skip
        """What one argument is in all iterations; None if it is nothing that a loop has."""
        last = values[-1]
        if not isinstance(last, Node):
            if all(type(value) is type(last) and value == last for value in values):
                return _Same(last)
            return self._number(each[0], position, values)
        if any(not isinstance(value, Node) for value in values):
            return None
        if last in place:
            at, offset = place[last]
            distance = len(values) - 1 - at
            if any(place.get(value) != (i - distance, offset) for i, value in enumerate(values) if i >= distance):
                return None
            if distance == 0:
                return _Own(offset)
            return self._carry(offset, distance, values[:distance], before)
        if all(value is last for value in values):
            return _Outer(last) if last in before else None
        return self._along(values, before)

    def _carry(self, offset: int, distance: int, first: Sequence[Node], before: set[Node]) -> Any:
        """A value of an earlier iteration; ``first`` are those of the iterations that have none."""
        meta = self.iterations[0][offset].meta["val"]
        if not isinstance(meta, torch.Tensor):
            return None
        for i, node in enumerate(first):  # iteration i finds there what was put before the loop for distance - i
            own = node.meta["val"]
            carry = _Before(offset, distance - i)
            if node not in before or own.shape != meta.shape or own.dtype != meta.dtype:
                return None
            if self.first.setdefault(carry, node) is not node:
                return None
        return _Before(offset, distance)

    def _untouched(self, before: set[Node]) -> dict[tuple[Node, tuple[int, int, int]], Node]:
        """By a tensor that is written slice by slice, and the slice that an iteration writes: what it was at first."""
        found = {}
        for offset, node in enumerate(self.iterations[0]):
            if node.target is not _aten.slice_scatter.default or node.args[0] not in before:
                continue
            nodes = [iteration[offset] for iteration in self.iterations]
            if any(b.args[0] is not a for a, b in pairwise(nodes)):
                continue
            places = [_written_at(each) for each in nodes]
            if len({place[1] for place in places}) == len(places) and len({place[::2] for place in places}) == 1:
                for each, at in zip(nodes, places, strict=True):
                    found[each.args[0], at] = node.args[0]
        return found  # type: ignore[return-value]

    def _along(self, values: Sequence[Node], before: set[Node], untouched: Mapping[Any, Node] | None = None) -> Any:
        """Slices along a tensor."""
        slices = [_slice(value) for value in values]
        if untouched:
            slices = [s and (untouched.get((s[0], (s[1], s[2], s[3] or 1)), s[0]), *s[1:]) for s in slices]
        one = slices[0]
        if one is None or one[0] not in before:
            return None
        steps = {b[2] - a[2] for a, b in pairwise(slices) if a is not None and b is not None}
        if None in slices or len(steps) != 1 or any(s[0] is not one[0] or s[1::2] != one[1::2] for s in slices if s):
            return None
        step = steps.pop()
        if step == 0 or (one[3] is not None and abs(step) != one[3]):
            return None
        found = _Along(one[0], one[1], one[2], step, one[3])
        self.sequences[found] = None
        return found

    def _number(self, node: Node, position: int, values: Sequence[Any]) -> Any:
        """Numbers that differ, where a tensor may stand."""
        if node.target is _aten.slice_scatter.default and position >= 3:
            return _Moves()  # what is written slice by slice is looked at later
        takes = node.target in (_aten.mul.Tensor, _aten.add.Tensor, _aten.sub.Tensor, _aten.div.Tensor, *_COMPARED)
        if position > 1 or not takes or any(type(v) not in (int, float) for v in values):
            return None
        found = _Numbers(tuple(map(float, values)))
        self.sequences[found] = None  # type: ignore[index]
        return found


@dataclass(frozen=True)
class _Same:
    """The same number, list or name in all iterations."""

    value: Any


@dataclass(frozen=True)
class _Moves:
    """A place that differs."""


@dataclass(frozen=True)
class _Own:
    """A value of the same iteration."""

    offset: int


@dataclass(frozen=True)
class _Before:
    """A value of ``distance`` iterations before."""

    offset: int
    distance: int


@dataclass(frozen=True)
class _Outer:
    """A value from before the loop."""

    node: Node


@dataclass(frozen=True)
class _Along:
    """A slice at ``start + step * iteration`` of ``base``, ``width`` wide; None: one place, without its dim."""

    base: Node
    dim: int
    start: int
    step: int
    width: int | None


@dataclass(frozen=True)
class _Numbers:
    """A number for each iteration."""

    values: tuple[float, ...]


@dataclass(frozen=True)
class _Written:
    """A tensor that each iteration writes one slice of, and nothing reads before the loop ends.

    Attributes:
        source: the offset of what is written.
        dim, start, step, width: where.
    """

    source: int
    dim: int
    start: int
    step: int
    width: int


def _written(loop: _Loop, after: Mapping[int, set[int]]) -> dict[int, _Written]:
    """By offset: the tensors that are written slice by slice; ``after``: the iterations that are used later."""
    found = {}
    count = len(loop.iterations)
    uses: dict[Any, int] = defaultdict(int)
    for tree in loop.arguments:
        for leaf in leaves(tree):
            uses[leaf] += 1
    for offset, tree in enumerate(loop.arguments):
        nodes = [iteration[offset] for iteration in loop.iterations]
        if isinstance(tree, _Along) or nodes[0].target is not _aten.slice_scatter.default or tree[1]:
            continue
        into, source = tree[0][:2]
        if into != _Before(offset, 1) or not isinstance(source, _Own) or uses[into] > 1 or uses[_Own(offset)]:
            continue
        if after.get(offset, set()) - {count - 1}:
            continue
        places = [_written_at(node) for node in nodes]
        steps = {b[1] - a[1] for a, b in pairwise(places)}
        dim, start, width = places[0]
        if len(steps) == 1 and all(p[0] == dim and p[2] == width for p in places) and abs(step := steps.pop()) == width:
            found[offset] = _Written(source.offset, dim, start, step, width)
    return found


def _written_at(node: Node) -> tuple[int, int, int]:
    """Dim, start and width of what a slice_scatter writes."""
    base, source, *rest = node.args
    dim = _dim(base, rest[0] if rest else 0)
    start = _place(base, dim, rest[1] if len(rest) > 1 else 0)
    return dim, start, int(source.meta["val"].shape[dim])  # type: ignore[union-attr]


def _replaced(graph: Graph, loop: _Loop, decomposed: bool) -> bool:
    """Replace a loop by a recurrence, and what is used of its iterations by parts of its results, if it is one."""
    fx, count = graph.graph, len(loop.iterations)
    inside = {node: (r, o) for r, iteration in enumerate(loop.iterations) for o, node in enumerate(iteration)}
    after: dict[int, set[int]] = defaultdict(set)
    for node, (r, offset) in inside.items():
        if any(user not in inside for user in node.users):
            after[offset].add(r)
    written = _written(loop, after)
    if any(isinstance(x, _Moves) for o, tree in enumerate(loop.arguments) if o not in written for x in leaves(tree)):
        return False
    carries = [carry for carry in loop.first if carry.offset not in written]
    finals = {c.offset: i for i, c in enumerate(carries) if c.distance == 1}
    yields = [o for o, used in after.items() if o not in written and not (used == {count - 1} and o in finals)]
    yields = list(dict.fromkeys([*yields, *(w.source for w in written.values())]))
    body, outer = _body(graph, loop, carries, yields, written)
    point = loop.iterations[-1][-1]
    made = _Made(graph, point)
    init = [loop.first[carry] for carry in carries]
    xs = [made.sequence(sequence, count) for sequence in loop.sequences]
    recurrence = Recurrence(body, len(carries), len(xs), False, decomposed)
    meta = [node.meta["val"] for node in body.outputs]
    meta = meta[: len(carries)] + [made.many(x, count) for x in meta[len(carries) :]]
    whole = made.call(recurrence, (init, xs, outer), meta)
    results = [made.call(operator.getitem, (whole, i), value) for i, value in enumerate(meta)]
    stacked = {offset: results[len(carries) + k] for k, offset in enumerate(yields)}
    for offset, one in written.items():
        last, into = loop.iterations[-1][offset], loop.first[_Before(offset, 1)]
        source, low = stacked[one.source], one.start if one.step > 0 else one.start + one.step * (count - 1)
        joined = made.joined(source, one.dim, one.step < 0)
        given = (into, joined, one.dim, low, low + one.width * count)
        final = made.call(_aten.slice_scatter.default, given, last.meta["val"])
        for user in [user for user in last.users if user not in inside and user is not final]:
            user.replace_input_with(last, final)
    for user in dict.fromkeys(u for node in inside for u in node.users if u not in inside):
        if user.target is _aten.cat.default:
            _joined(user, inside, stacked, made, count)
    for offset, used in after.items():
        if offset in written:
            continue
        for r in used:
            node = loop.iterations[r][offset]
            users = [user for user in node.users if user not in inside]
            if not users:
                continue
            if r == count - 1 and offset in finals:
                found = results[finals[offset]]
            else:
                found = made.call(_aten.select.int, (stacked[offset], 0, r), node.meta["val"])
            for user in users:
                user.replace_input_with(node, found)
    _unsqueezed(graph, made, stacked)
    pruned(fx)
    return True


def _body(
    graph: Graph, loop: _Loop, carries: Sequence[_Before], yields: Sequence[int], written: Mapping[int, _Written]
) -> tuple[Graph, list[Node]]:
    """The body of a loop, and the constants that it takes."""
    nodes = Nodes()
    known: dict[Any, Node] = {}
    second = loop.iterations[min(1, len(loop.iterations) - 1)]

    def placeholder(key: Any, meta: Any) -> None:
        known[key] = nodes.placeholder(f"input_{len(known)}")
        known[key].meta["val"] = meta

    for carry in carries:
        placeholder(carry, second[carry.offset].meta["val"])
    for sequence in loop.sequences:
        placeholder(sequence, _meta_of(sequence))
    outer: dict[Node, None] = {}
    for tree in loop.arguments:
        for leaf in leaves(tree):
            if isinstance(leaf, _Outer) and leaf.node.op != "get_attr":
                outer[leaf.node] = None
    for node in outer:
        placeholder(_Outer(node), node.meta["val"])
    for offset, tree in enumerate(loop.arguments):
        if offset in written:
            continue
        if isinstance(tree, _Along):
            known[_Own(offset)] = known[tree]
            continue

        def value(leaf: Any) -> Any:
            if isinstance(leaf, _Same):
                return leaf.value
            if isinstance(leaf, _Outer) and leaf not in known:
                known[leaf] = nodes.node_copy(leaf.node)
            return known[leaf]

        args, kwargs = followed(value, tree)
        target: Any = second[offset].target
        if target in _COMPARED and isinstance(args[1], Node):
            target = _COMPARED[target]
        own = nodes.create_node("call_function", target, tuple(args), kwargs)
        own.meta["val"] = second[offset].meta["val"]
        known[_Own(offset)] = own
    before = [known[_Own(c.offset)] if c.distance == 1 else known[_Before(c.offset, c.distance - 1)] for c in carries]
    nodes.output((*before, *(known[_Own(offset)] for offset in yields)))
    pruned(nodes)
    constants = {str(n.target): graph.constants[str(n.target)] for n in nodes.nodes if n.op == "get_attr"}
    return Graph(nodes, constants), list(outer)


def _meta_of(sequence: Any) -> torch.Tensor:
    if isinstance(sequence, _Numbers):
        return torch.empty((), dtype=torch.float64, device="meta")
    val = sequence.base.meta["val"]
    shape = list(val.shape)
    if sequence.width is None:
        del shape[sequence.dim]
    else:
        shape[sequence.dim] = sequence.width
    return torch.empty(shape, dtype=val.dtype, device="meta")


@dataclass
class _Made:
    """New nodes of a graph after a point."""

    graph: Graph
    point: Node

    def call(self, target: Any, args: tuple[Any, ...], meta: Any) -> Node:
        """A node."""
        with self.graph.graph.inserting_after(self.point):
            node = self.graph.graph.create_node("call_function", target, args)
        node.meta["val"] = meta
        self.point = node
        return node

    def many(self, meta: torch.Tensor, count: int) -> torch.Tensor:
        """Of a stack."""
        return torch.empty((count, *meta.shape), dtype=meta.dtype, device="meta")

    def sequence(self, of: Any, count: int) -> Node:
        """The slices of all iterations along a first dim."""
        if isinstance(of, _Numbers):
            target = f"constant_{len(self.graph.constants)}"
            self.graph.constants[target] = torch.tensor(of.values, dtype=torch.float64)  # type: ignore[index]
            with self.graph.graph.inserting_after(self.point):
                node = self.graph.graph.create_node("get_attr", target)
            node.meta["val"] = torch.empty(count, dtype=torch.float64, device="meta")
            self.point = node
            return node
        val, width = of.base.meta["val"], of.width or 1
        low = of.start if of.step > 0 else of.start + of.step * (count - 1)
        apart = abs(of.step)
        high = low + apart * (count - 1) + width
        shape = list(val.shape)
        shape[of.dim] = len(range(low, high, apart if of.width is None else 1))
        node = of.base
        if shape != list(val.shape):
            given = (node, of.dim, low, high, apart if of.width is None else 1)
            node = self.call(_aten.slice.Tensor, given, torch.empty(shape, dtype=val.dtype, device="meta"))
        if of.width is not None:
            shape[of.dim : of.dim + 1] = [count, width]
            node = self.call(_aten.view.default, (node, shape), torch.empty(shape, dtype=val.dtype, device="meta"))
        node = self.moved(node, of.dim, 0)
        if of.step < 0:
            node = self.call(_aten.flip.default, (node, [0]), node.meta["val"])
        return node

    def moved(self, node: Node, dim: int, to: int) -> Node:
        """A permutation that moves one dim."""
        if dim == to:
            return node
        dims = list(range(node.meta["val"].dim()))
        dims.insert(to, dims.pop(dim))
        meta = node.meta["val"].permute(dims)
        meta = torch.empty(meta.shape, dtype=meta.dtype, device="meta")
        return self.call(_aten.permute.default, (node, dims), meta)

    def joined(self, stack: Node, dim: int, reverse: bool = False) -> Node:
        """[n, .., w, ..] as [.., n w, ..]: the parts one after the other along ``dim``."""
        if reverse:
            stack = self.call(_aten.flip.default, (stack, [0]), stack.meta["val"])
        node = self.moved(stack, 0, dim)
        shape = list(node.meta["val"].shape)
        shape[dim : dim + 2] = [shape[dim] * shape[dim + 1]]
        meta = torch.empty(shape, dtype=node.meta["val"].dtype, device="meta")
        return self.call(_aten.reshape.default, (node, shape), meta)


def _joined(
    cat: Node, inside: Mapping[Node, tuple[int, int]], stacked: Mapping[int, Node], made: _Made, count: int
) -> None:
    """Replace, in a concatenation, what all iterations give by the stack of it."""
    parts: list[Any] = list(cat.args[0])  # type: ignore[arg-type]
    dim = _dim(parts[0], cat.args[1] if len(cat.args) > 1 else 0)
    at = 0
    while at + count <= len(parts):
        some = [inside.get(part, (-1, -1)) for part in parts[at : at + count]]
        offset, order = some[0][1], [r for r, o in some if o == some[0][1]]
        if offset in stacked and order in (list(range(count)), list(range(count))[::-1]):
            parts[at : at + count] = [made.joined(stacked[offset], dim, order[0] != 0)]
        at += 1
    if len(parts) != len(cat.args[0]):  # type: ignore[arg-type]
        cat.args = (parts, *cat.args[1:])


def _unsqueezed(graph: Graph, made: _Made, stacked: Mapping[int, Node]) -> None:
    """Concatenations of stacked values that were given a dim each (``torch.stack``)."""
    stacks = set(stacked.values())
    for cat in [node for node in graph.nodes if node.target is _aten.cat.default]:
        parts: list[Any] = list(cat.args[0])
        dim, new, at = _dim(parts[0], cat.args[1] if len(cat.args) > 1 else 0), [], 0
        while at < len(parts):
            stack = _stack_of(parts[at], dim)
            count = stack.meta["val"].shape[0] if stack is not None else 0
            some = parts[at : at + count]
            order = [x.args[0].args[2] for x in some if _stack_of(x, dim) is stack] if stack in stacks else []
            if stack is not None and order in (list(range(count)), list(range(count))[::-1]):
                found = stack if order[0] == 0 else made.call(_aten.flip.default, (stack, [0]), stack.meta["val"])
                new.append(made.moved(found, 0, dim))
                at += count
            else:
                new.append(parts[at])
                at += 1
        if len(new) != len(parts):
            cat.args = (new, *cat.args[1:])


def _stack_of(node: Node, dim: int) -> Node | None:
    """The stack of which a node is one slice, with a dim of size 1 inserted at ``dim``."""
    if node.target is not _aten.unsqueeze.default:
        return None
    inner, at = node.args
    if int(at) % (inner.meta["val"].dim() + 1) != dim or inner.target is not _aten.select.int:  # type: ignore[union-attr, arg-type]
        return None
    return inner.args[0] if inner.args[1] == 0 else None  # type: ignore[union-attr, return-value]
