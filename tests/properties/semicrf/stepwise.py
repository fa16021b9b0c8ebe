"""The semi-CRF as a scan: alpha from position to position, with what entered the last K segments as its carry."""

from __future__ import annotations

from dataclasses import replace

import torch
from gradoracle.properties.semicrf import FAMILY as semicrf
from torch import Tensor

import gradoracle
from gradoracle.oracle.truth import Oracle


def stepwise(
    cum_scores: Tensor,
    transition: Tensor | None,
    transition_by_duration: Tensor | None,
    duration_bias: Tensor,
    lengths: Tensor,
    *,
    proj_start: Tensor | None = None,
    proj_end: Tensor | None = None,
    fault: str = "",
) -> Tensor:
    """As the family's definition, in the log domain; where -inf forbids, derivatives may be NaN.

    ``fault``: "without durations" leaves one term out.
    """
    batch, places, labels = cum_scores.shape
    longest, steps = len(duration_bias), places - 1
    begins = torch.arange(steps)[:, None] - torch.arange(longest)  # [T K] of a segment that ends at t + 1
    at = begins.clamp_min(0)
    score = cum_scores[:, 1:, None] - cum_scores[:, at]  # [B T K C]
    if fault != "without durations":
        score = score + duration_bias
    if proj_start is not None:
        score = score + proj_start[:, at]
    if proj_end is not None:
        score = score + proj_end[:, :, None]
    score = torch.where((begins >= 0)[..., None], score, -torch.inf)
    table = transition if transition is not None else transition_by_duration  # [C C] or [K C C]
    shared = transition is not None

    def entered(alpha: Tensor) -> Tensor:  # [B C], by label after where one table serves all durations
        return torch.logsumexp(alpha[:, :, None] + table, 1) if shared else alpha

    def step(carry: tuple[Tensor, Tensor], now: Tensor) -> tuple[tuple[Tensor, Tensor], Tensor]:
        ring, total = carry  # [B K C] relative to total [B]
        before = ring if shared else torch.logsumexp(ring[:, :, :, None] + table, 2)
        alpha = torch.logsumexp(before + now, 1)
        norm = torch.logsumexp(alpha, 1)
        into = entered(alpha - norm[:, None])
        total = total + norm
        return (torch.cat([into[:, None], ring[:, :-1] - norm[:, None, None]], 1), total), total

    first = entered(cum_scores.new_zeros(batch, labels))
    ring = torch.cat([first[:, None], cum_scores.new_zeros(batch, longest - 1, labels)], 1)
    totals = gradoracle.scan(step, (ring, cum_scores.new_zeros(batch)), score, dim=1)[1]  # [B T]
    none = torch.logsumexp(cum_scores.new_zeros(batch, 1, labels), 2)  # of no position: log C
    return torch.cat([none, totals], 1).gather(1, lengths[:, None])[:, 0]


ORACLE = Oracle(replace(semicrf, definition=stepwise, scalable=None, algorithms={}))
