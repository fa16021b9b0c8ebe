"""The semi-CRF in plain PyTorch, examples/torch_semicrf.py: it holds on the CPU, faults in it are caught."""

from __future__ import annotations

import functools
from dataclasses import replace
from pathlib import Path

import pytest
from sweeps import slow

from gradoracle.cases.coverage import wanted_goals
from gradoracle.model.dims import sizes
from gradoracle.model.severity import Severity
from gradoracle.model.verdict import Report, Status
from gradoracle.project.target import resolve
from tests.properties import outside
from tests.properties.outside import DTYPES, EXAMPLES, assert_holds, assert_violated, changed

pytestmark = pytest.mark.usefixtures("unshrunk")
FILE = EXAMPLES / "torch_semicrf.py"
CASES = 24
SMALL = {"dims": {"T": sizes(4, 40), "K": sizes(2, 6)}}


def checked(file: Path, *dtypes: str, **fields: object) -> Report:
    fields = {"examples": CASES * len(dtypes), **fields}
    return outside.checked("semicrf", file, "recursion", *dtypes, **fields)


@functools.cache
def right_one() -> Report:
    return checked(FILE, "float32", **SMALL)


def test_it_holds_in_every_dtype() -> None:
    report = checked(FILE, *DTYPES, examples=40 * len(DTYPES))
    assert_holds(report, *DTYPES)
    met = {goal for goal, count in report.goals.items() if count}
    assert met >= {
        "transition given", "transition_by_duration given", "proj_start given", "proj_end given", "T has 3 tiles",
        "joint every path forbidden", "joint no positions", "joint forbidden transitions", "joint forbidden durations",
    }  # fmt: skip


def test_it_is_not_asked_for_sequences_that_take_minutes() -> None:
    target = resolve(f"{FILE}:recursion", "semicrf")
    expected = wanted_goals(target.family, target.kernels[0], DTYPES, 126)
    assert "T > 100 000" not in expected and "T has 3 tiles" in expected
    (shipped,) = resolve("semicrf").kernels
    assert "T > 100 000" in wanted_goals(target.family, shipped, DTYPES, 126)


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("cum[:, inside] - cum[:, :-1, None]", "cum[:, inside - 1] - cum[:, :-1, None]"),
        slow("alpha[:, None, :, None] + tables, 2)", "alpha[:, None, :, None] + tables.mT, 2)"),
        slow("proj_end.float()[:, inside - 1]", "proj_end.float()[:, (inside - 2).clamp_min(0)]"),
        ("legal = end <= lengths[:, None, None]", "legal = end < lengths[:, None, None]"),
        slow("ring[:, : durations - 1]", "ring[:, : max(durations - 2, 0)]"),
        ("norms[: -durations - 1 : -1]", "norms[-1:] * len(norms[: -durations - 1 : -1])"),
    ],
)
@pytest.mark.xdist_group("torch_semicrf on small cases")
def test_a_fault_is_caught_on_the_same_cases(right: str, wrong: str, tmp_path: Path) -> None:
    assert right_one().exit_code == 0
    assert_violated(checked(changed(FILE, right, wrong, tmp_path), "float32", **SMALL))


@pytest.mark.xdist_group("torch_semicrf on small cases")
def test_a_norm_in_float16_loses_precision(tmp_path: Path) -> None:
    right = "alpha, norm = alpha - top[:, None], norm + top"
    copy = changed(FILE, right, f"{right}.half()", tmp_path)
    assert right_one().exit_code == 0
    report = checked(copy, "float32", **SMALL)
    assert_violated(report, Severity.PRECISION)
    assert replace(report, fail_on=Severity.PRECISION).exit_code == 1


@pytest.mark.parametrize(
    ("right", "wrong", "property_name"),
    [
        (
            "return torch.where(some, torch.where(some, total, 1.0).log(), -torch.inf) + top.squeeze(dim)",
            "return torch.logsumexp(x, dim)",
            "where_every_path_is_forbidden_*",
        ),
        ("cum, duration = cum_scores.float()", "cum, duration = cum_scores.float().nan_to_num()", "nan_in_*"),
        ("torch.where(legal[..., None], score, -torch.inf)", "score + legal[..., None].float().log()", "what_lies_*"),
    ],
)
def test_nan_and_what_is_forbidden_are_dealt_with(right: str, wrong: str, property_name: str, tmp_path: Path) -> None:
    right_one = checked(FILE, "float32", property=property_name)
    assert right_one.exit_code == 0 and any(v.status is Status.HOLDS for v in right_one.verdicts)
    assert checked(changed(FILE, right, wrong, tmp_path), "float32", property=property_name).exit_code == 1
