"""Machine code: functions of numbers compiled by numba where it is installed, kept in the cache by what is in a file.

numba itself keeps what it compiled beside a file, so that each checkout of it and each worktree would compile anew.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from gradoracle.project import cache

_Function = TypeVar("_Function", bound=Callable[..., Any])
_LOCATOR = f"{__name__}.ByContent"
_OTHERS = "UserProvidedCacheLocator,InTreeCacheLocator,UserWideCacheLocator"  # numba's own, where there is no cache

HAS_NUMBA = importlib.util.find_spec("numba") is not None


def jitted(function: _Function) -> _Function:
    """The function compiled, and kept on disk; as it is, some hundred times slower, where numba is missing."""
    if not HAS_NUMBA:
        return function
    import numba

    numba.config.CACHE_LOCATOR_CLASSES = f"{_LOCATOR},{_OTHERS}"  # type: ignore[attr-defined]
    compiled: Any = numba.njit(cache=True, nogil=True, error_model="numpy")(function)
    return compiled  # type: ignore[no-any-return]


def __getattr__(name: str) -> Any:
    """``ByContent``, which needs numba and is asked for by it."""
    if name != "ByContent":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return _locator()


@functools.cache
def _locator() -> Any:
    """A class that tells numba where it keeps what it compiled, of which file, and whether that is still its source."""
    from numba.core.caching import InTreeCacheLocator

    class ByContent(InTreeCacheLocator):
        """A folder of the cache for each content of a file."""

        def __init__(self, function: Callable[..., Any], file: str) -> None:
            super().__init__(function, file)
            root = cache.folder()
            self._stamp = hashlib.sha256(Path(file).read_bytes()).hexdigest()
            self._cache_path = "" if root is None else str(root / "numba" / self._stamp)

        def get_source_stamp(self) -> str:
            return self._stamp

    return ByContent
