"""Pattern: where wrong elements lie and how they are wrong, in words that point at a cause."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gradoracle.check.diagnosis.likeness import likeness
from gradoracle.model.finding import NO_LIKENESS, Likeness

EVERYWHERE = "every element"


@dataclass(frozen=True)
class Pattern:
    """Where the wrong elements of one tensor lie, and what their values have to do with the true ones."""

    place: str = ""
    likeness: Likeness = NO_LIKENESS

    def __str__(self) -> str:
        return "; ".join(part for part in (self.place, self.likeness.words) if part)


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
        return Pattern(place(wrong, axes))
    return Pattern(place(wrong, axes), likeness(wrong, got, truth, axes, others, stored))


def describe(wrong: Tensor, got: Tensor | None, truth: Tensor | None, axes: Sequence[str] = ()) -> str:
    """``read`` in words; empty where nothing stands out."""
    return str(read(wrong, got, truth, axes))


def place(wrong: Tensor, axes: Sequence[str] = ()) -> str:
    """Which slices hold the wrong elements: one head, the tail, every element; the first part of ``describe``."""
    if wrong.dim() == 0 or not wrong.any():
        return ""
    if wrong.all():
        return EVERYWHERE
    found = []
    for dim, size in enumerate(wrong.shape):
        name = axes[dim] if dim < len(axes) else f"dim {dim}"
        others = [d for d in range(wrong.dim()) if d != dim]
        hit = wrong.any(dim=tuple(others)) if others else wrong
        indices = hit.nonzero().flatten().tolist()
        if len(indices) == size or size == 1:
            continue
        first, last = indices[0], indices[-1]
        if len(indices) == 1:
            found.append(f"only {name} = {first}" + (" (the last)" if first == size - 1 and size > 2 else ""))
        elif len(indices) == last - first + 1:
            if last == size - 1:
                found.append(f"only {name} >= {first} (of {size})")
            elif first == 0:
                found.append(f"only {name} <= {last} (of {size})")
            else:
                found.append(f"only {name} from {first} to {last} (of {size})")
        elif len({i % 2 for i in indices}) == 1 and len(indices) > 2:
            found.append(f"only {'odd' if indices[0] % 2 else 'even'} {name}")
        elif len(indices) <= size // 2:
            found.append(f"{len(indices)} of {size} along {name}")
    return ", ".join(found)
