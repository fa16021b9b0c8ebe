"""The record that launches are entered in now, where there is one: what every launch and access asks for first.

And who watches launches: told the function, its arguments by name, which of them are constants, and the options; and
where the code that is called is noted, by a profiler that the interpreter is spared.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from types import CodeType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .record import Record

record: Record | None = None
watch: Callable[[Callable[..., Any], Mapping[str, Any], Collection[str], Mapping[str, Any]], None] | None = None
called: set[CodeType] | None = None


@contextmanager
def unwatched(launched: CodeType) -> Iterator[None]:
    """Note a kernel that is launched where calls are noted, and nothing that its interpreter calls."""
    if called is None:
        yield
        return
    called.add(launched)
    profiler = sys.getprofile()
    sys.setprofile(None)
    try:
        yield
    finally:
        sys.setprofile(profiler)
