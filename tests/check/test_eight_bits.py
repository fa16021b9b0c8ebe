"""Kernels in 8-bit floats: right ones hold, and each planted mistake is violated in both formats."""

from __future__ import annotations

from pathlib import Path

import interpreted
import pytest
import torch
from places import TESTS

from gradoracle.check.acceptance import WIDEST_SENSITIVITY, Allowance, judge, widest_sensitivity
from gradoracle.check.run import check
from gradoracle.model.finding import Outcome
from gradoracle.model.verdict import Report, Status
from gradoracle.project.request import Request

pytestmark = [pytest.mark.xdist_group("interpreter"), interpreted.NEEDED]
FILE = TESTS / "check" / "eight_bits.py"
DTYPES = ("float8_e4m3fn", "float8_e5m2")


def checked(
    name: str, property_name: str = "forward_matches_the_oracle", examples: int = 40, **others: object
) -> Report:
    fields = {"property": property_name, "examples": examples, "dtypes": DTYPES, **others}
    return check(Request(f"{FILE}:{name}", None, device="cpu", workers=0, **fields))


def statuses(report: Report) -> set[tuple[str, Status]]:
    return {(verdict.dtype, verdict.status) for verdict in report.verdicts}


@pytest.mark.parametrize("name", ["right", "right_in_large_tiles", "in_pytorch"])
def test_a_right_kernel_holds(name: str) -> None:
    report = checked(name)
    assert report.exit_code == 0 and statuses(report) == {(dtype, Status.HOLDS) for dtype in DTYPES}


@pytest.mark.parametrize(
    "name", ["forgets_the_scale_of_a_row", "casts_through_the_other_format", "accumulates_in_float16"]
)
def test_a_planted_mistake_is_violated(name: str) -> None:
    report = checked(name)
    assert report.exit_code == 1 and statuses(report) == {(dtype, Status.VIOLATED) for dtype in DTYPES}


@pytest.mark.parametrize("name", ["right", "with_gradients"])
def test_every_property_takes_8_bits(name: str) -> None:
    report = checked(name, property_name="*", examples=60)
    assert report.exit_code == 0
    assert not {v.property_name for v in report.verdicts if v.status not in (Status.HOLDS, Status.NOT_CHECKED)}
    assert len({v.property_name for v in report.verdicts if v.status is Status.HOLDS}) >= 3


@pytest.mark.parametrize("stored", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_storing_a_value_is_not_too_wide_a_budget_and_more_is(stored: torch.dtype) -> None:
    truth = torch.randn(2000, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) + 4
    got, unit = truth.to(stored), torch.finfo(stored).eps / 2
    allowance = Allowance(truth.abs() * unit / 3**0.5, torch.zeros(0, *truth.shape, dtype=torch.float64), None)
    assert judge("y", got, truth, allowance, continuous=True).outcome is not Outcome.NOT_CHECKED
    wide = Allowance(2 * allowance.sigma, allowance.errors, None)
    assert judge("y", got, truth, wide, continuous=True).outcome is Outcome.NOT_CHECKED
    assert widest_sensitivity(torch.bfloat16) == widest_sensitivity(torch.float32) == WIDEST_SENSITIVITY


@pytest.mark.parametrize(("stored", "accepted"), [(torch.float8_e4m3fn, 448.0), (torch.float8_e5m2, torch.inf)])
def test_an_infinite_truth_may_saturate_where_casts_do(stored: torch.dtype, accepted: float) -> None:
    truth = torch.tensor([torch.inf, -torch.inf, 1.0], dtype=torch.float64)
    none = Allowance(torch.zeros_like(truth), torch.zeros(0, 3, dtype=torch.float64), None)
    for got in ((accepted, -accepted), (torch.finfo(stored).max, torch.finfo(stored).min)):
        found = judge("y", torch.tensor([*got, 1.0]).to(stored), truth, none, continuous=True)
        assert found.outcome is not Outcome.VIOLATED
    for wrong in ((1.0, -1.0), (-accepted, accepted)):
        found = judge("y", torch.tensor([*wrong, 1.0]).to(stored), truth, none, continuous=True)
        assert found.outcome is Outcome.VIOLATED


def test_saved_tensors_of_8_bits_are_a_case(tmp_path: Path) -> None:
    made = torch.Generator().manual_seed(2)
    given = {"x": torch.randn(5, 33, generator=made).to(torch.float8_e5m2)}
    given["w"] = torch.randn(7, 33, generator=made).to(torch.float8_e5m2)
    given |= {"row": torch.rand(5, generator=made), "column": torch.rand(7, generator=made)}
    torch.save(given, tmp_path / "saved.pt")
    for name, code in (("right", 0), ("forgets_the_scale_of_a_row", 1)):
        report = checked(name, inputs=str(tmp_path / "saved.pt"), dtypes=())
        assert report.exit_code == code and {v.dtype for v in report.verdicts} == {"float8_e5m2"}
