"""Kernels with random numbers, examples/randomness: the right one holds, the wrong one is reported with its law."""

from __future__ import annotations

import interpreted
import pytest
from places import ROOT

from gradoracle.check.run import check
from gradoracle.check.script import reproduce
from gradoracle.model.verdict import Report, Status
from gradoracle.project.request import Request

pytestmark = interpreted.NEEDED
FOLDER = ROOT / "examples" / "randomness"
BROKEN = {
    "attention_dropout": {"vjp_matches_the_oracle"},
    "dropout": {"vjp_matches_the_oracle", "the_mask_of_backward_is_that_of_forward"},
    "revealed_mask": {"vjp_matches_the_oracle"},
    "stochastic_rounding": {"rounding_at_random_has_the_mean_of_the_value"},
    "unknown_numbers": {"the_share_of_kept_elements_is_that_of_the_option"},
}
"""By file: properties that the wrong kernel violates."""
DECIDED = {
    "attention_dropout": {"forward_matches_the_oracle", "vjp_matches_the_oracle"},
    "dropout": {"forward_matches_the_oracle", "vjp_matches_the_oracle", "another_seed_gives_another_mask"},
    "revealed_mask": {"forward_matches_the_oracle", "vjp_matches_the_oracle", "the_mask_depends_on_the_seed_alone"},
    "stochastic_rounding": {"a_rounded_value_is_one_of_its_neighbours", "vjp_matches_the_oracle"},
    "unknown_numbers": {"outputs_are_those_of_the_kept_elements", "gradients_are_those_of_the_kept_elements"},
}
"""By file: properties that hold of the right kernel, so that its outputs and gradients are judged."""


def checked(name: str, kernel: str) -> Report:
    """The report of ``gradoracle check examples/randomness/NAME.py:KERNEL --examples 12``, in one dtype."""
    dtype = "bfloat16" if name == "stochastic_rounding" else "float32"
    target = f"{FOLDER / name}.py:{kernel}"
    return check(Request(target, None, device="cpu", dtypes=(dtype,), examples=12, workers=1))


def test_every_file_is_tested() -> None:
    assert {file.stem for file in FOLDER.glob("*.py")} == set(BROKEN) == set(DECIDED)


@pytest.mark.parametrize("name", BROKEN)
def test_right_holds_and_wrong_violates_its_law(name: str) -> None:
    right, wrong = checked(name, "right"), checked(name, "wrong")
    assert (right.exit_code, wrong.exit_code) == (0, 1)
    assert {v.property_name for v in right.verdicts if v.status is Status.HOLDS} >= DECIDED[name] | BROKEN[name]
    assert {v.property_name for v in wrong.verdicts if v.status is Status.VIOLATED} >= BROKEN[name]
    assert any(note.startswith("random numbers come from seed") for note in right.notes)
    left = {reason for verdict in right.verdicts for reason in verdict.reasons}
    assert any("random" in reason or "dropped" in reason for reason in left)


def test_a_replay_script_has_the_mask_that_the_kernel_reveals(tmp_path, monkeypatch) -> None:
    line = "case:1 {}:wrong cpu float32 family=residual_dropout M=1 N=3 seed=0"
    text = reproduce(line.format(FOLDER / "revealed_mask.py"))
    assert "'mask': tensor(torch.bool, (1, 3), (3, 1), 0, '1 1 1')" in text
