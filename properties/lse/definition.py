"""The definition of the log-sum-exp of attention scores."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float, Float32, Int
from torch import Tensor


def lse(
    q: Float[Tensor, "B H T D"],
    k: Float[Tensor, "B G M D"],
    *,
    sinks: Float[Tensor, "H"] | None = None,
    q_segments: Int[Tensor, "B T"] | None = None,
    kv_segments: Int[Tensor, "B M"] | None = None,
    scale: float | None = None,
    causal: bool = False,
    softcap: float | None = None,
) -> Float32[Tensor, "B H T"]:
    """log(e^sink + sum over the keys that a query sees of e^score), in natural log units; -inf where there is no term.

    A sink of -inf is none. A score is scale q k^T, capped to softcap tanh(score / softcap). Query head h reads key head
    h // (H // G). A query sees the keys of its own segment; causal aligns the last query with the last key.
    """
    b, heads, queries, width = q.shape
    groups, keys = k.shape[1:3]
    factor = 1 / math.sqrt(width) if scale is None else scale
    grouped = q.reshape(b, groups, heads // groups * queries, width)
    s = (grouped @ k.transpose(-1, -2) * factor).reshape(b, heads, queries, keys)
    if softcap is not None:
        s = softcap * torch.tanh(s / softcap)
    visible = torch.ones(1, 1, queries, keys, dtype=torch.bool)
    if causal:
        visible = visible & (torch.arange(keys)[None, :] <= torch.arange(queries)[:, None] + (keys - queries))
    if q_segments is not None and kv_segments is not None:
        visible = visible & (q_segments[:, None, :, None] == kv_segments[:, None, None, :])
    terms, sees = torch.where(visible, s, -torch.inf), visible.any(-1, keepdim=True)
    if sinks is not None:  # a term that every row has
        sink = sinks[None, :, None, None].expand(b, heads, queries, 1)
        terms, sees = torch.cat([terms, sink], -1), sees | (sink != -torch.inf)
    terms = torch.where(sees, terms, 0.0)  # no row of -inf alone reaches the logsumexp
    return torch.where(sees[..., 0], torch.logsumexp(terms, -1), -torch.inf)
