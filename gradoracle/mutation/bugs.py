"""Bug: a fault that a released kernel had, written again, with the correct kernel and the property that catches it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Bug:
    """A named fault.

    Attributes:
        name: what is wrong, as an identifier in words.
        cites: where it was reported, ``owner/repository#number``, or ``owner/repository@commit``.
        wrong: a callable with the fault, or a declared kernel that wraps one; its docstring describes what the released
            kernel did.
        right: the same without the fault; every property must hold on it.
        family: the shipped family whose definition both claim to implement; "" where the file holds its own.
        law: the name of the property that should catch it.
        cause: what a diagnosis should name, one of ``model.causes.CAUSES``; "" where that is not known.
        dims: narrower sizes that the released kernel's trigger needs, by dim, as ``--dim`` takes them; few need any.
    """

    name: str
    cites: str
    wrong: Callable[..., Any]
    right: Callable[..., Any]
    family: str
    law: str
    cause: str = ""
    dims: Mapping[str, str] = field(default_factory=dict)
