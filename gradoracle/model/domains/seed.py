"""Seed: a number that random numbers are made from."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gradoracle.model import hashing
from gradoracle.model.domains.domain import NONE, Domain, Drawing, Neighbours, Sizes, at
from gradoracle.model.signature import TensorSpec


@dataclass(frozen=True)
class Seed(Domain):
    """Seeds: every number from 0 that the dtype of the input can hold, those beyond 32 bits included."""

    @property
    def simplest(self) -> str:
        """0."""
        return "lowest"

    @property
    def recipes(self) -> tuple[str, ...]:
        """Random, 0, the largest."""
        return ("index", "lowest", "highest")

    def misfit(self, spec: TensorSpec) -> str:
        """See ``Domain.misfit``."""
        return "is of bools, but a seed is an integer" if spec.dtype == "bool" else ""

    def drawn(self, drawing: Drawing) -> Tensor:
        """See ``Domain.drawn``."""
        high = torch.iinfo(drawing.dtype).max
        if drawing.recipe != "index":
            return torch.full(drawing.shape, 0 if drawing.recipe == "lowest" else high)
        bits = high.bit_length()
        words = hashing.words(drawing.seed, drawing.name, torch.Size(drawing.shape).numel())
        return torch.from_numpy((words >> (64 - bits)).astype("int64")).reshape(drawing.shape)

    def fault(self, values: Tensor, sizes: Sizes, beside: Neighbours = NONE) -> str:
        """See ``Domain.fault``."""
        wrong = values.long() < 0
        return f"holds {at(values, wrong)}, expected seeds from 0" if wrong.any() else ""

    @property
    def words(self) -> str:
        """See ``Domain.words``."""
        return "any seed"
