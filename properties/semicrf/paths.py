"""Paths: what semi-CRF properties know of a sample's segmentations without a kernel, and samples made for them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import torch
from gradoracle.properties.agreement import double
from gradoracle.properties.semicrf.problems import FORWARD, TABLES, table_of
from torch import Tensor

from gradoracle.cases.sample import Sample
from gradoracle.check.evidence import Evidence
from gradoracle.model.case import Case
from gradoracle.model.kernel import Kernel

PROJECTIONS = ("proj_start", "proj_end")


@dataclass(frozen=True)
class Paths:
    """One sample's lengths and cotangents in float64 on the CPU, and which of its sequences have a segmentation.

    Not a truth of what kernels give, but for whether there is any path, which is read off the oracle's log Z.
    """

    evidence: Evidence

    @property
    def sample(self) -> Sample:
        """The tensors."""
        return self.evidence.sample

    @cached_property
    def lengths(self) -> Tensor:
        """[B] int64."""
        return self.sample.inputs["lengths"].detach().to("cpu", torch.int64)

    @cached_property
    def steps(self) -> int:
        """T."""
        return int(self.sample.inputs["cum_scores"].shape[1]) - 1

    @cached_property
    def at(self) -> Tensor:
        """[T+1] int64 places: 0 .. T."""
        return torch.arange(self.steps + 1)

    @cached_property
    def g(self) -> Tensor:
        """[B] the cotangents of log Z."""
        return double(self.sample.cotangents["log_z"])

    @cached_property
    def possible(self) -> Tensor:
        """[B] whether a sequence has a segmentation, the empty one of no positions included."""
        return self.evidence.truths(FORWARD)["log_z"].value > -torch.inf

    @cached_property
    def some(self) -> Tensor:
        """[B] 1 where each segmentation of a sequence has a segment, 0 where it has no segmentation or no position."""
        return (self.possible & (self.lengths > 0)).double()

    @cached_property
    def inside(self) -> Tensor:
        """[B T+1] 1 at positions that a segmentation covers, 0 past the length and where there is no segmentation."""
        return (self.at < self.lengths[:, None]).double() * self.some[:, None]

    @cached_property
    def ends(self) -> Tensor:
        """[B T+1] 1 at the length and -1 at 0 of sequences that have a segment, 0 elsewhere."""
        last, first = (self.at == self.lengths[:, None]).double(), (self.at == 0).double()
        return (last - first) * self.some[:, None]

    @cached_property
    def table(self) -> str:
        """Which form of the transition there is."""
        return table_of(self.sample)


def takes_projections(case: Case, kernel: Kernel) -> str | None:
    """Why properties that give a kernel projections whatever the case do not apply; None where they do."""
    barred = [name for name in PROJECTIONS if kernel.options.get(name) == ()]
    return f"the kernel takes no {' and no '.join(barred)}" if barred else None


def with_projections(evidence: Evidence) -> Evidence:
    """The evidence, or where the case lacks a projection its variant with zeros, which leave every score."""
    if all(name in evidence.sample.inputs for name in PROJECTIONS):
        return evidence
    return evidence.variant("projections of zero", projected)


def projected(sample: Sample) -> Sample:
    """The sample with projections of 0, and tangents of 0, where it has none."""
    cum = sample.inputs["cum_scores"]
    zeros = torch.zeros(cum.shape[0], cum.shape[1] - 1, cum.shape[2], dtype=cum.dtype, device=cum.device)
    inputs, tangents = dict(sample.inputs), dict(sample.tangents)
    for name in PROJECTIONS:
        given, moved = inputs.pop(name, zeros), tangents.pop(name, zeros)
        inputs[name], tangents[name] = given, moved  # in the order of the signature
    return replace(sample, inputs=inputs, tangents=tangents)


def by_duration(sample: Sample, table: Tensor) -> Sample:
    """The sample with a transition [K C C] of its own for each duration, whose tangent is 0."""

    def placed(group: dict[str, Tensor], tensor: Tensor) -> dict[str, Tensor]:
        return {TABLES[1] if n in TABLES else n: tensor if n in TABLES else t for n, t in group.items()}

    tangents = placed(dict(sample.tangents), torch.zeros_like(table))
    return replace(sample, inputs=placed(dict(sample.inputs), table), tangents=tangents)
