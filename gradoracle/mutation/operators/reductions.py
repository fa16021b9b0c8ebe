"""Mistakes in sums and maxima: their axis, their kind, what they add up; and in the maximum that is subtracted."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from gradoracle.mutation.operators.arithmetic import is_shift
from gradoracle.mutation.operators.operator import Fault, operator
from gradoracle.mutation.operators.place import Place
from gradoracle.mutation.operators.syntax import argument, called, dotted, qualified, renamed, text, with_value

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
