"""Interprets the kernels where there is no GPU, before any of these tests imports one, whichever are run."""

from __future__ import annotations

import pytest
import torch

from gradoracle.host import interpreter

if not torch.cuda.is_available() and interpreter.explain_unavailable() is None:
    interpreter.activate()


@pytest.fixture
def unshrunk(monkeypatch: pytest.MonkeyPatch) -> None:
    """For failures that are expected: their cases are not shrunk."""
    monkeypatch.setattr("gradoracle.check.minimise.SHRINK_SECONDS_IN_ALL", 0.0)
