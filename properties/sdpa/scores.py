"""Scores: what SDPA properties know of a sample without a kernel: who sees whom, P and its derivatives in float64."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from gradoracle.properties.agreement import double
from gradoracle.properties.attention import scale_of, seen
from torch import Tensor

from gradoracle.cases.sample import Sample
from gradoracle.model.contract import Contract
from gradoracle.model.formats import FORMATS


@dataclass(frozen=True)
class Scores:
    """One sample's attention in float64 on the CPU, for the sizes that sensitivities are measured against.

    Not a truth: truths come from the oracle.
    """

    sample: Sample

    def tensor(self, group: str, name: str) -> Tensor:
        """An input, tangent or cotangent of the sample in float64."""
        return double(getattr(self.sample, group)[name])

    @property
    def q(self) -> Tensor:
        """[B, H, T, D]."""
        return self.tensor("inputs", "q")

    @property
    def k(self) -> Tensor:
        """[B, H, M, D]."""
        return self.tensor("inputs", "k")

    @property
    def v(self) -> Tensor:
        """[B, H, M, Dv]."""
        return self.tensor("inputs", "v")

    @property
    def g(self) -> Tensor:
        """The cotangent of o [B, H, T, Dv]."""
        return self.tensor("cotangents", "o")

    @property
    def scale(self) -> float:
        """The factor of q k^T."""
        return scale_of(self.sample)

    @property
    def queries(self) -> int:
        """T."""
        return self.sample.inputs["q"].shape[2]

    @property
    def keys(self) -> int:
        """M."""
        return self.sample.inputs["k"].shape[2]

    @cached_property
    def seen(self) -> Tensor:
        """[T] how many keys each query sees: the first so many."""
        return seen(self.queries, self.keys, self.sample.options["causal"])

    @property
    def first(self) -> int:
        """The first query that sees a key."""
        return int((self.seen == 0).sum())

    @cached_property
    def visible(self) -> Tensor:
        """[T, M] whether query i sees key j."""
        return torch.arange(self.keys)[None, :] < self.seen[:, None]

    @cached_property
    def p(self) -> Tensor:
        """[B, H, T, M] softmax of the scores, 0 where a query does not see a key."""
        return softmax(self.q @ self.k.transpose(-1, -2) * self.scale, self.visible)

    @cached_property
    def ds(self) -> Tensor:
        """[B, H, T, M] the gradient of <g, o> in the scores."""
        dp = self.g @ self.v.transpose(-1, -2)
        return self.p * (dp - (dp * self.p).sum(-1, keepdim=True))

    @cached_property
    def s_tangent(self) -> Tensor:
        """[B, H, T, M] the tangent of the scores."""
        tq, tk = self.tensor("tangents", "q"), self.tensor("tangents", "k")
        return score_tangent(self.q, self.k, tq, tk, self.scale)

    @cached_property
    def p_tangent(self) -> Tensor:
        """[B, H, T, M] the tangent of P."""
        return self.p * (self.s_tangent - (self.p * self.s_tangent).sum(-1, keepdim=True))


def softmax(s: Tensor, visible: Tensor) -> Tensor:
    """Softmax over the visible keys [.., T, M]; 0 in rows that see none. Traceable."""
    sees = visible.any(-1, keepdim=True)
    masked = torch.where(sees, torch.where(visible, s, -torch.inf), 0.0)
    return torch.where(sees, torch.softmax(masked, -1), 0.0)


def score_tangent(q: Tensor, k: Tensor, tq: Tensor, tk: Tensor, scale: float) -> Tensor:
    """The tangent of scale q k^T [.., T, M]. Traceable."""
    return (tq @ k.transpose(-1, -2) + q @ tk.transpose(-1, -2)) * scale


def scores_overflow(scores: Scores, contract: Contract) -> bool:
    """Whether a score, or a partial sum of one, may be beyond the format that the contract keeps it in."""
    largest = FORMATS[contract.output if contract.store_all else contract.accumulate].largest
    size = scores.q.abs().amax((-1, -2), keepdim=True) * scores.k.abs().amax((-1, -2), keepdim=True)
    return bool((size * scores.q.shape[-1] * max(scores.scale, 1.0)).max() > largest / 4)
