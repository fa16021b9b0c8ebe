"""Likeness: what wrong values have to do with the true ones, in words, and the cause that this points at.

Each relation is looked for where the wrong elements lie, within the smallest block of rows and columns that holds them,
and holds where more than half of the values there obey it within two percent. The order is that of how much a relation
says: one ratio, another place, another tensor, a ratio a row, an error of a simple form, and last plain rounding.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gradoracle.model.finding import NO_LIKENESS, Likeness
from gradoracle.model.formats import OF_DTYPES
from gradoracle.model.wording import factor

# Ratios of wrong to right that name their cause.
_KNOWN_RATIOS = (
    (math.log2(math.e), "log2 e: exp where exp2 was meant, or the reverse"),
    (math.log(2.0), "ln 2: exp2 where exp was meant, or the reverse"),
    (2.0, "counted twice"),
    (0.5, "halved"),
    (-1.0, "the sign is wrong"),
)
_CLOSE = 0.02
_FEWEST_OF_ANY = 3  # different numbers that have a ratio without a name
_FEWEST = 4  # elements that must agree before a relation other than one ratio is believed
_LONGEST, _LARGEST = 512, 1 << 18  # a dim, and elements, up to which rows are looked for at other places
_NOISE = {False: 2.0**-7, True: 2.0**-5}  # by whether 16 bits are stored; relative errors beyond are no rounding's
_LOWER = ((torch.bfloat16, "bfloat16"), (torch.float16, "float16"))


_SAME = 1.05  # how far apart the distances of factors from 1 may be that are one and the same factor


def is_one_factor(ratios: Sequence[float]) -> bool:
    """Whether ratios of several cases are one factor, and not what roundings make of one: another on each case."""
    off = [ratio - 1 for ratio in ratios]
    return len(off) > 1 and min(off) * max(off) > 0 and max(map(abs, off)) <= _SAME * min(map(abs, off))


def likeness(
    wrong: Tensor,
    got: Tensor,
    truth: Tensor,
    axes: Sequence[str] = (),
    others: Mapping[str, Tensor] | None = None,
    stored: torch.dtype | None = None,
) -> Likeness:
    """What relates ``got`` to ``truth`` where ``wrong`` is true; empty where nothing stands out.

    Args:
        wrong: bool, the elements in question, at least one.
        got: what the kernel gave, same shape.
        truth: float64.
        axes: names of the dims; ``dim 0`` and so on where absent.
        others: further true tensors by name, of any shape: those of the same shape may stand in the place of this one,
            or be what it lacks.
        stored: the dtype that ``got`` was given in; None where that is not known.
    """
    mine, true = got[wrong].to(torch.float64), truth[wrong]
    if mine.isnan().all():
        return Likeness("NaN")
    if not mine.isfinite().all():
        return Likeness("infinite or NaN" if mine.isnan().any() else "infinite")
    if (mine == 0).all() and (true != 0).any():
        return Likeness("0 where the truth is not (never written, or skipped)", "term" if wrong.all() else "")
    if (true == 0).all():
        return Likeness("not 0 where the truth is" if truth.any() else "")
    if not true.isfinite().all():
        return NO_LIKENESS
    one = _one_ratio(mine, true)
    if one.words:
        return one
    places = [hit.nonzero().flatten() for hit in _hit(wrong)]
    block = _Block(_within(got.to(torch.float64), places), _within(truth, places), axes)
    if not (block.got.isfinite().all() and block.truth.isfinite().all()):
        return NO_LIKENESS
    same = {name: _within(x, places) for name, x in (others or {}).items() if x.shape == truth.shape}
    found = (
        _elsewhere(got.to(torch.float64), truth, axes),
        *(_another(block, name, x) for name, x in same.items()),
        *_ratios_by_row(block),
        *_simple_error(block),
        *(_term(block, name, x) for name, x in same.items()),
        _rounded(mine, true, stored),
    )
    return next((each for each in found if each.words), NO_LIKENESS)


@dataclass(frozen=True)
class _Block:
    """The smallest block that holds the wrong elements: what the kernel gave there, and the truth."""

    got: Tensor
    truth: Tensor
    axes: Sequence[str]

    @property
    def error(self) -> Tensor:
        return self.got - self.truth

    def axis(self, dim: int) -> str:
        return _axis(self.axes, dim)


def _axis(axes: Sequence[str], dim: int) -> str:
    return axes[dim] if dim < len(axes) else f"dim {dim}"


def _hit(wrong: Tensor) -> Iterator[Tensor]:
    """For each dim, which of its indices have a wrong element."""
    for dim in range(wrong.dim()):
        others = [d for d in range(wrong.dim()) if d != dim]
        yield wrong.any(dim=tuple(others)) if others else wrong


def _within(x: Tensor, places: Sequence[Tensor]) -> Tensor:
    for dim, indices in enumerate(places):
        x = x if len(indices) == x.shape[dim] else x.index_select(dim, indices)
    return x


def _most(sizes: Tensor) -> float:
    """The upper median of the sizes; torch.median gives the lower one."""
    return float(sizes.flatten().kthvalue(sizes.numel() // 2 + 1).values)


def _one_ratio(mine: Tensor, true: Tensor) -> Likeness:
    """One ratio of all wrong elements, and the name of its cause where it has one.

    One number has a ratio to any other. Two that differ have the same one by chance rarely enough for a ratio that has
    a name, three for any.
    """
    sizeable = true.abs() > 1e-3 * true.abs().max()
    ratios = mine[sizeable] / true[sizeable]
    if not len(ratios):
        return NO_LIKENESS
    middle = float(ratios.median())
    different = int(true[sizeable].unique().numel())
    if different < 2:
        return NO_LIKENESS
    if middle == 0 or _most((ratios - middle).abs()) > min(_CLOSE * abs(middle), 0.25 * abs(middle - 1)):
        return NO_LIKENESS
    for known, said in _KNOWN_RATIOS:
        if abs(middle / known - 1) < 5e-3:
            return Likeness(f"a constant ratio {middle:.4f} = {said}", "sign" if known == -1 else "ratio", middle)
    if different < _FEWEST_OF_ANY or abs(middle - 1) <= 1e-7:
        return NO_LIKENESS
    return Likeness(f"a constant ratio {factor(middle)}", "sign" if middle < 0 else "ratio", middle)


def _elsewhere(got: Tensor, truth: Tensor, axes: Sequence[str]) -> Likeness:
    """Whether the kernel's tensor is the true one with two dims swapped, or with one dim reordered."""
    close = _CLOSE * float(truth.abs().median())
    for a in range(truth.dim()):
        for b in range(a + 1, truth.dim()):
            if truth.shape[a] == truth.shape[b] > 1:
                swapped = truth.transpose(a, b)
                if _off_diagonal(got - swapped, a, b) < close < _off_diagonal(truth - swapped, a, b):
                    return Likeness(f"the true tensor with dims {a} and {b} transposed", "transpose")
    for dim in range(truth.dim()):
        found = _disordered(got, truth, dim, _axis(axes, dim))
        if found.words:
            return found
    return NO_LIKENESS


def _off_diagonal(apart: Tensor, a: int, b: int) -> float:
    """A bound on most of the elements that a transposition moves."""
    moves = ~torch.eye(apart.shape[a], dtype=torch.bool)
    return _most(apart.abs().movedim((a, b), (0, 1))[moves])


def _disordered(got: Tensor, truth: Tensor, dim: int, axis: str) -> Likeness:
    """Whether most slices along a dim have the true values of other slices."""
    count = truth.shape[dim]
    mine, true = (x.movedim(dim, 0).reshape(count, -1) for x in (got, truth))
    if count < 2 or count > _LONGEST or mine.numel() > _LARGEST or (mine.shape[1] < 3 and count < _FEWEST):
        return NO_LIKENESS
    apart = torch.cdist(mine, true, p=1.0) / mine.shape[1]  # [count, count]
    nearest = apart.argmin(1)
    size = true.abs().mean(1)[nearest]
    sure = (apart.min(1).values <= _CLOSE * size) & (size > 0)
    moved = sure & (nearest != torch.arange(count)) & _differ(true, nearest)
    if int(moved.sum()) * 2 <= count - 1 or int(moved.sum()) < 2:
        return NO_LIKENESS
    where, to = moved.nonzero().flatten(), nearest[moved]
    if bool((where + to == count - 1).all()):
        return Likeness(f"the true tensor reversed along dim {dim}", "transpose")
    if len(set(to.tolist())) == 1:
        return Likeness(f"every {axis} has the values of {axis} = {int(to[0])}", "slice")
    steps = (to - where) % count
    step = int(steps.mode().values)
    if count > 2 and int((steps == step).sum()) * 2 > len(steps):
        step -= count if step > count // 2 else 0
        return Likeness(f"every {axis} has the values of {axis} {step:+d}", "shift" if abs(step) == 1 else "slice")
    return Likeness(f"the values along {axis} in another order", "transpose")


def _differ(rows: Tensor, others: Tensor) -> Tensor:
    """Which rows [count, n] differ clearly from the rows at indices ``others`` [count]."""
    return (rows - rows[others]).abs().mean(1) > 10 * _CLOSE * rows.abs().mean(1)


def _another(block: _Block, name: str, other: Tensor) -> Likeness:
    """Whether the kernel returned another tensor in place of this one."""
    size = float(other.abs().median())
    if block.truth.numel() < _FEWEST or size == 0 or not _apart(block.truth, other):
        return NO_LIKENESS
    if _most((block.got - other).abs()) < _CLOSE * size:
        return Likeness(f"equals the true {name}", "transpose")
    return NO_LIKENESS


def _term(block: _Block, name: str, other: Tensor) -> Likeness:
    """Whether the error is a multiple of another tensor."""
    bottom = float(other.square().sum())
    if block.truth.numel() < _FEWEST or not math.isfinite(bottom) or bottom == 0:
        return NO_LIKENESS
    factor = float((block.error * other).sum()) / bottom
    if not _small(block.error - factor * other, block.error):
        return NO_LIKENESS
    return Likeness(f"off by {factor:.4g} times {name}", "term")


def _ratios_by_row(block: _Block) -> Iterator[Likeness]:
    """A ratio that is constant along one dim and differs along the others."""
    true = block.truth
    safe = torch.where(true.abs() > 1e-3 * true.abs().max(), true, torch.nan)
    ratios = block.got / safe
    for dim in reversed(range(true.dim())):
        if true.shape[dim] < 3 or true.shape[dim] == true.numel():
            continue
        middle = ratios.nanmedian(dim, keepdim=True).values
        known = ratios.isfinite() & middle.isfinite()
        if int(known.sum()) < 2 * _FEWEST or int(known.sum(dim).max()) < 3:
            continue
        spread = ((ratios - middle).abs() / middle.abs())[known]
        off = float((middle - 1).abs()[middle.isfinite()].median())
        if off < _CLOSE or _most(spread) > min(_CLOSE, 0.1 * off):
            continue
        shown = middle[middle.isfinite()]
        low, high = float(shown.min()), float(shown.max())
        yield Likeness(f"a constant ratio along {block.axis(dim)}, from {low:.4g} to {high:.4g}", "sum")


def _simple_error(block: _Block) -> Iterator[Likeness]:
    """An error that is constant along a dim, or of rank one, where the truth is not."""
    error, true = block.error, block.truth
    if float(error.square().mean()) < (_CLOSE**2) * float(true.square().mean()):
        return
    for dim in range(true.dim()):
        if true.shape[dim] < 3 or true.numel() < _FEWEST:
            continue
        middle, own = error.mean(dim, keepdim=True), true - true.mean(dim, keepdim=True)
        if _small(error - middle, error) and not _small(own, true):
            yield Likeness(f"the error is constant along {block.axis(dim)}", "term")
    if true.dim() >= 2 and min(true.shape[-2:]) >= 3:
        first, second = (_beyond_rank_one(x) for x in (error, true))
        if first < _CLOSE and second > 10 * _CLOSE:
            yield Likeness("the error is a column times a row", "term")


def _beyond_rank_one(x: Tensor) -> float:
    """The share of the norm of the matrices [*, m, n] that lies beyond the largest singular value of each."""
    values = torch.linalg.svdvals(x.reshape(-1, *x.shape[-2:]))
    return float(values[:, 1:].norm()) / max(float(values.norm()), 1e-300)


def _rounded(mine: Tensor, true: Tensor, stored: torch.dtype | None) -> Likeness:
    """Values that a lower dtype represents, or small errors of both signs that are unrelated to the truth."""
    error, bottom = mine - true, float(true.square().sum())
    if len(mine) < _FEWEST or bottom == 0:
        return NO_LIKENESS
    size = math.sqrt(float(error.square().sum()) / bottom)
    if size > _NOISE[stored is not None and OF_DTYPES[stored].is_few]:
        return NO_LIKENESS
    for lower, name in _LOWER if stored in (torch.float32, torch.float64) else ():
        held, plain = mine.to(lower).double() == mine, true.to(lower).double() == true
        if held.all() and not plain.all():
            return Likeness(f"every value is representable in {name}", "dtype")
    slope = float((error * true).sum()) / bottom
    share = float((error > 0).double().mean())
    scatter = 1 / math.sqrt(len(mine))
    if abs(slope) < 4 * scatter * size and abs(share - 0.5) < 2 * scatter and len(mine) >= 2 * _FEWEST:
        return Likeness(f"errors of both signs, {size:.1e} of the values, as from rounding", "dtype")
    return NO_LIKENESS


def _small(rest: Tensor, whole: Tensor) -> bool:
    size = float(whole.square().sum())
    return size > 0 and float(rest.square().sum()) < _CLOSE**2 * size


def _apart(one: Tensor, other: Tensor) -> bool:
    return not _small(one - other, one)
