"""Recurrences: what rounding explains in a loop, from one body.

Values are computed step by step. What each step rounds, at the carry that it takes, is found for a block of steps at
once by the rules of ``propagate``. Errors of the carry are then small, so that they pass from step to step linearly:
probes by the response of the body, independent errors by sixteen to thirty-two samples of them (lanes), whose mean
square is the variance. Products of many steps' responses are never formed element by element: where errors cancel in a
step, as in a delta rule, they cancel here. What a step yields is propagated with the errors of its carry, again for a
block at once. docs/background/budgets.md derives it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph as Nodes
from torch.fx import Node

from gradoracle.oracle.exact.graph import Graph, UnsupportedOperator
from gradoracle.oracle.exact.recurrence import Recurrence, recorded
from gradoracle.oracle.rounding import effects
from gradoracle.oracle.rounding.effects import plain_name
from gradoracle.oracle.rounding.probes import mixed
from gradoracle.oracle.rounding.quantity import Quantity, all_finite
from gradoracle.oracle.rounding.rounding_model import Roundoff

Propagate = Callable[[Graph, Sequence[Quantity], Roundoff, int], list[Quantity]]

_LANES, _FEW_LANES = 32, 16  # samples of independent errors; fewer where what is yielded is large
_LARGE = 1 << 19  # elements
_FLOORS = 4  # samples of the part due to underflow
_KEPT = 1 << 24  # elements of the carries of all steps, with their errors, that are kept rather than computed again
_BEYOND = 1e150  # an error that is carried at most
_YIELDED = 100
# linear in an operand; each bounds the size of its result from the sizes of its operands
_ABSOLUTE = (
    effects.MOVE
    | effects.VIEW
    | effects.names("mul div add sum cumsum mm bmm where getitem slice_scatter index_put scatter_add masked_fill")
)


@dataclass(frozen=True)
class Carried:
    """The errors of the float carries before a step.

    Attributes:
        values: all carries.
        lanes: [L, *shape] for each float carry: the errors of the probes, then samples of independent errors, then
            samples of the part due to underflow.
        worst: a bound for each float carry; None if bounds are not kept.
    """

    values: Sequence[Tensor]
    lanes: Sequence[Tensor]
    worst: Sequence[Tensor] | None


@dataclass
class _Gathered:
    """A quantity of all steps, put together from blocks."""

    length: int
    found: dict[str, Tensor] = field(default_factory=dict)
    held: set[str | None] = field(default_factory=set)

    def put(self, steps: range, q: Quantity) -> None:
        """The quantity of a block."""
        self.held.add(q.held)
        if q.others is not None:
            raise UnsupportedOperator("a choice among ties in the step of a scan", "rounding")
        for name in ("value", "variance", "floor", "worst", "probes", "undecided"):
            part = getattr(q, name)
            if part is None:
                if name == "probes" and name in self.found:
                    self.found[name][:, steps.start : steps.stop] = q.value
                continue
            lead = 1 if name == "probes" else 0
            if name not in self.found:
                shape = (*part.shape[:lead], self.length, *q.value.shape[1:])
                if name == "probes" and "value" in self.found:
                    self.found[name] = self.found["value"].expand(shape).clone()
                else:
                    self.found[name] = torch.zeros(shape, dtype=part.dtype)
            self.found[name].narrow(lead, steps.start, len(steps)).copy_(part)

    def quantity(self, shape: Sequence[int], dtype: torch.dtype, place: int) -> Quantity:
        """The whole."""
        if "value" not in self.found:
            return Quantity(torch.empty((0, *shape), dtype=dtype), place=place)
        held = self.held.pop() if len(self.held) == 1 else None
        return Quantity(**self.found, held=held, place=place)  # type: ignore[arg-type]


class Taken:
    """The carries that each step of a recurrence took, [T, *shape]: computed again block by block where they are large.

    Args:
        reading: of that recurrence.
        carry: which of its carries.
    """

    def __init__(self, reading: Reading, carry: int) -> None:
        self.reading, self.carry = reading, carry

    def part(self, steps: range) -> Quantity:
        """The quantity of some steps in a row."""
        gathered = _Gathered(len(steps))
        for block in self.reading.blocks:
            some = range(max(block.start, steps.start), min(block.stop, steps.stop))
            if some:
                whole = self.reading.taken(block)[self.carry]
                own = _some(whole, range(some.start - block.start, some.stop - block.start))
                gathered.put(range(some.start - steps.start, some.stop - steps.start), own)
        shape = self.reading.own.inputs[self.carry].meta["val"]
        return gathered.quantity(shape.shape, shape.dtype, self.place)

    @property
    def place(self) -> int:
        """As of a quantity."""
        return mixed(self.reading.place, _YIELDED, -1 - self.carry)

    def whole(self) -> Quantity:
        """The quantity of all steps."""
        return self.part(range(self.reading.length))


def whole(x: Any) -> Any:
    """A quantity, if it is one of a recurrence's carries."""
    return x.whole() if isinstance(x, Taken) else x


def _part(x: Quantity | Taken, steps: range) -> Quantity:
    return x.part(steps) if isinstance(x, Taken) else _some(x, steps)


def _some(q: Quantity, steps: range) -> Quantity:
    """Some steps in a row of a quantity."""
    at = slice(steps.start, steps.stop)

    def cut(x: Tensor | None, lead: int = 0) -> Tensor | None:
        return None if x is None else x[(slice(None),) * lead + (at,)]

    if q.others is not None:
        raise UnsupportedOperator("a choice among ties that a scan runs over", "rounding")
    return replace(
        q, value=q.value[at], variance=cut(q.variance), floor=cut(q.floor), worst=cut(q.worst),
        probes=cut(q.probes, 1), undecided=cut(q.undecided),
    )  # fmt: skip


class Reading:
    """One recurrence of a graph under a rounding model.

    Args:
        own: the recurrence.
        init, xs, constants: its arguments.
        roundoff: the rounding model of the graph's run.
        place: of its node.
        propagate: runs a graph over quantities.
    """

    def __init__(
        self,
        own: Recurrence,
        init: Sequence[Quantity],
        xs: Sequence[Quantity | Taken],
        constants: Sequence[Quantity],
        roundoff: Roundoff,
        place: int,
        propagate: Propagate,
    ) -> None:
        self.own, self.place, self.roundoff, self.propagate = own, place, roundoff, propagate
        self.init, self.xs, self.constants = init, xs, constants
        self.length: int = xs[0].reading.length if isinstance(xs[0], Taken) else int(xs[0].value.shape[0])
        self.blocks = own.blocks(self.length)
        self.floats = [i for i, node in enumerate(own.inputs[: own.carries]) if _is_float(node)]
        self.probes = 0 if roundoff.dice is None else len(roundoff.dice.probes)
        yields = max((node.meta["val"].numel() for node in own.yielded), default=0)
        lanes = _FEW_LANES if yields * self.length >= _LARGE else _LANES
        self.free = lanes if roundoff.variances else 0
        self.floors = _FLOORS if roundoff.variances else 0
        self.starts: dict[int, Carried] = {}  # by the first step of a block
        self.since: int | None = None  # how many steps come before one in which something may overflow
        self._kept: dict[int, list[Quantity]] = {}
        self._keeps = len(self.blocks) if own.carried(self.length) * (self.probes + 4) <= _KEPT else 1

    @property
    def lanes(self) -> int:
        """How many lanes there are."""
        return self.probes + self.free + self.floors

    # ---- samples of independent errors ----

    def sampled(self, q: Quantity, *keys: int) -> Tensor:
        """[L, *shape]: the errors of a quantity in each lane, sampled where they are independent."""
        parts = []
        if self.probes:
            parts.append(torch.zeros((self.probes, *q.value.shape)) if q.probes is None else q.probes - q.value)
        for count, square in ((self.free, q.variance), (self.floors, q.floor)):
            if count:
                signs = _signs(mixed(self.place, *keys), count, tuple(q.value.shape))
                parts.append(torch.zeros_like(signs) if square is None else signs * square.sqrt())
        return _proper(torch.cat([part.double() for part in parts])) if parts else torch.zeros((0, *q.value.shape))

    def turned(self, block: range) -> Tensor:
        """[L] signs: samples of independent errors of a block have any sign against those of blocks before it."""
        signs = _signs(mixed(self.place, block.start, 7), self.lanes, ())
        signs[: self.probes] = 1.0
        return signs

    @functools.cached_property
    def _turned(self) -> dict[int, Tensor]:
        """By block: the product of its signs and those of all blocks before it."""
        found, now = {}, torch.ones(self.lanes, dtype=torch.float64)
        for block in self.blocks:
            found[block.start] = now = now * self.turned(block)
        return found

    def own_errors(self, q: Quantity, position: int, block: range, into: Tensor) -> None:
        """Write what the steps of a block round, in each lane, into [n, L, *shape]."""
        shape, probes = tuple(q.value.shape[1:]), self.probes
        into[:, :probes] = 0.0 if q.probes is None else (q.probes - q.value).transpose(0, 1)
        signs = _pattern(mixed(self.place, position), self.free, 2 * self.own.block, shape) if self.free else None
        at, start = mixed(self.place, block.start) % self.own.block, probes
        for count, square in ((self.free, q.variance), (self.floors, q.floor)):
            some = into[:, start : start + count]
            if square is None or signs is None:
                some.zero_()
            else:
                torch.mul(signs[at : at + len(block), :count], square.sqrt().unsqueeze(1), out=some)
            start += count

    # ---- carries ----

    def begin(self) -> Carried:
        """Before the first step."""
        floats = [self.init[i] for i in self.floats]
        lanes = [self.sampled(q, 1, i) for i, q in enumerate(floats)]
        worst = None
        if self.roundoff.worst:
            worst = [torch.zeros_like(q.value) if q.worst is None else q.worst for q in floats]
        return Carried([q.value for q in self.init], lanes, worst)

    def advanced(self, block: range, before: Carried) -> tuple[list[Quantity], Carried]:
        """The carries that the steps of a block take, [n, *shape] each, and those after it."""
        own = self.own
        xs = [_part(x, block) for x in self.xs]
        taken, after = own.states(before.values, [x.value for x in xs], [c.value for c in self.constants])
        local = self._rounded(block, taken, xs)
        order = own.order(range(len(block)))
        lanes = [
            torch.empty((len(block) + 1, self.lanes, *taken[i].shape[1:]), dtype=torch.float64) for i in self.floats
        ]
        steps = slice(0, -1) if own.reverse else slice(1, None)  # the errors that a step adds become those after it
        turned = self.turned(block)
        for k, i in enumerate(self.floats):
            self.own_errors(local[i], k, block, lanes[k][steps])
            start = before.lanes[k]
            lanes[k][len(block) if own.reverse else 0] = start * turned.view(-1, *[1] * (start.dim() - 1))
        if (moved := self._moved(block, taken, xs)) is not None:
            for each, more in zip(lanes, moved, strict=True):
                each[steps] += more.transpose(0, 1)
        lanes = [_proper(each) for each in lanes]
        response = _Response.of(own, self.lanes)
        inputs = [*taken, *(x.value for x in xs), *(c.value for c in self.constants)]
        coefficients = response.coefficients(inputs, len(block))
        response.carry(order, coefficients, lanes)
        lanes = [_proper(each) for each in lanes]
        taken_lanes = [each[1:] if own.reverse else each[:-1] for each in lanes]
        worst = bounds = None
        if before.worst is not None:
            added = [local[i].worst for i in self.floats]
            push = [torch.zeros_like(taken[i]) if x is None else x for i, x in zip(self.floats, added, strict=True)]
            bounds, worst = response.bounded(order, coefficients, before.worst, push)
        quantities = [Quantity(value) for value in taken]
        for k, i in enumerate(self.floats):
            quantities[i] = self._quantity(
                taken[i], taken_lanes[k].transpose(0, 1), None if bounds is None else bounds[k]
            )
        return quantities, Carried(after, [each[0 if own.reverse else -1].clone() for each in lanes], worst)

    def _quantity(self, value: Tensor, lanes: Tensor, worst: Tensor | None) -> Quantity:
        """A carry with the errors of its lanes, [L, *shape]."""
        if not all_finite(value):
            lanes = torch.where(value.isfinite(), lanes, 0.0)
            worst = None if worst is None else torch.where(value.isfinite(), worst, 0.0)
        free, floors = lanes[self.probes : self.probes + self.free], lanes[self.probes + self.free :]
        variance = floor = None
        if self.free:
            variance = free.square().mean(0)
        if self.floors and bool(floors.any()):
            floor = floors.square().mean(0)
        return Quantity(value, variance, floor, worst, value + lanes[: self.probes] if self.probes else None)

    def taken(self, block: range) -> list[Quantity]:
        """The carries that the steps of a block take, computed again if they are not kept."""
        if block.start not in self._kept:
            self._keep(block, self.advanced(block, self.starts[block.start])[0])
        return self._kept[block.start]

    def _keep(self, block: range, found: list[Quantity]) -> None:
        self._kept[block.start] = found
        while len(self._kept) > self._keeps:
            self._kept.pop(next(iter(self._kept)))

    def _rounded(self, block: range, taken: Sequence[Tensor], xs: Sequence[Quantity]) -> list[Quantity]:
        """The next carries with what each step rounds at the exact values of its arguments, and with all bounds."""

        def exact(q: Quantity) -> Quantity:
            erring = q.variance is not None or q.probes is not None or q.worst is not None
            return replace(q, variance=None, floor=None, probes=None, held=None if erring else q.held)

        graph = self.own.batched(self.own.step, len(block), self.own.along())
        inputs = [Quantity(value) for value in taken] + [exact(x) for x in xs] + [exact(c) for c in self.constants]
        return self._propagated(graph, inputs, block)

    def _propagated(self, graph: Graph, inputs: Sequence[Quantity], block: range) -> list[Quantity]:
        """A graph of the body over a block of steps."""
        roundoff = self.roundoff
        inner = Roundoff(roundoff.contract, roundoff.dice, roundoff.worst, roundoff.magnify, roundoff.variances)
        found = self.propagate(graph, inputs, inner, self.place)
        for _, mask in (each for masks in inner.overflowing.values() for each in masks):
            steps = mask.reshape(len(block), -1).any(1).int() if len(mask) == len(block) else torch.ones(len(block))
            first = int(steps.flip(0).argmax() if self.own.reverse else steps.argmax())
            before = self.length - block.stop if self.own.reverse else block.start
            self.since = before + first if self.since is None else min(self.since, before + first)
        return found

    def _moved(self, block: range, taken: Sequence[Tensor], xs: Sequence[Quantity]) -> list[Tensor] | None:
        """[L, n, *shape]: what the errors of the slices and constants add to the next carries; None: nothing."""
        own, given = self.own, [*xs, *self.constants]
        erring = [i for i, q in enumerate(given) if q.is_float and (q.variance is not None or q.probes is not None)]
        moved = [own.carries + i for i in erring if own.carries + i in _reaching(own)]
        if not moved or not self.lanes:
            return None
        graph = own.response(moved)
        along = own.along()
        lanes = []
        for i in moved:
            q = given[i - own.carries]
            keys = (2, i) if i >= own.carries + own.sequences else (3, i, block.start)
            sample = self.sampled(q, *keys)
            if i >= own.carries + own.sequences:  # one error for all steps, which turns with what it has caused
                sample = sample * self._turned[block.start].view(-1, *[1] * (sample.dim() - 1))
            lanes.append(sample)
        steps = tuple(0 if x else None for x in (*along, *(along[i] for i in moved)))
        some = tuple([None] * len(along) + [0] * len(moved))

        def make() -> Graph:
            examples = [*taken, *(q.value for q in given), *lanes]
            return recorded(lambda *args: torch.vmap(torch.vmap(graph, in_dims=steps), in_dims=some)(*args), examples)

        batched: Graph = own.kept(("moved", tuple(moved), len(block), self.lanes), make)
        found = batched.function(*taken, *(q.value for q in given), *lanes)
        return [_proper(x) for x in found]

    # ---- results ----

    def run(self) -> list[Any]:
        """The last carries, and what is yielded: quantities, and ``Taken`` for carries."""
        own = self.own
        taken_at = own.carry_yielded
        others = [k for k in range(len(own.yielded)) if k not in taken_at]
        gathered = {k: _Gathered(self.length) for k in others}
        body = own.body.only([own.carries + k for k in others])
        carried = self.begin()
        for block in self.blocks:
            self.starts[block.start] = carried
            found, carried = self.advanced(block, carried)
            self._keep(block, found)
            if others:
                graph = own.batched(body, len(block), own.along())
                inputs = [*found, *(_part(x, block) for x in self.xs), *self.constants]
                for k, q in zip(others, self._propagated(graph, inputs, block), strict=True):
                    gathered[k].put(block, q)
        results: list[Any] = [Quantity(value) for value in carried.values]
        for k, i in enumerate(self.floats):
            worst = None if carried.worst is None else carried.worst[k]
            results[i] = self._quantity(carried.values[i], carried.lanes[k], worst)
        results = [replace(q, place=mixed(self.place, _YIELDED, i)) for i, q in enumerate(results)]
        for k, node in enumerate(own.yielded):
            if k in taken_at:
                results.append(Taken(self, taken_at[k]))
            else:
                meta = node.meta["val"]
                place = mixed(self.place, _YIELDED, own.carries + k)
                results.append(gathered[k].quantity(meta.shape, meta.dtype, place))
        return results

    def overflowed(self) -> list[Tensor] | None:
        """Where results may depend on something that overflows, a mask for each; None if nothing does."""
        if self.since is None:
            return None
        own = self.own
        after = slice(0, self.length - self.since) if own.reverse else slice(self.since, self.length)
        masks = [torch.ones(node.meta["val"].shape, dtype=torch.bool) for node in own.body.outputs[: own.carries]]
        for node in own.yielded:
            mask = torch.zeros((self.length, *node.meta["val"].shape), dtype=torch.bool)
            mask[after] = True
            masks.append(mask)
        return masks


class _Response:
    """The part of a step that is linear in the errors of its carry.

    Args:
        own: the recurrence.
        lanes: how many errors of each number pass through it at once.
    """

    def __init__(self, own: Recurrence, lanes: int) -> None:
        floats = [i for i, node in enumerate(own.inputs[: own.carries]) if _is_float(node)]
        moving = range(len(own.inputs), len(own.inputs) + len(floats))
        self._steps = own.parts(own.response(floats), moving)
        self._linear, self._floats, self._lanes = self._steps.parted.after, len(floats), lanes
        self._carry = own.carries

    @staticmethod
    def of(own: Recurrence, lanes: int) -> _Response:
        """That of a recurrence, for this many lanes."""
        found: _Response = own.kept(("linear", lanes), lambda: _Response(own, lanes))
        return found

    def coefficients(self, inputs: Sequence[Tensor], steps: int) -> list[Tensor]:
        """Those of a block, for each step [n, *shape] or for all."""
        found = self._steps.results([*inputs, *[inputs[0]] * self._floats], steps)
        return [
            x if not x.is_floating_point() or all_finite(x) else torch.nan_to_num(x, nan=0.0, posinf=0.0, neginf=0.0)
            for x in found
        ]

    @functools.cached_property
    def _in_lanes(self) -> Callable[..., tuple[Tensor, ...]]:
        count = len(self._linear.inputs) - self._floats
        values = [node.meta["val"] for node in self._linear.inputs]
        examples = [torch.zeros(x.shape, dtype=x.dtype) for x in values[:count]]
        examples += [torch.zeros((self._lanes, *x.shape), dtype=x.dtype) for x in values[count:]]
        dims = tuple([None] * count + [0] * self._floats)
        return recorded(lambda *args: torch.vmap(self._linear, in_dims=dims)(*args), examples).function

    def carry(self, order: range, coefficients: Sequence[Tensor], lanes: Sequence[Tensor]) -> None:
        """Add to the errors of each step, [n + 1, L, *shape], what is left of those before it.

        The first errors are at the end where the order begins; each step's own come next to those that it takes.
        """
        if not self._lanes or not self._floats:
            return
        if self._steps.loop is not None:
            self._steps.loop.run(self._steps.leading(coefficients), lanes, back=order.step < 0, add=True)
            return
        function, met = self._in_lanes, self._steps.by_step(coefficients, len(order))
        slots = list(zip(*(each.unbind(0) for each in lanes), strict=True))
        before, after = (1, 0) if order.step < 0 else (0, 1)
        now = slots[order[0] + before]
        if self._floats == 1:
            for at in order:
                slot = slots[at + after]
                slot[0].add_(function(*met[at], *now)[0])
                now = slot
            return
        for at in order:
            slot = slots[at + after]
            for own, more in zip(slot, function(*met[at], *now), strict=True):
                own.add_(more)
            now = slot

    @functools.cached_property
    def _bounding(self) -> Callable[..., tuple[Tensor, ...]] | None:
        """The linear part on sizes, coefficients too, so that nothing cancels; None if an operator has no such rule."""
        nodes, copies = Nodes(), dict[Node, Node]()
        for node in self._linear.nodes:
            name = plain_name(node) if node.op == "call_function" else ""
            if name in ("neg", "sub"):
                made = [copies[x] for x in node.args if isinstance(x, Node)]
                target = torch.ops.aten.add.Tensor if name == "sub" else torch.ops.aten.clone.default
                if len(made) != (2 if name == "sub" else 1) or node.kwargs:
                    return None
                copies[node] = nodes.create_node("call_function", target, tuple(made))
                copies[node].meta = dict(node.meta)
            elif name and (name not in _ABSOLUTE or node.kwargs.get("alpha", 1) != 1):
                return None
            else:
                copies[node] = nodes.node_copy(node, copies.__getitem__)
                if name in ("mul", "div"):
                    copies[node].args = tuple(abs(x) if isinstance(x, (int, float)) else x for x in copies[node].args)
        return Graph(nodes, {}).function

    def bounded(
        self, order: range, coefficients: Sequence[Tensor], worst: Sequence[Tensor], push: Sequence[Tensor]
    ) -> tuple[list[Tensor], list[Tensor]]:
        """The bounds that each step takes, [n, *shape], and those after the last."""
        function, met, now = self._bounding, self._steps.by_step(coefficients, len(order)), tuple(worst)
        taken: list[list[Tensor]] = [[] for _ in now]
        for at in order:
            for each, x in zip(taken, now, strict=True):
                each.append(x)
            if function is None:
                unbounded = any(bool(x.any()) for x in now)
                after = tuple(torch.full_like(x, _BEYOND if unbounded else 0.0) for x in now)
            else:
                after = function(*(x.abs() if x.is_floating_point() else x for x in met[at]), *now)
            now = tuple([torch.clamp_max(x + m[at], _BEYOND) for x, m in zip(after, push, strict=True)])
        back = order.step < 0
        return [torch.stack(each[::-1] if back else each) for each in taken], list(now)


def _reaching(own: Recurrence) -> set[int]:
    """The positions of the inputs that the next carries depend on."""

    def make() -> set[int]:
        used = {x for node in own.step.nodes for x in node.all_input_nodes}
        inputs = [node for node in own.step.nodes if node.op == "placeholder"]
        return {i for i, node in enumerate(inputs) if node in used}

    found: set[int] = own.kept("reaching", make)
    return found


def _is_float(node: Node) -> bool:
    return bool(node.meta["val"].dtype.is_floating_point)


def _proper(errors: Tensor) -> Tensor:
    """Errors that further arithmetic can carry."""
    if all_finite(errors):
        return errors
    return torch.nan_to_num(errors, nan=0.0, posinf=_BEYOND, neginf=-_BEYOND).clamp_(-_BEYOND, _BEYOND)


def _signs(seed: int, count: int, shape: tuple[int, ...]) -> Tensor:
    """[count, *shape] signs, the same on any machine."""
    dice = torch.Generator().manual_seed(seed & ((1 << 63) - 1))
    return torch.randint(0, 2, (count, *shape), generator=dice, dtype=torch.int8).double().mul_(2).sub_(1)


@functools.lru_cache(maxsize=8)
def _pattern(seed: int, count: int, steps: int, shape: tuple[int, ...]) -> Tensor:
    """[steps, count, *shape] signs, of which blocks take parts."""
    return _signs(seed, steps, (count, *shape))


def recurrence(
    own: Recurrence, args: Any, roundoff: Roundoff, node: Node, place: int, propagate: Propagate
) -> list[Any]:
    """The results of a recurrence: quantities, and ``Taken`` for the carries of all steps."""
    init, xs, constants = args
    reading = Reading(own, [whole(q) for q in init], xs, [whole(q) for q in constants], roundoff, place, propagate)
    found = reading.run()
    masks = reading.overflowed()
    if masks is not None:
        roundoff.overflowing[node] = [(None, masks)]  # type: ignore[list-item]
    return found
