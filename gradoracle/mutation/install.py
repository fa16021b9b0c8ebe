"""Install: replace loaded code by a mutant's, for everything that refers to it, in this process and for good."""

from __future__ import annotations

import linecache
import sys
from types import FunctionType, ModuleType
from typing import Any

from gradoracle.model.errors import named
from gradoracle.mutation.mutant import Mutant
from gradoracle.mutation.sources import Source, innermost


class Stillborn(Exception):
    """A mutant whose module cannot be executed, or no longer defines its function; says why."""


def _loaded_anew(name: str, file: str, source: str) -> ModuleType:
    """Execute a source as the module of that name; the loaded module stays.

    Raises:
        Stillborn: it raises.
    """
    module = ModuleType(name)
    loaded = sys.modules[name]
    for attribute in ("__package__", "__spec__", "__loader__", "__path__"):
        if hasattr(loaded, attribute):
            setattr(module, attribute, getattr(loaded, attribute))
    module.__file__ = file
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)  # Triton reads sources there
    sys.modules[name] = module  # classes look their module up while they are made
    try:
        exec(compile(source, file, "exec"), module.__dict__)
    except Exception as error:
        raise Stillborn(named(error)) from None
    finally:
        sys.modules[name] = loaded
    return module


def install(mutant: Mutant, source: Source) -> None:
    """Give the loaded function, jitted function or class the mutant's code; modules that imported it see it too.

    Args:
        mutant: of that source.
        source: a loaded module; what reads its file through ``linecache`` reads the mutant from then on.

    Raises:
        Stillborn: the module cannot be executed.
    """
    anew = _loaded_anew(source.module, source.file, mutant.source)
    old, new = getattr(sys.modules[source.module], mutant.top, None), getattr(anew, mutant.top, None)
    if old is None or new is None:
        raise Stillborn(f"{mutant.top} is not defined by the module")
    if not _replaced(old, new):
        raise Stillborn(f"{mutant.top} is a {type(old).__name__}, whose code cannot be replaced")


def _replaced(old: Any, new: Any) -> bool:
    """Give ``old`` the code of ``new``, if that is possible."""
    if isinstance(old, (staticmethod, classmethod)):
        return _replaced(old.__func__, new.__func__)
    if isinstance(old, FunctionType):
        inner, fresh = getattr(old, "__wrapped__", None), getattr(new, "__wrapped__", None)
        if inner is not None and fresh is not None:
            return _replaced(inner, fresh)
        if not isinstance(new, FunctionType) or old.__code__.co_freevars != new.__code__.co_freevars:
            return False
        old.__code__, old.__defaults__, old.__kwdefaults__ = new.__code__, new.__defaults__, new.__kwdefaults__
        return True
    if isinstance(old, type):
        for name, attribute in vars(new).items():
            if isinstance(attribute, (FunctionType, staticmethod, classmethod)) and name in vars(old):
                _replaced(vars(old)[name], attribute)
        return True
    return _jitted_replaced(old, new) or (hasattr(old, "call") and _replaced(old.call, new.call))


def _jitted_replaced(old: Any, new: Any) -> bool:
    """The same for a jitted function, under its wrappers."""
    old, new = innermost(old), innermost(new)
    if not hasattr(old, "fn") or not isinstance(old.fn, FunctionType):
        return False
    old.__dict__.clear()
    old.__dict__.update(new.__dict__)
    return True
