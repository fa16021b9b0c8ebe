"""Names of `triton.language`: what is put back before kernels are interpreted, and what works under every name.

Leftovers. A launch of Triton's own interpreter replaces attributes of the modules that its kernel sees and puts them
back. A call of a device function (`tl.sum`, `tl.max`, a helper of a user) replaces those that this function sees, and
puts nothing back: `triton.language.core` then holds functions of the interpreter for the rest of the process. `undo`
puts back what these names stood for.

Aliases. A launch replaces attributes of `triton.language`, which does not reach a name that a module has bound already,
as by `from triton.language import exp`, nor the functions of libdevice. All builtins share one wrapper that refuses a
call from outside of a compiled kernel; `reach` exchanges its code for one that, within a launch, passes the call to the
interpreter. Outside of launches nothing changes.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Mapping
from types import FunctionType
from typing import Any

import triton.language as tl
from triton.runtime import interpreter

_MODULES = (tl, tl.core, tl.math)
_CLASSES = (tl.tensor, tl.core.tensor_descriptor_base)
_HOOK = "_interpreted_builtin"  # in triton.language.core, whose globals the wrappers see
_REFUSAL = (
    "Did you forget to add @triton.jit ? (`_semantic` argument must be provided outside of JIT functions.)"  # Triton's
)
_current: Mapping[int, Callable[..., Any]] | None = None  # replacements by id of what a builtin wraps, in a launch


def undo() -> None:
    """Put back what a name of `triton.language` stood for, and forget the functions that Triton has rewritten.

    What Triton's interpreter replaces by functions that keep no original (`range`, `reduce`, ...) is put back where
    `triton.language` or its `core` still has it; methods of its own for a tensor stay. Launches replace all of these.
    """
    for holder in (*_MODULES, *_CLASSES):
        for name, value in list(vars(holder).items()):
            original = _original(name, value)
            if original is not value:
                setattr(holder, name, original)
    interpreter.InterpretedFunction.rewritten_fn.clear()


def _original(name: str, value: Any) -> Any:
    """What a replacement stands for; the value itself if it is none, or if its original is not known."""
    while _is_replacement(value) and "member" in (getattr(value, "__kwdefaults__", None) or {}):
        value = value.__kwdefaults__["member"]
    if not _is_replacement(value) and value is not print:
        return value
    others = (vars(module)[name] for module in (tl, tl.core) if name in vars(module))
    return next((other for other in others if not _is_replacement(other) and other is not print), value)


def _is_replacement(value: Any) -> bool:
    """Whether a value is a function of Triton's interpreter."""
    function = value.func if isinstance(value, functools.partial) else value
    return isinstance(function, FunctionType) and function.__globals__ is vars(interpreter)


def use(replacements: Mapping[int, Callable[..., Any]] | None) -> None:
    """A launch begins, with these replacements of builtins by id of the wrapped function, or None: it ends."""
    global _current
    _current = replacements


def _interpreted(builtin: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> Any:
    if _current is None:
        raise ValueError(_REFUSAL)
    kwargs.pop("_semantic", None)
    replacement = _current.get(id(builtin))
    if replacement is not None:
        return replacement(*args, **kwargs)
    return builtin(*args, _semantic=interpreter.interpreter_semantic, **kwargs)


def _wrapper_code() -> Any:
    fn: Any = None

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if kwargs.get("_semantic") is None:
            return _interpreted_builtin(fn, args, kwargs)  # type: ignore[name-defined]
        return fn(*args, **kwargs)

    return wrapper.__code__


def reach() -> None:
    """Let every builtin of Triton's language and libdevice work in interpreted kernels under any name."""
    setattr(tl.core, _HOOK, _interpreted)
    code, stock = _wrapper_code(), tl.core.load.__code__
    for name, module in list(sys.modules.items()):
        if not name.startswith("triton.language"):
            continue
        for value in list(vars(module).values()):
            if isinstance(value, FunctionType) and value.__code__ is stock:
                value.__code__ = code
