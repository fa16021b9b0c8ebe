"""Lengths: of ragged rows, or how many tokens each expert has."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from gradoracle.model.dims import dim_names
from gradoracle.model.domains.domain import (
    NONE,
    Domain,
    Drawing,
    Longer,
    Neighbours,
    Sizes,
    misfit_of_rows,
    outside,
    place,
    top,
)
from gradoracle.model.domains.offsets import CUTS, drawn_offsets
from gradoracle.model.signature import TensorSpec

_TILE = 16


@dataclass(frozen=True)
class Lengths(Domain):
    """Lengths, each from a minimum to a bound; with ``total`` they add up to it along the last dim.

    Attributes:
        bound: the largest length, or the total: a number, or a dim (or an expression of dims), which stands for its
            size.
        minimum: the least length.
        total: whether the lengths of a row add up to the bound, as the tokens of experts do.

    Raises:
        ValueError: the least length is negative.
    """

    bound: int | str
    minimum: int = 0
    total: bool = False

    def __post_init__(self) -> None:
        if self.minimum < 0:
            raise ValueError(f"Lengths has minimum {self.minimum}; expected a length of at least 0")

    @property
    def simplest(self) -> str:
        """Full rows; of a total all in the first one."""
        return "highest"

    @property
    def rowwise(self) -> bool:
        """Lengths may repeat unless they add up."""
        return self.total

    @property
    def recipes(self) -> tuple[str, ...]:
        """Random, all least, all greatest, two kinds, about multiples of a tile; of a total those of offsets."""
        return CUTS if self.total else (*super().recipes, "tails")

    def misfit(self, spec: TensorSpec) -> str:
        """See ``Domain.misfit``."""
        return misfit_of_rows(spec, "lengths that add up") if self.total else ""

    def at_most(self, dims: Sequence[str]) -> tuple[tuple[str, str], ...]:
        """No more rows than tokens, if none is empty."""
        if not self.minimum:
            return ()
        return ((f"{self.minimum}*({dims[-1]})" if self.total else str(self.minimum), str(self.bound)),)

    def grouped(self, dims: Sequence[str]) -> frozenset[str]:
        """The tokens of a total."""
        return frozenset(dim_names(str(self.bound))) if self.total else frozenset()

    def drawn(self, drawing: Drawing) -> Tensor:
        """See ``Domain.drawn``."""
        high = top(self.bound, drawing.sizes)
        if self.total:
            ends = drawn_offsets(drawing, high, leading=False, least=self.minimum)
            return ends.diff(dim=-1, prepend=torch.zeros_like(ends[..., :1]))
        if drawing.recipe == "tails":
            near = _TILE * drawing.integers("tiles", 0, max(high // _TILE, 1)) + drawing.integers("tails", -1, 1)
            return near.clamp(self.minimum, high)
        return drawing.plain(self.minimum, high)

    def fault(self, values: Tensor, sizes: Sizes, beside: Neighbours = NONE) -> str:
        """See ``Domain.fault``."""
        values, high = values.long(), top(self.bound, sizes)
        if wrong := outside(values, self.minimum, high, "lengths"):
            return wrong
        if self.total and ((sums := values.sum(-1, keepdim=True)) != high).any():
            index = place(sums != high)
            where = f" in row {list(index[:-1])}" if len(index) > 1 else ""
            return f"adds up to {int(sums[index])}{where}, expected lengths that add up to {high}"
        return ""

    def is_read_as(self, wanted: str) -> bool:
        """See ``Domain.is_read_as``."""
        return wanted == "lengths" or self.total

    def ends(self, values: Tensor) -> Tensor | None:
        """See ``Domain.ends``."""
        return values.long().cumsum(-1) if self.total else None

    def extended(self, values: Tensor, longer: Longer, beside: Neighbours = NONE) -> Tensor:
        """Of a total a new length is 0, and new tokens count for the nearest one."""
        if not self.total:
            return longer.repeated(values)
        last = values.dim() - 1
        out = replace(longer, axes=tuple(axis for axis in longer.axes if axis != last)).repeated(values)
        more = top(self.bound, longer.after) - top(self.bound, longer.before)
        if more:
            out = out.clone()
            out[..., 0 if longer.first else -1] += more
        return longer.joined(out, torch.zeros_like(out[..., :1]), last) if last in longer.axes else out

    @property
    def words(self) -> str:
        """See ``Domain.words``."""
        return f"lengths that add up to {self.bound}" if self.total else f"lengths {self.minimum} to {self.bound}"
