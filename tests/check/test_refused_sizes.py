"""Sizes that Triton refuses are refused cases, and ``--dim`` also binds the variants that properties make of a case."""

from __future__ import annotations

import interpreted
import pytest
from places import TESTS

from gradoracle.check.run import check
from gradoracle.model.dims import choices
from gradoracle.model.verdict import Report, Status
from gradoracle.project.request import Request

pytestmark = [pytest.mark.xdist_group("interpreter"), interpreted.NEEDED]


def checked(**fields: object) -> Report:
    target = f"{TESTS / 'check' / 'whole_blocks.py'}:undeclared"
    return check(Request(target, None, device="cpu", dtypes=("float32",), examples=16, workers=0, **fields))


def test_a_size_that_is_no_power_of_two_is_refused_and_the_others_are_judged() -> None:
    report = checked()
    (compared,) = [v for v in report.verdicts if v.property_name == "vjp_matches_the_oracle"]
    assert report.exit_code == 0 and compared.status is Status.HOLDS
    assert compared.cases_refused and compared.cases_held
    assert {reason for v in report.verdicts for reason in v.reasons if "power" in reason} >= {
        "ValueError: arange's range must be a power of 2"
    }


def test_no_variant_of_a_case_leaves_the_sizes_that_were_asked_for() -> None:
    report = checked(dims={"N": choices(16, 32)})
    assert report.exit_code == 0
    assert not any(v.cases_refused or v.cases_crashed for v in report.verdicts)
    (appended,) = [v for v in report.verdicts if v.property_name == "tail_and_padding_invariance"]
    assert appended.status is Status.HOLDS  # along B, which is not bound
