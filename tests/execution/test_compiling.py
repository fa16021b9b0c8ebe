"""Compilations of Triton are reported to the current run, and their time is not part of a call's limit."""

from __future__ import annotations

from typing import Any

import pytest
from triton.runtime.jit import JITFunction

from gradoracle.execution import compiling
from gradoracle.execution.compiling import Compiling


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """What Triton's own method is called with, by a stand-in."""
    found: list[tuple[Any, ...]] = []
    monkeypatch.setattr(JITFunction, compiling._METHOD, lambda *arguments: found.append(arguments))
    monkeypatch.setattr(compiling, "_watching", None)
    return found


def multiply() -> None:
    """Stands for a kernel."""


def test_a_compilation_is_a_phase_of_its_own_without_a_limit(compiled: list[tuple[Any, ...]]) -> None:
    phases: list[tuple[str | None, float | None]] = []
    own = Compiling()
    own.watch()
    own.begin("forward", 60.0, lambda name, limit: phases.append((name, limit)))
    getattr(JITFunction, compiling._METHOD)(multiply, 7)
    assert compiled == [(multiply, 7)] and own.seconds > 0.0
    assert phases == [("forward, compiling multiply", None), ("forward", 60.0)]
    own.end()
    getattr(JITFunction, compiling._METHOD)(multiply, 8)
    assert len(compiled) == len(phases) == 2


def test_of_many_runs_in_one_process_the_last_alone_is_told(compiled: list[tuple[Any, ...]]) -> None:
    several = [Compiling() for _ in range(2000)]  # each putting in its own would be too deep a stack
    for each in several:
        each.watch()
    getattr(JITFunction, compiling._METHOD)(multiply)
    assert compiled == [(multiply,)]
    assert several[-1].seconds > 0.0 and not any(each.seconds for each in several[:-1])
