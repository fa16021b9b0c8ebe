"""Pattern: where wrong elements lie and how they are wrong, in words that point at a cause."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

EVERYWHERE = "every element"

# Ratios of wrong to right that name their cause.
_KNOWN_RATIOS = (
    (math.log2(math.e), "log2 e: exp where exp2 was meant, or the reverse"),
    (math.log(2.0), "ln 2: exp2 where exp was meant, or the reverse"),
    (2.0, "counted twice"),
    (0.5, "halved"),
    (-1.0, "the sign is wrong"),
)


def describe(wrong: Tensor, got: Tensor | None, truth: Tensor | None, axes: Sequence[str] = ()) -> str:
    """Say where ``wrong`` is true and what relates ``got`` to ``truth`` there; empty where nothing stands out.

    Args:
        wrong: bool, the elements in question.
        got: what the kernel gave, same shape; None where only the place is known.
        truth: what is true, float64.
        axes: names of the dims of the tensor; ``dim 0`` and so on where absent.
    """
    relation = _relation(wrong, got, truth) if got is not None and truth is not None else ""
    return "; ".join(part for part in (place(wrong, axes), relation) if part)


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


def _relation(wrong: Tensor, got: Tensor, truth: Tensor) -> str:
    """How the wrong values relate to the true ones: zeros, NaN, one ratio, another element's value."""
    mine, true = got[wrong].to(torch.float64), truth[wrong]
    if mine.isnan().all():
        return "NaN"
    if not mine.isfinite().all():
        return "infinite or NaN" if mine.isnan().any() else "infinite"
    if (mine == 0).all() and (true != 0).any():
        return "0 where the truth is not (never written, or skipped)"
    if (true == 0).all():
        return "not 0 where the truth is" if truth.any() else ""
    relation = _ratio(mine, true)
    return relation or _permuted(got, truth)


def _ratio(mine: Tensor, true: Tensor) -> str:
    """One ratio of all wrong elements, and the name of its cause where it has one."""
    sizeable = true.abs() > 1e-3 * true.abs().max()
    ratios = mine[sizeable] / true[sizeable]
    if len(ratios) < 2:
        return ""
    middle = float(ratios.median())
    if middle == 0 or _most((ratios - middle).abs()) > 0.02 * abs(middle):
        return ""
    for known, cause in _KNOWN_RATIOS:
        if abs(middle / known - 1) < 5e-3:
            return f"a constant ratio {middle:.4f} = {cause}"
    return f"a constant ratio {middle:.6g}" if abs(middle - 1) > 1e-7 else ""


def _most(sizes: Tensor) -> float:
    """What more than half of the sizes are within: of two the larger, which their median in torch is not."""
    return float(sizes.flatten().kthvalue(sizes.numel() // 2 + 1).values)


def _permuted(got: Tensor, truth: Tensor) -> str:
    """Whether the kernel's tensor is the true one with two dims of equal size swapped, or one dim reversed."""
    got = got.to(torch.float64)
    size = float(truth.abs().median())

    def alike(candidate: Tensor) -> bool:
        return _most((got - candidate).abs()) < 0.02 * size

    for a in range(truth.dim()):
        for b in range(a + 1, truth.dim()):
            if truth.shape[a] == truth.shape[b] > 1 and alike(truth.transpose(a, b)):
                return f"the true tensor with dims {a} and {b} transposed"
        if truth.shape[a] > 1 and alike(truth.flip(a)):
            return f"the true tensor reversed along dim {a}"
    return ""
