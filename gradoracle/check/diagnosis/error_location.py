"""Error location: where wrong elements lie and how they are wrong, in words that point at a cause."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gradoracle.check.diagnosis.likeness import likeness
from gradoracle.model.finding import NO_LIKENESS, Likeness
from gradoracle.model.region import NOWHERE, Extent, Region, Span


@dataclass(frozen=True)
class Pattern:
    """Where the wrong elements of one tensor lie, and what their values have to do with the true ones."""

    region: Region = NOWHERE
    likeness: Likeness = NO_LIKENESS

    def __str__(self) -> str:
        return "; ".join(part for part in (str(self.region), self.likeness.words) if part)


def read(
    wrong: Tensor,
    got: Tensor | None,
    truth: Tensor | None,
    axes: Sequence[str] = (),
    others: Mapping[str, Tensor] | None = None,
    stored: torch.dtype | None = None,
) -> Pattern:
    """See where ``wrong`` is true and what relates ``got`` to ``truth`` there.

    Args:
        wrong: bool, the elements in question.
        got: what the kernel gave, same shape; None where only the place is known.
        truth: what is true, float64.
        axes: names of the dims of the tensor; ``dim 0`` and so on where absent.
        others: further true tensors by name, one of which may stand in the place of this one or be missing in it.
        stored: the dtype in which the kernel gave ``got``.
    """
    if got is None or truth is None or not wrong.any():
        return Pattern(region(wrong, axes))
    return Pattern(region(wrong, axes), likeness(wrong, got, truth, axes, others, stored))


def describe(wrong: Tensor, got: Tensor | None, truth: Tensor | None, axes: Sequence[str] = ()) -> str:
    """``read`` in words; empty where nothing stands out."""
    return str(read(wrong, got, truth, axes))


def region(wrong: Tensor, axes: Sequence[str] = ()) -> Region:
    """Which slices hold the wrong elements: one head, the tail, every element; nothing where none stand out."""
    if wrong.dim() == 0 or not wrong.any():
        return NOWHERE
    if wrong.all():
        return Region(whole=True)
    found = []
    for dim, size in enumerate(wrong.shape):
        others = [d for d in range(wrong.dim()) if d != dim]
        hit = wrong.any(dim=tuple(others)) if others else wrong
        indices = hit.nonzero().flatten().tolist()
        extent = None if len(indices) == size or size == 1 else _extent(indices, size)
        if extent is not None:
            name = axes[dim] if dim < len(axes) else f"dim {dim}"
            found.append(Span(name, extent, indices[0], indices[-1], len(indices), size))
    return Region(spans=tuple(found))


def _extent(indices: Sequence[int], size: int) -> Extent | None:
    """How some indices of a dim lie; None where they are most of it in no order."""
    first, last = indices[0], indices[-1]
    if len(indices) == 1:
        return Extent.TAIL if first == size - 1 and size > 2 else Extent.ONE
    if len(indices) == last - first + 1:
        return Extent.TAIL if last == size - 1 else Extent.HEAD if first == 0 else Extent.RANGE
    if len({i % 2 for i in indices}) == 1 and len(indices) > 2:
        return Extent.ALTERNATE
    return Extent.SCATTERED if len(indices) <= size // 2 else None
