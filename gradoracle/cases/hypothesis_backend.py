"""Provider: where the choices that Hypothesis makes come from.

Hypothesis' own generator mixes in constants found in whatever modules are loaded, and changes from version to version.
The two sources here depend on nothing: hashed choices make the fixed stream of cases, scripted ones start a shrink from
a case that is known to fail. They plug in as a backend, which Hypothesis documents for alternative generators.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn, Protocol

from hypothesis.internal.conjecture.providers import AVAILABLE_PROVIDERS, PrimitiveProvider

from gradoracle.model import hashing

BACKEND = "gradoracle"


class Source(Protocol):
    """What integers are drawn from."""

    def integer(self, low: int, high: int) -> int:
        """A number low .. high."""


class Hashed:
    """Uniform choices, hashed from a seed and a counter; ``count`` is how many were made."""

    def __init__(self, seed: int, name: str) -> None:
        self._key, self.count = hashing.key(seed, name), 0

    def integer(self, low: int, high: int) -> int:
        """A number low .. high, each as likely."""
        self.count += 1
        return low + hashing.mix(self._key + self.count * 0x9E3779B97F4A7C15) * (high - low + 1) // 2**64


class Scripted:
    """The choices of a list, in turn; the least once it is used up."""

    def __init__(self, choices: Sequence[int]) -> None:
        self._choices = iter(choices)

    def integer(self, low: int, high: int) -> int:
        """The next number of the list, brought into low .. high."""
        return min(max(next(self._choices, low), low), high)


_sources: list[Source] = []


@contextmanager
def drawing_from(source: Source) -> Iterator[str]:
    """Let tests with ``settings(backend=...)`` of the name that is yielded draw from a source."""
    _sources.append(source)
    try:
        yield BACKEND
    finally:
        _sources.pop()


class Provider(PrimitiveProvider):
    """The Hypothesis backend that draws integers and booleans from the current source, and nothing else."""

    lifetime = "test_function"

    def draw_integer(self, min_value: int | None = None, max_value: int | None = None, **hints: Any) -> int:
        """An integer within both bounds."""
        if min_value is None or max_value is None:
            self._refuse("an integer without bounds")
        return _sources[-1].integer(min_value, max_value)

    def draw_boolean(self, p: float = 0.5, **hints: Any) -> bool:
        """A boolean, True as often as ``p`` says."""
        return p > 0 and (p >= 1 or _sources[-1].integer(0, (1 << 32) - 1) >= (1 - p) * (1 << 32))

    def draw_float(self, **constraints: Any) -> float:
        """Refused: cases hold no drawn number."""
        self._refuse("a float")

    def draw_string(self, *arguments: Any, **constraints: Any) -> str:
        """Refused: cases hold no drawn text."""
        self._refuse("a string")

    def draw_bytes(self, *arguments: Any, **constraints: Any) -> bytes:
        """Refused: cases hold no drawn bytes."""
        self._refuse("bytes")

    def _refuse(self, what: str) -> NoReturn:
        raise NotImplementedError(f"the strategy of cases drew {what}; expected bounded integers and booleans only")


AVAILABLE_PROVIDERS[BACKEND] = f"{__name__}.{Provider.__name__}"
