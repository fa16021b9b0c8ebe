"""Import closure: a kernel's files in a working tree and all that they import, read from sources without running."""

from __future__ import annotations

import ast
import functools
import hashlib
import importlib.util
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from importlib.machinery import EXTENSION_SUFFIXES, SOURCE_SUFFIXES, ModuleSpec
from pathlib import Path

_SELF = "gradoracle"
_SUFFIXES = (*EXTENSION_SUFFIXES, *SOURCE_SUFFIXES)  # in the order in which Python looks
_BESIDE = (  # files next to a module that a kernel may read or compile
    ".cu", ".cuh", ".c", ".cc", ".cpp", ".cxx", ".h", ".hpp", ".inc", ".hip", ".ptx", ".cubin", ".so", ".json",
    ".toml", ".yaml", ".yml", ".txt", ".pt", ".npy", ".npz",
)  # fmt: skip
_PARSED = 4096  # files whose imports are cached, by content: both trees of a gate hold nearly the same files
Imports = MutableMapping[Path, tuple[Path, ...]]  # the files of a tree that each file imports
_SPREAD = {"gradoracle.kernels": "kernels", "gradoracle.properties": "properties"}  # where setup.py has them


def holds_gradoracle(root: Path) -> bool:
    """Whether a working tree is gradoracle's own, so that engine, properties and kernels come from the tree."""
    return all((root / folder / "__init__.py").is_file() for folder in ("gradoracle", *_SPREAD.values()))


def closure(
    files: Iterable[Path], root: Path, folders: Iterable[Path] = (), known: Imports | None = None
) -> frozenset[Path]:
    """Some files and all that they import, directly and indirectly, as far as it lies under ``root``.

    Imports are read from the source, also inside functions, and ``import_module`` with a literal name; the packages
    above a module are included, and so are sources of other languages and data next to it. Modules outside ``root``
    and names computed at run time are not seen.

    Args:
        files: Python files; those outside ``root`` count for what they import.
        root: the top folder of the working tree.
        folders: other folders to find modules in, such as that of a project below ``root``.
        known: a cache of imports for this tree and these folders, which must not change in between.
    """
    root, search, known = root.resolve(), tuple(folders), {} if known is None else known
    found: set[Path] = set()
    waiting = [file.resolve() for file in files]
    while waiting:
        file = waiting.pop()
        if file in found or not file.is_file():
            continue
        found.add(file)
        if file not in known:
            known[file] = tuple(dict.fromkeys(_imported(file, root, search)))
        waiting += [each for each in known[file] if each not in found]
    own = {file for file in found if file.is_relative_to(root)}
    return frozenset(own | {beside for folder in {file.parent for file in own} for beside in _beside(folder)})


def _beside(folder: Path) -> Iterator[Path]:
    """The files of ``_BESIDE`` in a folder; none at the top of a clone, where the repository's own files are."""
    if not (folder / ".git").exists():
        yield from (file for file in folder.iterdir() if file.suffix in _BESIDE and file.is_file())


def digests(files: Iterable[Path], root: Path) -> dict[str, str]:
    """SHA-256 of each file's content, by its path from ``root``."""
    root = root.resolve()
    return {
        file.resolve().relative_to(root).as_posix(): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in sorted(files)
    }


def contents(files: Iterable[str]) -> dict[str, str]:
    """SHA-256 of each file's content, by its path as given; "" of one that cannot be read."""
    found = {}
    for file in sorted(files):
        try:
            found[file] = hashlib.sha256(Path(file).read_bytes()).hexdigest()
        except OSError:
            found[file] = ""
    return found


def together(digests: Mapping[str, str]) -> str:
    """One digest of several files'."""
    return hashlib.sha256(repr(sorted(digests.items())).encode()).hexdigest()


def differing(these: Mapping[str, object], those: Mapping[str, object]) -> list[str]:
    """The files whose content differs or that only one has."""
    return sorted(name for name in these.keys() | those.keys() if these.get(name) != those.get(name))


def module_file(name: str, root: Path, beside: Path | None = None, folders: Iterable[Path] = ()) -> Path | None:
    """The file of a module by its dotted name, without importing it; None if there is none.

    Searched in ``beside``, ``folders``, ``root``, its ``src``, and where Python looks.
    """
    if name.partition(".")[0] == _SELF and holds_gradoracle(root):
        return _own_file(name, root)
    parts = name.split(".")
    for folder in (beside, *folders, root, root / "src"):
        if folder is not None and (file := _in_folder(folder, parts)) is not None:
            return file
    spec = _spec(parts[0])
    if spec is None:
        return None
    for place in spec.submodule_search_locations or ():
        if len(parts) > 1 and (file := _in_folder(Path(place), parts[1:])) is not None:
            return file
    own = spec.origin if len(parts) == 1 else None
    return Path(own) if own is not None and os.path.isfile(own) else None


def _own_file(name: str, root: Path) -> Path | None:
    """A module of gradoracle in its own working tree, where its packages lie in separate folders."""
    for package, folder in _SPREAD.items():
        if name == package:
            return root / folder / "__init__.py"
        if name.startswith(f"{package}."):
            return _in_folder(root / folder, name.removeprefix(f"{package}.").split("."))
    return _in_folder(root, name.split("."))


@functools.cache
def _spec(name: str) -> ModuleSpec | None:
    try:
        return importlib.util.find_spec(name)
    except (ImportError, ValueError, AttributeError):
        return None


def _in_folder(folder: Path, parts: list[str]) -> Path | None:
    """The module or package ``a.b.c`` below a folder."""
    path = os.path.join(folder, *parts)
    places = (os.path.join(path, "__init__.py"), *(f"{path}{suffix}" for suffix in _SUFFIXES))
    return next((Path(file) for file in places if os.path.isfile(file)), None)


def _imported(file: Path, root: Path, folders: tuple[Path, ...]) -> Iterator[Path]:
    """The files of the modules that a file imports, and of the packages above them."""
    try:
        names = _named(file.read_bytes())
    except OSError:
        return
    for name, level in names:
        if level:
            folder = file.parent
            for _ in range(level - 1):
                folder = folder.parent
            where = _in_folder(folder, name.split(".")) if name else folder / "__init__.py"
            yield from [] if where is None or not where.is_file() else [where, *_packages(where, root)]
        elif name.partition(".")[0] not in sys.stdlib_module_names:
            where = module_file(name, root, file.parent, folders)
            yield from [where, *_packages(where, root)] if where is not None and _is_own(where, root) else []


def _is_own(file: Path, root: Path) -> bool:
    """Whether a file belongs to the working tree and not to an environment inside it."""
    file = file.resolve()
    if not file.is_relative_to(root):
        return False
    return not any(part.startswith(".") or part == "site-packages" for part in file.relative_to(root).parts)


def _packages(file: Path, root: Path) -> Iterator[Path]:
    """The ``__init__.py`` of each package that a file lies in."""
    folder = file.parent
    while folder.is_relative_to(root) and (folder / "__init__.py").is_file():
        yield folder / "__init__.py"
        folder = folder.parent


@functools.lru_cache(_PARSED)
def _named(source: bytes) -> tuple[tuple[str, int], ...]:
    """``_names`` of a file's content, each once; empty if it is not Python."""
    try:
        return tuple(dict.fromkeys(_names(ast.parse(source))))
    except (SyntaxError, ValueError):
        return ()


def _names(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """(dotted name, level) of every possible module: of ``from a import b`` both ``a`` and ``a.b``."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, 0) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = node.module or ""
            yield above, node.level
            yield from ((f"{above}.{alias.name}".lstrip("."), node.level) for alias in node.names if alias.name != "*")
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if called == "import_module" and isinstance(node.args[0].value, str):
                yield node.args[0].value, 0
