"""Call: one operator of a graph on quantities, and what it gives for their values and in their probes."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gradoracle.oracle.exact.trees import followed, leaves, refilled
from gradoracle.oracle.rounding.quantity import Quantity, any_error, quantities, values


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

    def exact(self) -> Quantity:
        """The result without any error but that of the probes: of integers, bools and indices."""
        return Quantity(self.value, probes=self.probes())

    def probes(self) -> Any:
        """What the operator gives in each probe, [R, *shape]; None if its arguments are the same in all."""
        if not any_error((self.args, self.kwargs), "probes"):
            return None
        if torch.Tag.pointwise in getattr(self.operator, "tags", ()):
            return self._pointwise()
        if self.operator in _VIEWS and not self.kwargs and not any(isinstance(a, Quantity) for a in self.args[1:]):
            source: Quantity = self.args[0]
            return _VIEWS[self.operator](source.probes, source.value.dim(), *self.args[1:])
        return self._lifted()

    def _pointwise(self) -> Any:
        """An elementwise operator broadcasts by itself, with the axis of probes in front of all others."""
        rank = max(leaf.value.dim() for leaf in leaves(self.args) if isinstance(leaf, Quantity))

        def wide(x: Any) -> Any:
            if not isinstance(x, Quantity) or x.probes is None:
                return values(x)
            return x.probes.reshape(len(x.probes), *[1] * (rank - x.value.dim()), *x.value.shape)

        return self.operator(*followed(wide, self.args), **values(self.kwargs))

    def _lifted(self) -> Any:
        """All probes at once, by ``torch.vmap``; one after the other where the operator has no batching rule."""
        flat, kwargs = leaves(self.args), values(self.kwargs)
        places = [i for i, x in enumerate(flat) if isinstance(x, Quantity) and x.probes is not None]
        moving = [flat[i].probes for i in places]

        def once(*moved: Tensor) -> Any:
            filled = values(flat)
            for i, own in zip(places, moved, strict=True):
                filled[i] = own
            return self.operator(*refilled(self.args, filled), **kwargs)

        try:
            return torch.vmap(once)(*moving)
        except RuntimeError:
            runs = [once(*probe) for probe in zip(*moving, strict=True)]
            if isinstance(runs[0], Tensor):
                return torch.stack(runs)
            return [torch.stack(parts) for parts in zip(*runs, strict=True)]


_aten = torch.ops.aten
# Views with dims counted from the back or shifted by one, as by ``torch.vmap`` but in a tenth of its time.
_VIEWS: dict[Any, Callable[..., Tensor]] = {
    _aten.reshape.default: lambda x, rank, size: x.reshape(len(x), *size),
    _aten.expand.default: lambda x, rank, size: x.reshape(len(x), *[1] * (len(size) - rank), *x.shape[1:]).expand(
        len(x), *size
    ),
    _aten.permute.default: lambda x, rank, dims: x.permute(0, *(d % rank + 1 for d in dims)),
    _aten.unsqueeze.default: lambda x, rank, dim: x.unsqueeze(dim % (rank + 1) + 1),
    _aten.clone.default: lambda x, rank: x,
    _aten.alias.default: lambda x, rank: x,
    _aten.detach.default: lambda x, rank: x,
}
