"""Mistakes in indices and addresses: off by one, strides, bounds and axes exchanged, too few bits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import libcst as cst

from gradoracle.mutation.operators.operator import Fault, operator
from gradoracle.mutation.operators.place import ACCESSES, Place, is_stride
from gradoracle.mutation.operators.syntax import (
    argument,
    is_sum,
    opposite,
    plus,
    qualified,
    receiver,
    text,
    with_value,
    within,
)

_WHOLE = ("integer", "pointer")


@operator(wrappers=False)
def address_shifted(node: cst.Arg, place: Place) -> Iterator[Fault]:
    """The address of a load, a store or an atomic operation is one element further."""
    call = place.parent(node)
    operation = place.operation(call)
    if isinstance(call, cst.Call) and operation in ACCESSES and node is argument(call, "pointer", 0):
        yield Fault(node, with_value(node, plus(node.value, "1")), "" if operation == "load" else "shift")


@operator(wrappers=False)
def index_shifted(node: cst.Assign, place: Place) -> Iterator[Fault]:
    """An index that the code computes is one larger."""
    if len(node.targets) == 1:
        held = node.value
        for each in [one.value for one in held.elements] if isinstance(held, cst.Tuple) else [held]:
            counted = any(place.operation(one) in ("arange", "program_id") for one in within(each))
            if place.kind(each) == "integer" and (isinstance(each, cst.BinaryOperation) or counted):
                yield Fault(each, plus(each, "1"))


@operator(wrappers=False)
def index_sign(node: cst.BinaryOperation, place: Place) -> Iterator[Fault]:
    """In an index or an address + becomes -, or - becomes +."""
    if is_sum(node) and place.kind(node) in _WHOLE:
        yield Fault(node, opposite(node))


@operator(wrappers=False)
def index_term_dropped(node: cst.BinaryOperation, place: Place) -> Iterator[Fault]:
    """One term of a sum in an index or an address is dropped.

    Not one without which a tile of indices is a single index: that does not compile.
    """
    if is_sum(node) and place.kind(node) in _WHOLE:
        left, right = place.is_tile(node.left), place.is_tile(node.right)
        if left or not right:
            yield Fault(node, text(node.left))
        adds = isinstance(node.operator, cst.Add) and place.kind(node) == "integer"
        if adds and (right or not left):
            yield Fault(node, text(node.right))


@operator(wrappers=False)
def stride_dropped(node: cst.BinaryOperation, place: Place) -> Iterator[Fault]:
    """An index is not multiplied, by a stride or a size."""
    if not isinstance(node.operator, cst.Multiply):
        return
    for kept, dropped in ((node.left, node.right), (node.right, node.left)):
        stride = _stride(dropped, place)
        if stride:  # where the stride of the last axis is 1, only another layout shows that it is missing
            siblings = _siblings(stride, place)
            last = stride == siblings[-1] and (len(siblings) > 1 or stride.endswith(("_col", "_cols")))
            yield Fault(node, text(kept), "layout" if last else "")
        elif place.kind(node) == "integer" and kept is node.left:
            yield Fault(node, text(kept))


def _stride(node: cst.CSTNode, place: Place) -> str:
    """Return the name of the parameter that an expression is, widened or not, if it is a stride; else ""."""
    while (held := receiver(node, "to")) is not None:
        node = held
    name = node.value if isinstance(node, cst.Name) else ""
    return name if name in place.parameters and is_stride(name) else ""


def _siblings(stride: str, place: Place) -> list[str]:
    """Return the strides of the same tensor, in the order of the parameters."""
    stem = stride.rpartition("_")[0]
    return [name for name in place.parameters if is_stride(name) and name.rpartition("_")[0] == stem]


def _next(name: str, names: Sequence[str]) -> str:
    """Return the name after another, after the last the first."""
    return names[(names.index(name) + 1) % len(names)]


@operator(wrappers=False)
def stride_swapped(node: cst.Name, place: Place) -> Iterator[Fault]:
    """A stride is that of another axis of the same tensor."""
    if not place.is_called(node) and _stride(node, place):
        siblings = _siblings(node.value, place)
        if len(siblings) > 1 and place.kind(node) in ("integer", ""):
            yield Fault(node, _next(node.value, siblings))


@operator(wrappers=False)
def dim_swapped(node: cst.Name, place: Place) -> Iterator[Fault]:
    """A size is that of another dim."""
    if _is_dim(node.value, place) and not place.is_called(node):
        dims = [name for name in place.parameters if _is_dim(name, place)]
        if len(dims) > 1:
            yield Fault(node, _next(node.value, dims))


def _is_dim(name: str, place: Place) -> bool:
    """Say whether a parameter is named as a size is, ``N`` or ``DV``, and is no pointer nor has strides."""
    named = name in place.parameters and name not in place.constants and name.isupper() and len(name) <= 2
    strided = any(each.lower().startswith(f"{name.lower()}_") for each in place.parameters)
    return named and not strided and place.kind(cst.Name(name)) != "pointer"


@operator(wrappers=False)
def index_swapped(node: cst.Name, place: Place) -> Iterator[Fault]:
    """An index is another of those assigned with it, such as the head instead of the batch member."""
    if place.is_called(node) or isinstance(place.parent(node), cst.Attribute) or node.value not in place.values:
        return
    for names in place.together:
        if node.value in names and all(place.kind(cst.Name(name)) == "integer" for name in names):
            yield Fault(node, _next(node.value, names))
            return


@operator(wrappers=False)
def program_axis(node: cst.Call, place: Place) -> Iterator[Fault]:
    """A program asks for its index along another axis of the grid."""
    if place.operation(node) in ("program_id", "num_programs"):
        axis = argument(node, "axis", 0)
        if axis is not None and isinstance(axis.value, cst.Integer):
            yield Fault(axis.value, "0" if axis.value.value != "0" else "1")


@operator(wrappers=False)
def division_exchanged(node: cst.BinaryOperation, place: Place) -> Iterator[Fault]:
    """// becomes %, or % becomes //."""
    if isinstance(node.operator, (cst.FloorDivide, cst.Modulo)):
        yield Fault(node, opposite(node))


@operator(name="64 bits dropped", wrappers=False, cause="offset")
def widening_dropped(node: cst.Call, place: Place) -> Iterator[Fault]:
    """An index is not widened to 64 bits. That changes nothing where no offset reaches 2^31."""
    held = receiver(node, "to")
    if held is not None and len(node.args) == 1 and qualified(node.args[0].value)[1] in ("int64", "uint64"):
        yield Fault(node, text(held))


@operator(wrappers=False)
def clamp_dropped(node: cst.Call, place: Place) -> Iterator[Fault]:
    """A maximum or minimum of two values becomes one of the two."""
    if place.operation(node) in ("maximum", "minimum") and len(node.args) >= 2:
        for arg in node.args[:2]:
            yield Fault(node, text(arg.value))
