"""Sizes and terms that the definitions of several operations of fla-core share; it declares no family of its own."""

from __future__ import annotations

import torch

import gradoracle

SIZES = {
    "B": gradoracle.sizes(1, 2),
    "T": gradoracle.sizes(1, 80),
    "H": gradoracle.sizes(1, 2),
    "K": gradoracle.choices(16, 32),
    "V": gradoracle.choices(16, 32),
}


def heads_first(*tensors):
    """[B T H ...] -> [B H T ...]."""
    return [x.transpose(1, 2) for x in tensors]


def normalized(x):
    """Unit vectors along the last dim, as fla's l2norm makes them."""
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + 1e-6)


def pairs(later, earlier, strict=False):
    """e^(later_t - earlier_s) at [t, s] for s <= t (``strict``: s < t), else 0; both [... T K] -> [... T T K]."""
    length = later.shape[-2]
    past = torch.ones(length, length, dtype=torch.bool, device=later.device).tril(-1 if strict else 0)[..., None]
    between = torch.where(past, later[..., :, None, :] - earlier[..., None, :, :], 0.0)
    return torch.where(past, torch.exp(between), 0.0)
