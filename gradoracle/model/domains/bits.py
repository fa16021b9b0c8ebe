"""Bits: integers that hold packed fields, with every pattern of bits."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gradoracle.model import hashing
from gradoracle.model.domains.domain import NONE, Domain, Drawing, Neighbours, Sizes, outside
from gradoracle.model.signature import TensorSpec

_WIDTHS = (8, 16, 32, 64)


@dataclass(frozen=True)
class Bits(Domain):
    """Packed integers: every pattern of so many bits, the sign of the dtype included.

    In a wider dtype they are numbers from 0.

    Attributes:
        width: the number of bits: 8, 16, 32 or 64.

    Raises:
        ValueError: another width.
    """

    width: int = 32

    def __post_init__(self) -> None:
        if self.width not in _WIDTHS:
            raise ValueError(f"Bits has width {self.width!r}; expected one of {', '.join(map(str, _WIDTHS))}")

    @property
    def simplest(self) -> str:
        """No bit is set."""
        return "clear"

    @property
    def recipes(self) -> tuple[str, ...]:
        """Random, the least and the greatest number, two patterns, no bit set, every bit set."""
        return ("index", "lowest", "highest", "collisions", "clear", "full")

    def misfit(self, spec: TensorSpec) -> str:
        """See ``Domain.misfit``."""
        if spec.dtype == "bool":
            return f"is of bools, which have no {self.width} bits"
        own = torch.iinfo(getattr(torch, spec.dtype or "int64")).bits
        return f"is of {spec.dtype or 'int64'}, which has no {self.width} bits" if own < self.width else ""

    def _range(self, dtype: torch.dtype) -> tuple[int, int]:
        own = torch.iinfo(dtype)
        return (own.min, own.max) if own.bits == self.width else (0, (1 << self.width) - 1)

    def drawn(self, drawing: Drawing) -> Tensor:
        """See ``Domain.drawn``."""
        low, high = self._range(drawing.dtype)
        shape, count = drawing.shape, torch.Size(drawing.shape).numel()
        fixed = {"lowest": low, "highest": high, "clear": 0, "full": -1 if low else high}
        if drawing.recipe in fixed:
            return torch.full(shape, fixed[drawing.recipe])
        several = drawing.recipe == "collisions"
        words = hashing.words(drawing.seed, drawing.name, 2 if several else count) >> (64 - self.width)
        # the sum of the least number and a word, modulo 2^64, as the two's complement has it
        found = torch.from_numpy((words + (low % (1 << 64))).view("int64"))
        return (found[drawing.integers("which", 0, 1)] if several else found).reshape(shape)

    def fault(self, values: Tensor, sizes: Sizes, beside: Neighbours = NONE) -> str:
        """See ``Domain.fault``; in a wider dtype the numbers may have a sign."""
        if self.width == 64 or values.dtype is torch.bool:
            return ""
        return outside(values.long(), -(1 << (self.width - 1)), (1 << self.width) - 1, f"numbers of {self.width} bits")

    @property
    def words(self) -> str:
        """See ``Domain.words``."""
        return f"any {self.width} bits"
