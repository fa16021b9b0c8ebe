"""Mistakes in the order of axes, and in the layout that a wrapper gives to tensors."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from gradoracle.mutation.operators.operator import Fault, operator
from gradoracle.mutation.operators.place import Place
from gradoracle.mutation.operators.syntax import receiver, text, tight


@operator(cause="transpose")
def transpose_dropped(node: cst.Call | cst.Attribute, place: Place) -> Iterator[Fault]:
    """A tile or a tensor is not transposed."""
    if isinstance(node, cst.Attribute):
        if node.attr.value in ("T", "mT") and not place.is_called(node):
            yield Fault(node, text(node.value))
    elif place.operation(node) in ("trans", "permute") and node.args:
        yield Fault(node, text(node.args[0].value))
    elif (held := receiver(node, "t", "transpose", "permute")) is not None:
        yield Fault(node, text(held))


@operator(wrappers=False)
def factors_of_a_dot_swapped(node: cst.Call, place: Place) -> Iterator[Fault]:
    """a b^T becomes b a^T, and a b becomes b a."""
    if place.operation(node) != "dot" or len(node.args) < 2 or any(each.keyword for each in node.args[:2]):
        return
    left, right = node.args[0].value, node.args[1].value
    if place.operation(right) == "trans" and isinstance(right, cst.Call):
        swapped = f"{text(right.args[0].value)}, {text(right.func)}({text(left)})"
    elif place.operation(left) == "trans" and isinstance(left, cst.Call):
        swapped = f"{text(left.func)}({text(right)}), {text(left.args[0].value)}"
    else:
        swapped = f"{text(right)}, {text(left)}"
    if swapped != f"{text(left)}, {text(right)}":
        yield Fault(node.args[0], swapped, until=node.args[1])


@operator(wrappers=False)
def broadcast_axis(node: cst.Subscript, place: Place) -> Iterator[Fault]:
    """A row is broadcast along the other axis: x[:, None] becomes x[None, :], and the reverse."""
    parts = [text(each.slice) for each in node.slice]
    if set(parts) == {":", "None"} and (len(parts) == 2 or parts.count("None") == 1):
        turned = parts[::-1] if parts != parts[::-1] else [*parts[1:], parts[0]]
        yield Fault(node, f"{tight(node.value, 15)}[{', '.join(turned)}]")


@operator(kernels=False, cause="layout")
def contiguous_dropped(node: cst.Call, place: Place) -> Iterator[Fault]:
    """A tensor is handed to a kernel without being made contiguous."""
    if (held := receiver(node, "contiguous")) is not None:
        yield Fault(node, text(held))
