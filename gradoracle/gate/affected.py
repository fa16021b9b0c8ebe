"""Affected: the functions of the base that a change touches, and the cases on which one of them ran.

This decides which cases come first, never which are left out: code that is created at run time is not seen.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gradoracle.gate.answer import Answer
from gradoracle.project.import_closure import differing


@dataclass(frozen=True)
class _Function:
    """One function of a file.

    Attributes:
        name: with the class around it.
        lines: of its first decorator, else of its ``def``, and of its ``def``.
        text: its syntax, without comments and layout.
        uses: all names in it.
        is_jitted: whether a decorator of it contains the name ``jit``.
    """

    name: str
    lines: tuple[int, int]
    text: str
    uses: frozenset[str]
    is_jitted: bool


@dataclass(frozen=True)
class _Module:
    """One file: its functions, and the code that other statements assign to each name."""

    functions: Mapping[str, _Function]
    values: Mapping[str, str]


def affected(base: Answer, files: Sequence[str], there: Path, here: Path) -> list[str]:
    """The base's cases, in their order, on which a function ran that the change touches.

    Args:
        base: with the functions called on each case.
        files: those that differ, relative to the roots.
        there, here: the roots of the base's and of the change's tree.
    """
    names = {*files, *(file for file in base.judge.files if file.endswith(".py"))}
    before = {file: _module(there / file) for file in names}
    found = touched(before, {file: _module(here / file) for file in files})
    places = {f"{file}:{line}" for file, name in found for line in before[file].functions[name].lines}
    return [line for line, case in base.cases.items() if not places.isdisjoint(case.called)]


def touched(before: Mapping[str, _Module], after: Mapping[str, _Module]) -> set[tuple[str, str]]:
    """The base's functions, as (file, name), that differ or use something that differs in their file.

    Calls made by interpreted kernels are not recorded; so jitted functions that use a touched one, directly or not,
    are touched too.

    Args:
        before: the base's files.
        after: the change's, those that differ.
    """
    found: set[tuple[str, str]] = set()
    for file, now in after.items():
        then = before[file]
        names = set(differing(then.values, now.values))
        for name, function in then.functions.items():
            own = now.functions.get(name)
            if own is None or own.text != function.text or function.uses & names:
                found.add((file, name))
    every = {(file, each.name): each for file, module in before.items() for each in module.functions.values()}
    jitted = {key: each for key, each in every.items() if each.is_jitted}
    while True:
        names = {name for file, name in found if (file, name) in jitted}
        more = {key for key, each in jitted.items() if key not in found and each.uses & names}
        if not more:
            return found
        found |= more


def _module(file: Path) -> _Module:
    """A file; empty where it does not exist or is not Python."""
    try:
        tree = ast.parse(file.read_bytes())
    except (OSError, SyntaxError, ValueError):
        tree = ast.Module([], [])
    return _Module({each.name: each for each in _defined(tree, "")}, _values(tree))


def _defined(holder: ast.AST, prefix: str) -> Iterator[_Function]:
    """The functions of a file and of its classes; what is defined in a function is part of that function."""
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


def _values(tree: ast.Module) -> dict[str, str]:
    """The code that statements which define no function assign to each name."""
    found: dict[str, str] = {}
    for node in tree.body:
        if isinstance(node, (ast.Assign, ast.AnnAssign, ast.AugAssign)):
            stored = [each for each in ast.walk(node) if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)]
            found |= {each.id: found.get(each.id, "") + ast.dump(node) for each in stored}
    return found
