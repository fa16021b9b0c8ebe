"""Autograd: pullbacks, which are gradients of tensors in others along directions, and pushforwards, by forward mode."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.autograd import forward_ad

from gradoracle.host.interpreter.values import CannotWiden


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


def or_zeros(found: Sequence[Tensor | None], like: Sequence[Tensor]) -> list[Tensor]:
    """Gradients in the tensors ``like``; 0 where there is none."""
    return [
        torch.zeros_like(tensor) if gradient is None else gradient for gradient, tensor in zip(found, like, strict=True)
    ]


def pushed_forward(
    function: Callable[..., tuple[Tensor, ...]], values: Sequence[Tensor], tangents: Sequence[Tensor], *, duals: bool
) -> tuple[Tensor, ...]:
    """The tangents of the outputs; 0 for an output that has none, where others have.

    Args:
        function: a function of the values.
        values: its arguments.
        tangents: one for each value, dense.
        duals: permission to pass dual tensors if ``torch.func.jvp`` fails. Unlike its wrappers they have memory, which
            a kernel needs that the ``jvp`` of an ``autograd.Function`` launches. A launch outside of such a function
            loses the tangents in silence.

    Raises:
        RuntimeError: neither gives a tangent, or not of every output where all that there are are 0.
    """
    try:
        moved = tuple(torch.func.jvp(function, tuple(values), tuple(tangents))[1])
        if not any(bool(tangent.any()) for tangent in moved):  # such zeros stand for outputs without a tangent, too
            torch.func.jvp(function, tuple(values), tuple(tangents), strict=True)
        return moved
    except (RuntimeError, CannotWiden) as error:  # a wrapper is no widened tensor
        if duals and (found := _of_duals(function, values, tangents)) is not None:
            return found
        raise error


def _of_duals(
    function: Callable[..., tuple[Tensor, ...]], values: Sequence[Tensor], tangents: Sequence[Tensor]
) -> tuple[Tensor, ...] | None:
    """The tangents by dual tensors; None where no output has one."""
    with forward_ad.dual_level():
        outputs = function(*map(forward_ad.make_dual, values, tangents))
        parts = [forward_ad.unpack_dual(output) for output in outputs]
    if all(part.tangent is None for part in parts):
        return None
    return tuple(torch.zeros_like(p.primal) if p.tangent is None else p.tangent for p in parts)


def dense(tensor: Tensor) -> Tensor:
    """The tensor, copied if its elements share memory: PyTorch makes no dual of those."""
    return tensor.contiguous() if 0 in tensor.stride() else tensor
