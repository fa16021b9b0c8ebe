"""Every view of a gate: its outcome over all targets, and what is red, open or a note. The wording: test_golden.py."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree

from example import compared, unchanged
from test_sarif import log

from gradoracle.model.comparison import Kind, Line, Weight
from gradoracle.model.verdict import exit_code
from gradoracle.report.formats import render
from gradoracle.report.summary import all_compared

LINES = (
    Line(Kind.ACCURACY, Weight.RED, "accuracy fell", "triton_sdpa", "vjp_matches_the_oracle", "float16"),
    Line(Kind.BASE, Weight.OPEN, "the base cannot be checked"),
    Line(Kind.JUDGE, Weight.NOTE, "acknowledged by Ann"),
)
MADE = [compared(*LINES), unchanged()]


def test_a_gate_is_red_by_its_red_lines_alone() -> None:
    assert exit_code(MADE) == 1 and [made.exit_code for made in MADE] == [1, 0]
    open_ = compared(LINES[1])
    assert open_.comparison is not None
    open_.comparison.lines = [LINES[1], LINES[2]]
    assert open_.exit_code == 4 and open_.inconclusive() == ["the base cannot be checked"]
    open_.comparison.lines = [LINES[2]]
    assert open_.exit_code == 0  # its violated verdicts are the base's too


def test_the_terminal_ends_with_the_outcome_of_all() -> None:
    both, alone = all_compared(MADE), all_compared([unchanged()])
    assert "sdpa: regression" in both and "1 unchanged" in both and "1a2b3c4 (main)" in alone
    assert render(MADE, "terminal").endswith(f"\n✗ {both} (exit code 1)\n")
    assert render([unchanged()], "terminal").endswith(f"\n✓ {alone} (exit code 0)\n")


def test_markdown_leads_with_the_outcome_of_all() -> None:
    assert render(MADE, "markdown").startswith(f"**✗ {all_compared(MADE)}**")


def test_github_has_errors_for_what_is_red_and_notices_for_what_is_not() -> None:
    lines = render(MADE, "github").splitlines()
    assert [line.split(" ")[0] for line in lines] == [
        "::error",
        "::error",
        "::notice",
        "::error",
        "::notice",
        "::notice",
    ]
    assert "violated vjp_matches_the_oracle" in lines[3] and "violated adjoint_identity" in lines[4]


def test_junit_fails_on_red_errs_on_open_and_skips_the_unchanged() -> None:
    sdpa, lse = ElementTree.fromstring(render(MADE, "junit"))
    tags = {test.get("name"): [child.tag for child in test] for test in sdpa.findall("testcase")}
    assert tags["accuracy: vjp_matches_the_oracle[float16]"] == ["failure"]
    assert tags["violated: vjp_matches_the_oracle[float32]"] == ["failure"]
    _, open_, note = (f"{line.kind.value}: {line.text}" for line in LINES)
    assert (tags[open_], tags[note]) == (["error"], ["system-out"])
    assert tags["adjoint_identity[float16]"] == ["system-out"]
    assert sdpa.get("failures") == "2" and lse.get("skipped") == "1" and lse.get("failures") == "0"


def test_sarif_has_a_result_of_each_line_at_its_level() -> None:
    sdpa, lse = log(*MADE)["runs"]
    levels = {result["ruleId"]: (result["kind"], result["level"]) for result in sdpa["results"]}
    assert levels == {
        "vjp_matches_the_oracle": ("fail", "error"),
        "adjoint_identity": ("fail", "note"),
        "gate/accuracy": ("fail", "error"),
        "gate/base": ("fail", "warning"),
        "gate/judge": ("informational", "none"),
    }
    assert lse["results"] == [] and lse["invocations"][0]["exitCode"] == 0


def test_json_holds_the_comparison() -> None:
    first, second = json.loads(render(MADE, "json"))["reports"]
    assert [line["weight"] for line in first["comparison"]["lines"]] == ["red", "red", "open", "note"]
    assert second["comparison"]["unchanged"] and second["exit_code"] == 0
