"""Scores: what LSE properties know of a sample without a kernel."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import torch
from gradoracle.properties.agreement import double
from gradoracle.properties.attention import scale_of, seen
from torch import Tensor

from gradoracle.cases.sample import Sample
from gradoracle.model.case import Case
from gradoracle.model.derivative import Derivative
from gradoracle.model.kernel import Kernel

FORWARD, VJP, JVP, HVP = Derivative.FORWARD, Derivative.VJP, Derivative.JVP, Derivative.HVP
DERIVATIVES = {"lse": FORWARD, "dq": VJP, "dk": VJP, "dsinks": VJP}
SEGMENTS = ("q_segments", "kv_segments")


@dataclass(frozen=True)
class Scores:
    """One sample's scores in float64 on the CPU, for bounds and for the sizes that sensitivities are measured against.

    Not a truth: truths come from the oracle.
    """

    sample: Sample

    @cached_property
    def q(self) -> Tensor:
        """[B, H, T, D]."""
        return double(self.sample.inputs["q"])

    @cached_property
    def k(self) -> Tensor:
        """[B, G, M, D]."""
        return double(self.sample.inputs["k"])

    @cached_property
    def g(self) -> Tensor:
        """The cotangent of lse [B, H, T]."""
        return double(self.sample.cotangents["lse"])

    @cached_property
    def sinks(self) -> Tensor | None:
        """[1, H, 1] where there are sinks."""
        return double(self.sample.inputs["sinks"])[None, :, None] if "sinks" in self.sample.inputs else None

    @property
    def scale(self) -> float:
        """The factor of q k^T."""
        return scale_of(self.sample)

    @property
    def share(self) -> int:
        """How many query heads share a key head: H // G."""
        return self.q.shape[1] // self.k.shape[1]

    @property
    def k_of_heads(self) -> Tensor:
        """[B, H, M, D] the key head of each query head."""
        return self.k.repeat_interleave(self.share, 1)

    @cached_property
    def visible(self) -> Tensor:
        """[B, 1, T, M] whether query i sees key j."""
        batch, _, queries, _ = self.q.shape
        keys = self.k.shape[2]
        found = torch.arange(keys)[None, :] < seen(queries, keys, self.sample.options["causal"])[:, None]
        found = found.expand(batch, 1, queries, keys)
        if "q_segments" in self.sample.inputs:
            own, others = (self.sample.inputs[name].cpu() for name in SEGMENTS)
            found = found & (own[:, None, :, None] == others[:, None, None, :])
        return found

    @cached_property
    def sees(self) -> Tensor:
        """[B, H, T] whether a query sees a key."""
        return self.visible.any(-1).expand(self.q.shape[:3])

    @property
    def finite(self) -> Tensor:
        """[B, H, T] whether a row has a term: a key or a sink."""
        return self.sees if self.sinks is None else torch.ones_like(self.sees)

    @cached_property
    def capped(self) -> Tensor:
        """[B, H, T, M] scores with the softcap; -inf where a query does not see a key."""
        s = self.q @ self.k_of_heads.transpose(-1, -2) * self.scale
        cap = self.sample.options["softcap"]
        return torch.where(self.visible, s if cap is None else cap * torch.tanh(s / cap), -torch.inf)

    @cached_property
    def terms(self) -> Tensor:
        """[B, H, T, M or M + 1] the exponents of the sum: scores, and the sink."""
        if self.sinks is None:
            return self.capped
        return torch.cat([self.capped, self.sinks[..., None].expand(*self.q.shape[:3], 1)], -1)

    @cached_property
    def p(self) -> Tensor:
        """[B, H, T, M] the share of each key in its row's sum, 0 in rows that see no key."""
        return torch.softmax(self.terms, -1).nan_to_num(0.0)[..., : self.k.shape[2]]


def without_inputs(sample: Sample, *names: str) -> Sample:
    """The sample without some of its optional inputs."""
    inputs = {name: tensor for name, tensor in sample.inputs.items() if name not in names}
    tangents = {name: tensor for name, tensor in sample.tangents.items() if name not in names}
    return replace(sample, inputs=inputs, tangents=tangents)


def with_tangents_of(sample: Sample, *names: str) -> Sample:
    """The sample with tangents of 0 for all but some inputs."""
    return sample.with_tangents(**{n: torch.zeros_like(t) for n, t in sample.tangents.items() if n not in names})


def with_signless_cotangents(sample: Sample) -> Sample:
    """The sample with the absolute values of its cotangents."""
    return sample.with_cotangents(lse=sample.cotangents["lse"].abs())


def has_sinks(case: Case, kernel: Kernel) -> str | None:
    """Why properties of sinks do not apply; None where they do."""
    return None if "sinks" in case.draws else "the case has no sinks"


def no_sinks(case: Case, kernel: Kernel) -> str | None:
    """Why properties of rows whose terms are keys alone do not apply; None where they do."""
    return "the case has sinks" if "sinks" in case.draws else None


def has_segments(case: Case, kernel: Kernel) -> str | None:
    """Why properties of segments do not apply; None where they do."""
    return None if SEGMENTS[0] in case.draws else "the case has no segments"


def no_segments(case: Case, kernel: Kernel) -> str | None:
    """Why properties of cases in which segments hide no key do not apply; None where they do."""
    return "the case has segments" if SEGMENTS[0] in case.draws else None


def no_softcap(case: Case, kernel: Kernel) -> str | None:
    """Why properties of scores that are linear in q and in k do not apply; None where they do."""
    return "the case has a softcap" if case.options.get("softcap") is not None else None
