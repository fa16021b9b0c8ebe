"""The terminal view: what a person must be able to read off it, at the usual widths."""

from __future__ import annotations

import shlex
from dataclasses import replace

import pytest
from example import CASE, crashed, everything, holding, not_checked, refused, report, violated, wrong

from gradoracle.finding import Finding, Outcome
from gradoracle.report import render
from gradoracle.report.failure import failures


def lines(text: str) -> list[str]:
    return [" ".join(line.split()) for line in text.splitlines()]


def test_a_green_run_says_so_with_its_contracts_and_counts() -> None:
    text = render(report(holding(), holding(dtype="bfloat16")), "terminal")
    assert "contract float32 as ieee32, bfloat16 as bf16" in lines(text)
    assert "device cpu (a processor, 2 cores), seed 7" in lines(text)
    assert "forward_matches_the_oracle ✓ 42 3.1σ 2e-6 ✓ 42 3.1σ 2e-6" in lines(text)
    assert "1 law checked on 126 cases in 93.2 s; 2 verdicts: 2 holds" in lines(text)
    assert lines(text)[-1] == "✓ sdpa: every checked property holds (exit code 0)"
    assert "✗" not in text and "\x1b" not in text


def test_cases_that_did_not_hold_show_in_the_cell() -> None:
    verdict = holding()
    verdict.cases_not_checked = 3
    assert "✓ 42/45" in render(report(verdict), "terminal")


def test_a_failure_tells_law_element_pattern_case_and_replay() -> None:
    text = lines(render(report(violated()), "terminal"))
    for line in (
        "✗ VIOLATED vjp_matches_the_oracle triton_sdpa, float32, 3 of 42 cases",
        "law Each gradient agrees with the definition's VJP.",
        "dq [local] 1 of 65 elements are further out than rounding explains; 4.25 times its budget",
        "worst at [0, 0, 64, 0], got 0.5, true 0.25, error 34.1 sigma",
        "pattern only rows >= 64 of dim T",
        "note holds under tf32",
        f"case {CASE}",
        "✗ sdpa: 1 fault, 1 law broken (exit code 1)",
    ):
        assert line in text
    (replay,) = [line for line in text if line.startswith("replay ")]
    assert shlex.split(replay)[1:] == ["gradoracle", "replay", CASE]


def test_one_fault_is_told_once_by_its_most_specific_law() -> None:
    text = lines(
        render(
            report(
                violated("forward_over_reverse", "float32", 1),
                violated("rows_of_ds_sum_to_zero", "float32", 9),
                violated("rows_of_ds_sum_to_zero", "bfloat16", 9, wrong(pattern="only rows >= 128 of dim T")),
                violated("something_else", "float32", 3, wrong("dv", "")),
            ),
            "terminal",
        )
    )
    told = [line for line in text if line.startswith("✗ VIOLATED")]
    assert [line.split()[2] for line in told] == ["rows_of_ds_sum_to_zero", "something_else"]
    also = "also 1 more law shows the same fault: rows_of_ds_sum_to_zero (bfloat16), forward_over_reverse (float32)"
    assert also in text
    assert "✗ sdpa: 2 faults, 3 laws broken (exit code 1)" in text


def test_wrong_numbers_are_no_part_of_a_fault_that_loses_values() -> None:
    lost = Finding("dq", Outcome.VIOLATED, "exact", message="1 of 65 elements: the kernel's value is not finite")
    wrong = Finding("dq of permuted cotangents", Outcome.VIOLATED, "local", 9.0, message="further out than rounding")
    core, relation = violated("vjp_matches_the_oracle", "float16", 5, lost), "any_layout_of_cotangents_is_right"
    apart = failures(report(core, violated(relation, "float16", 2, wrong)))
    assert [failure.lead.law for failure in apart] == ["vjp_matches_the_oracle", relation]
    also_lost = replace(wrong, message="dq holds non-finite values where the truth is finite")
    (one,) = failures(report(core, violated(relation, "float16", 2, also_lost)))
    assert [other.law for other in one.others] == [relation]


def test_what_every_law_lacks_is_told_by_the_first_that_met_it() -> None:
    lacking = Finding("gradient", Outcome.VIOLATED, "exact", message="the output o has no gradient")
    match, storage = (
        violated("vjp_matches", "float32", 0, lacking),
        violated("inputs_unmodified", "float32", 9, lacking),
    )
    (one,) = failures(report(match, storage))
    assert one.lead.law == "vjp_matches"
    measured = replace(wrong("gradient"), pattern="")
    (other,) = failures(report(match, violated("inputs_unmodified", "float32", 9, measured)))
    assert other.lead.law == "inputs_unmodified"


def test_reasons_and_refusals_that_differ_in_numbers_alone_are_told_once() -> None:
    first, second = refused(), refused()
    first.reasons, second.reasons = {"D is 7": 2, "D is 9": 1}, {"D is 7": 1, "M is 9": 4}
    refusals = {"D is 7": {"dtype=float32": 1, "D=7": 1}, "D is 9": {"dtype=float32": 2}, "M is 9": {"M=9": 4}}
    text = lines(render(report(holding(), first, second, refusals=refusals), "terminal"))
    assert "4 D is 7 (forward_matches_the_oracle; 1 more with other numbers)" in text
    assert "4 M is 9 (forward_matches_the_oracle)" in text
    assert [line for line in text if line.startswith("refused:")] == ["refused: D is 7", "refused: M is 9"]
    assert "where dtype=float32 x3, D=7 x1" in text


def test_a_crash_is_told_with_its_cause() -> None:
    text = lines(render(report(holding(), crashed()), "terminal"))
    assert "✗ CRASHED hvp_matches_the_oracle triton_sdpa, bfloat16, 2 of 42 cases" in text
    assert "crash hvp: killed by signal 11 (segmentation fault)" in text


def test_what_was_not_checked_is_told_with_reasons_counts_and_refusals() -> None:
    text = lines(render(everything(), "terminal"))
    assert "42 D must be a multiple of 16, got 7 [see docs] (forward_matches_the_oracle)" in text
    assert "30 needs a GPU (second_device)" in text
    assert "where dtype=float16 x42, D=7 x3" in text
    assert "note gives away accuracy against 'definition': o on 3 cases (forward_matches_the_oracle float32)" in text


def test_situations_below_their_minimum_stand_out() -> None:
    made = report(holding(), situations_wanted={"T < M": 3, "T > 100 000": 1})
    text = render(made, "terminal", color=True)
    assert "situations: 2 of 3 covered, 1 below the minimum" in text
    assert "\x1b[1;31mT > 100 000: 0 of 1 wanted" in text
    assert "? sdpa: inconclusive (exit code 4)" in text


@pytest.mark.parametrize("verdicts", [[], [refused()], [not_checked()]])
def test_a_run_that_checked_nothing_is_never_green(verdicts: list[object]) -> None:
    text = lines(render(report(*verdicts), "terminal"))  # type: ignore[arg-type]
    assert "? sdpa: inconclusive (exit code 4)" in text and "because nothing was checked" in text


def test_a_run_that_stopped_early_says_how_far_it_came() -> None:
    text = lines(render(report(holding(), cases_run=40, interrupted="interrupted after 40 of 126 cases"), "terminal"))
    assert any("on 40 of 126 planned cases" in line for line in text)
    assert "because interrupted after 40 of 126 cases" in text


@pytest.mark.parametrize("width", [80, 100, 120])
def test_lines_fit_the_width_but_for_those_to_be_copied(width: int) -> None:
    long = violated("a_law_whose_name_is_long_because_it_is_a_whole_sentence_about_every_gradient_there_is")
    made = everything()
    made.verdicts.append(long)
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


def test_several_targets_end_in_one_line() -> None:
    text = lines(render([report(holding()), report(violated(), target="lse")], "terminal"))
    assert text[-1] == "2 targets: sdpa: hold, lse: violated (exit code 1)"
