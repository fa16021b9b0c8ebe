"""Mistakes in bounds: comparisons, masks of loads and stores, and where a loop over tiles begins and ends."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from gradoracle.mutation.operators.operator import Fault, operator
from gradoracle.mutation.operators.place import ACCESSES, RANGES, Place
from gradoracle.mutation.operators.syntax import argument, called, dotted, last_name, plus, text, tight, with_value

_EXCHANGED = {
    cst.LessThan: "<=",
    cst.LessThanEqual: "<",
    cst.GreaterThan: ">=",
    cst.GreaterThanEqual: ">",
    cst.Equal: "!=",
    cst.NotEqual: "==",
    cst.Is: "is not",
    cst.IsNot: "is",
}
# the comparison, and the shift of its bound that the exchanged one does not make: n <= N is n < N + 1 already
_INWARDS = {
    cst.LessThan: ("<", "-"),
    cst.LessThanEqual: ("<=", "+"),
    cst.GreaterThan: (">", "+"),
    cst.GreaterThanEqual: (">=", "-"),
}


@operator()
def comparison(node: cst.Comparison, place: Place) -> Iterator[Fault]:
    """< becomes <= and > becomes >=, and the reverse; == becomes !=, and the reverse; `is` with None likewise."""
    target = node.comparisons[0]
    if len(node.comparisons) == 1 and type(target.operator) in _EXCHANGED:
        code = f"{text(node.left)} {_EXCHANGED[type(target.operator)]} {text(target.comparator)}"
        yield Fault(node, code, "tail" if place.is_bound(node) else "")


@operator(wrappers=False)
def bound_shifted(node: cst.Comparison, place: Place) -> Iterator[Fault]:
    """A mask ends one position early: n < N becomes n < N - 1; `comparison` plants n <= N, which ends late."""
    target = node.comparisons[0]
    if len(node.comparisons) != 1 or type(target.operator) not in _INWARDS:
        return
    if not isinstance(target.comparator, (cst.Integer, cst.Float)) and place.kind(node.left) != "float":
        symbol, shift = _INWARDS[type(target.operator)]
        code = f"{tight(node.left, 6)} {symbol} {plus(target.comparator, '1', shift)}"
        yield Fault(node, code, "tail" if place.is_bound(node) else "")


_MASK_AT = {"load": 1, "store": 2, "atomic_cas": 9}


@operator(wrappers=False)
def mask_dropped(node: cst.Call, place: Place) -> Iterator[Fault]:
    """A load, a store or an atomic operation has no mask, and a load no value for masked elements."""
    operation = place.operation(node)
    if operation in ACCESSES:
        mask = argument(node, "mask", _MASK_AT.get(operation, 2))
        other = argument(node, "other", 2) if operation == "load" else None
        if mask is not None and dotted(mask.value) != "None":
            yield Fault(node, called(node, (mask, other)), "tail" if place.is_bound(mask.value) else "")


@operator()
def condition_dropped(node: cst.BinaryOperation | cst.BooleanOperation, place: Place) -> Iterator[Fault]:
    """One of two conditions of a mask or a branch is dropped."""
    if isinstance(node, cst.BinaryOperation):
        if not place.kernel or not isinstance(node.operator, (cst.BitAnd, cst.BitOr)):
            return
        if "integer" in (place.kind(node.left), place.kind(node.right)):
            return
    conjunction = isinstance(node.operator, (cst.BitAnd, cst.And))
    for kept, dropped in ((node.left, node.right), (node.right, node.left)):
        yield Fault(node, text(kept), "tail" if conjunction and place.is_bound(dropped) else "")


@operator(wrappers=False)
def other_value(node: cst.Arg, place: Place) -> Iterator[Fault]:
    """A load gives 1 instead of 0, or 0 instead of anything else, for masked elements.

    That changes nothing where the value is masked again, or multiplied by 0, before it is used.
    """
    call = place.parent(node)
    if isinstance(call, cst.Call) and place.operation(call) == "load" and node is argument(call, "other", 2):
        value, mask = text(node.value), argument(call, "mask", 1)
        new = value.replace("0", "1", 1) if value in ("0", "0.0") else "0.0"
        yield Fault(node, with_value(node, new), "tail" if mask is not None and place.is_bound(mask.value) else "")


def _parts(node: cst.Call) -> tuple[cst.Arg | None, cst.Arg, str] | None:
    """Return the start, the end and the step of a range."""
    given = [each for each in node.args if each.keyword is None and not each.star]
    if last_name(node.func) not in RANGES or not given:
        return None
    step = tight(given[2].value, 11) if len(given) > 2 else "1"
    return (given[0], given[1], step) if len(given) > 1 else (None, given[0], step)


@operator(wrappers=False)
def loop_end(node: cst.Call, place: Place) -> Iterator[Fault]:
    """A loop ends one step early or late; late changes nothing where every access in the loop is masked."""
    if (parts := _parts(node)) is not None:
        _, end, step = parts
        yield Fault(end, plus(end.value, step, "-"))
        yield Fault(end, plus(end.value, step))


@operator(wrappers=False)
def loop_start(node: cst.Call, place: Place) -> Iterator[Fault]:
    """A loop begins one step late."""
    if (parts := _parts(node)) is not None:
        start, end, step = parts
        if start is None:
            yield Fault(end, f"{step}, {text(end.value)}")
        else:
            zero = isinstance(start.value, cst.Integer) and start.value.value == "0"
            yield Fault(start, step if zero else plus(start.value, step))
