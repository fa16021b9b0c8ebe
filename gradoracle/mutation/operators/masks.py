"""Mistakes in masks of loads and stores, in their parts, and in the value of masked elements."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from gradoracle.mutation.operators.operator import Fault, operator
from gradoracle.mutation.operators.place import ACCESSES, Place
from gradoracle.mutation.operators.syntax import argument, called, dotted, text, with_value

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
