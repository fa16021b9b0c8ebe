"""The terminal view: its faults and lengths at the usual widths; test_golden.py has the wording."""

from __future__ import annotations

import math
import re
import shlex
from dataclasses import replace

import pytest
from example import CASE, crashed, everything, holding, not_checked, refused, report, violated, wrong
from grouping import with_faults

from gradoracle.model.derivative import Derivative
from gradoracle.model.finding import NOWHERE, Finding, Outcome, Worst
from gradoracle.model.property import PropertyKind
from gradoracle.model.severity import Severity
from gradoracle.model.verdict import Verdict
from gradoracle.report import summary
from gradoracle.report.formats import render
from gradoracle.report.shown_fault import shown_faults
from gradoracle.report.summary import outcome, unchecked

ORACLE = PropertyKind.ORACLE


def lines(text: str) -> list[str]:
    return [" ".join(line.split()) for line in text.splitlines()]


def test_a_green_run_ends_with_its_outcome() -> None:
    made = report(holding(), holding(dtype="bfloat16"))
    text = render(made, "terminal")
    (row,) = [line for line in lines(text) if line.startswith("forward_matches_the_oracle")]
    assert row.split()[1:] == ["✓", "42", "3.1σ", "2e-6"] * 2
    assert made.exit_code == 0 and lines(text)[-1] == f"✓ {outcome(made)}"
    assert "✗" not in text and "\x1b" not in text


def test_cases_that_did_not_hold_show_in_the_cell() -> None:
    verdict = holding()
    verdict.cases_not_checked = 3
    assert "✓ 42/45" in render(report(verdict), "terminal")


def test_the_command_that_replays_a_failure_can_be_copied() -> None:
    text = lines(render(report(violated()), "terminal"))
    (replay,) = [line for line in text if line.startswith("replay ")]
    assert shlex.split(replay)[1:] == ["gradoracle", "replay", CASE]


def measured(
    property_name: str, kind: PropertyKind, *findings: Finding, dtype: str = "float32", rank: int = 0
) -> Verdict:
    """A violated property of some kind."""
    return replace(violated(property_name, dtype, rank, *findings), kind=kind)


def faults(*verdicts: Verdict) -> list[list[str]]:
    """The properties of each fault, the leading one first."""
    return [
        [verdict.property_name for verdict in (each.lead, *each.others)] for each in shown_faults(report(*verdicts))
    ]


def also(text: str) -> str:
    """What the first fault says of the properties that show it too."""
    return " ".join(lines(text)).partition(" also ")[2].partition(" replay ")[0]


def test_a_fault_is_led_by_the_first_tensor_that_is_wrong_by_comparison_with_the_truth() -> None:
    tail = "only T >= 64 (of 65)"
    made = (
        measured("hvp_matches", ORACLE, wrong("hvp.q", tail), rank=9),
        measured("rows_of_ds_sum_to_zero", PropertyKind.RELATION, wrong("rowsum of dq", tail), rank=6),
        measured("vjp_matches", ORACLE, wrong("dq", tail)),
        measured("is_exact_when_widened", PropertyKind.DEFINITION, wrong("dq", tail), rank=9),
    )
    assert faults(*made) == [["vjp_matches", "is_exact_when_widened", "hvp_matches", "rows_of_ds_sum_to_zero"]]
    assert faults(*made, measured("forward_matches", ORACLE, wrong("o", "")))[0][0] == "forward_matches"
    precise = replace(measured("forward_matches", ORACLE, wrong("o", "")), severity=Severity.PRECISION)
    assert faults(*made, precise)[0][0] == "vjp_matches", "what is wrong leads what is not precise"
    others = also(render(report(*made), "terminal"))
    assert others.startswith("3 more properties")
    assert re.findall(r"(\w+) \(float32\)", others) == faults(*made)[0][1:]


def test_others_are_counted_unless_verbose() -> None:
    made = report(violated(), *(violated(f"property_{n}", "float32", n) for n in range(1, 6)))
    text = render(made, "terminal")
    assert also(text).startswith("5 more properties") and "such as property_5 (float32)" in also(text)
    assert "property_0" not in text and "property_1" not in also(text)
    assert "property_1 (float32)" in also(render(made, "terminal", verbose=True))


def test_lost_values_are_no_part_of_lost_precision() -> None:
    lost = replace(wrong("dq", ""), rule="exact", lost=True)
    core, relation = measured("vjp_matches", ORACLE, lost), "any_layout_is_right"
    about = Finding(
        "dq of permuted cotangents", Outcome.VIOLATED, "local", 9.0, message="further out than rounding",
        among=("dq",), derivative=Derivative.VJP,
    )  # fmt: skip
    rounded = replace(violated(relation, "float16", 2, about), severity=Severity.PRECISION)
    assert faults(core, rounded) == [["vjp_matches"], [relation]]
    assert faults(core, replace(rounded, severity=Severity.WRONG)) == [["vjp_matches", relation]]
    assert faults(core, violated(relation, "float16", 2, replace(about, lost=True))) == [["vjp_matches", relation]]


def test_derivatives_of_a_wrong_output_are_wrong_and_second_ones_of_wrong_first_ones() -> None:
    o, dq, dk = (
        measured(name, ORACLE, wrong(name, f"only {dim} >= 64 (of 65)"))
        for name, dim in (("o", "Dv"), ("dq", "T"), ("dk", "M"))
    )
    jvp, hvp = measured("jvp", ORACLE, wrong("jvp.o", "")), measured("hvp", ORACLE, wrong("hvp.v", "only B = 1"))
    assert faults(dk, dq, o) == [["o", "dk", "dq"]]
    assert faults(dk, dq) == [["dk"], ["dq"]], "of which neither follows from the other"
    assert faults(jvp, dq, hvp) == [["dq", "hvp"], ["jvp"]]
    other = violated("forward_matches", "float32", 0, wrong("o"))
    other.kernel = "another"
    assert sorted(faults(dq, other)) == [["dq"], ["forward_matches"]]
    rounded, coarse = (replace(each, severity=Severity.PRECISION) for each in (o, dq))
    assert faults(rounded, dq) == [["dq"], ["o"]], "lost precision explains no wrong gradient"
    assert faults(o, coarse) == [["o"], ["dq"]], "nor the other way round"
    assert faults(coarse, rounded) == [["o", "dq"]]


def test_what_programs_access_is_told_beside_the_wrong_tensor_that_comes_of_it() -> None:
    core = measured("forward_matches", ORACLE, wrong("o", "only T >= 64 (of 65)"))
    access = Finding("launches of vjp", Outcome.VIOLATED, "exact", math.inf, message="k.py:7: reads q[+1 past the end]")
    memory = measured("every_access_stays_inside_its_tensor", PropertyKind.MEMORY, access, rank=8)
    assert faults(memory, core) == [["forward_matches", memory.property_name]]
    text = lines(render(report(memory, core), "terminal"))
    start = text.index("shown by every_access_stays_inside_its_tensor, float32")
    assert text[start + 2] == f"[exact] {access.message}"
    assert sum(line.startswith("replay") for line in text) == 1
    relation = violated("q_dq_equals_k_dk", "float32", 2, wrong("<q, dq> - <k, dk>", ""))
    assert faults(relation, memory) == [[memory.property_name, relation.property_name]]
    arguments = measured("bad_arguments", PropertyKind.ARGUMENTS, wrong("dk", ""))
    assert faults(core, arguments) == [["forward_matches"], ["bad_arguments"]]
    assert faults(core, crashed()) == [["hvp_matches_the_oracle"], ["forward_matches"]]
    assert "shown by" not in render(report(core), "terminal")


def test_a_property_among_tensors_joins_the_property_that_finds_one_of_them_wrong() -> None:
    core = measured("forward_matches", ORACLE, wrong("o", "only T >= 64 (of 65)"))
    of_o = violated("values_of_one", "float32", 3, wrong("o - 1", "only dim 2 >= 64 (of 65)"))
    assert faults(of_o, core) == [["forward_matches", "values_of_one"]]
    wide = measured("vjp_matches", ORACLE, wrong("dv", "every element"), wrong("dk", "every element"))
    narrow = measured("hvp_of_one", ORACLE, wrong("hvp.v", "only B = 1"), dtype="bfloat16")
    of_dv = violated("sums_of_dv", "float32", 2, wrong("1^T dv - 1^T g", "every element"))
    assert faults(narrow, wide, of_dv) == [["vjp_matches", "hvp_of_one", "sums_of_dv"]]
    inner = violated("q_dq_equals_k_dk", "float32", 2, wrong("<q, dq> - <k, dk>", ""))
    assert faults(inner, measured("vjp_matches", ORACLE, wrong("dv", "only M = 0"))) == [
        ["vjp_matches", inner.property_name]
    ]
    precise = replace(measured("vjp_matches", ORACLE, wrong("dv", "only M = 0")), severity=Severity.PRECISION)
    assert len(faults(inner, precise)) == 2, "lost precision explains no relation that is wrong"
    assert faults(inner, violated("key_permutation", "float32", 6, wrong("dk - dk'", ""))) == [
        ["key_permutation", "q_dq_equals_k_dk"]
    ]
    assert len(faults(inner, violated("rows_of_one", "float32", 6, wrong("o - 1", "")))) == 2
    nan = replace(wrong("o", "only T = 0; NaN", "only T = 0"), lost=True)
    nowhere = Worst((), math.nan, math.nan, math.inf)
    bare = replace(nan, pattern="", place="", region=NOWHERE, worst=nowhere)
    unjudged = [bare, replace(bare, tensor="rowsum of P'", among=("jvp.o",))]
    properties = [violated(f"of_{each.tensor[0]}", "float32", 1, each) for each in unjudged]
    assert len(faults(violated("forward_matches", "float32", 0, nan), *properties)) == 1


def test_a_report_with_many_faults_is_short_and_verbose_has_all_of_them() -> None:
    made = [crashed()]
    for n in range(9):
        each = violated(f"property_{n}_of_a_name_that_says_what_is_wrong", "float32", n, wrong("dv", "word " * 200))
        each.kernel = f"kernel_{n}"
        made += [each, replace(each, property_name=f"other_{n}")]
    made += [replace(not_checked(), property_name=f"lacking_{n}") for n in range(30)]
    whole = report(*made, goals={f"goal {n}": 3 for n in range(99)})
    for width in (80, 120):
        text = render(whole, "terminal", width=width)
        assert len(text.splitlines()) <= 60, width
        assert "more faults (-v" in text and "more violated properties (-v" in text
        assert "undecided: 30 properties" in text
        told = [line for line in text.splitlines() if line.startswith("✗ ")]
        assert 2 <= len(told) - 1 <= 5 and told[0].startswith("✗ CRASHED")
    text = render(whole, "terminal", verbose=True)
    assert sum(line.startswith("✗ ") for line in text.splitlines()) == 11 and "goal 98: 3" in " ".join(text.split())
    assert "lacking_29" in text


def test_the_same_property_in_other_dtypes_is_reported_by_these_alone() -> None:
    made = [violated("forward_matches", dtype) for dtype in ("float32", "bfloat16", "float16")]
    assert also(render(report(*made), "terminal")).endswith(" in bfloat16, float16")


@pytest.mark.parametrize(
    ("smallest", "first", "said"),
    [
        ("", "only T >= 96 (of 100)", True),
        ("every element", "only T >= 96 (of 100)", True),
        ("only dim 1 = 3", "only dim 2 = 3", True),
        ("only T >= 16 (of 18)", "only T >= 96 (of 100)", False),
        ("only T >= 16 (of 18)", "", False),
    ],
)
def test_the_first_case_s_pattern_is_reported_where_the_smallest_has_another(
    smallest: str, first: str, said: bool
) -> None:
    made = violated("forward_matches", "float32", 0, replace(wrong("o", smallest), rule="worst case"))
    assert made.counterexample is not None
    seen = (wrong("dq", "only H = 1"), wrong("o", first))
    made.counterexample = replace(made.counterexample, first_findings=seen)
    text = lines(render(report(made), "terminal"))
    assert [line for line in text if "first case" in line] == [f"pattern on the first case: {first}"] * said
    assert any(line.startswith("shrunk first seen on") for line in text)


def test_what_every_property_lacks_is_reported_by_the_first_that_met_it() -> None:
    lacking = Finding("o", Outcome.VIOLATED, "exact", message="o has shape (1, 1), expected (1, 2)", malformed=True)
    match, storage = (
        violated("vjp_matches", "float32", 0, lacking),
        violated("inputs_unmodified", "float32", 9, replace(lacking, message="o has shape (3, 1), expected (3, 4)")),
    )
    (one,) = shown_faults(report(match, storage))
    assert one.lead.property_name == "vjp_matches"
    measured = replace(wrong("o"), pattern="", place="")
    (other,) = shown_faults(report(match, violated("inputs_unmodified", "float32", 9, measured)))
    assert other.lead.property_name == "inputs_unmodified"


def test_reasons_and_refusals_that_differ_in_numbers_alone_are_reported_once() -> None:
    first, second = refused(), refused()
    first.reasons, second.reasons = {"D is 7": 2, "D is 9": 1}, {"D is 7": 1, "M is 9": 4}
    refusals = {"D is 7": {"dtype=float32": 1, "D=7": 1}, "D is 9": {"dtype=float32": 2}, "M is 9": {"M=9": 4}}
    made = report(holding(), first, second, refusals=refusals)
    reasons, places = unchecked(made), summary.refused(made)
    assert [(each.count, each.reason, each.alike) for each in reasons] == [(4, "D is 7", 1), (4, "M is 9", 0)]
    assert {each.properties for each in reasons} == {("forward_matches_the_oracle",)}
    assert "1 reason more" in str(reasons[0]) and "more" not in str(reasons[1])
    assert places == [("D is 7", "dtype=float32 x3, D=7 x1"), ("M is 9", "M=9 x4")]
    text = lines(render(made, "terminal"))
    assert {f"{each.count} {each}" for each in reasons} <= set(text)
    assert [line for line in text if line.startswith("refused:")] == [f"refused: {reason}" for reason, _ in places]
    assert [line for line in text if line.startswith("where ")] == [f"where {where}" for _, where in places]


def test_a_gpu_that_runs_out_of_memory_is_one_line_with_a_count() -> None:
    first, second = not_checked(), replace(not_checked(), property_name="other")
    said = (
        "memory: OutOfMemoryError: CUDA out of memory. Tried to allocate {}. GPU 0 has a total capacity of 139.81 GiB"
    )
    first.reasons = {said.format("2.00 GiB"): 3, said.format("512.00 MiB"): 4}
    second.reasons = {said.format("20.00 MiB"): 5, "memory: vjp was killed by the system (signal 9)": 1}
    made = report(holding(), first, second)
    (reason,) = unchecked(made)
    assert (reason.count, reason.properties, reason.alike) == (13, ("second_device", "other"), 3)
    assert reason.brief == said.partition(".")[0]
    (told,) = [line for line in lines(render(made, "terminal")) if "memory" in line]
    assert told.startswith(f"13 {reason.brief} (2 properties") and "second_device" in told


def test_goals_below_their_minimum_stand_out() -> None:
    made = report(holding(), goals_wanted={"T < M": 3, "T > 100 000": 1})
    text = render(made, "terminal", color=True)
    assert "\x1b[1;31mT > 100 000: 0 of 1" in text
    assert made.exit_code == 4 and f"? {outcome(made)}" in text


@pytest.mark.parametrize("verdicts", [[], [refused()], [not_checked()]])
def test_a_run_that_checked_nothing_is_never_green(verdicts: list[object]) -> None:
    made = report(*verdicts)  # type: ignore[arg-type]
    text = lines(render(made, "terminal"))
    assert made.exit_code == 4 and f"? {outcome(made)}" in text and "because nothing was checked" in text


def test_a_run_that_stopped_early_says_how_far_it_came() -> None:
    made = report(holding(), cases_run=40, interrupted="interrupted after 40 of 126 cases")
    assert made.exit_code == 4 and f"because {made.interrupted}" in lines(render(made, "terminal"))


@pytest.mark.parametrize("width", [80, 100, 120])
def test_lines_fit_the_width_but_for_those_to_be_copied(width: int) -> None:
    long = violated("a_property_whose_name_is_long_because_it_is_a_whole_sentence_about_every_gradient_there_is")
    made = everything()
    made.verdicts.append(long)
    with_faults(made)
    text = render(made, "terminal", width=width)
    free = [line for line in text.splitlines() if "gradoracle-case/1" not in line and "J^T" not in line]
    assert max(map(len, free)) <= width + 20 * (width < 100)
    assert sum(CASE in line for line in text.splitlines()) >= 4


def test_nothing_a_kernel_says_reaches_the_terminal_as_markup_or_control() -> None:
    text = render(everything(), "terminal", color=True)
    assert "\x1b[31m" not in text and "\x00" not in text
    made = report(violated("x", "float32", 1, wrong("dq", "[red]rows[/red] \x1b[2J\x07")))
    plain = render(made, "terminal")
    assert "[red]rows[/red] \ufffd[2J\ufffd" in plain


def test_what_is_taken_for_one_fault_does_not_depend_on_the_time_for_shrinking() -> None:
    tail, row, early = wrong("dq", "only T >= 64 (of 65)"), wrong("dk", "only M = 3"), wrong("dv", "only N >= 7")
    verdict = measured("vjp_of_each_input", ORACLE, row, rank=6)
    fixed = replace(verdict, counterexample=replace(verdict.counterexample, first_findings=(early,)))
    other = measured("vjp_matches_the_oracle", ORACLE, tail, dtype="bfloat16", rank=5)
    in_time = replace(other, counterexample=replace(other.counterexample, findings=(row,), first_findings=(tail,)))
    reports = [report(fixed, other), report(fixed, in_time)]
    found = [[[v.property_name for v in (f.lead, *f.others)] for f in shown_faults(each)] for each in reports]
    assert found == [[["vjp_of_each_input"], ["vjp_matches_the_oracle"]]] * 2
    assert shown_faults(reports[1])[1].lead is reports[1].verdicts[1], "what is told is the smaller case"
    larger = replace(other, counterexample=replace(other.counterexample, further=(early,)))
    assert len(shown_faults(report(fixed, larger))) == 1  # the largest cases of a property count too
