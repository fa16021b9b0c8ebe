"""Assertions about kernels of any family."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest
import torch

from gradoracle.check.evidence import Evidence
from gradoracle.model.derivative import Derivative
from gradoracle.model.finding import Outcome


def assert_same_bits(found: Iterable[torch.Tensor], expected: Iterable[torch.Tensor]) -> None:
    """As many tensors, each with equal elements (NaN equals nothing)."""
    for a, b in zip(found, expected, strict=True):
        assert torch.equal(a, b)


def assert_within_budgets(found: Evidence, expected: set[str]) -> None:
    """Every derivative is within its budget, and the tensors of these names are among those that are judged."""
    names = set()
    for derivative in Derivative:
        for finding in found.compare(derivative):
            assert finding.outcome is not Outcome.VIOLATED, finding
            names.add(finding.tensor)
    assert names >= expected


def assert_refused(call: Callable[[], Any], words: Sequence[str]) -> None:
    """The call raises a ValueError: one sentence that begins with the first word, has all and says what is expected."""
    with pytest.raises(ValueError) as caught:
        call()
    message = str(caught.value)
    assert message.startswith(words[0]) and all(word in message for word in words), message
    assert "expected" in message and "\n" not in message
