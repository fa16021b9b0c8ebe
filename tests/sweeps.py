"""Wide sweeps: of many combinations a few are run by default, the others are marked as slow (`make test-all`)."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Any

import pytest


def slow(*values: Any, marks: Sequence[pytest.MarkDecorator] = (), **options: Any) -> Any:
    """A case of ``pytest.mark.parametrize`` that is run where slow tests are."""
    return pytest.param(*values, marks=[pytest.mark.slow, *marks], **options)


def covering(cases: Iterable[Sequence[Any]], together: int = 2) -> list[Any]:
    """All cases for ``pytest.mark.parametrize``, in their order; those are slow which combine nothing anew.

    By default as few are run as a greedy choice needs for every combination of the values of ``together`` of their
    parts: with 1 every value, with 2 every pair.
    """
    every = list(cases)
    parts = [_combinations(case, together) for case in every]
    chosen: set[int] = set()
    left = set().union(*parts)
    while left:
        best = max(range(len(every)), key=lambda i: len(parts[i] & left))
        chosen.add(best)
        left -= parts[best]
    return [pytest.param(*case) if i in chosen else slow(*case) for i, case in enumerate(every)]


def _combinations(case: Sequence[Any], together: int) -> set[tuple[Any, ...]]:
    named = [(i, repr(value)) for i, value in enumerate(case)]
    return set(itertools.combinations(named, together))
