"""Mistakes in where a loop over tiles begins and ends."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from gradoracle.mutation.operators.operator import Fault, operator
from gradoracle.mutation.operators.place import RANGES, Place
from gradoracle.mutation.operators.syntax import last_name, plus, text, tight


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
