"""A backend of Hypothesis that draws the integers of a list, so that a shrink starts from a case known to fail.

Backends are Hypothesis' documented interface for other generators.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn

from hypothesis.internal.conjecture.providers import AVAILABLE_PROVIDERS, PrimitiveProvider

BACKEND = "gradoracle"
_scripts: list[Iterator[int]] = []


@contextmanager
def drawing(numbers: Sequence[int]) -> Iterator[str]:
    """Yield the name of a backend, for ``settings(backend=...)``, that draws these numbers in turn, then the least."""
    _scripts.append(iter(numbers))
    try:
        yield BACKEND
    finally:
        _scripts.pop()


class Provider(PrimitiveProvider):
    """Draws bounded integers from the current script, and nothing else."""

    lifetime = "test_function"

    def draw_integer(self, min_value: int | None = None, max_value: int | None = None, **hints: Any) -> int:
        """The next number of the script, brought within both bounds."""
        if min_value is None or max_value is None:
            self._refuse("an integer without bounds")
        return min(max(next(_scripts[-1], min_value), min_value), max_value)

    def draw_boolean(self, *arguments: Any, **constraints: Any) -> bool:
        """Refused."""
        self._refuse("a boolean")

    def draw_float(self, *arguments: Any, **constraints: Any) -> float:
        """Refused."""
        self._refuse("a float")

    def draw_string(self, *arguments: Any, **constraints: Any) -> str:
        """Refused."""
        self._refuse("a string")

    def draw_bytes(self, *arguments: Any, **constraints: Any) -> bytes:
        """Refused."""
        self._refuse("bytes")

    def _refuse(self, what: str) -> NoReturn:
        raise NotImplementedError(f"{what} was drawn; expected bounded integers only")


AVAILABLE_PROVIDERS[BACKEND] = f"{__name__}.{Provider.__name__}"
