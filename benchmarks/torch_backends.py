"""PyTorch's SDPA with one backend forced, and as a chain of operators: kernels of family sdpa, without masks.

    gradoracle check benchmarks/torch_backends.py:cudnn --family sdpa --device cuda --dtype bfloat16,float16

A backend that does not support a device, dtype or head dim raises an error, which counts as *refused*.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention


def cudnn(q: Tensor, k: Tensor, v: Tensor, *, scale: float | None = None) -> Tensor:
    """SDPA by cuDNN; q [B H T D], k [B H M D], v [B H M Dv]."""
    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
        return scaled_dot_product_attention(q, k, v, scale=scale)


def flash(q: Tensor, k: Tensor, v: Tensor, *, scale: float | None = None) -> Tensor:
    """SDPA by FlashAttention; on the CPU, by PyTorch's own flash kernel."""
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        return scaled_dot_product_attention(q, k, v, scale=scale)


def efficient(q: Tensor, k: Tensor, v: Tensor, *, scale: float | None = None) -> Tensor:
    """SDPA by the memory-efficient backend."""
    with sdpa_kernel(SDPBackend.EFFICIENT_ATTENTION):
        return scaled_dot_product_attention(q, k, v, scale=scale)


def math(q: Tensor, k: Tensor, v: Tensor, *, scale: float | None = None) -> Tensor:
    """SDPA by the backend that stores the scores."""
    with sdpa_kernel(SDPBackend.MATH):
        return scaled_dot_product_attention(q, k, v, scale=scale)


def eager(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """SDPA as a chain of operators; each stores its result in the dtype of the inputs."""
    return torch.softmax(q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5, -1) @ v
