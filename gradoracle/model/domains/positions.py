"""Positions: the place of each packed token in its sequence, such as ``position_ids``."""

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
    misfit_of_rows,
    named_dims,
    outside,
    product,
    top,
)
from gradoracle.model.domains.sequences import beside_of, drawn_beside, fault_beside, positions, since
from gradoracle.model.signature import TensorSpec

_LONGER_THAN_A_TILE = 17
_OFTEN = 4  # one token in so many begins a sequence


@dataclass(frozen=True)
class Positions(Domain):
    """Positions of packed tokens along the last dim: 0, 1, 2 and so on, from 0 again at each new sequence.

    Attributes:
        bound: the number that no position reaches, such as the rows of a table of rotations: a number or a dim (or an
            expression of dims); "": the last dim. With ``of`` there are no more tokens than that.
        of: the input of offsets (or of counts) that says where the sequences end; "": they end anywhere.
    """

    bound: int | str = ""
    of: str = ""

    @property
    def simplest(self) -> str:
        """One sequence, where there is a choice."""
        return "index" if self.of else "highest"

    @property
    def rowwise(self) -> bool:
        """A position says where its neighbour is."""
        return True

    @property
    def recipes(self) -> tuple[str, ...]:
        """Random, each token alone, one sequence, about equal ones, just longer than a tile; with ``of`` no choice."""
        return ("index",) if self.of else ("index", "lowest", "highest", "equal", "tails")

    @property
    def reads(self) -> tuple[str, ...]:
        """See ``Domain.reads``."""
        return (self.of,) if self.of else ()

    def misfit(self, spec: TensorSpec) -> str:
        """See ``Domain.misfit``."""
        if self.of and self.bound != "" and (starred := [dim for dim in spec.dims if dim.startswith("*")]):
            return f"has the dims {starred[0]}, but positions below {self.bound} that follow {self.of} need named dims"
        return misfit_of_rows(spec, "positions")

    def at_most(self, dims: Sequence[str]) -> tuple[tuple[str, str], ...]:
        """No more tokens than positions, where a sequence of another input may have all of them."""
        return ((product(dims), str(self.bound)),) if self.of and self.bound != "" else ()

    def grouped(self, dims: Sequence[str]) -> frozenset[str]:
        """The tokens."""
        return named_dims(dims if self.of else dims[-1:])

    def drawn(self, drawing: Drawing) -> Tensor:
        """See ``Domain.drawn``."""
        shape = drawing.shape
        if self.of:
            return drawn_beside(drawing, self.of, positions)
        count = shape[-1]
        token = torch.arange(count).expand(shape)
        if drawing.recipe == "index":
            begins = drawing.integers("begins", 0, _OFTEN - 1) == 0
        else:
            runs = {"lowest": 1, "highest": count, "equal": -(-count // 3), "tails": _LONGER_THAN_A_TILE}
            begins = token % runs[drawing.recipe] == 0
        return since(begins, self._most(shape, drawing.sizes))

    def _most(self, shape: Sequence[int], sizes: Sizes) -> int:
        return shape[-1] if self.bound == "" else top(self.bound, sizes)

    def fault(self, values: Tensor, sizes: Sizes, beside: Neighbours = NONE) -> str:
        """See ``Domain.fault``."""
        values = values.long()
        beyond = outside(values, 0, self._most(values.shape, sizes) - 1, "positions")
        if self.of:
            return fault_beside(values, beside, self.of, positions) or ("" if self.bound == "" else beyond)
        if beyond:
            return beyond
        breaks = (values != 0) & (values.diff(dim=-1, prepend=values[..., :1]) != 1)
        if breaks.any():
            return f"holds {at(values, breaks)}, expected one more than the position before it, or 0"
        return ""

    def extended(self, values: Tensor, longer: Longer, beside: Neighbours = NONE) -> Tensor:
        """A new last token continues its sequence, where it may; a new first one is a sequence of its own."""
        out = values
        last = values.dim() - 1
        for axis in longer.axes:
            slab = out.narrow(axis, 0, 1)
            if axis == last:
                slab = longer.edge(out, axis)
                slab = torch.zeros_like(slab) if longer.first else slab + 1
                most = self._most((*out.shape[:-1], out.shape[-1] + 1), longer.after)
                slab = torch.where(slab < most, slab, torch.zeros_like(slab))
            out = longer.joined(out, slab, axis)
        return beside_of(out, beside, self.of, positions) if self.of else out

    @property
    def words(self) -> str:
        """See ``Domain.words``."""
        what = (
            f"the place of each token in its sequence in {self.of}" if self.of else "positions, from 0 in each sequence"
        )
        return what + (f", below {self.bound}" if self.bound != "" else "")
