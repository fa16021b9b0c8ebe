"""Statistics: measurements of a run, which reports plot and by which nothing is judged.

They show how well budgets fit, how errors grow with a size, and how finite differences converge.
"""

from __future__ import annotations

import math
import zlib
from bisect import insort
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from gradoracle.model.case import Case
from gradoracle.model.finding import Finding

_LOCAL = ("local", "bias", "pooled")  # rules whose limit is a number of sigma
LEAST, BINS = -10, 28  # of ``spread``: the first bin ends at 2^LEAST; the number of bins
MOST_CURVES = 24  # kept for a kernel
_EXACT = 512  # up to this, growth distinguishes sizes; above, within 2 %


@dataclass
class Growth:
    """The largest error of a kernel's tensors of one size and dtype; sizes above 512 are rounded to 16 an octave."""

    kernel: str
    dtype: str
    size: int
    in_sigma: float
    tensors: int = 1


@dataclass(frozen=True)
class Convergence:
    """Central differences of one gradient in float64: (step, largest error), smallest step first."""

    kernel: str
    tensor: str
    steps: tuple[tuple[float, float], ...]


@dataclass
class Measurements:
    """The measurements of one run; they do not depend on the order of cases.

    Attributes:
        dim: the dim of ``growth``.
        spread: dtype -> the number of tensors with an rms error, in sigma, in each bin: up to 2^-10, then by factors of
            the square root of two up to 8, and above. 1 is one standard deviation of what rounding explains.
        growth: the largest error against the size of ``dim``, of tensors that the local rule judges.
        convergence: curves of central differences of the VJP to the HVP, for some of all gradients.
        differences: the number of all these gradients.
    """

    dim: str
    spread: dict[str, list[int]] = field(default_factory=dict)
    growth: list[Growth] = field(default_factory=list)
    convergence: list[Convergence] = field(default_factory=list)
    differences: int = 0

    def __post_init__(self) -> None:
        self._sizes = {(each.kernel, each.dtype, each.size): each for each in self.growth}

    def add(self, kernel: str, case: Case, findings: Iterable[Finding], direct: bool) -> None:
        """Add the findings of one property on one case; ``direct``: it compares the kernel's tensors with the truth."""
        for found in findings:
            if found.steps:
                self.differences += 1
                self._converge([Convergence(kernel, found.tensor, found.steps)])
            if direct and found.pool is not None:
                if case.dtype not in self.spread:
                    self.spread = dict(sorted({**self.spread, case.dtype: [0] * BINS}.items()))
                self.spread[case.dtype][bin_of(math.sqrt(found.pool.squares / found.pool.count))] += 1
            if direct and found.elements and found.rule in _LOCAL and self.dim in case.dims:
                self._grow(Growth(kernel, case.dtype, _rounded(case.dims[self.dim]), found.error_in_sigma))

    def _converge(self, curves: Iterable[Convergence]) -> None:
        """Keep some of each kernel's curves, in any order of arrival: those with the smallest digests."""
        kept: Counter[str] = Counter()
        every = sorted([*self.convergence, *curves], key=lambda each: (each.kernel, zlib.crc32(repr(each).encode())))
        self.convergence = []
        for each in every:
            kept[each.kernel] += 1
            if kept[each.kernel] <= MOST_CURVES:
                self.convergence.append(each)

    def _grow(self, new: Growth) -> None:
        known = self._sizes.setdefault((new.kernel, new.dtype, new.size), new)
        if known is not new:
            known.in_sigma = max(known.in_sigma, new.in_sigma)
            known.tensors += new.tensors
            return
        insort(self.growth, new, key=lambda each: (each.kernel, each.dtype, each.size))


def _rounded(size: int) -> int:
    return size if size <= _EXACT else round(2.0 ** (round(16 * math.log2(size)) / 16))


def bin_of(rms: float) -> int:
    """The bin of ``spread`` that an rms error in sigma falls into."""
    if rms <= 2.0**LEAST:
        return 0
    return min(max(math.ceil(2 * (math.log2(rms) - LEAST)), 1), BINS - 1) if rms < math.inf else BINS - 1


def edge(bin: int) -> float:
    """The largest rms error in sigma of a bin of ``spread``; inf of the last."""
    return 2.0 ** (LEAST + bin / 2) if bin < BINS - 1 else math.inf
