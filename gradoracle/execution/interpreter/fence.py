"""A fence around the storages of a launch: what is stored outside of them is noted with its line, and not performed.

A record (record.py) knows who touched which element, which takes time, and accepts what lies in a tensor alone. A fence
only keeps a wrong kernel from the memory of this process, in calls whose accesses are not recorded: of each access it
asks whether it lies in the storage of the tensor whose pointer it came from. A load from elsewhere gives 0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from gradoracle.execution.interpreter import launch_hooks
from gradoracle.execution.interpreter.footprint import View
from gradoracle.execution.interpreter.record import AccessRecord
from gradoracle.execution.interpreter.values import Array


class Fence(AccessRecord):
    """The accesses outside of every storage while it is the current record."""

    def __init__(self) -> None:
        super().__init__(lambda tensor: None)

    def _tracked(self, fn: Callable[..., Any]) -> frozenset[str] | None:
        return frozenset()

    def atomic(self, addresses: Array, on: Array | None, width: int) -> tuple[Array, Array | None]:
        """An atomic operation, as ``store``."""
        return self._access(addresses, on, width, self._write)

    def loaded(self, addresses: Array, bits: Array) -> None:
        """What was loaded does not matter."""

    def _outside(self, view: View, offsets: Array, lowest: int, highest: int, width: int) -> Array | None:
        return view.beyond_storage(offsets, lowest, highest, width)


@contextmanager
def fencing() -> Iterator[Fence | None]:
    """Fence every launch, for the length of a `with`; None where launches are recorded already."""
    if launch_hooks.record is not None:
        yield None
        return
    launch_hooks.record = fence = Fence()
    try:
        yield fence
    finally:
        launch_hooks.record = None
        fence.close()
