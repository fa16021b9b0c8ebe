"""Raised: what an error that a kernel raised says about it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from gradoracle.model.call_errors import Crashed, DeviceLost, NoDerivative, Refused, Unavailable, Wrong
from gradoracle.model.errors import first_line, named


def told_by_triton(error: BaseException) -> str:
    """The sentence of an error with which Triton refuses a kernel on a GPU, such as CompilationError; "" for others.

    The message of a CompilationError begins with the source; what is wrong is its last line.
    """
    own = [base.__name__ for base in type(error).__mro__]
    if "TritonError" not in own or "InterpreterError" in own:  # in the interpreter it is an error of the kernel's body
        return ""
    lines = [line.strip() for line in str(error).splitlines() if line.strip(" ^")]
    return f"{own[0]}: {lines[-1]}" if lines else own[0]


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
