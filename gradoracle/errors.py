"""Errors that a user can cause: one sentence each, exit code 2."""

from __future__ import annotations


class UsageError(Exception):
    """What was given cannot be used; the message is one sentence that says what was given and what is wanted."""


class TargetError(UsageError):
    """A TARGET or a --family does not lead to kernels and a definition that can be checked."""


def why(error: OSError) -> str:
    """What the system says of a file that it cannot read or write, in lower case."""
    return (error.strerror or str(error)).lower()
