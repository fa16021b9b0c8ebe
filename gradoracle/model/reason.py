"""Reason: why a property was not decided on a case, or how the kernel ended on it: a kind, and what there is to say."""

from __future__ import annotations

from enum import Enum


class Reason(str, Enum):
    """Kinds of reasons; the sentence beside one holds its values, such as what a kernel raised.

    REFUSED: the kernel raised in its forward: it does not take the case.
    NO_DERIVATIVE: the kernel has no such derivative, which it need not have.
    RAISED: a derivative that the kernel has raised.
    MEMORY: the machine, the device or the process has not enough of it.
    OUTSIDE: the definition raises on the case, which may lie outside of what it is meant for.
    UNDEFINED: the definition gives what its annotations do not say, or cannot be traced.
    UNREAD: no reading of the definition is to be had.
    BUDGET: rounding explains too much for anything to be said.
    BARRED: the call was not made again, since it had ended its process too often.
    LACKING: what the property needs is not there: a GPU, a second configuration, a step.
    HUNG: a call exceeded its time limit.
    ENDED: a call ended its process.
    LOST: a call lost the device.
    ERROR: gradoracle itself failed.
    """

    REFUSED = "refused"
    NO_DERIVATIVE = "no derivative"
    RAISED = "raised"
    MEMORY = "memory"
    OUTSIDE = "outside"
    UNDEFINED = "undefined"
    UNREAD = "unread"
    BUDGET = "budget"
    BARRED = "barred"
    LACKING = "lacking"
    HUNG = "hung"
    ENDED = "ended"
    LOST = "lost"
    ERROR = "error"
