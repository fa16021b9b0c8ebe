"""Checking a PyTorch operator whose options or layout differ from the family's: three lines that translate.

gradoracle check examples/adapter.py:torch_sdpa --family sdpa
gradoracle check torch.nn.functional:scaled_dot_product_attention --family sdpa     (no adapter: no options drawn)
"""

from __future__ import annotations

import torch
from torch.nn.functional import scaled_dot_product_attention


def torch_sdpa(q, k, v, *, scale=None, causal=False):
    """PyTorch's SDPA with causal aligned at the last key, which its own ``is_causal`` is only where T = M."""
    queries, keys = q.shape[-2], k.shape[-2]
    mask = torch.ones(queries, keys, dtype=torch.bool, device=q.device).tril(keys - queries) if causal else None
    return scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale)
