"""Widened runs of a kernel under interventions, as many as may be spent."""

from __future__ import annotations

import math
import time

from gradoracle.check.evidence import Evidence
from gradoracle.check.widened import widened
from gradoracle.execution.interpreter.builder_results import intervening
from gradoracle.execution.interpreter.intervention import Intervention
from gradoracle.execution.kernel_runner import Tensors
from gradoracle.model.derivative import Derivative


class OutOfBudget(Exception):
    """No call or no time is left."""


class WidenedRuns:
    """A derivative of a kernel, widened, on the sample of some evidence.

    Args:
        evidence: as written.
        derivative: that is run.
        calls: of the kernel, at most; None: any number.
        seconds: that may pass; None: any.
    """

    def __init__(self, evidence: Evidence, derivative: Derivative, calls: int | None, seconds: float | None) -> None:
        self._wide, self._derivative = widened(evidence), derivative
        self._subject = self._wide.subject.labelled("at one statement")
        self._calls = math.inf if calls is None else calls
        self._until = math.inf if seconds is None else time.monotonic() + seconds

    def tensors(self, intervention: Intervention) -> Tensors:
        """The tensors of the derivative by name, float64.

        Raises:
            OutOfBudget: no call or no time is left.
            Unavailable, Refused, Crashed, Wrong: as the kernel's runner does.
        """
        if self._calls < 1 or time.monotonic() >= self._until:
            raise OutOfBudget
        self._calls -= 1
        with intervening(intervention):
            found, _ = getattr(self._subject, self._derivative.value)(self._wide.sample, self._wide.blocks)
        return {name: found[name] for name in self._wide.names(self._derivative) if name in found}
