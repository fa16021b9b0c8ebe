"""Segments: the number of the sequence that each packed token belongs to, such as ``seq_idx``."""

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
    named_dims,
    outside,
    place,
    top,
)
from gradoracle.model.domains.sequences import beside_of, drawn_beside, fault_beside, numbers
from gradoracle.model.signature import TensorSpec


@dataclass(frozen=True)
class Segments(Domain):
    """Numbers of segments, sorted along the last dim: those of the tokens of packed sequences, one after the other.

    A number may be missing: that segment has no token.

    Attributes:
        bound: how many segments there can be: a number or a dim (or an expression of dims); "" with ``of``.
        of: the input of offsets (or of counts) that says where the sequences end; "": the numbers are free.

    Raises:
        ValueError: both are given, or neither.
    """

    bound: int | str = ""
    of: str = ""

    def __post_init__(self) -> None:
        if (self.bound == "") == (self.of == ""):
            given = f"bound {self.bound!r} and of {self.of!r}" if self.of else "neither bound nor of"
            raise ValueError(
                f"Segments has {given}; expected one of them: a number of segments, or an input of offsets"
            )

    @property
    def simplest(self) -> str:
        """One segment, where there is a choice."""
        return "index" if self.of else "lowest"

    @property
    def recipes(self) -> tuple[str, ...]:
        """Random, one segment (the first or the last), two, about equal ones; with ``of`` there is no choice."""
        return ("index",) if self.of else (*super().recipes, "equal")

    @property
    def reads(self) -> tuple[str, ...]:
        """See ``Domain.reads``."""
        return (self.of,) if self.of else ()

    def misfit(self, spec: TensorSpec) -> str:
        """See ``Domain.misfit``."""
        return misfit_of_rows(spec, "segments")

    def grouped(self, dims: Sequence[str]) -> frozenset[str]:
        """The tokens."""
        return named_dims(dims if self.of else dims[-1:])

    def drawn(self, drawing: Drawing) -> Tensor:
        """See ``Domain.drawn``."""
        if self.of:
            return drawn_beside(drawing, self.of, numbers)
        high = top(self.bound, drawing.sizes) - 1
        if drawing.recipe == "equal":
            count = drawing.shape[-1]
            return (torch.arange(count) * (high + 1) // count).expand(drawing.shape)
        return drawing.plain(0, high).sort(-1)[0]

    def fault(self, values: Tensor, sizes: Sizes, beside: Neighbours = NONE) -> str:
        """See ``Domain.fault``."""
        values = values.long()
        if self.of:
            return fault_beside(values, beside, self.of, numbers)
        if wrong := outside(values, 0, top(self.bound, sizes) - 1, "segments"):
            return wrong
        falls = values.diff(dim=-1, prepend=values[..., :1]) < 0
        if falls.any():
            index = place(falls)
            before = int(values[(*index[:-1], index[-1] - 1)])
            return f"falls from {before} to {at(values, falls)}, expected segments one after the other"
        return ""

    def extended(self, values: Tensor, longer: Longer, beside: Neighbours = NONE) -> Tensor:
        """A new token belongs to the nearest segment."""
        out = values
        for axis in longer.axes:
            last = axis == values.dim() - 1
            out = longer.joined(out, longer.edge(out, axis) if last else out.narrow(axis, 0, 1), axis)
        return beside_of(out, beside, self.of, numbers) if self.of else out

    @property
    def words(self) -> str:
        """See ``Domain.words``."""
        return f"the sequence in {self.of} of each token" if self.of else f"segments 0 to {below(self.bound)}, sorted"
