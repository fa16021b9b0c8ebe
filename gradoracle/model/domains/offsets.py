"""Offsets: where the sequences of packed tokens begin and end, or where each expert's tokens do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

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
    at,
    misfit_of_rows,
    place,
    top,
)
from gradoracle.model.signature import TensorSpec

CUTS = ("index", "lowest", "highest", "collisions", "equal", "empty", "tails")
"""The recipes of sequences that fill a number of tokens."""

_TILE = 16


@dataclass(frozen=True)
class Offsets(Domain):
    """Offsets of packed sequences along the last dim, such as ``cu_seqlens``: sorted, from 0 to a number of tokens.

    N sequences have N + 1 offsets, the first of which is 0. Of experts the ends alone are often given, without that 0.

    Attributes:
        bound: the number of tokens: a number or a dim (or an expression such as ``B*T``), which stands for its size.
        leading: whether the first offset is 0; else it is the end of the first sequence.
        minimum: the least length of a sequence; 0: sequences may be empty.

    Raises:
        ValueError: the least length is negative.
    """

    bound: int | str
    leading: bool = True
    minimum: int = 0

    def __post_init__(self) -> None:
        if self.minimum < 0:
            raise ValueError(f"Offsets has minimum {self.minimum}; expected a length of at least 0")

    @property
    def simplest(self) -> str:
        """Sequences of about equal length."""
        return "equal"

    @property
    def rowwise(self) -> bool:
        """Offsets that repeat one value would give tokens to no sequence."""
        return True

    @property
    def recipes(self) -> tuple[str, ...]:
        """Random ends, all tokens in the last or the first sequence, two kinds of ends, about equal lengths, every
        other sequence empty, lengths about multiples of a tile."""
        return CUTS

    def misfit(self, spec: TensorSpec) -> str:
        """See ``Domain.misfit``."""
        if wrong := misfit_of_rows(spec, "offsets"):
            return wrong
        if self.leading and spec.dims[-1] == "1":
            return "has one element, but offsets have one more than there are sequences"
        return ""

    def at_most(self, dims: Sequence[str]) -> tuple[tuple[str, str], ...]:
        """No more sequences than tokens, if none is empty."""
        count = f"({dims[-1]})-1" if self.leading else dims[-1]
        return ((f"{self.minimum}*({count})", str(self.bound)),) if self.minimum else ()

    def grouped(self, dims: Sequence[str]) -> frozenset[str]:
        """The tokens."""
        return frozenset(dim_names(str(self.bound)))

    def drawn(self, drawing: Drawing) -> Tensor:
        """See ``Domain.drawn``."""
        return drawn_offsets(drawing, top(self.bound, drawing.sizes), self.leading, self.minimum)

    def fault(self, values: Tensor, sizes: Sizes, beside: Neighbours = NONE) -> str:
        """See ``Domain.fault``."""
        return fault_of_offsets(values, top(self.bound, sizes), self.leading, self.minimum)

    def is_read_as(self, wanted: str) -> bool:
        """See ``Domain.is_read_as``."""
        return wanted == "offsets"

    def ends(self, values: Tensor) -> Tensor:
        """See ``Domain.ends``."""
        return values[..., 1:] if self.leading else values

    def extended(self, values: Tensor, longer: Longer, beside: Neighbours = NONE) -> Tensor:
        """A new sequence is empty; new tokens belong to the nearest one."""
        more = top(self.bound, longer.after) - top(self.bound, longer.before)
        return extended_offsets(values, longer, more, self.leading)

    @property
    def words(self) -> str:
        """See ``Domain.words``."""
        return f"offsets of {self.bound}" + ("" if self.leading else ", ends alone")


def drawn_offsets(drawing: Drawing, total: int, leading: bool = True, least: int = 0) -> Tensor:
    """Offsets by one of ``CUTS``; ``total``: of tokens.

    Raises:
        ValueError: the tokens do not suffice for the sequences.
    """
    count = drawing.shape[-1] - leading
    spare = total - count * least
    if spare < 0:
        raise ValueError(f"{drawing.name}: {count} sequences of at least {least} need more than {total} tokens")
    shape = (*drawing.shape[:-1], count)
    if drawing.recipe in ("equal", "empty", "tails"):
        ends = _ENDS[drawing.recipe](drawing, shape, spare)
        found = torch.cat([torch.zeros((*shape[:-1], 1), dtype=torch.int64), ends], -1) if leading else ends
        found = found.clone(memory_format=torch.contiguous_format)
    else:
        found, _ = drawing.plain(0, spare).sort(-1)
        if leading:
            found[..., 0] = 0
    if count or not leading:
        found[..., -1] = spare
    return found + least * torch.arange(1 - leading, count + 1) if least else found


def _equal(drawing: Drawing, shape: tuple[int, ...], total: int) -> Tensor:
    return (torch.arange(1, shape[-1] + 1) * total // shape[-1]).expand(shape)


def _empty(drawing: Drawing, shape: tuple[int, ...], total: int) -> Tensor:
    """The second sequence and every other one from there on is empty."""
    filled = -(-shape[-1] // 2)
    return ((torch.arange(shape[-1]) // 2 + 1) * total // filled).expand(shape)


def _tails(drawing: Drawing, shape: tuple[int, ...], total: int) -> Tensor:
    """Each sequence ends one token after a tile, with it, or one before; the last one where the tokens do."""
    lengths = _TILE * drawing.integers("tiles", 1, 3, shape) + drawing.integers("tails", -1, 1, shape)
    return lengths.cumsum(-1).clamp(max=total)


_ENDS = {"equal": _equal, "empty": _empty, "tails": _tails}


def fault_of_offsets(values: Tensor, total: int, leading: bool = True, least: int = 0) -> str:
    """``Domain.fault`` of offsets of ``total`` tokens."""
    values = values.long()
    if values.numel() == 0:
        return ""
    starts = torch.zeros_like(values[..., :1])
    falls = values.diff(dim=-1, prepend=values[..., :1] if leading else starts) < 0
    if falls.any():
        index = place(falls)
        before = int(values[(*index[:-1], index[-1] - 1)]) if index[-1] else 0
        return f"falls from {before} to {at(values, falls)}, expected offsets that rise from 0 to {total}"
    if leading and (wrong := values[..., :1] != 0).any():
        return f"begins with {at(values, wrong)}, expected offsets that rise from 0 to {total}"
    ends = torch.zeros_like(values, dtype=torch.bool)
    ends[..., -1] = values[..., -1] != total
    if ends.any():
        return f"ends with {at(values, ends)}, expected offsets that rise from 0 to {total}"
    short = (values if leading else torch.cat([starts, values], -1)).diff(dim=-1) < least
    if short.any():
        index = place(short)
        shown = [*index[:-1], index[-1] + leading]
        return (
            f"has a sequence that ends at {list(shown)} of length below {least}, expected lengths of at least {least}"
        )
    return ""


def extended_offsets(values: Tensor, longer: Longer, more: int, leading: bool = True) -> Tensor:
    """Offsets with new members; ``more``: how many tokens are new."""
    out = values.contiguous()
    for axis in longer.axes:
        slab = longer.edge(out, axis)
        if longer.first and not leading and axis == out.dim() - 1:
            slab = torch.zeros_like(slab)
        out = longer.joined(out, slab, axis)
    if more:
        out = out.clone()
        start = (int(leading) if longer.first else -1) if values.numel() else 0
        out[..., start:] += more
    return out
