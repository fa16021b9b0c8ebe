"""Faults in masks of loads and stores, in their parts, and in what stands where nothing is loaded."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from gradoracle.mutation.operators.operator import Fault, Operator
from gradoracle.mutation.operators.place import ACCESSES, Place
from gradoracle.mutation.operators.syntax import argument, argument_text, called, dotted, text

_MASK_AT = {"load": 1, "store": 2, "atomic_cas": 9}


def _mask(node: cst.Call, place: Place) -> Iterator[Fault]:
    operation = place.operation(node)
    if operation not in ACCESSES:
        return
    mask = argument(node, "mask", _MASK_AT.get(operation, 2))
    other = argument(node, "other", 2) if operation == "load" else None
    if mask is not None and dotted(mask.value) != "None":
        yield Fault(node, called(node, (mask, other)), "tail" if place.is_bound(mask.value) else "")


def _condition(node: cst.BinaryOperation | cst.BooleanOperation, place: Place) -> Iterator[Fault]:
    if isinstance(node, cst.BinaryOperation):
        if not place.kernel or not isinstance(node.operator, (cst.BitAnd, cst.BitOr)):
            return
        if "integer" in (place.kind(node.left), place.kind(node.right)):
            return
        conjunction = isinstance(node.operator, cst.BitAnd)
    else:
        conjunction = isinstance(node.operator, cst.And)
    for kept, dropped in ((node.left, node.right), (node.right, node.left)):
        yield Fault(node, text(kept), "tail" if conjunction and place.is_bound(dropped) else "")


def _other(node: cst.Arg, place: Place) -> Iterator[Fault]:
    call = place.parent(node)
    if not isinstance(call, cst.Call) or place.operation(call) != "load" or node is not argument(call, "other", 2):
        return
    value = text(node.value)
    zero = value in ("0", "0.0")
    new = f"{value.replace('0', '1', 1)}" if zero else "0.0"
    mask = argument(call, "mask", 1)
    bounded = mask is not None and place.is_bound(mask.value)
    yield Fault(node, argument_text(node.with_changes(value=cst.parse_expression(new))), "tail" if bounded else "")


OPERATORS = (
    Operator(
        "mask dropped",
        "A load, a store or an atomic operation has no mask, and a load no value where nothing is read.",
        (cst.Call,),
        _mask,
        wrappers=False,
    ),
    Operator(
        "condition dropped",
        "Of two conditions, of a mask or of a branch, one is left out.",
        (cst.BinaryOperation, cst.BooleanOperation),
        _condition,
    ),
    Operator(
        "other value",
        "What a load gives where its mask is false is 1 in place of 0, or 0 in place of anything else.",
        (cst.Arg,),
        _other,
        wrappers=False,
        caveat="where the value is masked again, or multiplied by 0, before it is used",
    ),
)
