"""Call: one operator of a graph on quantities, as the rules of the rounding reading are given it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gradoracle.oracle.rounding.probes import probed
from gradoracle.oracle.rounding.quantity import Quantity, quantities, values


@dataclass(frozen=True)
class Call:
    """One operator and its arguments, in which tensors are quantities.

    Attributes:
        name: without namespace and overload, such as ``div``.
        operator: a function of tensors.
        args: positional arguments.
        kwargs: keyword arguments.
        place: distinct places err independently.
    """

    name: str
    operator: Callable[..., Any]
    args: Any
    kwargs: Any
    place: int

    @functools.cached_property
    def value(self) -> Any:
        """What the operator gives for the quantities' values."""
        return self.operator(*values(self.args), **values(self.kwargs))

    @functools.cached_property
    def sources(self) -> list[Quantity]:
        """The quantities among the arguments, in order."""
        return quantities((self.args, self.kwargs))

    def probes(self) -> Any:
        """What the operator gives in each probe, [R, *shape]; None if its arguments are the same in all."""
        return probed(self.operator, self.args, self.kwargs)

    def exact(self) -> Quantity:
        """The result without any error but that of the probes: of integers, bools and indices."""
        return Quantity(self.value, probes=self.probes())
