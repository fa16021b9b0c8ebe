"""Kernels in 8-bit floats: right ones hold, and each planted mistake is violated in both formats."""

from __future__ import annotations

from pathlib import Path

import interpreted
import pytest
import torch
from places import TESTS

from gradoracle.check.acceptance import WIDEST_SENSITIVITY, Allowance, judge, widest_sensitivity
from gradoracle.check.run import check
from gradoracle.model.contract import tried_on
from gradoracle.model.finding import Outcome
from gradoracle.model.verdict import Report, Status
from gradoracle.project.request import Request
from gradoracle.report.summary import kept

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


@pytest.mark.parametrize("stored", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_of_numbers_in_8_bits_only_those_are_right_that_a_near_value_is_rounded_to(stored: torch.dtype) -> None:
    made = torch.Generator().manual_seed(1)
    truth = torch.randn(400, dtype=torch.float64, generator=made) * 20 + 100
    right = truth.to(stored)
    bits = right.view(torch.uint8)
    tie = (right[7].double() + (bits[7:8] + 1).view(stored)[0].double()) / 2
    truth[7] = tie * (1 - 1e-6)  # below it: rounded down, or up after an error of 2e-6
    right = truth.to(stored)
    sigma = truth.abs() * torch.finfo(stored).eps / 2 / 3**0.5
    none = torch.zeros(0, 400, dtype=torch.float64)

    def outcome(bits: torch.Tensor, before: float | None) -> Outcome:
        near = None if before is None else before * truth.abs()
        return judge("y", bits.view(stored), truth, Allowance(sigma, none, before=near), continuous=True).outcome

    up, other = right.view(torch.uint8).clone(), right.view(torch.uint8).clone()
    up[7] += 1
    other[8] += 1 if right[8].double() < truth[8] else 255  # the other neighbour of a value that is near no tie
    assert outcome(right.view(torch.uint8), 0.0) is outcome(right.view(torch.uint8), 1e-3) is Outcome.HOLDS
    assert outcome(up, 2e-6) is Outcome.HOLDS and outcome(up, 1e-7) is Outcome.VIOLATED
    assert outcome(other, 1e-3) is Outcome.VIOLATED
    assert outcome(other, None) is Outcome.HOLDS  # the error of one rounding more is within eight sigma


def test_beyond_the_largest_number_the_rule_of_neighbours_says_nothing() -> None:
    truth = torch.tensor([447.9, 500.0, 3.0], dtype=torch.float64)
    allowed = Allowance(truth * 0.04, torch.zeros(0, 3, dtype=torch.float64), before=torch.full((3,), 0.2).double())
    got = torch.tensor([448.0, 448.0, 3.0]).to(torch.float8_e4m3fn)
    assert judge("y", got, truth, allowed, continuous=True).outcome is Outcome.HOLDS


def test_saved_tensors_of_8_bits_are_a_case(tmp_path: Path) -> None:
    made = torch.Generator().manual_seed(2)
    given = {"x": torch.randn(5, 33, generator=made).to(torch.float8_e5m2)}
    given["w"] = torch.randn(7, 33, generator=made).to(torch.float8_e5m2)
    given |= {"row": torch.rand(5, generator=made), "column": torch.rand(7, generator=made)}
    torch.save(given, tmp_path / "saved.pt")
    for name, code in (("right", 0), ("forgets_the_scale_of_a_row", 1)):
        report = checked(name, inputs=str(tmp_path / "saved.pt"), dtypes=())
        assert report.exit_code == code and {v.dtype for v in report.verdicts} == {"float8_e5m2"}


def test_presets_of_8_bit_products_explain_only_kernels_with_operands_of_8_bits() -> None:
    for dtype, name in (("float32", "ieee32-fp8"), ("bfloat16", "bf16-fp8"), ("float16", "fp16-fp8")):
        assert name not in [preset.name for preset in tried_on(dtype)]
        assert name in [preset.name for preset in tried_on(dtype, eight_bits=True)]
    assert "e4m3" in [preset.name for preset in tried_on("float8_e4m3fn")]


def test_an_undeclared_kernel_is_inferred_to_multiply_in_8_bits(tmp_path: Path) -> None:
    source = (TESTS.parent / "examples" / "eight_bit" / "row_scales.py").read_text()
    declared = ', "contracts": {"float32": gradoracle.PRESETS["ieee32-fp8"]}'
    assert declared in source
    (tmp_path / "undeclared.py").write_text(source.replace(declared, ""))
    report = check(
        Request(f"{tmp_path / 'undeclared.py'}:right", None, device="cpu", workers=0, property="forward*", examples=20)
    )
    assert report.exit_code == 0 and [verdict.status for verdict in report.verdicts] == [Status.VIOLATED]
    assert [(each.dtype, each.preset) for each in kept(report)] == [("float32", "ieee32-fp8")]
