"""Content: a hash of a family's kernels that changes where what they compute or launch may change.

Comments, docstrings and formatting do not count, so that mending one of these needs no GPU. Nor do the blocks that a
table has for GPUs of another compute capability than that of the cards that are timed, unless every GPU is asked for.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterator
from pathlib import Path

from gradoracle.project.import_closure import closure

ROOT = Path(__file__).resolve().parents[2]
KERNELS = "kernels"  # the folder of the kernels, a folder a family
CAPABILITY = (9, 0)  # of the cards that are timed, H100 and H200
_DIGITS = 16
_UNREAD = {"ctx", "kind", "type_comment", "type_ignores"}  # fields that say nothing of what runs


def content(family: str, root: Path = ROOT, *, every_gpu: bool = False) -> str:
    """16 hexadecimal digits of a family's folder of kernels and of all kernels' files that it imports.

    Only files below ``root``/kernels count, of these what ``kernels/FAMILY/__init__.py`` reaches by its imports. The
    same in every version of Python.
    """
    digest = hashlib.sha256()
    for file in files(family, root):
        place = file.relative_to(root.resolve()).as_posix()
        digest.update(f"{place}\n{normalised(file.read_text(encoding='utf-8'), every_gpu)}\n".encode())
    return digest.hexdigest()[:_DIGITS]


def files(family: str, root: Path = ROOT) -> list[Path]:
    """The sources that count, sorted by their path."""
    folder = (root / KERNELS).resolve()
    reached = closure([folder / family / "__init__.py"], root)
    return sorted(file for file in reached if file.suffix == ".py" and file.is_relative_to(folder))


def normalised(source: str, every_gpu: bool = False) -> str:
    """A source's syntax tree as text, without docstrings, positions and, if so, what tables have for other GPUs."""
    return "".join(_parts(ast.parse(source), every_gpu))


def _parts(node: ast.AST, every_gpu: bool) -> Iterator[str]:
    """A node by its fields in order; empty ones are left out, since later versions of Python add such."""
    yield f"({type(node).__name__}"
    for name, value in ast.iter_fields(node):
        if name in _UNREAD or value is None or value == []:
            continue
        if name == "body" and isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            value = value[1:] if ast.get_docstring(node, clean=False) is not None else value
        yield f" {name}="
        if isinstance(node, ast.Dict) and not every_gpu:
            value = [each for each, key in zip(value, node.keys, strict=True) if not _of_another_gpu(key)]
        for each in value if isinstance(value, list) else [value]:
            if isinstance(each, ast.AST):
                yield from _parts(each, every_gpu)
            else:
                yield f"{each!r},"
    yield ")"


def _of_another_gpu(key: ast.expr | None) -> bool:
    """Whether a key of a table, as ``((8, 0), "16 bit", 64)``, begins with another capability than the timed one."""
    match key:
        case ast.Tuple(elts=[ast.Tuple(elts=[ast.Constant(int(major)), ast.Constant(int(minor))]), *_]):
            return (major, minor) != CAPABILITY
    return False
