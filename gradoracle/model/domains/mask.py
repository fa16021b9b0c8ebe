"""Mask: which elements count, as bools or as 0 and 1."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gradoracle.model.domains.domain import NONE, Domain, Drawing, Longer, Neighbours, Sizes, outside
from gradoracle.model.signature import TensorSpec

_NEEDS_A_ROW = "but rows of a mask are along a dim"


@dataclass(frozen=True)
class Mask(Domain):
    """Masks of any pattern, of bools or of integers 0 and 1.

    Attributes:
        some: whether each row, along the last dim, has at least one element that counts.
        prefix: whether those that count come first in each row, as in a mask of padding.
    """

    some: bool = False
    prefix: bool = False

    @property
    def simplest(self) -> str:
        """Every element counts."""
        return "highest"

    @property
    def recipes(self) -> tuple[str, ...]:
        """Random, none (or one a row), all, one of two values at random, the first ones of each row."""
        return ("index", "lowest", "highest", "collisions", "prefix") if not self.prefix else (
            "index", "lowest", "highest"
        )  # fmt: skip

    @property
    def rowwise(self) -> bool:
        """Rows may repeat, and where they are free so may elements."""
        return self.some

    def misfit(self, spec: TensorSpec) -> str:
        """See ``Domain.misfit``."""
        return f"is one value, {_NEEDS_A_ROW}" if (self.some or self.prefix) and not spec.dims else ""

    def drawn(self, drawing: Drawing) -> Tensor:
        """See ``Domain.drawn``."""
        shape = drawing.shape
        if drawing.recipe == "prefix" or (self.prefix and drawing.recipe == "index"):
            count = shape[-1] if shape else 1
            many = drawing.integers("prefix", int(self.some), count, (*shape[:-1], 1))
            return (torch.arange(count).expand(shape or (1,)) < many).long().reshape(shape)
        found = drawing.plain(0, 1)
        if self.some:
            where = torch.zeros_like(found[..., :1])
            if not self.prefix and drawing.recipe != "lowest":
                where = drawing.integers("some", 0, shape[-1] - 1, where.shape)
            empty = ~found.bool().any(-1, keepdim=True)
            found = torch.where(empty & (torch.arange(shape[-1]) == where), 1, found)
        return found

    def fault(self, values: Tensor, sizes: Sizes, beside: Neighbours = NONE) -> str:
        """See ``Domain.fault``."""
        values = values.long()
        if wrong := outside(values, 0, 1, "a mask of 0 and 1, integers"):
            return wrong
        if self.some and (empty := ~values.bool().any(-1)).any():
            row = [int(each) for each in empty.nonzero()[0]] if empty.dim() else []
            return f"masks all of row {row}, expected at least one element that counts in each"
        rises = values.diff(dim=-1, prepend=values[..., :1]) > 0 if self.prefix else values < 0
        if rises.any():
            index = [int(each) for each in rises.nonzero()[0]]
            return f"holds 1 at {index} after a 0, expected those that count to come first in each row"
        return ""

    def extended(self, values: Tensor, longer: Longer, beside: Neighbours = NONE) -> Tensor:
        """As member 0; of a prefix a new last element does not count, and a new first one does where another does."""
        if not self.prefix:
            return longer.repeated(values)
        out = values
        for axis in longer.axes:
            slab = out.narrow(axis, 0, 1)
            if axis == values.dim() - 1 and not longer.first:
                slab = torch.zeros_like(slab)
            out = longer.joined(out, slab, axis)
        return out

    @property
    def words(self) -> str:
        """See ``Domain.words``."""
        return "a mask" + (" of a prefix" if self.prefix else "") + (", never of a whole row" if self.some else "")
