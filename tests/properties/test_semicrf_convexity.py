"""Each law of the semi-CRF's convexity catches a wrong kernel, and the right one holds on the same case."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from gradoracle.properties.semicrf_convexity import CONVEXITY
from segmentations import SHIPPED, judge, kernel

from gradoracle.finding import Outcome
from gradoracle.verdict import Status

SIZES = "case:1 semicrf cpu float32 B=3 T=9 C=3 K=4"
PLAIN = f"{SIZES} transition~normal seed=11"
PROJECTED = f"{SIZES} transition~normal proj_start~normal proj_end~normal seed=12"
BY_DURATION = f"{SIZES} transition_by_duration~normal proj_start~normal proj_end~normal seed=13"
LAWS = {law.name: law for law in CONVEXITY}

# law, fault, case
CAUGHT = [
    ("the_hessian_is_not_negative", "Hessian with the wrong sign", BY_DURATION),
    ("the_hessian_is_not_negative", "Hessian with the wrong sign", PLAIN),  # along cum_scores
    ("log_z_in_the_middle_is_at_most_the_mean", "negated", PLAIN),
    ("log_z_lies_above_its_tangents", "dcum one quarter large", BY_DURATION),
    ("log_z_lies_above_its_tangents", "negated", PLAIN),
]


@pytest.mark.parametrize(("law", "fault", "line"), CAUGHT, ids=[f"{law}-{fault}" for law, fault, _ in CAUGHT])
def test_the_wrong_kernel_is_caught_and_the_right_one_holds(law: str, fault: str, line: str) -> None:
    right = judge(LAWS[law], line, kernel())
    assert right.status is Status.HOLDS, [f for f in right.findings if f.outcome is Outcome.VIOLATED] or right.reason
    wrong = judge(LAWS[law], line, kernel(fault))
    assert wrong.status is Status.VIOLATED, (wrong.status, wrong.reason, wrong.findings)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize(("law", "line"), {law: line for law, _, line in CAUGHT}.items())
def test_the_shipped_kernel_holds(law: str, line: str, dtype: str) -> None:
    found = judge(LAWS[law], line.replace("float32", dtype), SHIPPED)
    assert found.status is Status.HOLDS, (found.status, found.reason, found.findings)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float64"])
@pytest.mark.parametrize(("law", "line"), {law: line for law, _, line in CAUGHT}.items())
def test_the_right_kernel_holds_in_every_dtype(law: str, line: str, dtype: str) -> None:
    found = judge(LAWS[law], line.replace("float32", dtype), kernel())
    assert found.status is Status.HOLDS, (found.status, found.reason, found.findings)


def test_every_law_has_a_fault_that_it_catches() -> None:
    assert {law for law, _, _ in CAUGHT} == set(LAWS)
