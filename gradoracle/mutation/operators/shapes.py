"""Faults in the order of axes, and in the layout that a wrapper gives to tensors."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from gradoracle.mutation.operators.operator import Fault, Operator
from gradoracle.mutation.operators.place import Place
from gradoracle.mutation.operators.syntax import last_name, text, tight


def _transpose(node: cst.Call | cst.Attribute, place: Place) -> Iterator[Fault]:
    if isinstance(node, cst.Attribute):
        if node.attr.value in ("T", "mT") and not place.is_called(node):
            yield Fault(node, text(node.value))
    elif place.operation(node) in ("trans", "permute") and node.args:
        yield Fault(node, text(node.args[0].value))
    elif isinstance(node.func, cst.Attribute) and node.func.attr.value in ("t", "transpose", "permute"):
        yield Fault(node, text(node.func.value))


def _product(node: cst.Call, place: Place) -> Iterator[Fault]:
    """Yield b a^T for a dot a b^T, and b a for a b."""
    if place.operation(node) != "dot" or len(node.args) < 2 or any(each.keyword for each in node.args[:2]):
        return
    left, right = node.args[0].value, node.args[1].value
    if place.operation(right) == "trans" and isinstance(right, cst.Call):
        swapped = (text(right.args[0].value), f"{text(right.func)}({text(left)})")
    elif place.operation(left) == "trans" and isinstance(left, cst.Call):
        swapped = (f"{text(left.func)}({text(right)})", text(left.args[0].value))
    else:
        swapped = (text(right), text(left))
    if swapped != (text(left), text(right)):
        yield Fault(node.args[0], f"{swapped[0]}, {swapped[1]}", until=node.args[1])


def _broadcast(node: cst.Subscript, place: Place) -> Iterator[Fault]:
    parts = [text(each.slice) for each in node.slice]
    if "None" not in parts or parts.count(":") + parts.count("None") != len(parts) or len(set(parts)) < 2:
        return
    if len(parts) == 2 or parts.count("None") == 1:
        turned = parts[::-1] if parts != parts[::-1] else [*parts[1:], parts[0]]
        yield Fault(node, f"{tight(node.value, 15)}[{', '.join(turned)}]")


def _contiguous(node: cst.Call, place: Place) -> Iterator[Fault]:
    if isinstance(node.func, cst.Attribute) and last_name(node.func) == "contiguous":
        yield Fault(node, text(node.func.value))


OPERATORS = (
    Operator(
        "transpose dropped",
        "A tile or a tensor is not transposed.",
        (cst.Call, cst.Attribute),
        _transpose,
        cause="transpose",
    ),
    Operator(
        "factors of a dot swapped", "a b^T becomes b a^T, and a b becomes b a.", (cst.Call,), _product, wrappers=False
    ),
    Operator(
        "broadcast axis",
        "A row is spread along the other axis: x[:, None] becomes x[None, :], and the reverse.",
        (cst.Subscript,),
        _broadcast,
        wrappers=False,
    ),
    Operator(
        "contiguous dropped",
        "A tensor is handed to a kernel without being made contiguous.",
        (cst.Call,),
        _contiguous,
        kernels=False,
        cause="layout",
    ),
)
