"""Outcomes on disk, and the views of a run: what is known is kept, what is cut or foreign is not."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from gradoracle.model.errors import UsageError
from gradoracle.mutation.mutant import Mutant
from gradoracle.mutation.outcome import Diagnoses, Fate, MutantResult, score
from gradoracle.mutation.record import Earlier, MutationRecord, fingerprint, read_earlier
from gradoracle.mutation.run import Found, Mutation
from gradoracle.mutation.sources import Source
from gradoracle.mutation.views import exit_code, render


def mutant(after: str = "a | b", operator: str = "sign") -> Mutant:
    return Mutant("m.py", operator, "f", 1, "a + b", after, 0, "a + b\n", f"{after}\n", "sign")


KILLED = MutantResult(
    mutant(), Fate.KILLED, "vjp_matches_the_oracle", ("vjp_matches_the_oracle",), "case:1 f", 2, 5, 0.5
)
SURVIVED = MutantResult(mutant("b + a", "operands swapped"), Fate.SURVIVED, tried=5, covering=5, seconds=2.0)
WIDENED = MutantResult(mutant("a + b + c"), Fate.KILLED, "exact", ("exact",), "case:2 f", 5, 5, 1.5, widened=True)
CRASHED = MutantResult(mutant("a + None"), Fate.CRASHED, reason="case:1 f: forward raised TypeError")


def found(*outcomes: MutantResult) -> Found:
    return Found(Mutation("m.py"), list(outcomes), planted=9, cases=5, seconds=3.0, environment={"torch": "2"})


def test_what_was_found_is_known_again_and_a_cut_line_is_not(tmp_path):
    record = MutationRecord("some/file.py:kernel", "mark", tmp_path)
    for outcome in (KILLED, SURVIVED, WIDENED):
        record.add(outcome)
    with record.path.open("a") as file:
        file.write(record.path.read_text()[:40])
    known = record.known([KILLED.mutant, SURVIVED.mutant, WIDENED.mutant, CRASHED.mutant])
    assert known == {each.mutant.key: each for each in (KILLED, SURVIVED, WIDENED)}
    assert MutationRecord("some/file.py:kernel", "another mark", tmp_path).known([KILLED.mutant]) == {}
    record.add(CRASHED, pending=True)
    assert CRASHED.mutant.key not in record.known([CRASHED.mutant]), "it is to be compared yet"
    assert record.known([KILLED.mutant, CRASHED.mutant], pending=True) == {CRASHED.mutant.key: CRASHED}
    record.add(CRASHED)
    assert record.known([CRASHED.mutant]) == {CRASHED.mutant.key: CRASHED}
    assert record.known([CRASHED.mutant], pending=True) == {}
    record.forget()
    assert record.known([KILLED.mutant]) == {}


def test_the_mark_is_of_the_sources_and_of_what_was_asked(tmp_path):
    one, other = (Source("m", "m.py", "m.py", text) for text in ("x = 1\n", "x = 2\n"))
    assert fingerprint([one], (0,)) == fingerprint([one], (0,))
    assert len({fingerprint([one], (0,)), fingerprint([other], (0,)), fingerprint([one], (1,))}) == 3


def test_the_score_is_of_those_killed_by_a_property_and_those_that_survived():
    assert score([KILLED, KILLED, SURVIVED, CRASHED]) == pytest.approx(2 / 3)
    assert score([CRASHED]) is None


def test_causes_are_counted_where_one_is_known_and_a_case_shows_it():
    wrong, right = replace(KILLED, diagnosis="ratio"), replace(KILLED, diagnosis="sign")
    pooled, unknown = replace(right, case=""), replace(right, mutant=replace(KILLED.mutant, cause=""))
    every = [KILLED, wrong, right, pooled, unknown, replace(SURVIVED, diagnosis="sign"), CRASHED]
    assert Diagnoses.of(every) == Diagnoses(known=3, named=2, right=1)
    assert json.loads(render(found(*every), "json"))["diagnoses"] == {"known": 3, "named": 2, "right": 1}
    for format in ("terminal", "markdown"):
        text = render(found(*every), format)
        assert "for 2 of the 3 killed mutants" in text and "the right one for 1" in text
        assert "whose cause is known" not in render(found(SURVIVED, CRASHED), format)


def test_json_has_a_score_and_every_mutant():
    document = json.loads(render(found(KILLED, SURVIVED, CRASHED), "json"))
    assert document["score"] == 0.5 and document["planted"] == 9
    assert [each["fate"] for each in document["mutants"]] == ["killed", "survived", "crashed"]
    assert document["mutants"][0]["property"] == "vjp_matches_the_oracle" and document["mutants"][0]["seconds"] == 0.5
    assert "+b + a" in document["mutants"][1]["diff"] and "diff" not in document["mutants"][0]
    assert document["operators"]["sign"] == {"killed": 1, "crashed": 1}


@pytest.mark.parametrize("format", ["terminal", "markdown"])
def test_what_only_the_widened_kernel_kills_is_named_apart(format):
    text = render(found(KILLED, SURVIVED, WIDENED), format)
    assert "score 0.667: 2 of 3 mutants" in text and "1 of them only when widened" in text
    assert WIDENED.mutant.key in text.lower().partition("killed only when widened")[2].partition("surviv")[0]
    assert "only when widened" not in render(found(KILLED, SURVIVED), format)
    document = json.loads(render(found(KILLED, SURVIVED, WIDENED), "json"))
    assert document["killed_when_widened"] == 1 and [m["widened"] for m in document["mutants"]] == [False, False, True]


def earlier(folder: Path, *outcomes: MutantResult) -> Earlier:
    """The report of an earlier run, read again."""
    (folder / "earlier.json").write_text(render(found(*outcomes), "json"))
    return read_earlier(folder / "earlier.json")


def test_mutants_that_change_sides_since_an_earlier_report_are_listed(tmp_path):
    survived, killed = (
        replace(WIDENED, fate=Fate.SURVIVED, property_name=""),
        replace(SURVIVED, fate=Fate.KILLED, property_name="exact"),
    )
    now = found(KILLED, SURVIVED, WIDENED, CRASHED)
    now.since = earlier(tmp_path, replace(KILLED, fate=Fate.NOT_RUN), killed, survived, CRASHED)
    said = "of 3 mutants in both"
    for format in ("terminal", "markdown"):
        text = render(now, format)
        assert "1 that survived are killed" in text and "1 that were killed survive" in text, text
        assert f"{WIDENED.mutant.key}  sign, m.py:1 in f, by exact" in text.partition(said)[2]
        assert f"now survives  {SURVIVED.mutant.key}" in text.partition(said)[2]
    now.since = earlier(tmp_path, KILLED, SURVIVED, WIDENED, CRASHED)
    text = render(now, "terminal")
    assert "of 4 mutants in both" in text and "0 that survived are killed" in text and "0 that were killed" in text
    document = json.loads(render(now, "json"))
    assert document["since"]["mutants"] == 4 and document["since"]["survived_and_killed"] == []


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"schema": "gradoracle-mutation/0", "mutants": []}'])
def test_an_earlier_report_that_is_none_is_refused_in_a_sentence(tmp_path, text):
    (tmp_path / "none.json").write_text(text)
    with pytest.raises(UsageError, match=r"--since .*none\.json: expected a report of gradoracle mutate --format json"):
        read_earlier(tmp_path / "none.json")


@pytest.mark.parametrize("format", ["terminal", "markdown"])
def test_survivors_are_shown_as_diffs_and_what_counts_in_neither_apart(format):
    text = render(found(KILLED, SURVIVED, CRASHED), format)
    assert "score 0.500: 1 of 2 mutants" in text
    assert "-a + b\n+b + a" in text and "1 crashed" in text


@pytest.mark.parametrize(
    ("outcomes", "least", "code"),
    [
        ((KILLED, SURVIVED), None, 0),
        ((KILLED, SURVIVED), 0.5, 0),
        ((KILLED, SURVIVED), 0.6, 1),
        ((KILLED, MutantResult(mutant(), Fate.NOT_RUN)), None, 4),
        ((CRASHED,), None, 4),
    ],
)
def test_exit_codes(outcomes, least, code):
    assert exit_code(found(*outcomes), least) == code


def test_a_run_of_known_outcomes_names_no_case_of_the_unmutated_kernel() -> None:
    first, again = (render(replace(found(KILLED), cases=cases), "terminal") for cases in (5, 0))
    assert "unmutated kernel on 5 cases" in first and "unmutated" not in again
