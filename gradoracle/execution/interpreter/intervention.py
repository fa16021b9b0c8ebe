"""Interventions: what is done to values and numbers at single statements of a widened kernel and its wrapper.

A statement is a line of the user's source: of a kernel, of a jitted function that it calls, or of the wrapper's
PyTorch. While no intervention is current, finding it costs nothing: the builder's methods are replaced only as long as
one is (``builder_results.intervening``).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any, TypeVar

import torch
import triton

from gradoracle.execution.interpreter.wrong_accesses import SourceLine

T = TypeVar("T")
Line = tuple[str, int]

_HERE = os.path.dirname(os.path.abspath(__file__))
_EXECUTION = os.path.dirname(_HERE)
_ENGINE = os.path.dirname(_EXECUTION) + os.sep
_SUBJECTS = tuple(os.path.join(_ENGINE, name, "") for name in ("kernels", "properties"))  # not part of the engine
_PASSED = (
    _HERE + os.sep,
    os.path.join(_EXECUTION, "widened.py"),
    *(os.path.dirname(os.path.abspath(module.__file__ or "")) + os.sep for module in (torch, triton)),
)
_PASSES, _ENDS, _COUNTS = range(3)
_kinds: dict[str, int] = {}  # of files, by name


class Intervention:
    """What is done at statements; this one does nothing."""

    def value(self, wide: T, narrow: Callable[[], T]) -> T:
        """The value that an operation gives: in float64, or rounded to the dtype that its type names."""
        return wide

    def number(self, value: float, argument: str = "") -> float:
        """A float that an expression of the source holds, or that is an argument of a launch."""
        return value

    def allocated(self, memory: Any, address: int, size: int, name: str) -> None:
        """The wrapper allocates ``size`` bytes at an address, for numbers of the dtype ``name``."""

    def written(self, address: int, wide: T, narrow: Callable[[str], T]) -> T:
        """What is written to memory that was allocated: in float64, or rounded to the dtype of that memory."""
        return wide

    def rounds_sums(self) -> bool:
        """Whether an atomic addition rounds each sum."""
        return False


current: Intervention | None = None


def statement() -> SourceLine | None:
    """The statement that computes now; None where the engine or PyTorch's own derivatives compute for themselves."""
    frame: Any = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        kind = _kinds.get(file)
        if kind is None:
            kind = _kinds[file] = _kind(file)
        if kind == _COUNTS:
            return SourceLine(file, frame.f_lineno, frame.f_code.co_name)
        if kind == _ENDS:
            return None
        frame = frame.f_back
    return None


def _kind(file: str) -> int:
    if file.startswith(_PASSED):
        return _PASSES
    return _ENDS if file.startswith(_ENGINE) and not file.startswith(_SUBJECTS) else _COUNTS
