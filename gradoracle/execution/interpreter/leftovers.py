"""Leftovers: what Triton's own interpreter, running before this one, has left replaced in `triton.language`.

A launch of Triton's replaces attributes of the modules that its kernel sees and puts them back. A call of a device
function (`tl.sum`, `tl.max`, a helper of a user) replaces those that this function sees, and puts nothing back:
`triton.language.core` then holds functions of the interpreter for the rest of the process.
"""

from __future__ import annotations

import functools
from types import FunctionType
from typing import Any

import triton.language as tl
from triton.runtime import interpreter

_MODULES = (tl, tl.core, tl.math)
_CLASSES = (tl.tensor, tl.core.tensor_descriptor_base)


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
