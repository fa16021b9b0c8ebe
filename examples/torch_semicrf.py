r"""Checking a semi-CRF's log partition function in plain PyTorch: the forward recursion, differentiated by autograd.

    gradoracle check examples/torch_semicrf.py:recursion --family semicrf

It computes in float32 in the log domain, each position relative to its largest alpha, with these norms in float64. It
is a Python loop whose step takes 0.15 ms on a CPU and as long again backward: 40 s for one gradient of the sequences of
more than 100 000 positions that a default check contains. So it declares T up to 320.
"""

from __future__ import annotations

import torch
from gradoracle.properties.semicrf import FAMILY

import gradoracle


@gradoracle.kernel(FAMILY, dims={"T": gradoracle.sizes(1, 320)})
def recursion(cum_scores, transition, duration_bias, lengths, *, proj_start=None, proj_end=None):
    """log Z [B] in float32; the transition is [C C] or, by duration, [K C C]; -inf forbids, length 0 gives log C."""
    lengths = lengths.long()
    scores = _segments(cum_scores, duration_bias, lengths, proj_start, proj_end)  # [B T K C]
    batch, positions, durations, labels = scores.shape
    tables = transition.float().expand(durations, labels, labels)
    alpha = scores.new_zeros(batch, labels)
    norm = torch.zeros(batch, dtype=torch.float64, device=scores.device)
    totals, norms = [alpha], [norm]
    ring = None  # [B n K C]: what the last n positions send to the K positions after them
    for t in range(positions):
        sent = _lse(alpha[:, None, :, None] + tables, 2) + scores[:, t]  # [B K C]
        ring = sent[:, None] if ring is None else torch.cat([sent[:, None], ring[:, : durations - 1]], 1)
        behind = torch.stack(norms[: -durations - 1 : -1], 1) - norm[:, None]  # [B n]
        alpha = _lse(ring.diagonal(dim1=1, dim2=2) + behind.float()[:, None], -1)  # [B C]
        top = alpha.detach().amax(-1)
        top = torch.where(top == -torch.inf, 0.0, top)
        alpha, norm = alpha - top[:, None], norm + top
        totals.append(alpha)
        norms.append(norm)
    at = lengths[:, None]
    last = torch.stack(totals, 1).gather(1, at[:, :, None].expand(batch, 1, labels))[:, 0]
    return (torch.stack(norms, 1).gather(1, at)[:, 0] + _lse(last, -1)).float()


def _segments(cum_scores, duration_bias, lengths, proj_start, proj_end):
    """[B T K C] float32: scores of segments, without their transitions, by start, duration - 1 and label; -inf where
    the segment would end past the length, whatever is stored there."""
    cum, duration = cum_scores.float(), duration_bias.float()
    positions, durations = cum.shape[1] - 1, duration.shape[0]
    begin = torch.arange(positions, device=cum.device)[:, None]
    end = begin + torch.arange(1, durations + 1, device=cum.device)  # [T K]
    inside = end.clamp_max(positions)
    score = cum[:, inside] - cum[:, :-1, None] + duration
    if proj_start is not None:
        score = score + proj_start.float()[:, :, None]
    if proj_end is not None:
        score = score + proj_end.float()[:, inside - 1]
    legal = end <= lengths[:, None, None]  # [B T K]
    return torch.where(legal[..., None], score, -torch.inf)


def _lse(x, dim):
    """logsumexp without NaN in its value and gradient where every term is -inf."""
    top = x.detach().amax(dim, keepdim=True)
    top = torch.where(top == -torch.inf, 0.0, top)
    total = (x - top).exp().sum(dim)
    some = total != 0  # NaN stays NaN
    return torch.where(some, torch.where(some, total, 1.0).log(), -torch.inf) + top.squeeze(dim)
