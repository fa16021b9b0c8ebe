"""The record that launches are entered in now, where there is one: what every launch and access asks for first.

And who watches launches: told the function, its arguments by name, which of them are constants, and the options; and
where the code of launched kernels is noted, whose profiler the interpreter is spared.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from types import CodeType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .record import Record

record: Record | None = None
watch: Callable[[Callable[..., Any], Mapping[str, Any], Collection[str], Mapping[str, Any]], None] | None = None
called: set[CodeType] | None = None
