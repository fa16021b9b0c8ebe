"""Precisions of float32's dots: each shipped kernel that takes one keeps the preset of its name, and no finer one."""

from __future__ import annotations

from dataclasses import replace

import pytest
from sweeps import slow

from gradoracle.check.run import check
from gradoracle.model.dims import parse_sizes
from gradoracle.model.finding import Finding, Outcome
from gradoracle.model.verdict import Report, Status
from gradoracle.project.request import Request

COMPARED = {
    "sdpa": "*_matches_*,*_converge*,backward_*,hvp_*,jvp_*,the_saved_*,l_*,a_query_*",
    "lse": "*_matches_*,*_converge*,hvp_*,jvp_*,fused_*",
    "lightning": "*_matches_*,*_converge*,hvp_*,jvp_*",
    "gated_delta": "[fv]*_matches_*,nothing_*,*_delta_rule,*_token_alone,*_overwrite,the_state_*,a_sequence_*",
}
DIMS = {
    "sdpa": ("T=1:40", "M=1:40"),
    "lse": ("T=1:40", "M=1:40"),
    "lightning": ("N=1:140",),
    "gated_delta": ("T=1:70",),
}


@pytest.mark.usefixtures("unshrunk")
@pytest.mark.parametrize(
    ("family", "precision"),
    [
        ("sdpa", "tf32"),
        ("lse", "bf16x6"),
        ("lightning", "bf16x6"),
        ("gated_delta", "tf32"),
        slow("sdpa", "bf16x6"),
        slow("lse", "tf32"),
        slow("lightning", "tf32"),
    ],
)
def test_other_precisions_of_dots_keep_the_preset_of_their_name(family: str, precision: str) -> None:
    dims = dict(map(parse_sizes, DIMS[family]))
    request = Request(family, device="cpu", dtypes=("float32",), dims=dims, examples=8, workers=0)
    asked = replace(request, arguments={"precision": precision}, contracts={"float32": precision})
    report = check(replace(asked, property=COMPARED[family]))
    assert report.exit_code == 0 and len(report.verdicts) >= 8
    assert all(verdict.status is not Status.VIOLATED for verdict in report.verdicts)
    exact = check(replace(asked, contracts={"float32": "ieee32"}, property="[fv]*_matches_*"))
    if precision == "tf32":  # what "ieee" keeps is more than what tf32 does
        broken = {v.property_name for v in exact.verdicts if v.status is Status.VIOLATED}
        assert exact.exit_code == 1 and broken >= {"forward_matches_the_oracle", "vjp_matches_the_oracle"}
    else:  # bf16x6 rounds no more than IEEE float32, but tensor cores cut what they add, always towards 0
        assert {f.rule for f in violations(exact)} <= {"bias"}


def violations(report: Report) -> list[Finding]:
    """The findings that violate a property, of the cases as they were generated."""
    examples = [verdict.counterexample for verdict in report.verdicts if verdict.counterexample is not None]
    found = [finding for each in examples for finding in each.first_findings or each.findings]
    return [finding for finding in found if finding.outcome is Outcome.VIOLATED]
