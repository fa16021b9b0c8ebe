"""Triton's own builtins as its interpreter calls them, for tests of what replaces them; imported after ``activate``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from triton.runtime.interpreter import interpreter_semantic

from gradoracle.host.interpreter.launch import language_patch


@pytest.fixture(autouse=True)
def patched() -> Iterator[None]:
    """Have `triton.language` as it is within a launch."""
    with language_patch(), np.errstate(all="ignore"):
        yield


def bound(builtin: Any) -> Callable[..., Any]:
    """A builtin of Triton's as its interpreter calls it."""
    function = getattr(builtin, "__wrapped__", builtin)
    return lambda *args, **kwargs: function(*args, _semantic=interpreter_semantic, **kwargs)
