"""Interventions: what is done to values and numbers at single statements of a widened kernel and its wrapper.

A statement is a line of the user's source: of a kernel, of a jitted function that it calls, or of the wrapper's
PyTorch. While no intervention is current, finding it costs nothing: the builder's methods are replaced only as long as
one is (``builder_results.intervening``).

- `Narrowed` rounds at some statements, as the kernel is written; `Noted` notes which statements round.
- `Numbers` lists the float numbers of the source; `Replaced` replaces one.
- `Overflowing` puts infinity where a value overflows as written.
- `Coarsened` rounds every result to fewer bits than float64 has.
"""

from __future__ import annotations

import importlib.util
import math
import os
import random
import sys
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from gradoracle.host.interpreter.rounding import nearest
from gradoracle.host.interpreter.values import Array
from gradoracle.model.call import Intervention, Kind, Site
from gradoracle.model.wrong_accesses import SourceLine, is_of_engine

T = TypeVar("T")

_HERE = os.path.dirname(os.path.abspath(__file__))
_PASSED = (
    _HERE + os.sep,
    os.path.join(os.path.dirname(_HERE), "widened.py"),
    *(
        os.path.dirname(os.path.abspath(spec.origin or "")) + os.sep
        for spec in map(importlib.util.find_spec, ("torch", "triton"))
        if spec is not None  # Triton may be absent
    ),
)
_PASSES, _ENDS, _COUNTS = range(3)
_kinds: dict[str, int] = {}  # of files, by name
_SPLITTABLE = 2.0**900  # numbers beyond it would overflow where they are split


class Intervening:
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


current: Intervening | None = None


@contextmanager
def intervening(does: Intervening) -> Iterator[None]:
    """Intervene in PyTorch's operators that run widened within; not to be nested.

    Raises:
        RuntimeError: an intervention is current already.
    """
    global current
    if current is not None:
        raise RuntimeError("an intervention is current already; expected one at a time")
    current = does
    try:
        yield
    finally:
        current = None


def offered(data: Array, name: str) -> Array:
    """A result in float64, or what the current intervention makes of it; ``name`` is Triton's, of its dtype."""
    assert current is not None
    return current.value(data, lambda: nearest(data, name))


def statement() -> SourceLine | None:
    """The statement that computes now; None where the engine or PyTorch's own derivatives compute for themselves."""
    frame: Any = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        kind = _kinds.get(file)
        if kind is None:
            kind = _kinds[file] = _kind(file)
        if kind == _COUNTS:
            return SourceLine.of(frame)
        if kind == _ENDS:
            return None
        frame = frame.f_back
    return None


def _kind(file: str) -> int:
    if file.startswith(_PASSED):
        return _PASSES
    return _ENDS if is_of_engine(file) else _COUNTS


class Memory(NamedTuple):
    """Memory that the wrapper allocated, held so that nothing else gets its addresses."""

    held: Any
    first: int
    last: int
    name: str
    place: SourceLine


class _Following(Intervening):
    """Knows where memory was allocated."""

    def __init__(self) -> None:
        self._memories: list[Memory] = []

    def allocated(self, memory: Any, address: int, size: int, name: str) -> None:
        place = statement()
        if place is not None and size:
            self._memories.append(Memory(memory, address, address + size, name, place))

    def memory(self, address: int) -> Memory | None:
        """The memory that an address lies in."""
        return next((each for each in self._memories if each.first <= address < each.last), None)


class Narrowed(_Following):
    """Rounds what some statements compute to the dtypes that the types of their values name.

    Args:
        places: the statements. One that allocates memory rounds whatever is written there.
    """

    def __init__(self, places: Collection[SourceLine]) -> None:
        super().__init__()
        self._places = frozenset(places)

    def value(self, wide: T, narrow: Callable[[], T]) -> T:
        """Rounded at these statements."""
        return narrow() if statement() in self._places else wide

    def written(self, address: int, wide: T, narrow: Callable[[str], T]) -> T:
        """Rounded in memory that these statements allocated."""
        memory = self.memory(address)
        return wide if memory is None or memory.place not in self._places else narrow(memory.name)

    def rounds_sums(self) -> bool:
        """At these statements."""
        return statement() in self._places


class Noted(_Following):
    """Rounds nothing, and notes where rounding would change a value.

    Attributes:
        places: these statements, in the order in which they first compute such a value.
    """

    def __init__(self) -> None:
        super().__init__()
        self._noted: dict[SourceLine, None] = {}

    @property
    def places(self) -> tuple[SourceLine, ...]:
        """The statements that round."""
        return tuple(self._noted)

    def value(self, wide: T, narrow: Callable[[], T]) -> T:
        """In float64."""
        place = statement()
        if place is not None and place not in self._noted and _differ(wide, narrow()):
            self._noted[place] = None
        return wide

    def written(self, address: int, wide: T, narrow: Callable[[str], T]) -> T:
        """In float64."""
        memory = self.memory(address)
        if memory is not None and memory.place not in self._noted and _differ(wide, narrow(memory.name)):
            self._noted[memory.place] = None
        return wide

    def rounds_sums(self) -> bool:
        """Never; the statement is noted."""
        place = statement()
        if place is not None:
            self._noted.setdefault(place)
        return False


def _differ(wide: Any, narrow: Any) -> bool:
    """Whether two arrays differ, NaN aside."""
    return bool(((wide != narrow) & (wide == wide)).any())


class Numbers(Intervening):
    """Changes nothing, and lists the numbers other than 0, infinities and NaN.

    Attributes:
        sites: the places of numbers, in the order of their first use.
    """

    def __init__(self) -> None:
        self._sites: dict[Site, None] = {}

    @property
    def sites(self) -> tuple[Site, ...]:
        """Where numbers enter."""
        return tuple(self._sites)

    def number(self, value: float, argument: str = "") -> float:
        """As it is."""
        if value and math.isfinite(value):
            place = statement()
            if place is not None:
                self._sites.setdefault(Site(place, argument, float(value)))
        return value


class Replaced(Intervening):
    """Replaces a number at some sites.

    Args:
        sites: all of one value.
        by: the other number.
    """

    def __init__(self, sites: Collection[Site], by: float) -> None:
        self._sites, self._by = frozenset(sites), by
        self._value = next(iter(self._sites)).value

    def number(self, value: float, argument: str = "") -> float:
        """Replaced at these sites."""
        if value != self._value:
            return value
        place = statement()
        return self._by if place is not None and Site(place, argument, self._value) in self._sites else value


class Coarsened(Intervening):
    """Rounds what every operation gives to ``bits`` bits, as a factor times it, divided by the factor.

    With a factor that is no power of two numbers are rounded that need few bits, too: where 1 + 1e-20 is 1, it errs.

    Args:
        bits: the bits of the significand.
        factors: numbers in (1/2, 1], one for each operation in turn. With one factor for all, equal numbers err alike
            wherever they are computed, and what is only moved is rounded once.
    """

    def __init__(self, bits: int, factors: Iterator[float]) -> None:
        self._splitter, self._factors = 2.0 ** (53 - bits) + 1, factors

    def value(self, wide: T, narrow: Callable[[], T]) -> T:
        """Rounded, if it is float64."""
        return self._rounded(wide)

    def _rounded(self, wide: Any) -> Any:
        array = isinstance(wide, np.ndarray)
        if wide.dtype != (np.float64 if array else torch.float64):
            return wide
        with np.errstate(invalid="ignore", over="ignore", under="ignore"):
            factor = next(self._factors)
            scaled = wide * factor
            split = scaled * self._splitter
            rounded = (split - (split - scaled)) / factor
            return (np if array else torch).where(abs(wide) < _SPLITTABLE, rounded, wide)


class Overflowing(Narrowed):
    """Rounds nothing, and puts infinity where rounding to the dtype that a type names makes it of a finite value.

    Attributes:
        overflowed: whether it did so anywhere.
    """

    def __init__(self) -> None:
        super().__init__(())
        self.overflowed = False

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
        self.overflowed = True
        return found


def made(asked: Intervention) -> Intervening:
    """What does what is asked."""
    if asked.kind is Kind.NOTE:
        return Noted()
    if asked.kind is Kind.NARROW:
        return Narrowed(asked.places)
    if asked.kind is Kind.OVERFLOW:
        return Overflowing()
    if asked.kind is Kind.NUMBER:
        return Numbers()
    if asked.kind is Kind.REPLACE:
        return Replaced(asked.sites, asked.by)
    return Coarsened(asked.bits, _factors(asked.run))


def _factors(run: int) -> Iterator[float]:
    """The factors of a run's roundings: in every other run one for all, else one for each operation."""
    source = random.Random(run)
    shared = 2.0 ** -source.random()
    while True:
        yield shared if run % 2 == 0 else 2.0 ** -source.random()
