"""Definition slice: of a file, what a definition needs, executed without the rest.

Where a definition and a kernel are in one file, a judge executes its own part alone: the statements that bind the
definition's name, those that bind what these use, and so on. What only runs when a file is imported, such as an
assignment to an attribute of a package, is left out.
"""

from __future__ import annotations

import ast
import builtins
import hashlib
import linecache
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from gradoracle.model.errors import TargetError, named

_BLOCKS = (ast.If, ast.Try, ast.With, ast.For, ast.While, ast.AsyncFor, ast.AsyncWith)


def sliced(file: Path, names: Sequence[str], package: str = "") -> ModuleType:
    """A module with some names of a file, and what they need.

    Args:
        file: a Python file.
        names: top-level names that it binds.
        package: the package that its relative imports start from; "" for none.

    Raises:
        TargetError: it has no such names, or what is needed cannot be executed; one sentence.
    """
    try:
        source = file.read_text(encoding="utf-8")
        tree = ast.parse(source, str(file))
    except (OSError, ValueError, SyntaxError) as error:
        raise TargetError(f"{file} cannot be read: {named(error)}") from None
    kept = needed(tree, names)
    own = hashlib.sha256(f"{file}|{package}|{sorted(names)}|{source}".encode()).hexdigest()[:12]
    name = f"{package}." if package else ""
    name += f"gradoracle_definition_{file.stem}_{own}"
    if name in sys.modules:
        return sys.modules[name]
    module = ModuleType(name)
    module.__file__ = str(file)
    module.__package__ = package
    sys.modules[name] = module
    linecache.checkcache(str(file))
    try:
        with folder_first(str(file.parent)):
            exec(compile(ast.Module(kept, []), str(file), "exec"), vars(module))
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        line = _line(error, str(file))
        raise TargetError(
            f"{file.name}{f', line {line}' if line else ''}: the definition {names[0]} cannot be read without the "
            f"kernel: {named(error)}; expected a definition that needs nothing of it, or one in a file of its own"
        ) from None
    return module


def needed(tree: ast.Module, names: Sequence[str]) -> list[ast.stmt]:
    """The statements of a module that bind some names and what these need, in order.

    Raises:
        TargetError: a name is bound nowhere.
    """
    binding: dict[str, list[int]] = {}
    for place, statement in enumerate(tree.body):
        for name in set(_bound(statement)):
            binding.setdefault(name, []).append(place)
    if missing := [name for name in names if name not in binding]:
        raise TargetError(f"there is no definition {', '.join(missing)}")
    stars = [place for place, each in enumerate(tree.body) if _is_star(each)]
    imported = {n for each in tree.body if isinstance(each, (ast.Import, ast.ImportFrom)) for n in _bound(each)}
    wanted, kept, waiting = set(names), set[int](), list(names)
    while waiting:
        name = waiting.pop()
        places = binding.get(name)
        if places is None:
            places = [] if hasattr(builtins, name) else stars
        changing = [] if name in imported else [p for p, each in enumerate(tree.body) if name in _changed(each)]
        for place in {*places, *changing} - kept:
            kept.add(place)
            for used in _used(tree.body[place]) - wanted:
                wanted.add(used)
                waiting.append(used)
    future = (p for p, each in enumerate(tree.body) if isinstance(each, ast.ImportFrom) and each.module == "__future__")
    return [_narrowed(tree.body[place], wanted) for place in sorted({*kept, *future})]


def _bound(statement: ast.stmt) -> Iterator[str]:
    """The top-level names that a statement binds."""
    if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        yield statement.name
    elif isinstance(statement, (ast.Import, ast.ImportFrom)):
        for alias in statement.names:
            yield alias.asname or alias.name.partition(".")[0]
    elif isinstance(statement, _BLOCKS):
        for node in ast.iter_child_nodes(statement):
            if isinstance(node, ast.stmt):
                yield from _bound(node)
            elif isinstance(node, ast.ExceptHandler):
                for each in node.body:
                    yield from _bound(each)
            elif isinstance(node, (ast.withitem, ast.expr)):
                yield from _stored(node)
    else:
        yield from _stored(statement)


def _stored(node: ast.AST) -> Iterator[str]:
    return (each.id for each in ast.walk(node) if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store))


def _changed(statement: ast.stmt) -> set[str]:
    """The names whose elements or attributes a statement assigns, or of which it calls a method."""
    targets: list[Any] = []
    if isinstance(statement, ast.Assign):
        targets = statement.targets
    elif isinstance(statement, (ast.AugAssign, ast.AnnAssign)):
        targets = [statement.target]
    elif isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        targets = [statement.value.func]
    found = set()
    for target in targets:
        while isinstance(target, (ast.Subscript, ast.Attribute)):
            target = target.value
            if isinstance(target, ast.Name):
                found.add(target.id)
    return found


def _used(statement: ast.stmt) -> set[str]:
    """The names that a statement reads, at any depth; those in strings too, as annotations have them."""
    found = {each.id for each in ast.walk(statement) if isinstance(each, ast.Name)}
    for each in ast.walk(statement):
        note = getattr(each, "annotation", None) or getattr(each, "returns", None)
        if isinstance(note, ast.Constant):
            found |= _in_text(note.value)
    return found


def _in_text(text: Any) -> set[str]:
    try:
        return {each.id for each in ast.walk(ast.parse(str(text), mode="eval")) if isinstance(each, ast.Name)}
    except SyntaxError:
        return set()


def _is_star(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.ImportFrom) and any(alias.name == "*" for alias in statement.names)


def _narrowed(statement: ast.stmt, wanted: set[str]) -> ast.stmt:
    """A statement; an import of several names has those that are wanted."""
    if not isinstance(statement, (ast.Import, ast.ImportFrom)) or _is_star(statement):
        return statement
    if isinstance(statement, ast.ImportFrom) and statement.module == "__future__":
        return statement
    names = [each for each in statement.names if (each.asname or each.name.partition(".")[0]) in wanted]
    made: ast.stmt = (
        ast.Import(names)
        if isinstance(statement, ast.Import)
        else ast.ImportFrom(statement.module, names, statement.level)
    )
    return ast.copy_location(made, statement)


def _line(error: BaseException, file: str) -> int | None:
    """The line of a file at which an error arose."""
    if isinstance(error, SyntaxError):
        return error.lineno
    trace, line = error.__traceback__, None
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == file:
            line = trace.tb_lineno
        trace = trace.tb_next
    return line


@contextmanager
def folder_first(folder: str) -> Iterator[None]:
    """Put a folder first on the path, as ``python file.py`` does; afterwards last, for imports inside functions."""
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        sys.path.remove(folder)
        if folder not in sys.path:
            sys.path.append(folder)


def current_folder_last() -> None:
    """Find modules of the current folder too, last: a folder of the project must not hide an installed package."""
    here = str(Path.cwd())
    if here not in sys.path and "" not in sys.path:
        sys.path.append(here)
