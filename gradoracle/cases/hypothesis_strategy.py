"""Hypothesis strategy: the cases of a family and kernel, for property tests of one's own.

    import gradoracle
    from hypothesis import given
    @given(gradoracle.strategy(family, kernel))
    def test_something(case): ...

It generates cases as the stream of ``gradoracle check`` does, with Hypothesis as the source of numbers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache

from hypothesis import strategies as st

from gradoracle.cases.case_space import case_space
from gradoracle.cases.coverage import focuses
from gradoracle.cases.strategy import drawn
from gradoracle.model.case import Case
from gradoracle.model.dims import Sizes
from gradoracle.model.family import Family
from gradoracle.model.kernel import Kernel


def strategy(
    family: Family,
    kernel: Kernel,
    *,
    dtypes: Sequence[str] | None = None,
    dims: Mapping[str, Sizes] | None = None,
) -> st.SearchStrategy[Case]:
    """A strategy of the cases that family and kernel allow.

    One case in three is generated towards a coverage goal (a recipe, a layout, a tail...); dims above 100 000 are left
    to the stream. Shrinks towards small dims, the first dtype, default options, normal and contiguous tensors, seed 0.

    Args:
        family: gives dims, dtypes, options and joint recipes.
        kernel: narrows dims, dtypes and options, and names block configurations.
        dtypes: the dtypes of the cases; by default the family's.
        dims: narrower sizes by dim.

    Raises:
        ValueError: a dim is unknown or its sizes are empty, or no dtype is supported.
    """
    within = case_space(family, kernel, dtypes=dtypes, dims=dims)
    towards = [focus for focus in focuses(within) if not focus.large]

    @st.composite
    def of_domain(draw: st.DrawFn) -> Case:
        return drawn(lambda count: draw(_index(count)), within, towards, often=3)

    return of_domain()


@cache
def _index(count: int) -> st.SearchStrategy[int]:
    return st.integers(0, count - 1)
