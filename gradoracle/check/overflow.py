"""Overflow: whether a value on the way that is too large for its dtype makes finite results wrong.

The square of 300 is infinite in float16, and a norm divided by it 0: finite, wrong, and right in float64. That is no
lost precision, which a wider budget would explain: the value is lost.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import suppress
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from gradoracle.check.evidence import Evidence
from gradoracle.check.widened import WidenedRuns
from gradoracle.execution.call_errors import Crashed, Refused, Unavailable, Wrong
from gradoracle.execution.interpreter.intervention import Narrowed
from gradoracle.model.derivative import Derivative
from gradoracle.model.finding import Outcome

T = TypeVar("T")


class Overflowing(Narrowed):
    """Rounds nothing, and puts infinity where rounding to the dtype that a type names makes it of a finite value.

    Attributes:
        happened: whether it did so anywhere.
    """

    def __init__(self) -> None:
        super().__init__(())
        self.happened = False

    def value(self, wide: T, narrow: Callable[[], T]) -> T:
        """In float64, or infinite."""
        return self._overflowed(wide, narrow())

    def written(self, address: int, wide: T, narrow: Callable[[str], T]) -> T:
        """In float64, or infinite in the dtype of that memory."""
        memory = self.memory(address)
        return wide if memory is None else self._overflowed(wide, narrow(memory.name))

    def rounds_sums(self) -> bool:
        """Never."""
        return False

    def _overflowed(self, wide: Any, narrow: Any) -> Any:
        if isinstance(wide, Tensor):
            lost = narrow.isinf() & wide.isfinite()
            found = torch.where(lost, narrow, wide)
        else:
            lost = np.isinf(narrow) & np.isfinite(wide)
            found = np.where(lost, narrow, wide)
        if not bool(lost.any()):
            return wide
        self.happened = True
        return found


def overflows(evidence: Evidence, derivative: Derivative, names: Collection[str]) -> bool:
    """Whether some tensors break the contract in float64 too once only what overflows as written is infinite.

    Args:
        evidence: evidence of a case on which the tensors break the contract as written and hold when widened.
        derivative: the derivative that the tensors belong to.
        names: the names of the tensors.
    """
    intervention = Overflowing()
    with suppress(Unavailable, Refused, Crashed, Wrong):
        found = evidence.compare(derivative, WidenedRuns(evidence, derivative, None, None).tensors(intervention))
        return intervention.happened and any(f.tensor in names and f.outcome is Outcome.VIOLATED for f in found)
    return False
