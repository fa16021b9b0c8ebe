"""Sources: the modules of a target that are mutated, and which of their lines a case executes."""

from __future__ import annotations

import ast
import importlib
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType, FunctionType, ModuleType
from typing import Any

from gradoracle.model.errors import UsageError
from gradoracle.project.shipped_names import SHIPPED
from gradoracle.project.target import Target

Lines = Mapping[str, frozenset[int]]  # by file: the lines that were executed


@dataclass(frozen=True)
class Source:
    """One module whose code may be mutated.

    Attributes:
        module: the name of the loaded module.
        file: its path.
        shown: how it is printed: the module's name, or a user's file as given.
        text: its source.
        functions: those that are mutated, of a file that other kernels share; None: all.
    """

    module: str
    file: str
    shown: str
    text: str
    functions: frozenset[str] | None = None


def sources_of(target: Target, more: Sequence[str] = ()) -> list[Source]:
    """The modules of a target's kernels, as far as they are loaded.

    They are those that define a callable, all others in and below their folders, and of further files of the same
    package the jitted functions that these use, such as tiles that several families share: a mistake there is one of
    each kernel. Other code that kernels share (checks of arguments, launching) is not mutated unless ``more`` names it.

    Args:
        target: resolved, its modules loaded.
        more: names of further modules, imported if necessary.

    Raises:
        UsageError: a callable that no file defines, or a module that cannot be imported.
    """
    found: dict[str, Source] = {}
    for kernel in target.kernels:
        for call in (kernel.call, kernel.vjp, kernel.jvp, kernel.hvp):
            if call is not None:
                found |= {each.module: each for each in _beside(_module_of(call, kernel.name), target)}
    for name, functions in _jitted_elsewhere([sys.modules[name] for name in found]).items():
        if name not in found:
            found[name] = replace(_source(sys.modules[name], target), functions=frozenset(functions))
    for name in more:
        try:
            module = importlib.import_module(name)
        except ImportError as error:
            raise UsageError(f"--source {name}: cannot be imported: {error}") from None
        found[name] = _source(module, target)
    return [found[name] for name in sorted(found)]


def _module_of(call: Any, kernel: str) -> ModuleType:
    """The module that defines a callable."""
    call = getattr(call, "func", call)  # of a partial
    module = sys.modules.get(getattr(call, "__module__", None) or "")
    if module is None or not getattr(module, "__file__", None):
        raise UsageError(f"the source of {kernel} is not in a file; expected a kernel written in Python")
    return module


def _beside(module: ModuleType, target: Target) -> Iterator[Source]:
    """A module and the loaded ones in or below its folder, without gradoracle's own properties."""
    yield _source(module, target)
    folder = Path(str(module.__file__)).resolve().parent
    for name, other in list(sys.modules.items()):
        file = getattr(other, "__file__", None)
        if other is module or not file or not file.endswith(".py") or name.startswith(SHIPPED):
            continue
        own = Path(file)
        if not own.is_absolute() or not own.is_file():  # torch.ops calls itself _ops.py
            continue
        own = own.resolve()
        if own.is_relative_to(folder) and "site-packages" not in own.relative_to(folder).parts:
            yield _source(other, target)


def innermost(jitted: Any) -> Any:
    """A jitted function without its wrappers (autotuner, heuristics); anything else as it is."""
    while hasattr(jitted, "fn") and hasattr(jitted.fn, "fn"):
        jitted = jitted.fn
    return jitted


def _jitted_elsewhere(modules: Sequence[ModuleType]) -> dict[str, set[str]]:
    """The jitted functions of the same package that modules import, and those that these call, by their module."""
    package = modules[0].__name__.partition(".")[0] if modules else ""
    found: dict[str, set[str]] = {}
    waiting = [value for module in modules for value in vars(module).values()]
    while waiting:
        function = getattr(innermost(waiting.pop()), "fn", None)
        if not isinstance(function, FunctionType) or function.__module__.partition(".")[0] != package:
            continue
        names = found.setdefault(function.__module__, set())
        if function.__name__ not in names:
            names.add(function.__name__)
            waiting += [function.__globals__.get(name) for name in function.__code__.co_names]
    return found


def _source(module: ModuleType, target: Target) -> Source:
    file = str(module.__file__)
    own = target.source is not None and Path(file).resolve() == target.source.resolve()
    text = Path(file).read_text(encoding="utf-8")
    return Source(module.__name__, file, str(target.source) if own else module.__name__, text)


@contextmanager
def executed(files: Sequence[str]) -> Iterator[dict[str, set[int]]]:
    """Record which lines of these files this thread, and those that it starts, execute."""
    lines: dict[str, set[int]] = {file: set() for file in files}

    def local(frame: FrameType, event: str, argument: Any) -> Any:
        if event == "line":
            lines[frame.f_code.co_filename].add(frame.f_lineno)
        return local

    def called(frame: FrameType, event: str, argument: Any) -> Any:
        return local if frame.f_code.co_filename in lines else None

    before = sys.gettrace()
    sys.settrace(called)
    threading.settrace(called)
    try:
        yield lines
    finally:
        sys.settrace(before)
        threading.settrace(before)  # type: ignore[arg-type]


class Statements:
    """The statements of a source by line: a line in the middle of a statement runs when the statement does."""

    def __init__(self, text: str) -> None:
        self._spans: list[range] = []
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.stmt) and not isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                body = getattr(node, "body", None)
                last = body[0].lineno - 1 if body else node.end_lineno or node.lineno
                self._spans.append(range(node.lineno, max(node.lineno, last) + 1))

    def lines(self, line: int) -> range:
        """The lines of the smallest statement (of a compound one, its head) that contains a line."""
        holding = [span for span in self._spans if line in span]
        return min(holding, key=len, default=range(line, line + 1))
