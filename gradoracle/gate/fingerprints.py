"""Fingerprints: of each piece of what judges a kernel, so that a change of the judge is found and named.

A piece is the definition of a family, its domain, one of its properties, or one declaration of a kernel. A function is
identified by its bytecode and all code of the project that it refers to, directly or not: comments and layout do not
count, a helper in another module does. What is installed is identified by its name.
"""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import dis
import functools
import hashlib
import importlib
import inspect
import os
import re
import sys
from collections.abc import Iterable, Mapping
from enum import Enum
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

import torch

from gradoracle.model import layouts
from gradoracle.model.description import Elsewhere
from gradoracle.model.family import Family
from gradoracle.model.kernel import Kernel
from gradoracle.model.ledger import Piece
from gradoracle.model.location import Place, is_source

_DECLARED = ("contracts", "algorithm", "dtypes", "dims", "options", "deterministic", "mutates", "no_gradient", "claims")
_EXPLICIT = ("vjp", "jvp", "hvp", "fits")
_DOMAIN = ("signature", "dims", "dtypes", "domains", "joint", "scalable", "beside_large", "random")
_PROPERTY = ("judge", "applies", "needs", "one_in", "scope", "decisive", "families")
_LENGTH = 16


def pieces(family: Family, kernels: Iterable[Kernel], folder: str) -> dict[str, Piece]:
    """The fingerprint of each piece that judges a target, by its name.

    Args:
        family: the definition and its domain.
        kernels: as their own project declares them.
        folder: of the project; code in it counts by what it does, all other code by its name.
    """
    reader = _Reader(os.path.abspath(folder))
    shared = {
        f"the definition of {family.name}": family.definition,
        f"the domain of {family.name}": [(name, getattr(family, name)) for name in _DOMAIN],
        f"the algorithms of {family.name}": family.algorithms,
        **{
            f"the property {prop.name}": [(name, getattr(prop, name)) for name in _PROPERTY]
            for prop in family.properties
        },
    }
    found = {name: Piece(reader.hash(value)) for name, value in shared.items()}
    for kernel in kernels:
        explicit = [name for name in _EXPLICIT if getattr(kernel, name) is not None]
        declared = {
            **{name: getattr(kernel, name) for name in _DECLARED},
            "the block configurations": sorted(kernel.blocks),
            "the entry points": [explicit, sorted(kernel.extras)],
        }
        for name, value in declared.items():
            found[f"{name} of kernel {kernel.name}"] = Piece(reader.hash(value), kernel.name)
    return found


class _Reader:
    """Describes objects in words that do not depend on where a project lies; ``folder`` holds the code that counts."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._open: dict[int, int] = {}  # objects already described -> their number, for cycles
        self._kept: list[Any] = []  # the same, so that their ids are not used again

    def hash(self, value: Any) -> str:
        """The fingerprint of a value."""
        self._open, self._kept = {}, []
        text = "\n".join(self._words(value))
        return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:_LENGTH]

    def _words(self, value: Any) -> Iterable[str]:
        if value is None or isinstance(value, (bool, int, float, complex, str, bytes)) or value is Ellipsis:
            yield f"{type(value).__name__} {value!r}"
            return
        if id(value) in self._open:
            yield f"again {self._open[id(value)]}"
            return
        self._open[id(value)] = len(self._open)
        self._kept.append(value)
        yield from self._compound(value)

    def _compound(self, value: Any) -> Iterable[str]:
        if isinstance(value, Mapping):
            items = sorted(value.items(), key=lambda item: repr(item[0]))
            yield f"mapping of {len(items)}"
            for key, item in items:
                yield from self._words(key)
                yield from self._words(item)
        elif isinstance(value, (list, tuple)):
            yield f"sequence of {len(value)}"
            for item in value:
                yield from self._words(item)
        elif isinstance(value, (set, frozenset)):
            yield f"set of {sorted(map(_without_addresses, value))}"
        elif isinstance(value, (CodeType, FunctionType)):
            yield from self._function(value)
        elif isinstance(value, Elsewhere):
            yield from _source(value.place)
        elif isinstance(value, functools.partial):
            yield "partial"
            yield from self._words([value.func, value.args, value.keywords])
        elif isinstance(value, ModuleType):
            yield f"module {value.__name__}"
        elif isinstance(value, torch.Tensor):
            yield f"tensor {value.dtype} {tuple(value.shape)}"
            yield hashlib.sha256(layouts.content(value)).hexdigest()
        elif callable(getattr(value, "__wrapped__", None)) and not isinstance(value, type):
            yield f"{type(value).__qualname__} around"
            yield from self._words(value.__wrapped__)
        elif isinstance(value, Enum):
            yield f"{type(value).__name__} {value.name}"
        elif inspect.ismethod(value):
            yield "method"
            yield from self._words([value.__func__, value.__self__])
        elif isinstance(value, type):
            yield from self._class(value)
        elif dataclasses.is_dataclass(value):
            yield f"a {type(value).__name__}"
            for field in dataclasses.fields(value):
                yield field.name
                yield from self._words(getattr(value, field.name))
        elif self._is_own(type(value).__module__):
            yield f"a {type(value).__qualname__}"
            yield from self._words(type(value))
            yield from self._words(getattr(value, "__dict__", {}))
        else:
            yield f"{type(value).__qualname__} {getattr(value, '__qualname__', '') or _without_addresses(value)}"

    def _class(self, kind: type) -> Iterable[str]:
        yield f"class {kind.__qualname__}"
        if self._is_own(kind.__module__):
            yield from self._words([base for base in kind.__bases__ if base is not object])
            own = {name: each for name, each in vars(kind).items() if isinstance(each, _TELLING)}
            yield from self._words({name: _behind(each) for name, each in own.items() if name not in _SILENT})

    def _function(self, function: Any) -> Iterable[str]:
        code = function if isinstance(function, CodeType) else function.__code__
        yield f"function {code.co_name}"
        if isinstance(function, FunctionType):
            if not self._is_own(function.__module__):
                yield f"of {function.__module__}.{function.__qualname__}"
                return
            yield from self._words([function.__defaults__, function.__kwdefaults__])
            for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
                yield f"{name} ="
                yield from self._words(_content(cell))
            yield from self._globals(code, function.__globals__)
        yield str((code.co_code, code.co_names, code.co_varnames, code.co_flags, code.co_argcount))
        for constant in code.co_consts[1:] if _has_docstring(code) else code.co_consts:
            yield from self._words(constant)

    def _globals(self, code: CodeType, known: Mapping[str, Any]) -> Iterable[str]:
        """What a function's code, and that of functions defined in it, refers to by name."""
        for name in code.co_names:
            value = known.get(name)
            if isinstance(value, ModuleType) and self._is_own(value.__name__):
                yield from self._members(value, code)
            elif name in known and not (isinstance(value, ModuleType) or name.startswith("__")):
                yield f"{name} ="
                yield from self._words(value)
        for instruction in dis.get_instructions(code):
            if instruction.opname == "IMPORT_NAME":
                package = known.get("__package__") or ""
                for name in dict.fromkeys([str(instruction.argval), f"{package}.{instruction.argval}".strip(".")]):
                    if self._is_own(name):
                        yield from self._members(importlib.import_module(name), code)
        for constant in code.co_consts:
            if isinstance(constant, CodeType):
                yield from self._globals(constant, known)

    def _members(self, module: ModuleType, code: CodeType) -> Iterable[str]:
        """What code may take from a module of the project: everything in it that the code names."""
        for name in code.co_names:
            if not hasattr(module, name) and hasattr(module, "__path__"):
                with contextlib.suppress(ImportError):  # a name that is no module is none of this one's
                    importlib.import_module(f"{module.__name__}.{name}")
            if hasattr(module, name) and not name.startswith("__"):
                member = getattr(module, name)
                yield f"{module.__name__}.{name} ="
                if isinstance(member, ModuleType) and member is not module and self._is_own(member.__name__):
                    yield from self._members(member, code)
                else:
                    yield from self._words(member)

    def _is_own(self, module: str) -> bool:
        """Whether a module is a file of the project, and not of an environment in it."""
        found = sys.modules.get(module)
        if found is None:
            try:
                found = importlib.import_module(module)
            except Exception:
                return False
        return is_source(getattr(found, "__file__", None) or "/", self._folder)


_TELLING = (FunctionType, property, staticmethod, classmethod, bool, int, float, str, tuple, type(None))
_SILENT = ("__module__", "__doc__", "__qualname__", "__firstlineno__", "__dict__", "__weakref__")


def _behind(member: Any) -> Any:
    """The function of a member of a class."""
    if isinstance(member, property):
        return [member.fget, member.fset]
    return member.__func__ if isinstance(member, (staticmethod, classmethod)) else member


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not filled yet
        return None


def _has_docstring(code: CodeType) -> bool:
    """Whether the first constant is a docstring: a string that no instruction loads."""
    first = code.co_consts[0] if code.co_consts else None
    if not isinstance(first, str):
        return False
    return all(each.arg != 0 for each in dis.get_instructions(code) if each.opname == "LOAD_CONST")


def _without_addresses(value: Any) -> str:
    return re.sub(r"0x[0-9a-f]+", "", repr(value))


def _source(place: Place) -> Iterable[str]:
    """A function that is elsewhere, by its source without comments and docstring."""
    yield f"function {place.name}"
    tree = ast.parse(Path(place.file).read_text(encoding="utf-8")) if place.file else ast.Module([], [])
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and place.line in (node.lineno, *(d.lineno for d in node.decorator_list)):
            body = node.body[1:] if ast.get_docstring(node) is not None else node.body
            yield from map(ast.dump, (node.args, *body))
