"""Index domain: integers in a range, some of them marked as ignored."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gradoracle.model import layouts, recipes
from gradoracle.model.domains.domain import NONE, Domain, Drawing, Longer, Neighbours, Sizes, below, outside, top
from gradoracle.model.domains.offsets import Offsets
from gradoracle.model.signature import TensorSpec

_KINDS = ("index", "length", "cu_seqlens")


@dataclass(frozen=True)
class IndexDomain(Domain):
    """Integers in a range, each of its own: indices, targets of a loss, numbers of segments in any order.

    Attributes:
        bound: a number, or a dim (or a sum such as ``T+1``), which stands for its size.
        minimum: the smallest value.
        kind: "index", ``minimum <= value < bound``; "length", ``minimum <= value <= bound``, as ``Lengths``; or
            "cu_seqlens", values sorted along the last dim, from 0 to ``bound``, as ``Offsets`` with fewer recipes.
        ignore: a further value outside of that range that some elements have, such as the ``ignore_index=-100`` of a
            loss; None: there is none.

    Raises:
        ValueError: another kind.
    """

    bound: int | str
    minimum: int = 0
    kind: str = "index"
    ignore: int | None = None

    def __post_init__(self) -> None:
        if self.kind not in _KINDS:
            raise ValueError(f"IndexDomain has kind {self.kind!r}; expected one of {', '.join(_KINDS)}")
        if self.ignore is not None and self.kind == "cu_seqlens":
            raise ValueError("IndexDomain has ignore, but offsets (cu_seqlens) are all used; expected another kind")

    @property
    def _offsets(self) -> Offsets | None:
        """The offsets that this one is, if it is."""
        return Offsets(self.bound) if self.kind == "cu_seqlens" else None

    @property
    def rowwise(self) -> bool:
        """See ``Domain.rowwise``."""
        return self._offsets is not None

    def highest(self, dims: Mapping[str, int]) -> int:
        """The largest value at given sizes of the dims."""
        bound = top(self.bound, dims)
        return bound - 1 if self.kind == "index" else bound

    def misfit(self, spec: TensorSpec) -> str:
        """See ``Domain.misfit``."""
        if self._offsets:
            return self._offsets.misfit(spec)
        if spec.dtype in ("", "bool") or not isinstance(self.bound, int):
            return ""
        held, last = torch.iinfo(getattr(torch, spec.dtype)), self.highest({})
        if held.min <= self.minimum and last <= held.max:
            return ""
        return f"is of {spec.dtype}, from {held.min} to {held.max}, and its domain goes from {self.minimum} to {last}"

    def grouped(self, dims: Sequence[str]) -> frozenset[str]:
        """See ``Domain.grouped``."""
        return self._offsets.grouped(dims) if self._offsets else frozenset()

    def drawn(self, drawing: Drawing) -> Tensor:
        """See ``Domain.drawn``."""
        if self._offsets:
            return self._offsets.drawn(drawing)
        found = drawing.plain(self.minimum, self.highest(drawing.sizes))
        if self.ignore is None:
            return found
        stream = drawing.name.replace("primal", "ignored", 1)
        marks = recipes.indices("index", drawing.shape, 0, 3, seed=drawing.seed, name=stream)
        return found.masked_fill(marks == 0, self.ignore)

    def fault(self, values: Tensor, sizes: Sizes, beside: Neighbours = NONE) -> str:
        """See ``Domain.fault``."""
        if self._offsets:
            return self._offsets.fault(values, sizes)
        return outside(values.long(), self.minimum, self.highest(sizes), "integers", self.ignore)

    def is_read_as(self, wanted: str) -> bool:
        """See ``Domain.is_read_as``."""
        return wanted == ("offsets" if self._offsets else "lengths") and self.ignore is None

    def ends(self, values: Tensor) -> Tensor | None:
        """See ``Domain.ends``."""
        return self._offsets.ends(values) if self._offsets else None

    def allows(self, layout: str, shape: Sequence[int]) -> bool:
        """See ``Domain.allows``; no offset is repeated, not even in another row."""
        return self._offsets is None or not layouts.LAYOUTS[layout].repeats

    def extended(self, values: Tensor, longer: Longer, beside: Neighbours = NONE) -> Tensor:
        """See ``Domain.extended``."""
        return self._offsets.extended(values, longer) if self._offsets else longer.repeated(values)

    @property
    def words(self) -> str:
        """See ``Domain.words``."""
        if self._offsets:
            return self._offsets.words
        most = self.bound if self.kind == "length" else below(self.bound)
        return f"{self.minimum} to {most}" + ("" if self.ignore is None else f", or {self.ignore}")
