"""Outcomes on disk, proofs, and the views of a run: what is known is kept, what is cut or foreign is not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gradoracle.model.errors import UsageError
from gradoracle.mutation.mutant import Mutant
from gradoracle.mutation.outcome import Fate, Outcome, Score
from gradoracle.mutation.proofs import proofs_beside, read_proofs
from gradoracle.mutation.record import Record, fingerprint
from gradoracle.mutation.run import Found, Mutation
from gradoracle.mutation.sources import Source
from gradoracle.mutation.views import exit_code, render
from gradoracle.project.shipped_names import family_names


def mutant(after: str = "a | b", operator: str = "sign") -> Mutant:
    return Mutant("m.py", operator, "f", 1, "a + b", after, 0, "a + b\n", f"{after}\n", "sign")


KILLED = Outcome(mutant(), Fate.KILLED, "vjp_matches_the_oracle", ("vjp_matches_the_oracle",), "case:1 f", 2, 5, 0.5)
SURVIVED = Outcome(mutant("b + a", "operands swapped"), Fate.SURVIVED, tried=5, covering=5, seconds=2.0)
CRASHED = Outcome(mutant("a + None"), Fate.CRASHED, reason="case:1 f: forward raised TypeError")


def found(*outcomes: Outcome) -> Found:
    return Found(Mutation("m.py"), list(outcomes), planted=9, cases=5, seconds=3.0, environment={"torch": "2"})


def test_what_was_found_is_known_again_and_a_cut_line_is_not(tmp_path):
    record = Record("some/file.py:kernel", "mark", tmp_path)
    for outcome in (KILLED, SURVIVED):
        record.add(outcome)
    with record.path.open("a") as file:
        file.write(record.path.read_text()[:40])
    known = record.known([KILLED.mutant, SURVIVED.mutant, CRASHED.mutant])
    assert known == {KILLED.mutant.key: KILLED, SURVIVED.mutant.key: SURVIVED}
    assert Record("some/file.py:kernel", "another mark", tmp_path).known([KILLED.mutant]) == {}
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


def test_the_score_is_of_those_killed_by_a_law_and_those_that_survived():
    assert Score.of([KILLED, KILLED, SURVIVED, CRASHED]).value == pytest.approx(2 / 3)
    assert Score.of([CRASHED]).value is None


def test_json_has_a_score_and_every_mutant():
    document = json.loads(render(found(KILLED, SURVIVED, CRASHED), "json"))
    assert document["score"] == 0.5 and document["planted"] == 9
    assert [each["fate"] for each in document["mutants"]] == ["killed", "survived", "crashed"]
    assert document["mutants"][0]["law"] == "vjp_matches_the_oracle" and document["mutants"][0]["seconds"] == 0.5
    assert "+b + a" in document["mutants"][1]["diff"] and "diff" not in document["mutants"][0]
    assert document["operators"]["sign"] == {"killed": 1, "crashed": 1}


@pytest.mark.parametrize("format", ["terminal", "markdown"])
def test_survivors_are_shown_as_diffs_and_what_counts_in_neither_apart(format):
    text = render(found(KILLED, SURVIVED, CRASHED), format)
    assert "score 0.500: 1 of 2 mutants killed" in text
    assert "-a + b\n+b + a" in text and "1 crashed" in text


@pytest.mark.parametrize(
    ("outcomes", "least", "code"),
    [
        ((KILLED, SURVIVED), None, 0),
        ((KILLED, SURVIVED), 0.5, 0),
        ((KILLED, SURVIVED), 0.6, 1),
        ((KILLED, Outcome(mutant(), Fate.NOT_RUN)), None, 4),
        ((CRASHED,), None, 4),
    ],
)
def test_exit_codes(outcomes, least, code):
    assert exit_code(found(*outcomes), least) == code


def test_proofs_are_read_and_those_without_a_mutant_or_a_reason_refused(tmp_path):
    file = tmp_path / "proofs.toml"
    file.write_text('[[equivalent]]\nmutant = "0123456789"\nproof = """\nmasked by the store\n"""\n')
    assert read_proofs(file) == {"0123456789": "masked by the store"} and read_proofs(None) == {}
    file.write_text('[[equivalent]]\nmutant = "0123456789"\nproof = " "\n')
    with pytest.raises(UsageError, match=r"entry 1 has no proof; expected mutant and proof$"):
        read_proofs(file)
    file.write_text("equivalent = [\n")
    with pytest.raises(UsageError, match="is not valid TOML"):
        read_proofs(file)
    with pytest.raises(UsageError, match="no such file"):
        read_proofs(Path(tmp_path / "missing.toml"))


def test_shipped_proofs_name_mutants_and_give_reasons():
    for name in family_names():
        file = proofs_beside(name)
        assert file is None or all(len(key) == 10 and proof for key, proof in read_proofs(file).items())
    assert proofs_beside("no family") is None
