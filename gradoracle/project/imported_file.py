"""Imported file: a user's file as a module, anew for each version of the file, and why it cannot be imported."""

from __future__ import annotations

import hashlib
import importlib.util
import linecache
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType

from gradoracle.model.errors import TargetError, named


class _Fresh(SourceFileLoader):
    """Compiles the source each time: .pyc files are matched by second and size, too coarse for an edited kernel."""

    def get_code(self, fullname: str) -> CodeType:
        source = self.get_data(self.path)
        linecache.checkcache(self.path)  # Triton reads kernels' sources through this cache
        code: CodeType = self.source_to_code(source, self.path)
        return code


def import_file(path: Path, shown: str, expected: str) -> ModuleType:
    """Import a user's file under a private name, once for each version of the file.

    Raises:
        TargetError: it cannot be imported; names the line.
    """
    resolved = path.resolve()
    stat = resolved.stat()
    state = f"{resolved}|{stat.st_mtime_ns}|{stat.st_size}"
    name = f"gradoracle_target_{path.stem}_{hashlib.sha256(state.encode()).hexdigest()[:12]}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, resolved, loader=_Fresh(name, str(resolved)))
    if spec is None or spec.loader is None:
        raise TargetError(f"{shown} is not a Python file; {expected}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        with _folder_first(str(resolved.parent)):
            spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise TargetError(import_failure(error, shown, str(resolved))) from None
    return module


@contextmanager
def _folder_first(folder: str) -> Iterator[None]:
    """Put a folder first on the path, as ``python file.py`` does; afterwards last, for imports inside functions."""
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        sys.path.remove(folder)
        if folder not in sys.path:
            sys.path.append(folder)


def import_failure(error: BaseException, shown: str, path: str | None) -> str:
    """Where and why an import failed, in one line: the innermost frame of the user's own file, and the exception."""
    line: int | None = None
    if isinstance(error, SyntaxError) and error.filename is not None and path in (None, error.filename):
        line = error.lineno
    if line is None and path is not None:
        frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == path]
        line = frames[-1].lineno if frames else None
    return f"{shown}{f', line {line}' if line else ''}: cannot be imported: {reason(error)}"


def reason(error: BaseException) -> str:
    """An exception in one line; of a syntax error without its place."""
    return f"{type(error).__name__}: {error.msg}" if isinstance(error, SyntaxError) else named(error)
