"""Mistakes in what a kernel stores, a function returns and an autograd function saves."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import libcst as cst

from gradoracle.mutation.operators.operator import Fault, operator
from gradoracle.mutation.operators.place import Place
from gradoracle.mutation.operators.syntax import (
    argument,
    argument_text,
    dotted,
    exchanges,
    last_name,
    receiver,
    text,
    tight,
)

_DERIVATIVES = ("backward", "jvp", "vjp")


def _returned(node: cst.Return, place: Place) -> list[cst.BaseElement]:
    """Return what the rule of a derivative returns, each None left out."""
    if place.kernel or place.function.name.value not in _DERIVATIVES:
        return []
    elements = node.value.elements if isinstance(node.value, cst.Tuple) else ()
    return [each for each in elements if dotted(each.value) != "None"]


def _results(node: cst.Return | cst.Arg, place: Place) -> Iterator[tuple[cst.CSTNode, cst.BaseExpression]]:
    """Yield what a kernel stores, before it is rounded to the tensor's dtype, and what a derivative's rule returns."""
    if isinstance(node, cst.Return):
        returned = _returned(node, place)
        yield from ((each, each.value) for each in returned if not isinstance(each, cst.StarredElement))
        return
    call, cast = place.parent(node), node.value
    stores = isinstance(call, cst.Call) and place.operation(call) == "store" and node is argument(call, "value", 1)
    held = receiver(cast, "to") if stores else None
    if isinstance(cast, cst.Call) and held is not None and cast.args and "element_ty" in text(cast.args[0].value):
        yield held, held


@operator(cause="sign")
def result_negated(node: cst.Return | cst.Arg, place: Place) -> Iterator[Fault]:
    """An output or a gradient has the other sign."""
    for each, value in _results(node, place):
        yield Fault(each, f"-{tight(value, 12)}")


@operator(cause="ratio")
def result_doubled(node: cst.Return | cst.Arg, place: Place) -> Iterator[Fault]:
    """An output or a gradient is twice as large."""
    for each, value in _results(node, place):
        yield Fault(each, f"{'2.0' if place.kernel else '2'} * {tight(value, 12)}")


@operator(kernels=False, cause="term")
def gradient_dropped(node: cst.Return, place: Place) -> Iterator[Fault]:
    """The rule of a derivative returns None or zeros instead of a gradient or tangent."""
    for each in _returned(node, place):
        if isinstance(each, cst.StarredElement):
            yield Fault(each, f"*(None for _ in {tight(each.value, 2)})")
        else:
            yield Fault(each, "None")
            yield Fault(each, f"torch.zeros_like({text(each.value)})")


@operator()
def results_exchanged(node: cst.Return, place: Place) -> Iterator[Fault]:
    """Two neighbouring values that a function returns change places."""
    yield from _exchanged(node.value)


@operator(kernels=False)
def saved_twice(node: cst.Call, place: Place) -> Iterator[Fault]:
    """Instead of a tensor that is saved for a derivative its neighbour is saved."""
    if last_name(node.func) in ("save_for_backward", "save_for_forward"):
        for one, other in pairwise(each for each in node.args if not each.star):
            yield Fault(one, argument_text(other))
            yield Fault(other, argument_text(one))


@operator(kernels=False)
def saved_exchanged(node: cst.Assign, place: Place) -> Iterator[Fault]:
    """Two neighbouring saved tensors are unpacked into each other's names."""
    if last_name(node.value) == "saved_tensors":
        yield from _exchanged(node.targets[0].target)


def _exchanged(node: cst.CSTNode | None) -> Iterator[Fault]:
    """Yield a mistake for each two neighbours of a tuple that differ and are not starred."""
    for one, other, code in exchanges(node.elements if isinstance(node, cst.Tuple) else ()):
        starred = isinstance(one, cst.StarredElement) or isinstance(other, cst.StarredElement)
        if not starred and text(one.value) != text(other.value):
            yield Fault(one, code, until=other)


@operator(kernels=False, cause="stale")
def saved_stale(node: cst.Attribute, place: Place) -> Iterator[Fault]:
    """A derivative reads the tensors that the first call of the process saved."""
    if node.attr.value == "saved_tensors":
        yield Fault(node, f'globals().setdefault("_first_{place.class_name.lower()}", {text(node)})')


@operator(kernels=False, cause="sum")
def partial_sums_lost(node: cst.Call, place: Place) -> Iterator[Fault]:
    """Of the partial sums that programs leave, only the first is used."""
    held = receiver(node, "sum")
    if held is not None and len(node.args) == 1:
        dim = node.args[0]
        if dim.keyword is None or dim.keyword.value in ("dim", "axis"):
            yield Fault(node, f"{text(held)}.select({text(dim.value)}, 0)")
