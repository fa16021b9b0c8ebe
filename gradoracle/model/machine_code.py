"""Machine code: numeric functions compiled by numba if it is installed, cached by the content of their folder.

numba's own cache lies next to the source file, so every checkout and worktree would compile anew; and it unpickles
whatever lies there. Here it is a file of the cache for each function and signature, sealed as ``model.cache`` says.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import os
import pickle
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from gradoracle.model import cache
from gradoracle.model.errors import tell, why
from gradoracle.model.files import write

_Function = TypeVar("_Function", bound=Callable[..., Any])
_Result = TypeVar("_Result")
_LOCATOR = f"{__name__}.ByContent"

_WORTH_A_THREAD = 1 << 20  # bytes of one piece of work
_IN_FLIGHT = 1 << 32  # bytes of all that run at once

HAS_NUMBA = importlib.util.find_spec("numba") is not None and os.environ.get("NUMBA_DISABLE_JIT", "0") in ("", "0")
"""Whether numba compiles: it is installed, and not switched off by its own variable ``NUMBA_DISABLE_JIT``."""


def target() -> str:
    """The processor that functions are compiled for, in LLVM's words; empty without numba."""
    if not HAS_NUMBA:
        return ""
    from llvmlite import binding

    return os.environ.get("NUMBA_CPU_NAME") or str(binding.get_host_cpu_name())


def jitted(function: _Function) -> _Function:
    """The function, compiled and cached on disk; without numba as it is, some hundred times slower."""
    if not HAS_NUMBA:
        return function
    import numba

    compiler = functools.partial(numba.njit, nogil=True, error_model="numpy")
    return _compiled(compiler, function, lambda each: each._cache)  # type: ignore[no-any-return]


def vectorized(function: Callable[..., Any], called: tuple[Callable[..., Any], ...]) -> Callable[..., Any]:
    """A function of a float64 for each element of an array, compiled and cached; without numba as it is.

    Args:
        function: written for numbers and for arrays.
        called: the functions that it and they call. `choose(condition, yes, no)` among them may be written for arrays.
    """
    if not HAS_NUMBA:
        return function
    import numba
    from numba.extending import overload, register_jitable

    for each in called:
        if each.__name__ == "choose":
            overload(each)(lambda condition, yes, no: lambda condition, yes, no: yes if condition else no)
        else:
            register_jitable(each)
    made = _compiled(numba.vectorize, function, lambda each: each._dispatcher.cache)
    made.add("float64(float64)")
    return made  # type: ignore[no-any-return]


def side_by_side(work: Callable[[int], _Result], count: int, size: int) -> list[_Result]:
    """``work(0)`` to ``work(count - 1)``, each in a thread of its own if that is worth it: compiled code holds no lock.

    Args:
        work: of one number; independent of the others, so that order and threads change no bit.
        count: of the results.
        size: bytes that one of them takes. Of small ones, and without numba, one follows the other.
    """
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1
    threads = min(count, allowed, _IN_FLIGHT // max(size, 1))
    if not HAS_NUMBA or size < _WORTH_A_THREAD or threads < 2:
        return [work(number) for number in range(count)]
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(work, range(count)))


def compile_to_fma(function: Callable[..., Any]) -> None:
    """Let ``function(x, y, z)`` of floats of one dtype be x * y + z rounded once wherever compiled code calls it.

    A processor without such an instruction calls the C library's, with the same bits.
    """
    import numba
    from numba.extending import intrinsic, overload

    @intrinsic  # type: ignore[misc]
    def fma(typing: Any, x: Any, y: Any, z: Any) -> Any:
        def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return builder.fma(*arguments)

        return (x(x, y, z), code) if isinstance(x, numba.types.Float) and x == y == z else None

    overload(function)(lambda x, y, z: lambda x, y, z: fma(x, y, z))  # type: ignore[call-arg]


def _compiled(compiler: Any, function: Callable[..., Any], cache_of: Callable[[Any], Any]) -> Any:
    """What a decorator of numba makes of a function, with machine code kept on disk where that is possible."""
    import numba

    root = cache.folder()
    if root is None:
        return compiler()(function)
    before = numba.config.CACHE_LOCATOR_CLASSES  # type: ignore[attr-defined]
    try:
        key = cache.key_of(root)
        numba.config.CACHE_LOCATOR_CLASSES = _LOCATOR  # type: ignore[attr-defined]
        made = compiler(cache=True)(function)
    except (OSError, RuntimeError) as error:  # RuntimeError of numba: the folder cannot be made
        what = why(error) if isinstance(error, OSError) else str(error)
        _report(f"machine code is not kept, and compiled in every process: {what}")
        return compiler()(function)
    finally:
        numba.config.CACHE_LOCATOR_CLASSES = before  # type: ignore[attr-defined]
    kept = cache_of(made)
    kept._cache_file = _Kept(Path(kept.cache_path), f"{function.__module__}.{function.__qualname__}", key)
    return made


class _Kept:
    """What numba keeps of one function, in place of its own files of pickles: a sealed pickle for each signature."""

    def __init__(self, folder: Path, name: str, key: bytes) -> None:
        self._folder, self._name, self._key = folder, name, key

    def save(self, key: Any, data: Any) -> None:
        """Keep the code of a signature."""
        from numba.core.serialize import dumps

        file = self._file(key)
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            write(file, cache.sealed(self._key, file.name, dumps(data)))
        except OSError as error:
            _report(f"the cache {self._folder} cannot be written, so machine code is not kept: {why(error)}")

    def load(self, key: Any) -> Any:
        """The code of a signature; None where there is none that was kept here."""
        file = self._file(key)
        try:
            content = cache.unsealed(self._key, file.name, file.read_bytes())
        except FileNotFoundError:
            return None
        except OSError as error:
            _report(f"the cache {file} cannot be read ({why(error)}), and functions are compiled anew")
            return None
        if content is None:
            _report(f"the cache {file} is not what was written here, and functions are compiled anew")
            return None
        return pickle.loads(content)

    def flush(self) -> None:
        """Keep nothing from before; each content has a folder of its own."""

    def _file(self, key: Any) -> Path:
        import numba

        text = repr((numba.__version__, self._name, key))
        return self._folder / f"{self._name.rpartition('.')[2]}-{hashlib.sha256(text.encode()).hexdigest()[:32]}"


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
