"""Triton's builtins under names that were bound before a launch, as by `from triton.language import exp`.

A launch replaces attributes of `triton.language`, which does not reach a name that a module has bound already, nor the
functions of libdevice. All builtins share one wrapper that refuses a call from outside of a compiled kernel; its code
is exchanged for one that, within a launch, passes the call to the interpreter. Outside of launches nothing changes.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from types import FunctionType
from typing import Any

import triton.language as tl
from triton.runtime import interpreter

_HOOK = "_interpreted_builtin"  # in triton.language.core, whose globals the wrappers see
_REFUSAL = (
    "Did you forget to add @triton.jit ? (`_semantic` argument must be provided outside of JIT functions.)"  # Triton's
)
_current: Mapping[int, Callable[..., Any]] | None = None  # replacements by id of what a builtin wraps, in a launch


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
