"""Machine code: numeric functions compiled by numba if it is installed, cached by the content of their folder.

numba's own cache lies next to the source file, so every checkout and worktree would compile anew.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from gradoracle.model.errors import tell, why
from gradoracle.project import cache

_Function = TypeVar("_Function", bound=Callable[..., Any])
_LOCATOR = f"{__name__}.ByContent"
_OTHERS = "UserProvidedCacheLocator,InTreeCacheLocator,UserWideCacheLocator"  # numba's own, where there is no cache

HAS_NUMBA = importlib.util.find_spec("numba") is not None


def jitted(function: _Function) -> _Function:
    """The function, compiled and cached on disk; without numba as it is, some hundred times slower."""
    if not HAS_NUMBA:
        return function
    import numba

    numba.config.CACHE_LOCATOR_CLASSES = f"{_LOCATOR},{_OTHERS}"  # type: ignore[attr-defined]
    compiler: Any = functools.partial(numba.njit, nogil=True, error_model="numpy")
    try:
        compiled = compiler(cache=True)(function)
    except RuntimeError as error:  # there is no folder at all that can be written
        _report(f"machine code is not kept, and compiled in every process: {error}")
        return compiler()(function)  # type: ignore[no-any-return]
    _spare(compiled._cache)
    return compiled  # type: ignore[no-any-return]


def _spare(kept: Any) -> None:
    """Let a function whose machine code cannot be stored or read be compiled anew; that is reported once a process."""
    save, load = kept.save_overload, kept.load_overload

    def save_overload(signature: Any, data: Any) -> None:
        try:
            save(signature, data)
        except OSError as error:
            _report(f"the cache {kept.cache_path} cannot be written, so machine code is not kept: {why(error)}")

    def load_overload(signature: Any, context: Any) -> Any:
        try:
            return load(signature, context)
        except Exception as error:  # whatever unpickling half a file raises
            what = why(error) if isinstance(error, OSError) else "its content is not what was written"
            _report(f"the cache {kept.cache_path} is damaged ({what}), and functions are compiled anew")
            with contextlib.suppress(OSError):
                kept.flush()
            return None

    kept.save_overload, kept.load_overload = save_overload, load_overload


@functools.cache
def _report(text: str) -> None:
    tell(text)


def __getattr__(name: str) -> Any:
    """``ByContent``, which numba looks up here by name and which needs numba itself."""
    if name != "ByContent":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return _locator()


@functools.cache
def _digest(folder: Path) -> str:
    """Of the sources of a folder, read once a process."""
    return hashlib.sha256(b"".join(path.read_bytes() for path in sorted(folder.glob("*.py")))).hexdigest()


@functools.cache
def _locator() -> Any:
    """A class that gives numba the cache folder of a file and the stamp of its source."""
    from numba.core.caching import InTreeCacheLocator

    class ByContent(InTreeCacheLocator):
        """A folder of the cache for each content of a file's folder, where the functions that it calls may lie."""

        def __init__(self, function: Callable[..., Any], file: str) -> None:
            super().__init__(function, file)
            root = cache.folder()
            self._stamp = _digest(Path(file).parent)
            self._cache_path = "" if root is None else str(root / "numba" / self._stamp)

        def get_source_stamp(self) -> str:
            return self._stamp

    return ByContent
