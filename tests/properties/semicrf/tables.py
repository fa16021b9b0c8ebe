"""A correct float32 semi-CRF kernel that shows alpha, beta and marginals, in eager PyTorch; and wrong ones.

Log domain, float32 throughout; norms are taken at each position and kept in float64.
Sequences are as long as T.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from gradoracle.model.contract import PRESETS
from gradoracle.model.kernel import Kernel
from tests.properties.semicrf import plain

FAULTS = ("norm lost once", "norms in float32", "beta norms of the position before")


class Tables:
    """Alpha and beta of a problem."""

    def __init__(self, inputs: Mapping[str, Tensor], fault: str = "") -> None:
        self.cum, self.dur, self.fault = inputs["cum_scores"], inputs["duration_bias"], fault
        table = inputs["transition"] if "transition" in inputs else inputs["transition_by_duration"]
        (self.batch, self.places, labels), self.longest = self.cum.shape, len(self.dur)
        self.tables = table.expand(self.longest, labels, labels) if table.dim() == 2 else table
        none = torch.zeros_like(self.cum[:, 1:])
        self.start, self.end = inputs.get("proj_start", none), inputs.get("proj_end", none)
        self.alpha, self.ahead = self._forward()
        self.log_z = self.ahead[-1] + torch.logsumexp(self.alpha[-1], -1).double()
        self.beta, self.back = self._backward()

    def _edges(self, t: int) -> Tensor:  # [B k c' c] of the segments that begin at t
        reach = min(self.longest, self.places - 1 - t)
        score = self.cum[:, t + 1 : t + 1 + reach] - self.cum[:, t, None] + self.dur[:reach]
        score = score + self.start[:, t, None] + self.end[:, t : t + reach]
        return score[:, :, None] + self.tables[:reach]

    def _settled(self, logs: Tensor, before: Tensor, step: int) -> tuple[Tensor, Tensor]:
        top = logs.amax(-1)
        norm = before + top.double()
        if self.fault == "norms in float32":
            norm = norm.float().double()
        if self.fault == "norm lost once" and step == self.places // 2:
            norm = before
        return logs - top[:, None], norm

    def _forward(self) -> tuple[list[Tensor], list[Tensor]]:
        alpha, norms = [torch.zeros_like(self.cum[:, 0])], [torch.zeros(self.batch, dtype=torch.float64)]
        edges: list[Tensor] = []
        for t in range(1, self.places):
            edges.append(self._edges(t - 1))
            parts = [
                (alpha[t - k] + (norms[t - k] - norms[-1])[:, None].float())[:, :, None] + edges[t - k][:, k - 1]
                for k in range(1, min(self.longest, t) + 1)
            ]
            new, norm = self._settled(torch.logsumexp(torch.cat(parts, 1), 1), norms[-1], t)
            alpha.append(new)
            norms.append(norm)
        return alpha, norms

    def _backward(self) -> tuple[list[Tensor], list[Tensor]]:
        last = self.places - 1
        beta = [torch.zeros_like(self.cum[:, 0])] * self.places
        norms = [torch.zeros(self.batch, dtype=torch.float64)] * self.places
        for t in range(last - 1, -1, -1):
            score = self._edges(t)
            shifts = [(norms[t + k] - norms[t + 1])[:, None].float() for k in range(1, score.shape[1] + 1)]
            ahead = torch.stack([beta[t + k] + shift for k, shift in enumerate(shifts, 1)], 1)  # [B k C]
            logs = torch.logsumexp((score + ahead[:, :, None]).transpose(1, 2).flatten(2), 2)
            beta[t], norms[t] = self._settled(logs, norms[t + 1], last - t)
        return beta, norms

    def forward_backward(self) -> tuple[Tensor, ...]:
        """alpha, beta [B T+1 C], their norms [B T+1], log Z [B]; float32, and float64 norms and log Z."""
        back = torch.stack(self.back, 1)
        if self.fault == "beta norms of the position before":
            back = back.roll(1, 1)
        return torch.stack(self.alpha, 1), torch.stack(self.beta, 1), torch.stack(self.ahead, 1), back, self.log_z

    def marginals(self) -> tuple[Tensor, Tensor, Tensor]:
        """position [B T C], boundary [B T+1], segment [B T K C] probabilities in float32."""
        labels, steps = self.cum.shape[2], self.places - 1
        segment = torch.zeros(self.batch, steps, self.longest, labels)
        position, boundary = torch.zeros(self.batch, steps, labels), torch.ones(self.batch, self.places)
        for t in range(steps):
            score = self._edges(t)
            for k in range(1, score.shape[1] + 1):
                norm = (self.ahead[t] + self.back[t + k] - self.log_z).float()
                logs = self.alpha[t][:, :, None] + score[:, k - 1] + self.beta[t + k][:, None] + norm[:, None, None]
                segment[:, t, k - 1] = logs.exp().sum(1)
                position[:, t : t + k] += segment[:, t, k - 1, None]
            boundary[:, t] = segment[:, t].sum((1, 2))
        return position, boundary, segment


def _call(cum_scores, transition, duration_bias, lengths, *, proj_start=None, proj_end=None) -> Tensor:
    name = "transition" if transition.dim() == 2 else "transition_by_duration"
    given = {"cum_scores": cum_scores, name: transition, "duration_bias": duration_bias, "lengths": lengths}
    given |= {n: x for n, x in (("proj_start", proj_start), ("proj_end", proj_end)) if x is not None}
    return plain.log_z(given).float()


def kernel(fault: str = "") -> Kernel:
    """Under ``ieee32``, float32 inside; or with one of ``FAULTS`` in what the entry points give."""

    def tables(inputs: Mapping[str, Tensor], options: Any, blocks: Any) -> tuple[Tensor, ...]:
        return Tables(inputs, fault).forward_backward()

    def marginals(inputs: Mapping[str, Tensor], options: Any, blocks: Any) -> tuple[Tensor, ...]:
        return Tables(inputs, fault).marginals()

    return Kernel(
        fault or "float32 inside", "semicrf", _call, dtypes=("float32",), contracts={"float32": PRESETS["ieee32"]},
        extras={"forward_backward": tables, "marginals": marginals},
    )  # fmt: skip
