"""Bug: a fault that a released kernel had, written again, with the correct kernel and the property that catches it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

Wrong = TypeVar("Wrong", bound=Callable[..., Any])


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
        property_name: the name of the property that should catch it.
        cause: what a diagnosis should name, one of ``model.fault.PLANTED``; "" where that is not known.
        dims: narrower sizes that the released kernel's trigger needs, by dim, as ``--dim`` takes them; few need any.
    """

    name: str
    cites: str
    wrong: Callable[..., Any]
    right: Callable[..., Any]
    family: str
    property_name: str
    cause: str = ""
    dims: Mapping[str, str] = field(default_factory=dict)


class Bugs(list[Bug]):
    """The bugs of one file, each added where its wrong kernel is defined.

    Attributes:
        right: the correct kernel of a bug that names none of its own.
        family: that of a bug that names none of its own, as in ``Bug``.
    """

    def __init__(self, right: Callable[..., Any], family: str = "") -> None:
        super().__init__()
        self.right, self.family = right, family

    def add(
        self,
        wrong: Callable[..., Any],
        cites: str,
        property_name: str,
        cause: str = "",
        *,
        name: str = "",
        right: Callable[..., Any] | None = None,
        family: str | None = None,
        **dims: str,
    ) -> None:
        """Add a bug; ``name`` is needed only where the wrong kernel is an object without a name."""
        name = name or getattr(wrong, "name", "") or wrong.__name__
        family = self.family if family is None else family
        self.append(Bug(name, cites, wrong, right or self.right, family, property_name, cause, dims))

    def of(self, cites: str, property_name: str, cause: str = "", **given: Any) -> Callable[[Wrong], Wrong]:
        """``add`` as a decorator of the wrong kernel."""

        def decorate(wrong: Wrong) -> Wrong:
            self.add(wrong, cites, property_name, cause, **given)
            return wrong

        return decorate
