"""Narrowing: a widened kernel that rounds at some of its statements, as it is written; and which statements round."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, TypeVar

from gradoracle.execution.interpreter.intervention import Intervention, statement
from gradoracle.execution.interpreter.wrong_accesses import SourceLine

T = TypeVar("T")


class Memory:
    """Memory that the wrapper allocated, kept alive so that nothing else gets its addresses."""

    def __init__(self, held: Any, address: int, size: int, name: str, place: SourceLine) -> None:
        self.held, self.first, self.last = held, address, address + size
        self.name, self.place = name, place


class _Following(Intervention):
    """Knows where memory was allocated."""

    def __init__(self) -> None:
        self._memories: list[Memory] = []

    def allocated(self, memory: Any, address: int, size: int, name: str) -> None:
        place = statement()
        if place is not None and size:
            self._memories.append(Memory(memory, address, size, name, place))

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
