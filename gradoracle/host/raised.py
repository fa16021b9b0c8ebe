"""Raised: what an error that a kernel raised says about it."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from contextlib import contextmanager

from gradoracle.model.call_errors import Crashed, DeviceLost, NoDerivative, Refused, Unavailable, Wrong
from gradoracle.model.errors import first_line, named


def told_by_triton(error: BaseException) -> str:
    """The sentence of an error with which Triton refuses a kernel, such as CompilationError; "" for others.

    The message of a CompilationError begins with the source; what is wrong is its last line. What Triton's language
    itself raises in the interpreter, as for a range that is no power of 2, is a CompilationError on a GPU; what else is
    raised there is an error of the kernel's body.
    """
    own = [base.__name__ for base in type(error).__mro__]
    if "InterpreterError" in own:
        cause: BaseException = error
        while cause.__cause__ is not None:  # a function of Triton that calls another wraps its error again
            cause = cause.__cause__
        return named(cause) if _is_of_the_language(cause) else ""
    if "TritonError" not in own:
        return ""
    lines = [line.strip() for line in str(error).splitlines() if line.strip(" ^")]
    return f"{own[0]}: {lines[-1]}" if lines else own[0]


def _is_of_the_language(error: BaseException) -> bool:
    """Whether the code that raised it is Triton's language."""
    modules = [str(frame.f_globals.get("__name__")) for frame, _ in traceback.walk_tb(error.__traceback__)]
    return bool(modules) and modules[-1].startswith(("triton.language.", "triton._utils"))


def raise_if_lost(error: BaseException, call: str) -> None:
    """Raise DeviceLost for a CUDA error after which nothing runs; return for a refusal."""
    text = str(error)
    lost = ("CUDA error", "device-side assert", "an illegal memory access", "misaligned address", "CUDA driver error")
    if any(mark in text for mark in lost) or type(error).__name__ == "AcceleratorError":
        raise DeviceLost(call, named(error)) from None


@contextmanager
def needing(mode: str, call: str, kinds: tuple[type[Exception], ...] = (RuntimeError,)) -> Iterator[None]:
    """Turn an error raised inside into NoDerivative: the kernel does not support this mode of autograd.

    Args:
        mode: the mode, in words.
        call: the call that runs.
        kinds: the errors that say so.
    """
    try:
        yield
    except (Wrong, Refused, Unavailable, Crashed, MemoryError):
        raise
    except kinds as error:
        raise_if_lost(error, call)
        text = first_line(error) if isinstance(error, RuntimeError) else named(error)
        raise NoDerivative(f"no {mode}: {text}") from None
