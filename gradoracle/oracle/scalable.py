"""Scalable: what a family may bring along for samples whose definition is too large to be traced."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from torch import Tensor

from gradoracle.cases.sample import Sample
from gradoracle.model.contract import Contract
from gradoracle.model.derivative import Derivative
from gradoracle.oracle.exact.enclosure import Enclosure
from gradoracle.oracle.rounding.reading import Budget


class Scalable(Protocol):
    """An oracle of one family that needs no graph; ``Oracle`` asks it first (``Family.scalable``).

    Tensors are named as ``truth.names`` says; of the VJP the outputs come with the gradients. Written apart from every
    kernel, and tested against the definition where both serve.
    """

    def outgrown(self, dims: Mapping[str, int]) -> bool:
        """Whether no sample of these sizes may be traced: its memory or time would be out of proportion."""

    def serves(self, sample: Sample) -> bool:
        """Whether this sample is read without a graph: one that is outgrown, or that float64 would read badly."""

    def budgeted(self, contract: Contract) -> bool:
        """Whether budgets under this contract are its own for every sample, for those too that the definition reads."""

    def values(self, sample: Sample, derivative: Derivative) -> dict[str, Tensor]:
        """The float64 reading; its own errors are no larger than the contract's sigma times the ratio of the units."""

    def certified(self, sample: Sample, derivative: Derivative) -> dict[str, Enclosure] | None:
        """The reading with proven radii; None where there is none of this derivative."""

    def budgets(
        self,
        sample: Sample,
        derivative: Derivative,
        contract: Contract,
        *,
        stored: Mapping[str, str],
        probes: int,
        worst: bool,
    ) -> dict[str, Budget]:
        """What rounding explains, each tensor being returned in the format that ``stored`` names."""
