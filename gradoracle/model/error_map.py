"""Error map: the errors over a wrong tensor as a grid of levels for a report to plot. Plain data."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

CELLS, PAIRS, TILES = 96, 64, 64  # at most: cells down and across, pairs, tiles plotted
_SAMPLE = 4096  # elements searched for the range of the truth
WITHIN, BEYOND, UNKNOWN = ".", "#", "?"
_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"


@dataclass(frozen=True)
class ErrorMap:
    """The largest error in sigma of each cell of a tensor, over its two last dims that are larger than 1.

    Attributes:
        axes: the dims that run down and across; "" where there is none.
        shape: the number of elements down and across.
        cell: the number of elements of one cell down and across.
        over: the other dims, over which the largest is taken.
        rows: a string for each row of cells, a character for each cell: ``.`` at most one sigma, ``1`` to ``9`` and
            ``a`` to ``z`` a power of two each (``1`` up to 2 sigma, ``4`` up to 16, ``z`` beyond 2^34), ``#`` infinite,
            NaN or a fact without a sigma, ``?`` not compared.
        tiles: the number of elements of a tile of the kernel down and across; 0 if unknown.
        pairs: (true, got) of the worst elements, and of others from the smallest truth to the largest.
    """

    axes: tuple[str, str]
    shape: tuple[int, int]
    cell: tuple[int, int]
    over: tuple[str, ...]
    rows: tuple[str, ...]
    tiles: tuple[int, int] = (0, 0)
    pairs: tuple[tuple[float, float], ...] = ()

    def tiled(self, tiles: Mapping[str, int]) -> tuple[int, int]:
        """``tiles`` of this map, given the sizes of tiles by dim."""
        down, across = (tiles.get(axis, 0) for axis in self.axes)
        return down, across

    def edges(self, side: int) -> list[int]:
        """Where tiles end, down (0) or across (1); empty where they are too many to plot."""
        tile, size = self.tiles[side], self.shape[side]
        return list(range(tile, size, tile)) if tile and size <= TILES * tile else []


def errormap(
    in_sigma: Tensor,
    compared: Tensor | None = None,
    axes: Sequence[str] = (),
    got: Tensor | None = None,
    truth: Tensor | None = None,
) -> ErrorMap | None:
    """The map of a tensor's errors; None of a tensor without dims or elements.

    Args:
        in_sigma: the size of each error in sigma, inf where no sigma applies.
        compared: bool, which elements were compared; None: all.
        axes: names of the dims; ``dim 0`` and so on where absent.
        got: what the kernel gave; ``truth``: float64 of the same shape. None where only facts are known.
    """
    if in_sigma.dim() == 0 or in_sigma.numel() == 0:
        return None
    names = [axes[dim] if dim < len(axes) else f"dim {dim}" for dim in range(in_sigma.dim())]
    size = in_sigma.detach().to("cpu", torch.float64).nan_to_num(nan=math.inf, posinf=math.inf)
    if compared is not None:
        size = size.masked_fill(~compared, -1.0)
    wide = [dim for dim, extent in enumerate(size.shape) if extent > 1] or [size.dim() - 1]
    kept = wide[-2:]
    others = [dim for dim in range(size.dim()) if dim not in kept]
    over = tuple(names[dim] for dim in others if size.shape[dim] > 1)
    flat = size.amax(dim=tuple(others)) if others else size
    down = names[kept[0]] if len(kept) == 2 else ""
    flat = flat if len(kept) == 2 else flat.unsqueeze(0)
    cell = tuple(-(-extent // CELLS) for extent in flat.shape)
    spare = [(-extent) % width for extent, width in zip(flat.shape, cell, strict=True)]
    flat = torch.nn.functional.pad(flat, (0, spare[1], 0, spare[0]), value=-1.0) if any(spare) else flat
    grid = flat.unflatten(0, (-1, cell[0])).unflatten(2, (-1, cell[1])).amax(dim=(1, 3))
    rows = tuple("".join(map(_level, row)) for row in grid.tolist())
    shape = (in_sigma.shape[kept[0]] if down else 1, in_sigma.shape[kept[-1]])
    pairs = _pairs(in_sigma, got, truth) if got is not None and truth is not None else ()
    return ErrorMap((down, names[kept[-1]]), shape, (cell[0], cell[1]), over, rows, pairs=pairs)


def sigmas(level: str) -> float:
    """The largest error in sigma of a level; NaN for one that was not compared."""
    if level == UNKNOWN:
        return math.nan
    if level == BEYOND:
        return math.inf
    return 1.0 if level == WITHIN else 2.0 ** _DIGITS.index(level)


def _pairs(in_sigma: Tensor, got: Tensor, truth: Tensor) -> tuple[tuple[float, float], ...]:
    """(true, got) of the worst elements, and of others spread evenly from the smallest truth to the largest."""
    flat, given, true = in_sigma.flatten().nan_to_num(nan=math.inf), got.flatten(), truth.flatten()
    worst = flat.topk(min(PAIRS // 2, flat.numel())).indices
    some = torch.arange(0, true.numel(), -(-true.numel() // _SAMPLE))
    some = torch.cat([some, torch.stack([true.argmin(), true.argmax()])]).unique()
    some = some[true[some].argsort()]
    count = min(PAIRS // 2 - 1, len(some))
    spread = [some[place * (len(some) - 1) // max(count - 1, 1)] for place in range(count)]
    chosen = torch.cat([worst, torch.stack(spread)]).unique()
    return tuple(zip(true[chosen].tolist(), given[chosen].tolist(), strict=True))


def _level(size: float) -> str:
    if size < 0:
        return UNKNOWN
    if size <= 1:
        return WITHIN
    if size == math.inf:
        return BEYOND
    return _DIGITS[min(math.ceil(math.log2(size)), len(_DIGITS) - 1)]
