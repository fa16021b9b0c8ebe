"""Faults in sums and maxima: their axis, their kind, what they add up; and in the maximum that is subtracted."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from gradoracle.mutation.operators.arithmetic import is_shift
from gradoracle.mutation.operators.operator import Fault, Operator
from gradoracle.mutation.operators.place import Place
from gradoracle.mutation.operators.syntax import argument, argument_text, called, dotted, text

_KINDS = {"sum": "max", "max": "min", "min": "max", "maximum": "minimum", "minimum": "maximum", "argmax": "argmin",
          "argmin": "argmax", "cumsum": "cumprod", "cumprod": "cumsum"}  # fmt: skip

_ALONG = ("sum", "max", "min", "argmax", "argmin", "cumsum")


def _kind(node: cst.Call, place: Place) -> Iterator[Fault]:
    name = place.operation(node)
    if name in _KINDS:
        yield Fault(node, called(node, function=f"{dotted(node.func).rpartition('.')[0]}.{_KINDS[name]}"))


def _axis(node: cst.Arg, place: Place) -> Iterator[Fault]:
    call = place.parent(node)
    if not isinstance(call, cst.Call) or place.operation(call) not in (
        "sum",
        "max",
        "min",
        "argmax",
        "argmin",
        "cumsum",
    ):
        return
    if node is argument(call, "axis", 1) and isinstance(node.value, cst.Integer):
        value = int(node.value.value)
        new = cst.Integer("1" if value == 0 else str(value - 1))
        yield Fault(node, argument_text(node.with_changes(value=new)))


def _lost(node: cst.AugAssign | cst.Assign | cst.Call, place: Place) -> Iterator[Fault]:
    if isinstance(node, cst.AugAssign):
        if isinstance(node.operator, cst.AddAssign) and place.kind(node.target) not in ("integer", "pointer"):
            yield Fault(node, f"{text(node.target)} = {text(node.value)}")
    elif isinstance(node, cst.Call) and place.operation(node) == "dot":
        into = argument(node, "acc", 2)
        if into is not None and dotted(into.value) != "None":
            yield Fault(node, called(node, (into,)))


def _maximum(node: cst.Assign, place: Place) -> Iterator[Fault]:
    """Yield a fault where a name is assigned a maximum that the function subtracts in an exponential."""
    target = node.targets[0].target
    if not isinstance(target, cst.Name) or not place.kernel:
        return
    held = node.value
    if isinstance(held, cst.Call) and place.operation(held) in ("max", "maximum") and target.value in place.subtracted:
        yield Fault(held, f"{dotted(held.func).rpartition('.')[0]}.zeros_like({text(held)})")


def _shift(node: cst.BinaryOperation, place: Place) -> Iterator[Fault]:
    if isinstance(node.operator, cst.Subtract) and is_shift(node, place):
        yield Fault(node, text(node.left))


OPERATORS = (
    Operator(
        "reduction kind",
        "A sum becomes a maximum, a maximum a minimum, and the reverse.",
        (cst.Call,),
        _kind,
        wrappers=False,
    ),
    Operator("reduction axis", "A reduction is along another axis.", (cst.Arg,), _axis, wrappers=False),
    Operator(
        "accumulation lost",
        "What is added to a sum is put in its place: acc += x becomes acc = x, a dot forgets its accumulator.",
        (cst.AugAssign, cst.Call),
        _lost,
        cause="sum",
    ),
    Operator(
        "maximum zero",
        "The maximum that exponentials subtract is 0: right in exact arithmetic, until one leaves the range.",
        (cst.Assign,),
        _maximum,
        wrappers=False,
        cause="range",
    ),
    Operator("shift dropped", "exp(x - m) becomes exp(x).", (cst.BinaryOperation,), _shift, wrappers=False),
)
