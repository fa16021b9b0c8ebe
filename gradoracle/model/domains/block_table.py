"""Block table: which blocks of a pool hold the tokens of each sequence, as a paged cache does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gradoracle.model import layouts
from gradoracle.model.domains.distinct import repeated
from gradoracle.model.domains.domain import (
    NONE,
    Domain,
    Drawing,
    Longer,
    Neighbours,
    Sizes,
    at,
    below,
    outside,
    product,
    top,
)
from gradoracle.model.signature import TensorSpec

_NEW = -(1 << 40)  # marks entries that still need a block


@dataclass(frozen=True)
class BlockTable(Domain):
    """The blocks of each sequence, [B M] or [M], as indices into a pool. No two entries name one block.

    Attributes:
        bound: the number of blocks in the pool: a number or a dim (or an expression of dims).
        shared: whether entries may name the same block, as sequences with a common prefix do.
        lengths: the input with the number of tokens of each sequence, [B]; a sequence uses as many entries as these
            need, and the rest hold ``unused``. "": every entry is used.
        block: the number of tokens in a block: a number or a dim; with ``lengths`` only.
        unused: what entries hold that no token needs.
    """

    bound: int | str
    shared: bool = False
    lengths: str = ""
    block: int | str = 1
    unused: int = -1

    @property
    def simplest(self) -> str:
        """Blocks in their order."""
        return "identity"

    @property
    def rowwise(self) -> bool:
        """A block is named once."""
        return not self.shared

    def allows(self, layout: str, shape: Sequence[int]) -> bool:
        """See ``Domain.allows``; not even another row may repeat a block, unless blocks are shared."""
        if self.shared or not layouts.LAYOUTS[layout].repeats:
            return super().allows(layout, shape)
        return max(shape, default=1) == 1

    @property
    def recipes(self) -> tuple[str, ...]:
        """Random, in order, in reverse; where blocks are shared also those that every range has."""
        return ("index", "identity", "reversed", *(("lowest", "highest", "collisions") if self.shared else ()))

    @property
    def reads(self) -> tuple[str, ...]:
        """See ``Domain.reads``."""
        return (self.lengths,) if self.lengths else ()

    @property
    def wanted(self) -> str:
        """See ``Domain.wanted``."""
        return "lengths"

    @property
    def bounds(self) -> tuple[str, ...]:
        """See ``Domain.bounds``."""
        return (str(self.bound), *((str(self.block),) if self.lengths else ()))

    def misfit(self, spec: TensorSpec) -> str:
        """See ``Domain.misfit``."""
        if not spec.dims or any(dim.startswith("*") for dim in spec.dims):
            return f"has dims [{' '.join(spec.dims)}], but a block table needs dims of one name, number or expression"
        return ""

    def at_most(self, dims: Sequence[str]) -> tuple[tuple[str, str], ...]:
        """No more entries than blocks."""
        return () if self.shared else ((product(dims), str(self.bound)),)

    def drawn(self, drawing: Drawing) -> Tensor:
        """See ``Domain.drawn``."""
        pool, shape = top(self.bound, drawing.sizes), drawing.shape
        count = torch.Size(shape).numel()
        if not self.shared and count > pool:
            raise ValueError(f"{drawing.name}: {count} entries need more than {pool} blocks")
        if self.shared and drawing.recipe in ("index", "lowest", "highest", "collisions"):
            found = drawing.plain(0, pool - 1)
        else:
            found = torch.arange(count) % pool
            if drawing.recipe == "reversed":
                found = pool - 1 - found
            elif drawing.recipe == "index":
                gaps = drawing.integers("gaps", 0, pool - count, (count,)).sort()[0]
                found = drawing.shuffled(gaps + torch.arange(count))
            found = found.reshape(shape)
        return torch.where(self._used(shape, drawing.sizes, drawing.beside), found, self.unused)

    def _needed(self, sizes: Sizes, beside: Neighbours) -> Tensor | None:
        """How many entries each sequence uses, [B]; None where all are used."""
        if not self.lengths or self.lengths not in beside.values:
            return None
        block = top(self.block, sizes)
        return (beside.values[self.lengths].long() + block - 1) // block

    def _used(self, shape: Sequence[int], sizes: Sizes, beside: Neighbours) -> Tensor:
        needed = self._needed(sizes, beside)
        if needed is None or tuple(needed.shape) != tuple(shape[:-1]):
            return torch.ones(tuple(shape), dtype=torch.bool)
        return torch.arange(shape[-1], device=needed.device).expand(tuple(shape)) < needed[..., None]

    def fault(self, values: Tensor, sizes: Sizes, beside: Neighbours = NONE) -> str:
        """See ``Domain.fault``; what unused entries hold does not matter."""
        values, pool = values.long(), top(self.bound, sizes)
        needed = self._needed(sizes, beside)
        if needed is not None:
            if tuple(needed.shape) != tuple(values.shape[:-1]):
                return f"has shape {tuple(values.shape)}, expected one row for each of {self.lengths}"
            if (short := needed > values.shape[-1]).any():
                return f"has rows of {values.shape[-1]}, expected {at(needed, short)}, as {self.lengths} needs"
        used = self._used(values.shape, sizes, beside).to(values.device)
        own = torch.where(used, values, 0)
        if wrong := outside(own, 0, pool - 1, "blocks"):
            return wrong
        if self.shared:
            return ""
        apart = torch.where(
            used.reshape(-1), values.reshape(-1), -1 - torch.arange(values.numel(), device=values.device)
        )
        if not repeated(apart):
            return ""
        order = apart.argsort(stable=True)
        again = torch.zeros_like(apart, dtype=torch.bool)
        again[order] = apart[order].diff(prepend=apart[order][:1] - 1) == 0
        return f"holds {at(values, again.reshape(values.shape))} a second time, expected each block once"

    def extended(self, values: Tensor, longer: Longer, beside: Neighbours = NONE) -> Tensor:
        """New entries that are used name blocks that no other does, or where blocks are shared block 0."""
        out = values.long()
        for axis in longer.axes:
            out = longer.joined(out, torch.full_like(out.narrow(axis, 0, 1), _NEW), axis)
        used = self._used(out.shape, longer.after, beside).to(out.device)
        lacks = used & ((out == _NEW) | (out == self.unused) if self.lengths else out == _NEW)
        out = torch.where(used, out, self.unused)
        if lacks.any():
            taken = set() if self.shared else set(out[used & ~lacks].tolist())
            free = [n for n in range(top(self.bound, longer.after)) if n not in taken]
            count = int(lacks.sum())
            chosen = free[:1] * count if self.shared else [*free[:count], *[0] * (count - len(free))]
            out[lacks] = torch.tensor(chosen, dtype=out.dtype, device=out.device)
        return out.to(values.dtype)

    @property
    def words(self) -> str:
        """See ``Domain.words``."""
        used = f", as many as {self.lengths} needs" if self.lengths else ""
        return f"blocks 0 to {below(self.bound)}, {'shared' if self.shared else 'each once'}{used}"
