r"""Checking a PyTorch operator whose options differ from the family's: an adapter of three lines.

    gradoracle check examples/torch_sdpa.py:fused --family sdpa
    gradoracle check torch.nn.functional:scaled_dot_product_attention --family sdpa     (no adapter: default options)

``eager`` is a chain of operators that store their results in the inputs' dtype; in 16 bits that is another
precision contract:

    gradoracle check examples/torch_sdpa.py:eager --family sdpa \
        --contract bfloat16=eager-bf16 --contract float16=eager-fp16
"""

from __future__ import annotations

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention


def fused(q, k, v, *, scale=None, causal=False):
    """PyTorch's SDPA with the causal mask aligned at the last key; its own ``is_causal`` is that only where T = M."""
    return scaled_dot_product_attention(q, k, v, attn_mask=_visible(q, k) if causal else None, scale=scale)


def eager(q, k, v, *, scale=None, causal=False):
    """PyTorch's SDPA in its MATH backend: a product, a softmax, a product."""
    mask = _visible(q, k) if causal else None
    with sdpa_kernel(SDPBackend.MATH):
        return scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale)


def _visible(q, k):
    """[T M], true where a query sees a key; the last query sees the last key."""
    queries, keys = q.shape[-2], k.shape[-2]
    return torch.ones(queries, keys, dtype=torch.bool, device=q.device).tril(keys - queries)
