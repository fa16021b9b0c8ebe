"""Reconstruction: which edits of a definition give what a kernel gave, to within rounding."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node

from gradoracle.check.diagnosis.edits import Edit, by_value, edits
from gradoracle.model.finding import LOCAL_SIGMA, NO_EDIT, EditedDefinition
from gradoracle.oracle.exact.graph import Graph, widened
from gradoracle.oracle.exact.trees import leaves, looked_up
from gradoracle.oracle.rounding.effects import plain_name

_LARGEST = 1 << 22  # elements of all values of a graph together
_MOST = 1 << 29  # elements computed in all
_FEWEST = 6  # elements whose error no rounding of an edited definition hides
_DIFFERENT = 3  # numbers among them: one number is explained by any factor
_RANK = ("sign", "term", "ratio", "operands", "comparison")  # of edits that give the same, the plainest is named


@dataclass(frozen=True)
class Expected:
    """A wrong tensor of one case, float64 on the CPU.

    Attributes:
        name: the name of the tensor.
        output: the index of the output of the definition's graph.
        got: the values that the kernel gave.
        true: the truth, same shape.
        sigma: one standard deviation of the rounding errors, same shape.
    """

    name: str
    output: int
    got: Tensor
    true: Tensor
    sigma: Tensor

    @property
    def is_clear(self) -> bool:
        """Whether enough elements err by so much that an edit within 8 sigma of them explains nearly all of it."""
        far = (self.got - self.true).abs() > LOCAL_SIGMA**2 * self.sigma
        return int(far.sum()) >= _FEWEST and int(self.got[far].unique().numel()) >= _DIFFERENT

    def is_given_by(self, edited: Tensor) -> bool:
        """Whether every element of an edited definition's output is within 8 sigma of the kernel's.

        Where the edited output is larger than the true one, so are its roundings. Where the truth is exact, as a
        masked 0, an element of the edited output is rounded like the others.
        """
        finite = edited.isfinite()
        if not finite.equal(self.got.isfinite()):
            return False
        size, of_truth = edited[finite].norm(), self.true[finite].norm()
        sigma = self.sigma * max(1.0, float(size / of_truth) if of_truth > 0 else 1.0)
        rounds = (self.sigma > 0) & (self.true != 0) & self.true.isfinite()
        relative = (self.sigma / self.true.abs())[rounds].median() if rounds.any() else 0.0
        limit = LOCAL_SIGMA * torch.where(self.sigma > 0, sigma, relative * edited.abs())
        return bool(((self.got - edited).abs() <= limit)[finite].all())


def reconstruct(
    graph: Graph | None,
    args: Sequence[Tensor],
    named: Sequence[str],
    expected: Sequence[Expected],
    numbers: Mapping[str, float],
    saved: bool = False,
) -> tuple[EditedDefinition, ...] | None:
    """The edits of a definition that give every wrong tensor of one case.

    Args:
        graph: the graph of the definition; None where it is not traced: its outputs alone are then multiplied.
        args: float64 inputs.
        named: the names of the inputs.
        expected: the wrong tensors.
        numbers: the numbers that something may be multiplied by, by name.
        saved: whether kernels may take what forward gave, and the maxima and sums of softmax, as they were saved: each
            edit is then tried so too.

    Returns:
        The edited definitions in words, in a fixed order. None where the case cannot tell: no error is clear, or the
        graph is too large.
    """
    if not any(each.is_clear for each in expected):
        return None
    found = dict.fromkeys(_multiples(expected, numbers))
    if graph is not None and _elements(graph) > _LARGEST:
        return tuple(found) or None
    runs = None if graph is None else _Runs(graph, args, {each.output for each in expected})
    for edit in () if graph is None else edits(graph, named, numbers):
        if runs is None or runs.spent > _MOST:
            break
        for kept in (False, True) if saved else (False,):
            outputs = runs.outputs(edit, kept)
            if outputs is None or (kept and not runs.kept):
                continue
            if all(each.is_given_by(outputs[each.output]) for each in expected):
                found |= dict.fromkeys(edit.edited)
    return tuple(found)


def _multiples(expected: Sequence[Expected], numbers: Mapping[str, float]) -> Iterator[EditedDefinition]:
    """The wrong tensors as known multiples of the true ones."""
    names, are = " and ".join(each.name for each in expected), "is" if len(expected) == 1 else "are"
    if all(each.is_given_by(-each.true) for each in expected):
        yield EditedDefinition(f"with the sign of {names} changed", "sign")
    for factor, own in by_value(numbers).items():
        if all(each.is_given_by(factor * each.true) for each in expected):
            yield from (EditedDefinition(f"if {names} {are} multiplied by {name}", "ratio") for name in own)


def agreed(cases: Sequence[tuple[EditedDefinition, ...] | None]) -> EditedDefinition:
    """The plainest edit that gives what the kernel gave on every case that can tell; none where fewer than two can."""
    telling = [found for found in cases if found is not None]
    if len(telling) < 2:
        return NO_EDIT
    shared = [each for each in telling[0] if all(each in found for found in telling)]
    return min(shared, key=lambda each: _RANK.index(each.cause), default=NO_EDIT)


class _Runs:
    """A graph's values as they are, and its outputs under edits; what an edit does not reach is not computed again."""

    def __init__(self, graph: Graph, args: Sequence[Tensor], expected: Collection[int]) -> None:
        self.graph, self.values, self.spent = graph, dict[Node, Any](), 0
        self.kept = False  # whether the last run met anything that is saved
        self._saved = {node for place, node in enumerate(graph.outputs) if place not in expected}
        given = iter(args)
        with torch.no_grad():
            for node in graph.nodes:
                if node.op == "placeholder":
                    self.values[node] = next(given)
                elif node.op == "get_attr":
                    self.values[node] = graph.constant(node)
                elif node.op == "call_function":
                    self.values[node] = _run(node, self.values)
        # of each call: the nodes it reads, whether it is a right output that others read, whether a softmax
        self._calls = [
            (node, node.all_input_nodes, node in self._saved and len(node.users) > 1, plain_name(node) == "_softmax")
            for node in graph.nodes
            if node.op == "call_function"
        ]

    def outputs(self, edit: Edit, kept: bool = False) -> list[Tensor] | None:
        """The outputs under an edit; None where it does not fit or changes nothing.

        ``kept``: right outputs stay as they are, and a softmax keeps its maxima and sums.
        """
        changed: dict[Node, Any] = {}
        self.kept = False
        known = _Over(changed, self.values)
        with torch.no_grad():
            for node, sources, saved, softmax in self._calls:
                try:
                    if node in edit.nodes:
                        changed[node] = self._edited(edit, node, known)
                    elif changed.keys().isdisjoint(sources):
                        continue
                    elif kept and saved:
                        self.kept = True
                        continue
                    elif kept and softmax:
                        self.kept = True
                        moved = known[sources[0]] - self.values[sources[0]]
                        changed[node] = torch.where(self.values[node] == 0, 0.0, self.values[node] * moved.exp())
                    else:
                        changed[node] = _run(node, known)
                except (RuntimeError, IndexError, TypeError):  # a shape, or strides, that the operator does not take
                    return None
                self.spent += getattr(changed[node], "numel", int)() + 256
        if not any(node in changed for node in self.graph.outputs):
            return None
        return [known[node] for node in self.graph.outputs]

    def _edited(self, edit: Edit, node: Node, known: Any) -> Any:
        args, kwargs = looked_up(node.args, known), widened(looked_up(node.kwargs, known))
        asked = () if edit.asks is None else (self.values[edit.asks],)
        value = edit.call(node, args, kwargs, *asked)
        if isinstance(value, Tensor) and value.shape != node.meta["val"].shape:
            raise RuntimeError("another shape")
        return _laid_out_as(value, self.values[node])


def _laid_out_as(value: Any, base: Any) -> Any:
    """A value with the strides of another, which views of it were made for."""
    if not isinstance(value, Tensor) or value.stride() == base.stride() or 0 in base.stride():
        return value
    return torch.empty_strided(base.shape, base.stride(), dtype=value.dtype).copy_(value)


class _Over(Mapping[Node, Any]):
    """A mapping with some values overridden."""

    def __init__(self, over: Mapping[Node, Any], under: Mapping[Node, Any]) -> None:
        self._over, self._under = over, under

    def __getitem__(self, node: Node) -> Any:
        return self._over[node] if node in self._over else self._under[node]

    def __iter__(self) -> Any:
        return iter(self._under)

    def __len__(self) -> int:
        return len(self._under)


def _elements(graph: Graph) -> int:
    """How many elements the values of a graph have together."""
    values = (x for node in graph.nodes for x in leaves(node.meta.get("val")))
    return sum(x.numel() for x in values if isinstance(x, Tensor))


def _run(node: Node, known: Mapping[Node, Any]) -> Any:
    target: Any = node.target
    return target(*looked_up(node.args, known), **widened(looked_up(node.kwargs, known)))
