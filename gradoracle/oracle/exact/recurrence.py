"""Recurrence: a loop over steps as one node of a graph, whose target is the recurrence and whose body is traced once.

The derivatives of a recurrence are recurrences: a pullback runs the other way over the carries of all steps, a
pushforward the same way. Readings run the body: see ``float64``, ``interpretation`` and ``rounding.recurrence``.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph as Nodes
from torch.fx import Node

from gradoracle.model.recurrence import FlatStep, RecurrenceError, stepwise
from gradoracle.oracle.exact.elementwise_loop import ElementwiseLoop
from gradoracle.oracle.exact.graph import Graph, pruned
from gradoracle.oracle.exact.recording import OPAQUE, is_pure, record, writes
from gradoracle.oracle.exact.trees import followed

_IN_CACHE = 1 << 15  # elements of the largest tensor of a block of steps
_LONGEST_BLOCK = 2048  # steps
_SUMMED_AFTERWARDS = (
    1 << 20
)  # elements of the gradients of one constant in all steps that are kept until they are added


@dataclass(frozen=True, eq=False)
class Recurrence:
    """A body, run once for each slice of some sequences along their first dim.

    As the target of a node it takes ``(init, sequences, constants)``, three lists, and gives the last carries and then
    what each step yields, stacked.

    Attributes:
        body: takes the carries, one slice of each sequence, and the constants; gives the carries and what is yielded.
        carries: how many.
        sequences: how many.
        reverse: whether it begins with the last slice.
        decomposed: whether readings know the operators of the body. Derivatives are made of one that is not, so that
            they are PyTorch's own.
    """

    body: Graph
    carries: int
    sequences: int
    reverse: bool
    decomposed: bool = True
    derived: dict[Any, Any] = field(default_factory=dict, repr=False)  # graphs and recurrences made of it, kept

    __name__ = "recurrence"

    def __str__(self) -> str:
        return "gradoracle.recurrence"

    def __call__(self, init: Sequence[Tensor], xs: Sequence[Tensor], constants: Sequence[Tensor]) -> list[Tensor]:
        """Run it as PyTorch would; ``torch.func`` differentiates it."""
        if is_pure():
            return _recorded(self, init, xs, constants)
        kept = self.keeping_carries
        return list(_Differentiable.apply(kept, *init, *xs, *constants))[: len(self.body.outputs)]

    @property
    def inputs(self) -> list[Node]:
        """The placeholders of the body."""
        return self.body.inputs

    @property
    def yielded(self) -> Sequence[Node]:
        """The nodes of the body whose values are yielded by each step."""
        return self.body.outputs[self.carries :]

    def split(self, flat: Sequence[Any]) -> tuple[Sequence[Any], Sequence[Any], Sequence[Any]]:
        """Carries (or the first of them), sequences and constants out of one list."""
        ends = (0, self.carries, self.carries + self.sequences, len(flat))
        return tuple(flat[a:b] for a, b in pairwise(ends))  # type: ignore[return-value]

    def kept(self, key: Any, make: Callable[[], Any]) -> Any:
        """What was made for a key, made at its first use."""
        if key not in self.derived:
            self.derived[key] = make()
        return self.derived[key]

    @property
    def carry_yielded(self) -> dict[int, int]:
        """Which yielded values are the carries as a step takes them: position among the yielded -> carry."""
        places = {node: i for i, node in enumerate(self.inputs[: self.carries])}
        return {k: places[node] for k, node in enumerate(self.yielded) if node in places}

    @property
    def keeping_carries(self) -> Recurrence:
        """The same, with the carries that each step takes yielded in addition, after all others."""

        def make() -> Recurrence:
            nodes, copies = Nodes(), dict[Node, Node]()
            found: Any = nodes.graph_copy(self.body.graph, copies)
            nodes.output((*found, *(copies[node] for node in self.inputs[: self.carries])))
            return replace(self, body=Graph(nodes, self.body.constants), derived={})

        found: Recurrence = self.kept("keeping", make)
        return found

    def only(self, yielded: Sequence[int]) -> Recurrence:
        """The same, with some of what it yields."""
        chosen = (*range(self.carries), *(self.carries + k for k in yielded))
        found: Recurrence = self.kept(
            ("only", tuple(yielded)), lambda: replace(self, body=self.body.only(chosen), derived={})
        )
        return found

    @property
    def readable(self) -> Recurrence:
        """The same, decomposed."""
        if self.decomposed:
            return self

        def make() -> Recurrence:
            body = recorded(self.body, [_example(node) for node in self.inputs])
            return replace(self, body=body, decomposed=True, derived={})

        found: Recurrence = self.kept("readable", make)
        return found

    @property
    def step(self) -> Graph:
        """The part of the body that gives the next carries."""
        found: Graph = self.kept("step", lambda: self.body.only(range(self.carries)))
        return found

    # ---- blocks of steps ----

    @property
    def block(self) -> int:
        """How many steps are computed at once where no carry is waited for."""
        largest = max((_numel(node) for node in self.body.nodes if node.op != "output"), default=1)
        steps = 1 << max(_IN_CACHE // max(largest, 1), 1).bit_length() - 1
        return min(max(steps, 16), _LONGEST_BLOCK)

    def carried(self, length: int) -> int:
        """How many numbers the float carries of all steps are."""
        return length * sum(_numel(node) for node in self.inputs[: self.carries] if _is_float(node))

    def blocks(self, length: int) -> list[range]:
        """All steps, in blocks, in the order of computation."""
        found = [range(start, min(start + self.block, length)) for start in range(0, length, self.block)]
        return found[::-1] if self.reverse else found

    def order(self, steps: range) -> range:
        """The steps of a block in the order of computation."""
        return steps[::-1] if self.reverse else steps

    def batched(self, graph: Graph, steps: int, along: Sequence[bool]) -> Graph:
        """A graph over ``steps`` steps at once: inputs marked in ``along`` and all outputs have a first dim more."""

        def make() -> Graph:
            examples = [
                _example(node, steps if many else None) for node, many in zip(_inputs(graph), along, strict=True)
            ]
            dims = tuple(0 if many else None for many in along)
            return recorded(lambda *args: torch.vmap(graph, in_dims=dims)(*args), examples)

        found: Graph = self.kept(("batched", graph, steps, tuple(along)), make)
        return found

    def along(self) -> list[bool]:
        """Which inputs of the body differ from step to step."""
        return [position < self.carries + self.sequences for position in range(len(self.inputs))]

    def parts(self, graph: Graph, moving: Sequence[int]) -> Steps:
        """A graph of the body's inputs and perhaps others as steps that wait for some of its inputs."""
        found: Steps = self.kept(("parts", graph, tuple(moving)), lambda: Steps(self, graph, moving))
        return found

    def states(
        self, carry: Sequence[Tensor], xs: Sequence[Tensor], constants: Sequence[Tensor]
    ) -> tuple[list[Tensor], tuple[Tensor, ...]]:
        """The carries that each step of a block takes, stacked, and those after it; ``xs`` are those of the block."""
        steps, length = self.parts(self.step, range(self.carries)), int(xs[0].shape[0])
        found = steps.results([*carry, *xs, *constants], length)
        if steps.loop is not None and all(x.dtype == torch.float64 for x in (*carry, *found)):
            kept = [x.new_empty((length + 1, 1, *x.shape)) for x in carry]
            first, last = (length, 0) if self.reverse else (0, length)
            for each, x in zip(kept, carry, strict=True):
                each[first, 0] = x
            steps.loop.run(steps.leading(found), kept, back=self.reverse, add=False)
            own = slice(1, None) if self.reverse else slice(0, -1)
            return [x[own, 0] for x in kept], tuple(x[last, 0].clone() for x in kept)
        met, function = steps.by_step(found, length), steps.parted.after.function
        now, taken = tuple(carry), []
        for given in reversed(met) if self.reverse else met:
            taken.append(now)
            now = function(*given, *now)
        taken = taken[::-1] if self.reverse else taken
        return [torch.stack(each) for each in zip(*taken, strict=True)], now

    def run(
        self,
        init: Sequence[Tensor],
        xs: Sequence[Tensor],
        constants: Sequence[Tensor],
        evaluate: Callable[[Graph, Sequence[Tensor]], Sequence[Tensor]] | None = None,
    ) -> list[Tensor]:
        """The last carries and what is yielded, in the dtypes of the arguments.

        Only the carries are computed step by step; what is yielded is computed for a block of steps at once.

        Args:
            init, xs, constants: plain tensors.
            evaluate: how the body is computed for a block of steps; it is then given all of the body.
        """
        length = int(xs[0].shape[0])
        carry: tuple[Tensor, ...] = tuple(init)
        own = self.carry_yielded
        found: dict[int, Tensor] = {}
        wanted = [k for k in range(len(self.yielded)) if k not in own]
        body = self.body if evaluate is not None else self.body.only([self.carries + k for k in wanted])

        def put(k: int, steps: range, value: Tensor) -> None:
            if k not in found:
                found[k] = value.new_empty((length, *value.shape[1:]))
            found[k][steps.start : steps.stop] = value

        for steps in self.blocks(length):
            taken, carry = self.states(carry, [x[steps.start : steps.stop] for x in xs], constants)
            for k, position in own.items():
                put(k, steps, taken[position])
            if wanted or evaluate is not None:
                graph = self.batched(body, len(steps), self.along())
                given = [*taken, *(x[steps.start : steps.stop] for x in xs), *constants]
                values = graph.function(*given) if evaluate is None else evaluate(graph, given)[self.carries :]
                chosen = wanted if evaluate is None else range(len(self.yielded))
                for k, value in zip(chosen, values, strict=True):
                    if k not in own:
                        put(k, steps, value)
        empty = [torch.empty((0, *_shape(node)), dtype=_dtype(node)) for node in self.yielded]
        return [*carry, *(found.get(k, none) for k, none in enumerate(empty))]

    # ---- derivatives ----

    def response(self, moved: Sequence[int]) -> Graph:
        """The tangents of the next carries (those of floats) as a graph of the body's inputs and of further tangents.

        ``moved`` are the positions of the inputs that have a tangent.
        """

        def make() -> Graph:
            nodes, step = self.inputs, self.step
            floats = [i for i, node in enumerate(step.outputs) if _is_float(node)]

            def program(*args: Tensor) -> tuple[Tensor, ...]:
                primals, tangents = args[: len(nodes)], args[len(nodes) :]

                def after(*values: Tensor) -> tuple[Tensor, ...]:
                    filled = list(primals)
                    for i, value in zip(moved, values, strict=True):
                        filled[i] = value
                    found = step(*filled)
                    return tuple(found[i] for i in floats)

                found: tuple[Tensor, ...] = torch.func.jvp(after, tuple(primals[i] for i in moved), tangents)[1]
                return found

            return recorded(program, [_example(node) for node in (*nodes, *(nodes[i] for i in moved))])

        found: Graph = self.kept(("response", tuple(moved)), make)
        return found

    def pullback(self, of: Sequence[bool], accumulated: Sequence[bool]) -> Recurrence:
        """The recurrence of the cotangents, which runs the other way.

        It carries the cotangents of the float carries, then the sums for accumulated constants. Its sequences are the
        carries that each step took, the sequences, and the cotangents of what was yielded, as far as ``of`` marks it;
        its constants are the same. It yields the cotangents of the float sequences, then those of the float constants
        that are not accumulated.
        """

        def make() -> Recurrence:
            inputs, outputs = self.inputs, self.body.outputs
            floats = [i for i, node in enumerate(inputs) if _is_float(node)]
            own = [i for i in range(self.carries) if i in floats]  # carries
            pulled = [*own, *(self.carries + k for k, marked in enumerate(of) if marked)]  # outputs with cotangents
            constants = [i for i in floats if i >= self.carries + self.sequences]
            summed = [i for i, marked in zip(constants, accumulated, strict=True) if marked]

            def program(*args: Tensor) -> tuple[Tensor, ...]:
                fed = iter(args)
                after = [next(fed) for _ in own]
                sums = [next(fed) for _ in summed]
                given = [next(fed) for _ in range(self.carries + self.sequences)]
                later = [next(fed) for _ in pulled[len(own) :]]
                given += list(fed)

                def body(*varied: Tensor) -> tuple[Tensor, ...]:
                    filled = list(given)
                    for i, value in zip(floats, varied, strict=True):
                        filled[i] = value
                    found = self.body(*filled)
                    return tuple(found[i] for i in pulled)

                pull = torch.func.vjp(body, *(given[i] for i in floats))[1]
                of_input = dict(zip(floats, pull((*after, *later)), strict=True))
                before = [of_input[i] for i in own]
                added = [total + of_input[i] for total, i in zip(sums, summed, strict=True)]
                slices = [of_input[i] for i in floats if self.carries <= i < self.carries + self.sequences]
                return (*before, *added, *slices, *(of_input[i] for i in constants if i not in summed))

            examples = [
                *(_example(inputs[i]) for i in (*own, *summed)),
                *(_example(node) for node in inputs[: self.carries + self.sequences]),
                *(_example(outputs[i]) for i in pulled[len(own) :]),
                *(_example(node) for node in inputs[self.carries + self.sequences :]),
            ]
            sequences = self.carries + self.sequences + len(pulled) - len(own)
            return Recurrence(recorded(program, examples), len(own) + len(summed), sequences, not self.reverse)

        found: Recurrence = self.kept(("pullback", tuple(of), tuple(accumulated)), make)
        return found

    def pushforward(self, moved: Sequence[bool]) -> Recurrence:
        """The recurrence of the tangents.

        It carries the tangents of the float carries. Its sequences are the carries that each step took, the sequences,
        and the tangents of those that ``moved`` marks; its constants likewise. ``moved`` has an entry for each sequence
        and each constant. It yields the tangents of the float ones among what is yielded.
        """

        def make() -> Recurrence:
            inputs, outputs = self.inputs, self.body.outputs
            own = [i for i in range(self.carries) if _is_float(inputs[i])]
            marked = [self.carries + i for i, mark in enumerate(moved) if mark]
            end = self.carries + self.sequences
            given = [i for i in marked if i < end]
            fixed = [i for i in marked if i >= end]

            def program(*args: Tensor) -> tuple[Tensor, ...]:
                fed = iter(args)
                tangents = {i: next(fed) for i in own}
                primals = [next(fed) for _ in range(end)]
                tangents |= {i: next(fed) for i in given}
                primals += [next(fed) for _ in inputs[end:]]
                tangents |= {i: next(fed) for i in fixed}
                varied = sorted(tangents)

                def body(*values: Tensor) -> tuple[Tensor, ...]:
                    filled = list(primals)
                    for i, value in zip(varied, values, strict=True):
                        filled[i] = value
                    found = self.body(*filled)
                    return tuple(value for value, node in zip(found, outputs, strict=True) if _is_float(node))

                return torch.func.jvp(body, tuple(primals[i] for i in varied), tuple(tangents[i] for i in varied))[1]

            examples = [_example(inputs[i]) for i in (*own, *range(end), *given, *range(end, len(inputs)), *fixed)]
            return Recurrence(recorded(program, examples), len(own), end + len(given), self.reverse)

        found: Recurrence = self.kept(("pushforward", tuple(moved)), make)
        return found


class Steps:
    """A graph of the inputs of a body, in two parts: what waits for no step before, and what does.

    Args:
        recurrence: of the body.
        graph: a graph of its inputs, and perhaps of further ones.
        moving: the positions of the inputs that the second part waits for.

    Attributes:
        parted: the parts.
        varies: which of the results of the first differ from step to step.
    """

    def __init__(self, recurrence: Recurrence, graph: Graph, moving: Sequence[int]) -> None:
        graph = graph.without_copies()
        inputs, self._recurrence, self._moving = graph.inputs, recurrence, len(moving)
        self.parted = graph.parted([inputs[i] for i in moving])
        before = self.parted.before
        self._count = recurrence.carries + recurrence.sequences
        self.varies = before.depending(before.inputs[: self._count])
        self._varying = before.only([k for k, varies in enumerate(self.varies) if varies])
        self._fixed = before.only([k for k, varies in enumerate(self.varies) if not varies])
        self._along = [i < self._count for i in range(len(inputs))]

    def results(self, inputs: Sequence[Tensor], steps: int) -> list[Tensor]:
        """Those of the first part, [n, *shape] if they vary.

        Args:
            inputs: [n, *shape] for carries and sequences; those that the first part does not use are not looked at.
            steps: how many there are.
        """
        used = {node for call in self.parted.before.nodes for node in call.all_input_nodes}
        shapes = [node.meta["val"] for node in self.parted.before.inputs]
        given = [
            x if node in used else torch.zeros((steps, *shape.shape) if many else shape.shape, dtype=shape.dtype)
            for node, x, many, shape in zip(self.parted.before.inputs, inputs, self._along, shapes, strict=True)
        ]
        many, one = list[Tensor](), list[Tensor]()
        if self._varying.outputs:
            many += self._recurrence.batched(self._varying, steps, self._along).function(*given)
        if self._fixed.outputs:
            one += self._fixed.function(*(x[0] if along else x for x, along in zip(given, self._along, strict=True)))
        return [many.pop(0) if varies else one.pop(0) for varies in self.varies]

    def by_step(self, found: Sequence[Tensor], steps: int) -> list[tuple[Tensor, ...]]:
        """The results of the first part, a tuple for each step."""
        each = [x.unbind(0) if varies else (x,) * steps for x, varies in zip(found, self.varies, strict=True)]
        return list(zip(*each, strict=True)) if each else [()] * steps

    def leading(self, found: Sequence[Tensor]) -> list[Tensor]:
        """The results of the first part with a first dim, of 1 where they are those of all steps."""
        return [x if varies else x.unsqueeze(0) for x, varies in zip(found, self.varies, strict=True)]

    @functools.cached_property
    def loop(self) -> ElementwiseLoop | None:
        """The second part as one loop, if it is elementwise."""
        return ElementwiseLoop.of(self.parted.after, self._moving)


def recorded(program: Callable[..., Any], examples: Sequence[Tensor]) -> Graph:
    """The graph of a program that may transform recurrences, without in-place operators."""
    graph = record(program, examples, pure=False)
    return _with_what_is_used(record(graph, examples, pure=True) if writes(graph) else graph).without_copies()


class _Differentiable(torch.autograd.Function):
    """A recurrence that keeps its carries (``keeping_carries``), with its pullback, pushforward and batching."""

    @staticmethod
    def forward(recurrence: Recurrence, *flat: Tensor) -> tuple[Tensor, ...]:  # type: ignore[override]
        return tuple(_recorded(recurrence, *recurrence.split(flat)))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        recurrence, *flat = inputs
        taken = output[len(output) - recurrence.carries :]
        ctx.recurrence = recurrence
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*taken, *flat)
        ctx.save_for_forward(*taken, *flat)
        whole = [x for x in output if not x.is_floating_point()]
        if whole:
            ctx.mark_non_differentiable(*whole)

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor | None) -> Any:
        own: Recurrence = ctx.recurrence
        saved = ctx.saved_tensors
        taken, (init, xs, constants) = saved[: own.carries], own.split(saved[own.carries :])
        length, inputs = int(xs[0].shape[0]), own.inputs
        after = [
            torch.zeros_like(x) if g is None else g
            for g, x in zip(cotangents, init, strict=False)
            if x.is_floating_point()
        ]
        of = [g is not None for g in cotangents[own.carries :]]
        floats = [x for x in constants if x.is_floating_point()]
        large = [length * x.numel() > _SUMMED_AFTERWARDS for x in floats]
        sums = [torch.zeros_like(x) for x, many in zip(floats, large, strict=True) if many]
        back = own.pullback(of, large)
        later = [g for g in cotangents[own.carries :] if g is not None]
        found = back([*after, *sums], [*taken, *xs, *later], constants)
        before, rest = iter(found[: len(after)]), found[len(after) :]
        totals, rest = iter(rest[: len(sums)]), rest[len(sums) :]
        stacked = iter(rest)
        grads: list[Tensor | None] = [next(before) if _is_float(node) else None for node in inputs[: own.carries]]
        grads += [next(stacked) if x.is_floating_point() else None for x in xs]
        many = iter(large)
        for x in constants:
            if not x.is_floating_point():
                grads.append(None)
            else:
                grads.append(next(totals) if next(many) else next(stacked).sum(0))
        return None, *grads

    @staticmethod
    def jvp(ctx: Any, _: None, *tangents: Tensor | None) -> Any:
        own: Recurrence = ctx.recurrence
        saved = ctx.saved_tensors
        taken, (init, xs, constants) = saved[: own.carries], own.split(saved[own.carries :])
        t_init, t_xs, t_constants = own.split(tangents)
        start = [
            torch.zeros_like(x) if t is None else t for t, x in zip(t_init, init, strict=True) if x.is_floating_point()
        ]
        moved = [t is not None for t in (*t_xs, *t_constants)]
        push = own.pushforward(moved)
        given = [*taken, *xs, *(t for t in t_xs if t is not None)]
        found = push(start, given, [*constants, *(t for t in t_constants if t is not None)])
        fed = iter(found)
        return tuple(next(fed) if _is_float(node) else None for node in own.body.outputs)

    @staticmethod
    def vmap(info: Any, in_dims: Sequence[int | None], recurrence: Recurrence, *flat: Tensor) -> Any:
        own, size = recurrence, info.batch_size
        init, xs, constants = own.split(list(zip(flat, in_dims[1:], strict=True)))
        first = [
            x.expand(size, *x.shape).clone() if dim is None else x.movedim(dim, 0) for x, dim in init
        ]  # what a step gives has the batch
        given = [x if dim is None else x.movedim(dim, 1) for x, dim in xs]
        fixed = [x if dim is None else x.movedim(dim, 0) for x, dim in constants]
        along = [True] * own.carries + [dim is not None for _, dim in (*xs, *constants)]
        body = own.batched(own.body, size, along)
        many = own.kept(("many", size, tuple(along)), lambda: replace(own, body=body, derived={}))
        found = _Differentiable.apply(many, *first, *given, *fixed)
        return tuple(found), tuple([0] * own.carries + [1] * len(own.yielded))


# ---- one operator of the dispatcher, which recordings see ----

_known: weakref.WeakValueDictionary[int, Recurrence] = weakref.WeakValueDictionary()


def _recorded(
    recurrence: Recurrence, init: Sequence[Tensor], xs: Sequence[Tensor], constants: Sequence[Tensor]
) -> list[Tensor]:
    _known[id(recurrence)] = recurrence
    found: list[Tensor] = torch.ops.gradoracle.recurrence([*init, *xs, *constants], id(recurrence))
    return found


@torch.library.custom_op("gradoracle::recurrence", mutates_args=())
def _run(flat: list[Tensor], recurrence: int) -> list[Tensor]:
    own = _known[recurrence]
    found = own.run(*own.split([x.contiguous() for x in flat]))
    return [x.clone() for x in found]  # none may be an argument


def _node(fixed: bool, decomposed: bool, flat: list[Tensor], recurrence: int) -> tuple[Any, tuple[Any, ...], Any, bool]:
    own = _known[recurrence].readable if decomposed else _known[recurrence]
    init, xs, constants = own.split(flat)
    given = (list(init), list(xs), list(constants))
    if fixed:
        return own, given, own.run(init, xs, constants), True
    length = int(xs[0].shape[0])
    last = [torch.zeros(_shape(node), dtype=_dtype(node)) for node in own.body.outputs[: own.carries]]
    many = [_unread((length, *_shape(node)), _dtype(node)) for node in own.yielded]
    return own, given, [*last, *many], True


OPAQUE[torch.ops.gradoracle.recurrence.default] = _node


def _unread(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """A tensor of which only shape and dtype matter: memory of floats that nobody reads or writes is not taken."""
    return (torch.empty if dtype.is_floating_point else torch.zeros)(shape, dtype=dtype)


# ---- a scan of a program that is being recorded ----


@torch.library.custom_op("gradoracle::entered", mutates_args=())
def _entered(x: Tensor, sliced: bool) -> Tensor:
    """The place of a carry, or of a slice, in the step that is recorded."""
    return x.new_zeros(x.shape[1:] if sliced else x.shape)


@torch.library.custom_op("gradoracle::scanned", mutates_args=())
def _scanned(
    init: list[Tensor], xs: list[Tensor], entered: list[Tensor], left: list[Tensor], again: list[Tensor], reverse: bool
) -> list[Tensor]:
    """A scan: what its step was given and gave, twice, and its results."""
    count = len(init)
    many = [x.new_zeros((int(xs[0].shape[0]), *x.shape)) for x in left[count:]]
    return [x.new_zeros(x.shape) for x in left[:count]] + many


OPAQUE[torch.ops.gradoracle.entered.default] = lambda fixed, decomposed, x, sliced: (
    torch.ops.gradoracle.entered.default,
    (x, sliced),
    _entered(x, sliced),
    False,
)
OPAQUE[torch.ops.gradoracle.scanned.default] = lambda fixed, decomposed, *args: (
    torch.ops.gradoracle.scanned.default,
    args,
    _scanned(*args),
    False,
)


def read(step: FlatStep, init: list[Tensor], xs: list[Tensor], reverse: bool) -> tuple[list[Tensor], list[Tensor]]:
    """The reader of scans in a program that is recorded (``model.recurrence.read_by``)."""
    if not is_pure() or _transformed():
        return stepwise(step, init, xs, reverse)
    runs = []
    for _ in range(2):  # the second shows whether anything else than its arguments changes a step
        entered = [_entered(x, False) for x in init], [_entered(x, True) for x in xs]
        carry, ys = step(*entered)
        left = [torch.as_tensor(x) for x in (*carry, *ys)]
        for x in left:
            if torch._is_functional_tensor(x):
                torch._sync(x)  # what the step wrote in place belongs to the step
        runs.append(([*entered[0], *entered[1]], left))
    (first, left), (second, again) = runs
    if len(left) != len(again):
        raise RecurrenceError(_IMPURE)
    found = _scanned(init, xs, [*first, *second], left, again, reverse)
    return found[: len(init)], found[len(init) :]


_IMPURE = (
    "the step of a scan computes something else when it is called again; expected a pure function of its carry and "
    "slice (no counters, no global that changes)"
)


def _transformed() -> bool:
    """Whether ``torch.func`` differentiates or batches what is recorded."""
    from torch._functorch.pyfunctorch import retrieve_all_functorch_interpreters

    keys = [each.key() for each in retrieve_all_functorch_interpreters()]
    return any(key != torch._C._functorch.TransformType.Functionalize for key in keys)


def extracted(graph: Graph, decomposed: bool = True) -> Graph:
    """The graph with each recorded scan as one node of a recurrence, ``decomposed`` or not as the graph is.

    Raises:
        RecurrenceError: a step computes something else when it is called again.
    """
    scans = [node for node in graph.nodes if node.target is torch.ops.gradoracle.scanned.default]
    for node in scans:  # an inner one comes before the outer one
        init, xs, entered, left, again, reverse = node.args
        half = len(entered) // 2
        body, outside = _region(graph, entered[:half], left, entered[half])
        second, other = _region(graph, entered[half:], again, node)
        if outside != other or not _same(body, second):
            raise RecurrenceError(_IMPURE)
        recurrence = Recurrence(body, len(init), len(xs), reverse, decomposed)
        with graph.graph.inserting_before(node):
            one = graph.graph.create_node("call_function", recurrence, (list(init), list(xs), outside))
        one.meta["val"] = node.meta["val"]
        node.replace_all_uses_with(one)
        graph.graph.erase_node(node)
        pruned(graph.graph)
        graph = Graph(graph.graph, graph.constants)
    return graph


def _region(graph: Graph, entered: Sequence[Node], left: Sequence[Node], end: Node) -> tuple[Graph, list[Node]]:
    """What a step recorded as a graph of its own, and the nodes before it that it uses, its further inputs.

    Args:
        graph: the whole.
        entered: the first nodes of the step, its arguments.
        left: its results.
        end: the first node after it.
    """
    order = graph.positions
    needed, waiting = set[Node](), list(left)
    outside: dict[Node, None] = {}
    while waiting:
        node = waiting.pop()
        if node in needed or node in entered:
            continue
        needed.add(node)
        if node.op == "call_function" and order[entered[0]] < order[node] < order[end]:
            waiting += node.all_input_nodes
        elif node.op != "get_attr":
            outside[node] = None
    taken = sorted(outside, key=order.__getitem__)
    nodes, copies = Nodes(), dict[Node, Node]()
    for number, node in enumerate((*entered, *taken)):
        copies[node] = nodes.placeholder(f"input_{number}")
        copies[node].meta["val"] = node.meta["val"]
    for node in sorted(needed - set(copies), key=order.__getitem__):
        copies[node] = nodes.node_copy(node, copies.__getitem__)
    nodes.output(tuple(copies[node] for node in left))
    constants = {str(n.target): graph.constants[str(n.target)] for n in nodes.nodes if n.op == "get_attr"}
    return Graph(nodes, constants), taken


def _same(one: Graph, other: Graph) -> bool:
    """Whether two graphs compute the same in the same order."""
    first, second = list(one.nodes), list(other.nodes)
    if len(first) != len(second):
        return False
    paired = dict(zip(first, second, strict=True))
    for a, b in paired.items():
        if a.op == b.op == "get_attr":
            if not torch.equal(one.constant(a), other.constant(b)):
                return False
        elif a.op != "placeholder" and (a.target is not b.target and a.target != b.target):
            if not (isinstance(a.target, Recurrence) and isinstance(b.target, Recurrence)):
                return False
            if not _same(a.target.body, b.target.body) or a.target.reverse != b.target.reverse:
                return False
        given = followed(lambda x: paired[x] if isinstance(x, Node) else x, (tuple(a.args), dict(a.kwargs)))
        if a.op != b.op or given != (tuple(b.args), dict(b.kwargs)):
            return False
    return True


def prepared(graph: Graph) -> None:
    """Decompose the recurrences of a graph before it is recorded; within a recording no in-place operator can go."""
    for own in recurrences(graph):
        prepared(own.body)
        for each in (own, own.keeping_carries):
            _ = each.readable


def _with_what_is_used(graph: Graph) -> Graph:
    """The graph in which no recurrence yields what is not used."""
    changed = False
    for node in list(graph.nodes):
        if not isinstance(node.target, Recurrence):
            continue
        own = node.target
        items = {user.args[1]: user for user in node.users}
        used = sorted(i - own.carries for i in items if i >= own.carries)
        if len(used) == len(own.yielded):
            continue
        node.target = own.only(used)
        node.meta["val"] = [node.meta["val"][i] for i in (*range(own.carries), *(own.carries + k for k in used))]
        for place, k in enumerate(used):
            items[own.carries + k].args = (node, own.carries + place)
        changed = True
    return Graph(graph.graph, graph.constants) if changed else graph


def recurrences(graph: Graph) -> Iterator[Recurrence]:
    """Those of a graph."""
    return (node.target for node in graph.nodes if isinstance(node.target, Recurrence))


# ---- nodes ----


def detaches(graph: Graph) -> bool:
    """Whether the step of a recurrence of the graph detaches a tensor.

    Detached values are told from copies in a first derivative alone: tracing a VJP makes such nodes of its own, which
    ``without_copies`` removes with those of the definition.
    """
    return any(
        detaches(each.body) or any(node.target is torch.ops.aten.detach.default for node in each.body.nodes)
        for each in recurrences(graph)
    )


def _inputs(graph: Graph) -> list[Node]:
    return [node for node in graph.nodes if node.op == "placeholder"]


def _example(node: Node, steps: int | None = None) -> Tensor:
    shape = _shape(node)
    return torch.zeros(shape if steps is None else (steps, *shape), dtype=_dtype(node))


def _shape(node: Node) -> tuple[int, ...]:
    return tuple(node.meta["val"].shape)


def _dtype(node: Node) -> torch.dtype:
    found: torch.dtype = node.meta["val"].dtype
    return found


def _is_float(node: Node) -> bool:
    return _dtype(node).is_floating_point


def _numel(node: Node) -> int:
    val = node.meta.get("val")
    return max((x.numel() for x in val), default=0) if isinstance(val, (list, tuple)) else getattr(val, "numel", int)()
