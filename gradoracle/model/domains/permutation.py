"""Permutation: each row holds every index once, such as the order in which tokens are sorted by expert."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gradoracle.model.domains.distinct import repeated
from gradoracle.model.domains.domain import (
    NONE,
    Domain,
    Drawing,
    Longer,
    Neighbours,
    Sizes,
    misfit_of_rows,
    outside,
    top,
)
from gradoracle.model.signature import TensorSpec


@dataclass(frozen=True)
class Permutation(Domain):
    """Permutations along the last dim: each row holds 0 to N - 1, each once.

    Attributes:
        bound: the last dim.
    """

    bound: int | str

    @property
    def simplest(self) -> str:
        """The identity."""
        return "identity"

    @property
    def rowwise(self) -> bool:
        """An index occurs once."""
        return True

    @property
    def recipes(self) -> tuple[str, ...]:
        """Random, the identity, the reverse."""
        return ("index", "identity", "reversed")

    def misfit(self, spec: TensorSpec) -> str:
        """See ``Domain.misfit``."""
        if wrong := misfit_of_rows(spec, "permutations"):
            return wrong
        if spec.dims[-1] != str(self.bound):
            return f"has the last dim {spec.dims[-1]}, but a permutation of {self.bound} has {self.bound}"
        return ""

    def drawn(self, drawing: Drawing) -> Tensor:
        """See ``Domain.drawn``."""
        step = torch.arange(drawing.shape[-1]).expand(drawing.shape).contiguous()
        if drawing.recipe == "index":
            return drawing.shuffled(step)
        return step if drawing.recipe == "identity" else drawing.shape[-1] - 1 - step

    def fault(self, values: Tensor, sizes: Sizes, beside: Neighbours = NONE) -> str:
        """See ``Domain.fault``."""
        high = top(self.bound, sizes)
        if values.shape[-1] != high:
            return f"has rows of {values.shape[-1]}, expected permutations of {high}"
        values = values.long()
        return outside(values, 0, high - 1, "a permutation of the numbers") or repeated(values)

    def extended(self, values: Tensor, longer: Longer, beside: Neighbours = NONE) -> Tensor:
        """A new last member stays last; a new first one stays first, and all others have one more before them."""
        out = values
        for axis in longer.axes:
            slab = out.narrow(axis, 0, 1)
            if axis == values.dim() - 1:
                slab = torch.full_like(slab, 0 if longer.first else out.shape[-1])
                out = out + 1 if longer.first else out
            out = longer.joined(out, slab, axis)
        return out

    @property
    def words(self) -> str:
        """See ``Domain.words``."""
        return f"a permutation of {self.bound}"
