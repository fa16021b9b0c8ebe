"""Errors that a user can cause: one sentence each, exit code 2."""

from __future__ import annotations


class UsageError(Exception):
    """What was given cannot be used; the message is one sentence that says what was given and what is wanted."""


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
