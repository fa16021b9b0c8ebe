"""Errors that a user can cause: one sentence each, exit code 2; and what is said of any other error."""

from __future__ import annotations

import sys


class UsageError(Exception):
    """What was given cannot be used; the message is one sentence that says what was given and what is expected."""


class TargetError(UsageError):
    """A TARGET or a --family does not lead to kernels and a definition that can be checked."""


def first_line(error: BaseException) -> str:
    """The first line of what an exception says, or its name where it says nothing."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def named(error: BaseException) -> str:
    """An exception in one line: its name, and the first line of what it says."""
    name, line = type(error).__name__, first_line(error)
    return name if line == name else f"{name}: {line}"


def why(error: OSError) -> str:
    """What the system says of a file that it cannot read or write, in lower case."""
    return (error.strerror or str(error)).lower()


def out_of_memory(error: BaseException) -> bool:
    """Whether a device or the machine had no memory left, in whichever of the ways that there are of saying so."""
    text, name = str(error), type(error).__name__
    named = isinstance(error, MemoryError) or name == "OutOfMemoryError"
    return named or "out of memory" in text or "can't allocate memory" in text


def tell(text: str) -> None:
    """Say on standard error what goes on, beside what is shown."""
    print(f"gradoracle: {text}", file=sys.stderr, flush=True)
