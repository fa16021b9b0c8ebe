"""Finding: the result of one check of one tensor. Verdicts are made of findings. Plain data, no tensors.

Region: which elements of the tensor are wrong, dim by dim. The sentence about it is made here and nowhere parsed.
"""

from __future__ import annotations

import math
import operator
from dataclasses import dataclass, field
from enum import Enum

from gradoracle.model.derivative import Derivative
from gradoracle.model.error_map import ErrorMap
from gradoracle.model.reason import Reason
from gradoracle.model.serialize import NOT_WRITTEN

LOCAL_SIGMA = 8.0  # the one level of significance: of a single element, of a slope and of a pooled square


class Extent(str, Enum):
    """Which indices of a dim hold wrong elements, where not all of them do."""

    ONE = "one"
    TAIL = "tail"  # from some index to the last
    HEAD = "head"  # from the first to some index
    RANGE = "range"
    ALTERNATE = "alternate"  # all even, or all odd
    SCATTERED = "scattered"


@dataclass(frozen=True)
class Span:
    """The indices of one dim that hold wrong elements.

    Attributes:
        axis: the dim's name.
        extent: the part of the dim that they fill.
        first: the least of them.
        last: the greatest.
        count: how many there are.
        size: the size of the dim.
    """

    axis: str
    extent: Extent
    first: int
    last: int
    count: int
    size: int

    def __str__(self) -> str:
        if self.first == self.last:
            return f"only {self.axis} = {self.first}{' (the last)' if self.extent is Extent.TAIL else ''}"
        return {
            Extent.TAIL: f"only {self.axis} >= {self.first} (of {self.size})",
            Extent.HEAD: f"only {self.axis} <= {self.last} (of {self.size})",
            Extent.RANGE: f"only {self.axis} from {self.first} to {self.last} (of {self.size})",
            Extent.ALTERNATE: f"only {'odd' if self.first % 2 else 'even'} {self.axis}",
        }.get(self.extent, f"{self.count} of {self.size} along {self.axis}")


@dataclass(frozen=True)
class Region:
    """Where the wrong elements of a tensor lie.

    Attributes:
        whole: whether every element is wrong.
        spans: a span for each dim in which they fill a part that stands out.
    """

    whole: bool = False
    spans: tuple[Span, ...] = ()

    def __str__(self) -> str:
        return "every element" if self.whole else ", ".join(map(str, self.spans))

    @property
    def shape(self) -> tuple[str, ...]:
        """The same for cases that differ in sizes: the last index alone is a tail, as the last few are."""
        return ("whole",) if self.whole else tuple(f"{span.axis} {span.extent.value}" for span in self.spans)


NOWHERE = Region()


class Outcome(str, Enum):
    """Of one tensor: within its budget, wrong, or not checked (which never counts as holding)."""

    HOLDS = "holds"
    VIOLATED = "violated"
    NOT_CHECKED = "not checked"


@dataclass(frozen=True)
class Worst:
    """The element with the largest error: its index, what the kernel gave, and the truth."""

    index: tuple[int, ...]
    got: float
    true: float
    error_in_sigma: float


@dataclass(frozen=True)
class Pool:
    """The sums that the pooled rules need from one tensor; they add up over the cases of a dtype.

    Attributes:
        count: elements.
        squares: the sum of (e / sigma)^2 over them.
        null_squares: the same of each probe.
        slope_top, slope_bottom: their ratio is the bias slope.
        null_slope_tops: ``slope_top`` of each probe.
        shared: the sum of squared correlations over all pairs of elements: ``count`` where errors are independent, its
            square where all are one rounding.
        among, derivative: the fields of the findings.
    """

    count: int
    squares: float
    null_squares: tuple[float, ...]
    slope_top: float
    slope_bottom: float
    null_slope_tops: tuple[float, ...]
    shared: float = 0.0
    among: tuple[str, ...] = ()
    derivative: Derivative | None = None

    def __add__(self, other: Pool) -> Pool:
        """The sums of both tensors, over the probes that both have."""
        return Pool(
            self.count + other.count,
            self.squares + other.squares,
            _sums(self.null_squares, other.null_squares),
            self.slope_top + other.slope_top,
            self.slope_bottom + other.slope_bottom,
            _sums(self.null_slope_tops, other.null_slope_tops),
            max(self.shared, self.count) + max(other.shared, other.count),
            self.among,
            self.derivative,
        )


def _sums(these: tuple[float, ...], those: tuple[float, ...]) -> tuple[float, ...]:
    return tuple(map(operator.add, these, those))


@dataclass(frozen=True)
class Finding:
    """One tensor judged by one rule.

    Attributes:
        tensor: its name in the property, such as ``dq`` or ``<g, Jt> - <J^T g, t>``.
        outcome: holds, violated or not checked.
        rule: the one that decided: local, worst case, bias, pooled, exact.
        error: the largest ``|kernel - truth|`` / budget (1 is the boundary); inf for exact facts.
        error_in_sigma: the largest error in sigma (0 where no sigma applies).
        sensitivity: median budget / |truth|; None for exact facts.
        message: one sentence; for ``not checked`` the reason.
        worst: the worst element, where there is one.
        pattern: where the wrong elements lie and how they are wrong, in words ("only T >= 64 (of 65); NaN"); "" where
            there is no pattern.
        place: the part of ``pattern`` that says where: ``region`` in words, for readers of the json.
        region: where the wrong elements lie, as data.
        cause: a name of ``fault.PLANTED``, where the property knows another than its own; "" elsewhere.
        among: the kernel's tensors that it is about, unless ``tensor`` is simply the name of one.
        derivative: the highest that one of these tensors belongs to; None where none belongs to any.
        call: the derivative whose call shows a fact that is about no tensor of the kernel's, as a race; None elsewhere.
        lost: whether values are NaN or infinite where the truth is finite, and not merely wrong.
        overflow: whether a value on the way is too large for its dtype, so that the tensor's are lost though finite.
        gives_away: error / budget of the definition, where only the budget of another algorithm explains the error.
        off: how far the formula is off, relative to the value, where that is too little for the dtype to show; else 0.
        left: what is left of an error, relative to the value, with every float in float64, where rounding explains it
            there only with that of the kernel's own operations; else 0.
        why: the kind of reason why it was not checked; None where only the property knows.
        malformed: whether the kernel returned no tensor of the expected shape and dtype.
        elements: how many elements were compared, without those in ``undecided``.
        map: the errors over a wrong tensor that has dims.
        notes: sentences for the report, of what may be meant and may be wrong; the same from case to case.
        steps: (step, largest error) of finite differences, smallest step first.
        pool: the sums for rules that pool over cases; left out of reports.
    """

    tensor: str
    outcome: Outcome
    rule: str
    error: float = 0.0
    error_in_sigma: float = 0.0
    sensitivity: float | None = None
    message: str = ""
    worst: Worst | None = None
    pattern: str = ""
    elements: int = 0
    undecided: int = 0
    place: str = ""
    among: tuple[str, ...] = ()
    lost: bool = False
    malformed: bool = False
    overflow: bool = False
    gives_away: float = 0.0
    off: float = 0.0
    left: float = 0.0
    why: Reason | None = None
    cause: str = ""
    map: ErrorMap | None = field(default=None, compare=False)
    notes: tuple[str, ...] = ()
    steps: tuple[tuple[float, float], ...] = ()
    region: Region = NOWHERE
    derivative: Derivative | None = None
    call: Derivative | None = None
    pool: Pool | None = field(default=None, compare=False, metadata=NOT_WRITTEN)

    @property
    def about(self) -> Derivative | None:
        """The derivative that it is about, by its tensors or by the call that shows it."""
        return self.derivative or self.call

    @property
    def is_within_budget(self) -> bool:
        """Whether the error is explained, even by a budget too wide for the tensor to count as checked."""
        return self.outcome is Outcome.HOLDS or self.why is Reason.BUDGET

    @property
    def named(self) -> tuple[str, ...]:
        """The kernel's tensors that it is about."""
        return self.among or (self.tensor,)

    @property
    def is_plain(self) -> bool:
        """Whether it judges one tensor that the kernel gave, and neither a part of one nor a relation."""
        return not self.among and self.derivative is not None


@dataclass(frozen=True)
class EditedDefinition:
    """An edited definition that gives what the kernel gave: the edit in words, and its cause; "" for none."""

    words: str = ""
    cause: str = ""

    @property
    def sentence(self) -> str:
        """What it reproduces, and how."""
        return f"the definition reproduces every wrong element {self.words}" if self.words else ""


NO_EDIT = EditedDefinition()


def malformed(tensor: str, message: str) -> Finding:
    """The violation of a tensor that has not the form that it should have, or is missing."""
    return Finding(tensor, Outcome.VIOLATED, "exact", math.inf, math.inf, None, message, malformed=True)
