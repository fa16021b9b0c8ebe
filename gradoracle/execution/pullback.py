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
    live, along = _live(outputs, directions)
    return torch.autograd.grad(live, targets, along, allow_unused=True, **how) if live else None


def accumulated(
    outputs: Sequence[Tensor | None], directions: Sequence[Tensor], targets: Sequence[Tensor]
) -> Sequence[Tensor | None] | None:
    """As ``pulled_back``, in leaves without a gradient so far, by a backward through the whole graph.

    To be used for second derivatives: a function marked once_differentiable ends the graph with a node that leads to no
    target and raises.
    """
    live, along = _live(outputs, directions)
    if not live:
        return None
    torch.autograd.backward(live, along)
    return [target.grad for target in targets]


def _live(outputs: Sequence[Tensor | None], directions: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
    """The outputs that require grad, and their directions."""
    found = [(o, d) for o, d in zip(outputs, directions, strict=True) if o is not None and o.requires_grad]
    return [output for output, _ in found], [direction for _, direction in found]
