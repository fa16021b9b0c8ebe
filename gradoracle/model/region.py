"""Region: which elements of a tensor are wrong, dim by dim. The sentence about it is made here and nowhere parsed."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


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
        extent: how they lie.
        first: the least of them.
        last: the greatest.
        count: how many there are.
        size: of the dim.
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
        spans: of each dim in which they fill a part that stands out.
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
