"""Scalable: an oracle that a family may provide for samples on which its definition is too large to trace."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Protocol

from torch import Tensor

from gradoracle.cases.sample import Sample
from gradoracle.model.contract import Contract
from gradoracle.model.derivative import Derivative
from gradoracle.oracle.exact.enclosure import Enclosure
from gradoracle.oracle.rounding.reading import Budget


class Scalable(Protocol):
    """An oracle of one family that needs no graph; ``Oracle`` asks it first (``Family.scalable``).

    Tensors are named as by ``truth.names``; for the VJP the outputs come with the gradients. It shares no code with any
    kernel, and is tested against the definition where both apply.

    Attributes:
        algorithms: the orders of roundings that it has budgets for, for every sample. The family names them too,
            without a program: ``algorithms={name: {}}``.
    """

    algorithms: Collection[str]

    def outgrown(self, dims: Mapping[str, int]) -> bool:
        """Whether samples of these sizes are too large to trace, in memory or time."""

    def serves(self, sample: Sample) -> bool:
        """Whether this sample is read without a graph: it is outgrown, or float64 would read it badly."""

    def budgeted(self, contract: Contract) -> bool:
        """Whether budgets under this contract are its own for every sample, even for those that can be traced."""

    def values(self, sample: Sample, derivative: Derivative) -> dict[str, Tensor]:
        """The float64 reading, with errors of at most the contract's sigma times the ratio of the units."""

    def certified(self, sample: Sample, derivative: Derivative) -> dict[str, Enclosure] | None:
        """The reading with proven radii; None if there is none of this derivative."""

    def budgets(
        self,
        sample: Sample,
        derivative: Derivative,
        contract: Contract,
        *,
        stored: Mapping[str, str],
        probes: int,
        worst: bool,
        algorithm: str = "definition",
    ) -> dict[str, Budget]:
        """The budgets; ``stored`` names the format that a kernel returns each tensor in."""
