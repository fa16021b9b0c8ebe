"""A mark for tests whose kernels are interpreted."""

from __future__ import annotations

import pytest

from gradoracle.host import interpreter

NEEDED = pytest.mark.skipif(
    interpreter.explain_unavailable() is not None, reason=str(interpreter.explain_unavailable())
)
