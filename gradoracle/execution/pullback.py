"""Pullbacks: gradients of some tensors in others along directions, by autograd."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def pulled_back(
    outputs: Sequence[Tensor | None], directions: Sequence[Tensor], targets: Sequence[Tensor], **how: bool
) -> Sequence[Tensor | None] | None:
    """The gradients of <outputs, directions> in ``targets``; None if none of the outputs requires grad.

    ``how`` is passed to ``torch.autograd.grad``: ``create_graph``, ``retain_graph``.
    """
    live = [(o, d) for o, d in zip(outputs, directions, strict=True) if o is not None and o.requires_grad]
    if not live:
        return None
    return torch.autograd.grad([o for o, _ in live], targets, [d for _, d in live], allow_unused=True, **how)


def accumulated(
    outputs: Sequence[Tensor | None], directions: Sequence[Tensor], targets: Sequence[Tensor]
) -> Sequence[Tensor | None] | None:
    """As ``pulled_back``, in leaves without a gradient so far, by a backward through the whole graph."""
    live = [(o, d) for o, d in zip(outputs, directions, strict=True) if o is not None and o.requires_grad]
    if not live:
        return None
    torch.autograd.backward([o for o, _ in live], [d for _, d in live])
    return [target.grad for target in targets]


def dense(tensor: Tensor) -> Tensor:
    """The tensor, copied if its elements share memory: PyTorch makes no dual of those."""
    return tensor.contiguous() if 0 in tensor.stride() else tensor
