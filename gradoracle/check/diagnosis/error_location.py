"""Error location: where wrong elements lie, and how they are wrong."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from gradoracle.check.diagnosis.known_numbers import CONSTANTS
from gradoracle.model.finding import LOCAL_SIGMA, NOWHERE, Extent, Region, Span

_RATIOS = {"-1": -1.0, **CONSTANTS}


@dataclass(frozen=True)
class Pattern:
    """Where the wrong elements of one tensor lie, and how they are wrong, in words; "" where no fact holds of all."""

    region: Region = NOWHERE
    values: str = ""

    def __str__(self) -> str:
        return "; ".join(part for part in (str(self.region), self.values) if part)


def read(wrong: Tensor, got: Tensor, truth: Tensor, axes: Sequence[str] = (), limit: Tensor | None = None) -> Pattern:
    """See where ``wrong`` is true, and what is true of all values there.

    Args:
        wrong: bool, the elements in question.
        got: float64, what the kernel gave, same shape.
        truth: float64, same shape.
        axes: names of the dims of the tensor; ``dim 0`` and so on where absent.
        limit: float64, the largest error within budget, same shape; None where no budget applies.
    """
    if not wrong.any():
        return Pattern()
    within = None if limit is None else limit.expand_as(truth)[wrong]
    return Pattern(region(wrong, axes), _values(got[wrong], truth[wrong], within, bool(truth.any())))


def _values(got: Tensor, true: Tensor, limit: Tensor | None, is_any_true: bool) -> str:
    """What is true of all wrong values: NaN, infinite, 0, or a known multiple of the truth within the budget."""
    if got.isnan().all():
        return "NaN"
    if not got.isfinite().all():
        return "infinite or NaN" if got.isnan().any() else "infinite"
    if (got == 0).all() and (true != 0).any():
        return "0 where the truth is not"
    if (true == 0).all():
        return "not 0 where the truth is" if is_any_true else ""
    if limit is None or not true.isfinite().all():
        return ""
    plain = true.abs() > LOCAL_SIGMA * limit
    if true[plain].unique().numel() < 2:  # one number is a multiple of any other
        return ""
    factors = ((n, x) for n, x in _RATIOS.items() if ((got - x * true).abs() <= max(1.0, abs(x)) * limit).all())
    return next((f"{name} times the truth" for name, _ in factors), "")


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
