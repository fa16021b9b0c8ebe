"""The definition of the semi-CRF's log partition function over labelled segmentations."""

from __future__ import annotations

import torch
from jaxtyping import Float, Float32, Int
from torch import Tensor


def semicrf(
    cum_scores: Float[Tensor, "B T+1 C"],
    transition: Float[Tensor, "C C"] | None,
    transition_by_duration: Float[Tensor, "K C C"] | None,
    duration_bias: Float[Tensor, "K C"],
    lengths: Int[Tensor, "B"],
    *,
    proj_start: Float[Tensor, "B T C"] | None = None,
    proj_end: Float[Tensor, "B T C"] | None = None,
) -> Float32[Tensor, "B"]:
    """log of the sum of exp(score) over all labelled segmentations of 0 .. len, in natural log units; len = 0: log C.

    A segment of label c from t to t + k, 1 <= k <= K, after one of label c' scores cum_scores[t + k, c] -
    cum_scores[t, c] + duration_bias[k - 1, c] + transition[c', c] (or transition_by_duration[k - 1, c', c]) +
    proj_start[t, c] + proj_end[t + k - 1, c]; the first follows each label, with a score of its own. An entry of -inf
    (not in cum_scores) forbids; where that leaves no segmentation the result is -inf and every derivative is 0.
    """
    weights = segment_weights(
        cum_scores, transition, transition_by_duration, duration_bias, proj_start, proj_end
    )  # [B T+1 C T+1 C]
    batch, places, labels = cum_scores.shape
    states = places * labels
    last = torch.arange(places) == lengths[:, None]  # [B T+1]
    goal = last[:, :, None].expand(batch, places, labels).reshape(batch, states, 1).to(cum_scores.dtype)
    system = torch.eye(states, dtype=cum_scores.dtype) - weights.reshape(batch, states, states)
    reached = torch.linalg.solve_triangular(system, goal, upper=True, unitriangular=True)
    z = reached.reshape(batch, places, labels)[:, 0].sum(-1)
    possible = z != 0  # NaN stays NaN
    return torch.where(possible, torch.where(possible, z, 1.0).log(), -torch.inf)


def segment_weights(
    cum_scores: Tensor,
    transition: Tensor | None,
    transition_by_duration: Tensor | None,
    duration_bias: Tensor,
    proj_start: Tensor | None = None,
    proj_end: Tensor | None = None,
) -> Tensor:
    """exp(score) of every segment, [B T+1 C T+1 C] by (from, label before, to, label); 0 where there is none."""
    places, longest = cum_scores.shape[1], duration_bias.shape[0]
    at = torch.arange(places)
    steps = at[None, :] - at[:, None]  # [from to]
    k = (steps - 1).clamp(0, longest - 1)
    score = cum_scores[:, None, :, None, :] - cum_scores[:, :, None, None, :]  # [B from to 1 C]
    score = score + duration_bias[k][:, :, None, :]
    if proj_start is not None:
        score = score + proj_start[:, at.clamp_max(places - 2)][:, :, None, None, :]
    if proj_end is not None:
        score = score + proj_end[:, (at - 1).clamp_min(0)][:, None, :, None, :]
    if transition is not None:
        score = score + transition
    if transition_by_duration is not None:
        score = score + transition_by_duration[k]
    legal = ((steps >= 1) & (steps <= longest))[:, :, None, None]
    return torch.where(legal, score, -torch.inf).exp().permute(0, 1, 3, 2, 4)
