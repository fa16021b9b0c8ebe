"""Reason: the kind of reason why a property was not decided on a case, or how the kernel failed on it."""

from __future__ import annotations

from enum import Enum


class Reason(str, Enum):
    """Kinds of reasons; each comes with a sentence that has the details, such as what a kernel raised.

    REFUSED: the forward raised: the kernel does not support the case.
    NO_DERIVATIVE: the kernel lacks the derivative, which is optional.
    DETACHED: the outputs do not require grad, which is as it should be where those of no case do.
    RAISED: a derivative that the kernel has raised.
    ACCESS: a call would have written outside of its tensors.
    MEMORY: the machine, the device or the process ran out of memory.
    OUTSIDE: the definition raises on the case, which may lie outside of what it is meant for.
    UNDEFINED: the definition returns what its annotations do not say, or cannot be traced.
    UNREAD: no reading of the definition could be evaluated.
    BUDGET: the budget is too wide to decide anything.
    BARRED: the call was not repeated, since it had ended its process too often.
    LACKING: something that the property needs is missing: a GPU, a second configuration, a step.
    MALFORMED: a tensor that the property needs is missing or of another shape or dtype, which another one reports.
    NOT_WIDENED: the kernel does something that has no meaning in float64.
    HUNG: a call exceeded its time limit.
    ENDED: a call ended its process.
    LOST: a call lost the device.
    RANDOM: a random number that nobody knows decides it, as declared; or a law of random numbers is about others.
    ERROR: gradoracle itself failed.
    """

    REFUSED = "refused"
    NO_DERIVATIVE = "no derivative"
    DETACHED = "detached"
    RAISED = "raised"
    ACCESS = "access"
    MEMORY = "memory"
    OUTSIDE = "outside"
    UNDEFINED = "undefined"
    UNREAD = "unread"
    BUDGET = "budget"
    BARRED = "barred"
    LACKING = "lacking"
    MALFORMED = "malformed"
    NOT_WIDENED = "not widened"
    HUNG = "hung"
    ENDED = "ended"
    LOST = "lost"
    RANDOM = "random"
    ERROR = "error"
