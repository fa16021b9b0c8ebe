r"""Checking a log-sum-exp in plain PyTorch, written with eager operators in the obvious way.

    gradoracle check examples/torch_lse.py:logsumexp --family lse --dtype float32
    gradoracle check examples/torch_lse.py:upcast --family lse

LSE returns float32 whatever the dtype of its inputs. ``logsumexp`` computes in the dtype of its inputs, so it fits the
family in float32 only; ``upcast`` makes it fit bfloat16 and float16, and autograd rounds its gradients once.
"""

from __future__ import annotations

import math

import torch


def logsumexp(q, k, *, scale=None, causal=False, softcap=None, sinks=None, q_segments=None, kv_segments=None):
    """log(e^sink + sum of e^score over the keys that a query sees), [B H T] in the dtype of q."""
    k = k.repeat_interleave(q.shape[1] // k.shape[1], 1)  # [B H M D]
    s = q @ k.mT * (1 / math.sqrt(q.shape[-1]) if scale is None else scale)
    if softcap is not None:
        s = softcap * torch.tanh(s / softcap)
    seen = _visible(q, k, causal, q_segments, kv_segments)
    s = torch.where(seen, s, -torch.inf)
    if sinks is not None:
        s = torch.cat([s, sinks[:, None, None].expand(*s.shape[:3], 1)], -1)
    some = (s != -torch.inf).any(-1)  # the tangent of a row that is all -inf would be NaN
    return torch.where(some, torch.logsumexp(torch.where(some[..., None], s, 0.0), -1), -torch.inf)


def upcast(q, k, *, scale=None, causal=False, softcap=None, sinks=None, q_segments=None, kv_segments=None):
    """``logsumexp`` of the inputs cast to float32: for all dtypes."""
    sinks = None if sinks is None else sinks.float()
    options = {"scale": scale, "causal": causal, "softcap": softcap}
    return logsumexp(q.float(), k.float(), sinks=sinks, q_segments=q_segments, kv_segments=kv_segments, **options)


def _visible(q, k, causal, q_segments, kv_segments):
    """[B H T M] or a shape that expands to it, true where a query sees a key; the last query sees the last key."""
    queries, keys = q.shape[2], k.shape[2]
    seen = torch.ones(1, 1, queries, keys, dtype=torch.bool, device=q.device)
    if causal:
        seen = seen.tril(keys - queries)
    if q_segments is not None:
        seen = seen & (q_segments[:, None, :, None] == kv_segments[:, None, None, :])
    return seen
