"""Mistakes in operations on tiles and tensors: reductions, sums over steps, order of axes, and layout."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from gradoracle.mutation.operators.arithmetic import is_shift
from gradoracle.mutation.operators.operator import Fault, operator
from gradoracle.mutation.operators.place import Place
from gradoracle.mutation.operators.syntax import (
    argument,
    called,
    dotted,
    qualified,
    receiver,
    renamed,
    text,
    tight,
    with_value,
)

_KINDS = {"sum": "max", "max": "min", "min": "max", "maximum": "minimum", "minimum": "maximum", "argmax": "argmin",
          "argmin": "argmax", "cumsum": "cumprod", "cumprod": "cumsum"}  # fmt: skip
_ALONG = ("sum", "max", "min", "argmax", "argmin", "cumsum")


@operator(wrappers=False)
def reduction_kind(node: cst.Call, place: Place) -> Iterator[Fault]:
    """A sum becomes a maximum, a maximum a minimum, and the reverse."""
    name = place.operation(node)
    if name in _KINDS:
        yield Fault(node, renamed(node, _KINDS[name]))


@operator(wrappers=False)
def reduction_axis(node: cst.Arg, place: Place) -> Iterator[Fault]:
    """A reduction is along another axis."""
    call, held = place.parent(node), node.value
    along = isinstance(call, cst.Call) and place.operation(call) in _ALONG and node is argument(call, "axis", 1)
    if along and isinstance(held, cst.Integer):
        axis = held.evaluated_value
        yield Fault(node, with_value(node, "1" if axis == 0 else str(axis - 1)))


@operator(cause="sum")
def accumulation_lost(node: cst.AugAssign | cst.Call, place: Place) -> Iterator[Fault]:
    """What is added to a sum replaces it: acc += x becomes acc = x, or a dot drops its accumulator."""
    if isinstance(node, cst.AugAssign):
        if isinstance(node.operator, cst.AddAssign) and place.kind(node.target) not in ("integer", "pointer"):
            yield Fault(node, f"{text(node.target)} = {text(node.value)}")
    elif place.operation(node) == "dot":
        into = argument(node, "acc", 2)
        if into is not None and dotted(into.value) != "None":
            yield Fault(node, called(node, (into,)))


@operator(wrappers=False, cause="range")
def maximum_zero(node: cst.Assign, place: Place) -> Iterator[Fault]:
    """The maximum that exponentials subtract is 0: correct in exact arithmetic, until one leaves the range."""
    target, held = node.targets[0].target, node.value
    subtracted = isinstance(target, cst.Name) and target.value in place.subtracted
    if subtracted and isinstance(held, cst.Call) and place.operation(held) in ("max", "maximum"):
        yield Fault(held, f"{qualified(held.func)[0]}.zeros_like({text(held)})")


@operator(wrappers=False)
def shift_dropped(node: cst.BinaryOperation, place: Place) -> Iterator[Fault]:
    """exp(x - m) becomes exp(x)."""
    if is_shift(node, place):
        yield Fault(node, text(node.left))


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
