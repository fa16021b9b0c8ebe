"""The json view: strict, complete and versioned."""

from __future__ import annotations

import dataclasses
import json

import pytest
from example import CASE, everything, holding, report, violated, wrong

from gradoracle.report import exit_code, render
from gradoracle.report.json import SCHEMA
from gradoracle.verdict import Report, Verdict


def load(text: str) -> dict:
    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    return json.loads(text, parse_constant=refuse)


def test_everything_that_is_known_is_in_it() -> None:
    made = everything()
    document = load(render(made, "json"))
    assert document["schema"] == SCHEMA and document["exit_code"] == 1
    (read,) = document["reports"]
    assert {field.name for field in dataclasses.fields(Report)} <= set(read)
    assert len(read["verdicts"]) == len(made.verdicts)
    for verdict in read["verdicts"]:
        assert {field.name for field in dataclasses.fields(Verdict)} <= set(verdict)
    assert [verdict["status"] for verdict in read["verdicts"]] == [v.status.value for v in made.verdicts]
    assert read["inconclusive"] == made.inconclusive() and read["situations"] == made.situations
    finding = read["verdicts"][1]["counterexample"]["findings"][0]
    assert finding["worst"] == {"index": [0, 0, 64, 0], "got": 0.5, "true": 0.25, "error_in_sigma": 34.125}
    assert finding["outcome"] == "violated" and "pool" not in finding
    assert (finding["place"], finding["lost"]) == ("only rows >= 64 of dim T", False)
    found = read["verdicts"][1]["counterexample"]
    assert found["case"] == CASE and found["first_findings"] == []


def test_numbers_that_json_lacks_are_strings_that_float_reads() -> None:
    document = load(render(everything(), "json"))
    exact = document["reports"][0]["verdicts"][3]["counterexample"]["findings"][1]
    assert float(exact["error"]) == float("inf")
    assert (exact["worst"]["got"], exact["worst"]["true"]) == ("nan", "-inf")
    render(everything(), "json").encode("utf-8")


def test_what_the_first_case_showed_is_in_it() -> None:
    made = violated()
    assert made.counterexample is not None
    first = wrong(pattern="only T >= 96 (of 100)")
    made.counterexample = dataclasses.replace(made.counterexample, first_findings=(first,))
    (read,) = load(render(report(made), "json"))["reports"]
    assert read["verdicts"][0]["counterexample"]["first_findings"][0]["pattern"] == first.pattern


def test_several_reports_share_a_document_and_the_worst_exit_code() -> None:
    document = load(render([report(holding()), report(violated())], "json"))
    assert [read["exit_code"] for read in document["reports"]] == [0, 1] and document["exit_code"] == 1


@pytest.mark.parametrize(
    ("reports", "code"),
    [
        ([], 4),
        ([report(holding())], 0),
        ([report(holding()), report()], 4),
        ([report(), report(violated()), report(holding())], 1),
    ],
)
def test_together_reports_are_as_good_as_the_worst(reports: list[Report], code: int) -> None:
    assert exit_code(reports) == code


def test_an_unknown_format_is_named() -> None:
    with pytest.raises(ValueError, match="format 'sarif' is unknown; wanted one of terminal, json, junit"):
        render(report(), "sarif")
