"""Every property of SDPA falls on at least five cases of each dtype that it applies to, in the stream of a default
run.
"""

from __future__ import annotations

from collections import Counter

from gradoracle.properties import sdpa

from gradoracle.cases.stream import stream
from gradoracle.check.plan import CASES_ON_CPU
from gradoracle.check.properties import properties_of
from gradoracle.model.property import Property
from tests.properties.sdpa.attention import FAMILY

FEWEST = 5
KERNEL = sdpa.KERNELS[0]
CASES = stream(FAMILY, KERNEL, dtypes=FAMILY.dtypes, examples=CASES_ON_CPU, seed=0)
ON_A_GPU = {"non_default_stream_gives_the_same", "second_device_gives_the_same"}


def shares(prop: Property) -> dict[str, tuple[int, int]]:
    """dtype -> (cases that a property falls on, cases that it applies to)."""
    applies = [case for case in CASES if prop.applies(case, KERNEL) is None]
    fallen = Counter(case.dtype for case in applies if prop.falls_on(case))
    return {dtype: (fallen[dtype], count) for dtype, count in Counter(case.dtype for case in applies).items()}


def test_no_property_is_left_to_chance() -> None:
    properties = [prop for prop in properties_of(FAMILY) if prop.scope == "case" and prop.name not in ON_A_GPU]
    few = {
        (prop.name, dtype): (fallen, count)
        for prop in properties
        for dtype, (fallen, count) in shares(prop).items()
        if fallen < min(FEWEST, count)
    }
    assert len(properties) > 50 and not few
