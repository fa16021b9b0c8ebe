"""Correct kernels satisfy, in each dtype, the properties that wrong ones violate, on the same cases."""

from __future__ import annotations

import pytest

from gradoracle.model.finding import Outcome
from gradoracle.model.kernel import Kernel
from gradoracle.model.verdict import Status
from gradoracle.oracle.truth import Oracle
from tests.properties.gated_delta import wrong as gated_delta
from tests.properties.judging import judge, last_cases
from tests.properties.lightning import wrong as lightning
from tests.properties.lse import wrong as lse
from tests.properties.semicrf import segmentations
from tests.properties.semicrf import wrong as semicrf

NARROW = ("bfloat16", "float16")
NAN = [(semicrf.NAN, line) for line in (*semicrf.READ.values(), semicrf.READ_BY_DURATION)]
BY_HAND = [*(pair for pair in last_cases(semicrf.OF_HAND) if pair[0] != semicrf.NAN), *NAN]
SWEEPS = [
    ("lse", lse.CORRECT, lse.ORACLE, last_cases(lse.ROWS), (*NARROW, "float64")),
    ("lightning", lightning.CORRECT, lightning.ORACLE, last_cases(lightning.ROWS), (*NARROW, "float64")),
    ("gated_delta", gated_delta.CORRECT, gated_delta.ORACLE, last_cases(gated_delta.ROWS), (*NARROW, "float64")),
    ("semicrf by hand", semicrf.BY_HAND, semicrf.ORACLE, BY_HAND, (*NARROW, "float64")),
    ("semicrf", segmentations.SHIPPED, semicrf.ORACLE, BY_HAND, ("float32", *NARROW)),
    ("semicrf", semicrf.SHIPPED, semicrf.ORACLE, last_cases(semicrf.OF_SHIPPED), NARROW),
]
EVERY = [
    pytest.param(subject, oracle, property_name, line.replace("float32", dtype), id=f"{title}-{property_name}-{dtype}")
    for title, subject, oracle, cases, dtypes in SWEEPS
    for property_name, line in cases
    for dtype in dtypes
]


@pytest.mark.parametrize(("kernel", "oracle", "property_name", "line"), EVERY)
def test_a_correct_kernel_holds_in_every_dtype(kernel: Kernel, oracle: Oracle, property_name: str, line: str) -> None:
    found = judge(property_name, line, kernel, oracle)
    assert found.status is Status.HOLDS, (found.status, found.reason, found.findings)


@pytest.mark.parametrize("property_name", dict(last_cases(semicrf.OF_SHIPPED)))
def test_the_semi_crf_holds_where_a_sequence_has_no_segmentation_or_no_position(property_name: str) -> None:
    for words in (
        "transition~normal duration_bias~forbidden:1",
        "transition~normal lengths~lowest",
        "duration_bias~forbidden:0.3 transition~forbidden:0.4",
    ):
        found = judge(property_name, f"{segmentations.SIZES} {words} seed=5", semicrf.SHIPPED, semicrf.ORACLE)
        assert not any(f.outcome is Outcome.VIOLATED for f in found.findings), (words, found.findings)
        assert found.status in (Status.HOLDS, Status.NOT_CHECKED)
