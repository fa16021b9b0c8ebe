"""PyTorch's SDPA with one backend forced, as kernels of family sdpa; no masks, so causal is not drawn.

    gradoracle check benchmarks/torch_backends.py:cudnn --family sdpa --device cuda --dtype bfloat16,float16

A backend that does not exist on a device, or not for a dtype or head dim, raises, which is *refused*.
"""

from __future__ import annotations

from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention


def cudnn(q: Tensor, k: Tensor, v: Tensor, *, scale: float | None = None) -> Tensor:
    """CuDNN's; q [B H T D], k [B H M D], v [B H M Dv]."""
    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
        return scaled_dot_product_attention(q, k, v, scale=scale)


def flash(q: Tensor, k: Tensor, v: Tensor, *, scale: float | None = None) -> Tensor:
    """FlashAttention's, on the CPU PyTorch's own."""
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        return scaled_dot_product_attention(q, k, v, scale=scale)


def efficient(q: Tensor, k: Tensor, v: Tensor, *, scale: float | None = None) -> Tensor:
    """The memory-efficient one."""
    with sdpa_kernel(SDPBackend.EFFICIENT_ATTENTION):
        return scaled_dot_product_attention(q, k, v, scale=scale)
