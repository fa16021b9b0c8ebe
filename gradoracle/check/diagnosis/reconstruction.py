"""Reconstruction: which edit of a definition's graph gives what a kernel gave."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node

from gradoracle.check.diagnosis.edits import Edit, edits
from gradoracle.model import wording
from gradoracle.model.finding import NO_LIKENESS, Likeness
from gradoracle.oracle.exact.trace import Graph, widened
from gradoracle.oracle.exact.trees import leaves, looked_up
from gradoracle.oracle.rounding.effects import plain_name

_LARGEST = 1 << 22  # elements of all values of a graph together
_MOST = 1 << 29  # elements computed in all
_CLOSE = 0.03  # of the error, that an edit may leave unexplained
_ALIKE, _NOTHING = 1.2, 1e-4  # what two causes may leave that explain a tensor equally well
_CLOSE_ROUNDED = 0.5  # of a rounding, which a kernel commits in another order
_FEWEST = 6  # wrong elements that an edit must explain
_DIFFERENT = 3  # numbers among them: of fewer a factor is fitted to one
_CLEAR = 6.0  # sigma, from which on an element is counted as wrong
_NEAR_ONE = 2.0**-6  # factors as near to 1 as this are what a rounding makes of a factor that is shared
_RANK = ("sign", "ratio", "shift", "tail", "sum", "transpose", "layout", "term", "dtype")


@dataclass(frozen=True)
class Expected:
    """A wrong tensor: which output of the graph it is, what the kernel gave, and the sigma of its rounding errors."""

    output: int
    got: Tensor
    sigma: Tensor


@dataclass(frozen=True)
class _Wrong:
    """A wrong tensor's elements that count, in sigma: non-finite and exact ones, such as a masked 0, are left out.

    Attributes:
        known: which they are.
        true, sigma: of each.
        error: of each, in sigma.
        size: the sum of its squares.
        clear: whether the error is one that an edit could explain.
    """

    known: Tensor
    true: Tensor
    sigma: Tensor
    error: Tensor
    size: float
    clear: bool


def _wrong(expected: Expected, true: Tensor) -> _Wrong:
    known = (expected.sigma > 0) & expected.got.isfinite() & true.isfinite()
    sigma = expected.sigma[known]
    error = (expected.got - true)[known] / sigma
    size = float(error.square().sum())
    far = error.abs() > _CLEAR
    several = int(far.sum()) >= _FEWEST and int(true[known][far].unique().numel()) >= _DIFFERENT
    clear = size >= 16 * len(sigma) and math.isfinite(size) and several
    return _Wrong(known, true[known], sigma, error, size, clear)


@dataclass(frozen=True)
class _Fit:
    """How much of a tensor's error an edit leaves unexplained, the factor of an operand, and whether that will do."""

    rest: float
    factor: float
    good: bool


def reconstruct(
    graph: Graph, args: Sequence[Tensor], named: Sequence[str], expected: Sequence[Expected], saved: bool = False
) -> Likeness:
    """The edit that explains a wrong tensor best, of the cause that explains most of them.

    Args:
        graph: of the definition.
        args: float64 inputs.
        named: what the inputs are called.
        expected: the wrong tensors; those of which hardly an element is finite are passed over.
        saved: whether kernels may take what forward gave, and the maxima and sums of softmax, as they were saved: each
            edit is then tried so too.

    Returns:
        The edit in words and its cause; an empty one where none explains a tensor.
    """
    expected = [each for each in expected if int(each.got.isfinite().sum()) >= _FEWEST]
    if not expected or _elements(graph) > _LARGEST:
        return NO_LIKENESS
    runs = _Runs(graph, args, {each.output for each in expected})
    wrong = [(each.output, _wrong(each, runs.base[each.output])) for each in expected]
    found: list[dict[str, tuple[float, Edit]]] = [{} for _ in expected]  # of each tensor the best edit of every cause
    for edit in edits(graph, named):
        if runs.spent > _MOST:
            break
        for kept in (False, True) if saved else (False,):
            outputs = runs.outputs(edit, kept)
            if outputs is None or (kept and not runs.kept):
                continue
            for (output, each), best in zip(wrong, found, strict=True):
                fit = _fit(edit, each, outputs[output]) if each.clear else None
                if fit is not None and fit.good:
                    shown = _scaled(edit, fit.factor) if edit.linear else edit
                    if shown.cause not in best or fit.rest < best[shown.cause][0]:
                        best[shown.cause] = fit.rest, shown
    return _chosen(found)


def _chosen(found: Sequence[Mapping[str, tuple[float, Edit]]]) -> Likeness:
    """The cause that explains the most tensors; then the one with the smallest rest; then the most specific."""
    rests: dict[str, list[float]] = {}
    for best in found:
        for cause, (rest, _) in best.items():
            rests.setdefault(cause, []).append(rest)
    if not rests:
        return NO_LIKENESS
    most = max(map(len, rests.values()))
    means = {cause: sum(each) / most for cause, each in rests.items() if len(each) == most}
    limit = _ALIKE * min(means.values()) + _NOTHING
    cause = min((cause for cause, mean in means.items() if mean <= limit), key=_RANK.index)
    _, edit = min((best[cause] for best in found if cause in best), key=lambda each: each[0])
    return Likeness(f"the definition reproduces the result {edit.words}", cause, edit.factor)


def _fit(edit: Edit, wrong: _Wrong, edited: Tensor) -> _Fit | None:
    """The rest of the error after subtracting the edit's; None where the edit does not explain this tensor."""
    value = edited[wrong.known]
    if not bool(value.isfinite().all()):
        return None
    error, own = wrong.error, (value - wrong.true) / wrong.sigma
    factor, bottom = 1.0, float(own.square().sum())
    if edit.linear:
        if bottom == 0:
            return None
        factor = float((error * own).sum()) / bottom
    rest = float((error - factor * own).square().sum())
    limit = _CLOSE_ROUNDED if edit.rounds else _CLOSE
    return _Fit(math.sqrt(rest / wrong.size), 1.0 - factor, rest <= limit**2 * wrong.size + 2 * len(error))


def _scaled(edit: Edit, factor: float) -> Edit:
    """An operand that is left out altogether, or has another factor than 1."""
    if abs(factor) < 0.03:
        return edit
    what = edit.words.removeprefix("without ")
    if abs(factor + 1) < 0.03:
        return replace(edit, cause="sign", words=f"with the sign of {what} changed")
    cause = "ratio" if abs(factor - 1) > _NEAR_ONE else "dtype"
    shown = wording.factor(factor)
    return replace(edit, cause=cause, words=f"if {what} is multiplied by {shown}", factor=wording.as_shown(factor))


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
        self.base = [self.values[node] for node in graph.outputs]
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
