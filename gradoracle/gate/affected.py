"""Affected: the functions of the base that a change touches, and the cases on which one of them ran.

It says what to look at first and never what to leave out: what a program makes up while it runs is not seen.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gradoracle.gate.standing import Standing


@dataclass(frozen=True)
class _Function:
    """One function of a file.

    Attributes:
        name: with the class around it.
        lines: of its first decorator, or else its ``def``, and of its ``def``.
        text: its syntax, the same for other comments and layout.
        uses: all names that stand in it.
        is_jitted: whether it has a decorator that is called so.
    """

    name: str
    lines: tuple[int, int]
    text: str
    uses: frozenset[str]
    is_jitted: bool


def affected(base: Standing, files: Sequence[str], there: Path, here: Path) -> list[str]:
    """The base's cases, in their order, on which a function ran that the change touches.

    Args:
        base: with what was called on each case.
        files: those that differ, from the roots on.
        there, here: the roots of the base's tree and of the change's.
    """
    before = {file: _functions(_text(there / file)) for file in base.files if file.endswith(".py")}
    found = touched(before, {file: _functions(_text(here / file)) for file in files}, files, there, here)
    places = {
        f"{file}:{line}"
        for file, functions in before.items()
        for each in functions.values()
        if (file, each.name) in found
        for line in each.lines
    }
    return [line for line, case in base.cases.items() if not places.isdisjoint(case.called)]


_Functions = Mapping[str, _Function]


def touched(
    before: Mapping[str, _Functions], after: Mapping[str, _Functions], files: Sequence[str], there: Path, here: Path
) -> set[tuple[str, str]]:
    """The base's functions, as (file, name), that differ or use what differs in their file.

    What interpreted kernels call was not noted, so that jitted functions count that use such a one, at any remove.
    """
    found: set[tuple[str, str]] = set()
    for file in files:
        others = _values(_text(there / file)), _values(_text(here / file))
        names = {name for name in others[0].keys() | others[1].keys() if others[0].get(name) != others[1].get(name)}
        for name, function in before.get(file, {}).items():
            own = after[file].get(name)
            if own is None or own.text != function.text or function.uses & names:
                found.add((file, name))
    jitted = {(file, each.name): each for file, own in before.items() for each in own.values() if each.is_jitted}
    while True:
        names = {name for file, name in found if (file, name) in jitted}
        more = {key for key, each in jitted.items() if key not in found and each.uses & names}
        if not more:
            return found
        found |= more


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, ValueError):
        return ""


def _parsed(text: str) -> ast.Module:
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError):
        return ast.Module([], [])


def _functions(text: str) -> dict[str, _Function]:
    """The functions of a file by name, those of its classes too; what is defined in a function is part of it."""
    return {each.name: each for each in _defined(_parsed(text), "")}


def _defined(holder: ast.AST, prefix: str) -> Iterator[_Function]:
    for node in ast.iter_child_nodes(holder):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            first = min([node.lineno, *(each.lineno for each in node.decorator_list)])
            uses = frozenset(_uses(node))
            is_jitted = any("jit" in _uses(each) for each in node.decorator_list)
            yield _Function(prefix + node.name, (first, node.lineno), ast.dump(node), uses, is_jitted)
        elif isinstance(node, ast.ClassDef):
            yield from _defined(node, f"{prefix}{node.name}.")
        elif isinstance(node, (ast.If, ast.Try, ast.With)):
            yield from _defined(node, prefix)


def _uses(node: ast.AST) -> set[str]:
    names = {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}
    return names | {each.attr for each in ast.walk(node) if isinstance(each, ast.Attribute)}


def _values(text: str) -> dict[str, str]:
    """What the statements of a file that define no function assign, by name."""
    found: dict[str, str] = {}
    for node in _parsed(text).body:
        if isinstance(node, (ast.Assign, ast.AnnAssign, ast.AugAssign)):
            stored = [each for each in ast.walk(node) if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)]
            found |= {each.id: found.get(each.id, "") + ast.dump(node) for each in stored}
    return found
