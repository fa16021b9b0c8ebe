"""Distinct: indices none of which occurs twice in a row, such as those of the k largest, or the experts of a token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gradoracle.model.domains.domain import (
    NONE,
    Domain,
    Drawing,
    Longer,
    Neighbours,
    Sizes,
    at,
    below,
    misfit_of_rows,
    outside,
    place,
    top,
)
from gradoracle.model.signature import TensorSpec


@dataclass(frozen=True)
class Distinct(Domain):
    """Indices that are distinct in each row, along the last dim.

    Attributes:
        bound: the number of values: a number or a dim (or an expression of dims); no row is longer.
        sorted: whether the indices of a row ascend.
    """

    bound: int | str
    sorted: bool = False

    @property
    def simplest(self) -> str:
        """0, 1, 2 and so on in each row."""
        return "lowest"

    @property
    def rowwise(self) -> bool:
        """An index occurs once."""
        return True

    @property
    def recipes(self) -> tuple[str, ...]:
        """Random, the lowest ascending, the highest descending (unless sorted), the same in every row."""
        return ("index", "lowest", "highest", "collisions")

    def misfit(self, spec: TensorSpec) -> str:
        """See ``Domain.misfit``."""
        return misfit_of_rows(spec, "distinct indices")

    def at_most(self, dims: Sequence[str]) -> tuple[tuple[str, str], ...]:
        """No more indices in a row than there are values."""
        return ((dims[-1], str(self.bound)),)

    def drawn(self, drawing: Drawing) -> Tensor:
        """See ``Domain.drawn``."""
        shape, count = drawing.shape, drawing.shape[-1]
        high = top(self.bound, drawing.sizes)
        if count > high:
            raise ValueError(f"{drawing.name}: {count} distinct indices need more than {high} values")
        step = torch.arange(count).expand(shape).contiguous()
        if drawing.recipe == "lowest":
            return step
        if drawing.recipe == "highest":
            return step + (high - count) if self.sorted else high - 1 - step
        own = (*(1 for _ in shape[:-1]), count) if drawing.recipe == "collisions" else shape
        found = drawing.integers("gaps", 0, high - count, own).sort(-1)[0] + torch.arange(count)
        found = found if self.sorted else drawing.shuffled(found)
        return found.expand(shape).contiguous()

    def fault(self, values: Tensor, sizes: Sizes, beside: Neighbours = NONE) -> str:
        """See ``Domain.fault``."""
        values = values.long()
        wrong = outside(values, 0, top(self.bound, sizes) - 1, "indices") or repeated(values)
        falls = values.diff(dim=-1, prepend=values[..., :1] - 1) < 0
        if not wrong and self.sorted and falls.any():
            index = place(falls)
            before = int(values[(*index[:-1], index[-1] - 1)])
            return f"falls from {before} to {at(values, falls)}, expected indices that ascend in each row"
        return wrong

    def extended(self, values: Tensor, longer: Longer, beside: Neighbours = NONE) -> Tensor:
        """A new index of a row is one that it lacks, the first of these; of a sorted one the next."""
        out = values
        for axis in longer.axes:
            if axis != values.dim() - 1:
                out = longer.joined(out, out.narrow(axis, 0, 1), axis)
            elif self.sorted:
                out = longer.joined(out, longer.edge(out, axis) + (-1 if longer.first else 1), axis)
            else:
                out = longer.joined(out, lacking(out, top(self.bound, longer.after)), axis)
        return out

    @property
    def words(self) -> str:
        """See ``Domain.words``."""
        return f"indices 0 to {below(self.bound)}, distinct in a row{' and ascending' if self.sorted else ''}"


def repeated(values: Tensor, what: str = "in its row") -> str:
    """``Domain.fault`` of a value that occurs a second time in its row."""
    order = values.argsort(stable=True, dim=-1)
    ordered = values.gather(-1, order)
    again = torch.zeros_like(values, dtype=torch.bool)
    again.scatter_(-1, order, ordered.diff(dim=-1, prepend=ordered[..., :1] - 1) == 0)
    return f"holds {at(values, again)} a second time, expected each value once {what}" if again.any() else ""


def lacking(values: Tensor, count: int) -> Tensor:
    """The least of 0 .. count - 1 that each row lacks, [... 1]; ``count`` where it lacks none."""
    ordered, _ = values.long().sort(-1)
    step = torch.arange(values.shape[-1], device=values.device)
    found = (ordered == step).long().cumprod(-1).sum(-1, keepdim=True)  # how many of 0, 1, 2... are there
    return found.clamp(max=count).to(values.dtype)
