"""Errors that a user can cause, each reported in one sentence with exit code 2; helpers to report any error."""

from __future__ import annotations

import os
import sys


class UsageError(Exception):
    """Input that cannot be used; the message is one sentence with what was given and what is expected."""


class DeclarationError(UsageError):
    """A function among a kernel's declarations that fails, or gives what it should not."""


class TargetError(UsageError):
    """A TARGET or --family that yields no kernels and definition to check."""


class LostPrecision(UserWarning):
    """A violation that does not count: lost precision or robustness, of a kernel that declares no contract."""


def first_line(error: BaseException) -> str:
    """The first line of an exception's message; its name if there is none."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def named(error: BaseException) -> str:
    """An exception in one line: its name, and the first line of its message."""
    name, line = type(error).__name__, first_line(error)
    return name if line == name else f"{name}: {line}"


def why(error: OSError) -> str:
    """The system's message about a file that it cannot read or write, in lower case."""
    return (error.strerror or str(error)).lower()


def out_of_memory(error: BaseException) -> bool:
    """Whether an error reports that a device or the machine ran out of memory, in any of its forms."""
    text, name = str(error), type(error).__name__
    named = isinstance(error, MemoryError) or name == "OutOfMemoryError"
    return named or "out of memory" in text or "can't allocate memory" in text


def forgive(error: Exception) -> None:
    """Go on after an error of an explanation, which must not cost a verdict; with GRADORACLE_STRICT=1 raise it.

    The repository's own tests set the variable, so that no mistake of an explanation stays unseen.
    """
    if os.environ.get("GRADORACLE_STRICT") == "1":
        raise error


def tell(text: str) -> None:
    """Print a message on standard error."""
    print(f"gradoracle: {text}", file=sys.stderr, flush=True)
