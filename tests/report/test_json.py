"""The json view: strict, complete and versioned."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import jsonschema
import pytest
from documents import closed, reports_in
from example import CASE, compared, everything, holding, pictured, report, unchanged, violated, wrong

from gradoracle.model.comparison import Comparison, Kind, Line
from gradoracle.model.fault import CAUSES
from gradoracle.model.finding import Finding
from gradoracle.model.location import Location
from gradoracle.model.serialize import key_of
from gradoracle.model.verdict import Report, Status, Verdict, exit_code
from gradoracle.report.formats import render
from gradoracle.report.json import SCHEMA

FILE = Path(__file__).parents[2] / "docs" / "report.schema.json"


def load(text: str) -> dict:
    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    return json.loads(text, parse_constant=refuse)


def test_everything_that_is_known_is_in_it() -> None:
    made = everything()
    document = load(render(made, "json"))
    assert document["schema"] == SCHEMA and document["exit_code"] == 1
    (read,) = document["reports"]
    assert {key_of(field) for field in dataclasses.fields(Report)} <= set(read)
    assert len(read["verdicts"]) == len(made.verdicts)
    for verdict in read["verdicts"]:
        assert {key_of(field) for field in dataclasses.fields(Verdict)} <= set(verdict)
    assert [verdict["status"] for verdict in read["verdicts"]] == [v.status.value for v in made.verdicts]
    assert read["inconclusive"] == made.inconclusive() and read["goals"] == made.goals
    finding = read["verdicts"][1]["counterexample"]["findings"][0]
    assert finding["worst"] == {"index": [0, 0, 64, 0], "got": 0.5, "true": 0.25, "error_in_sigma": 34.125}
    assert finding["outcome"] == "violated" and "pool" not in finding
    assert (finding["place"], finding["lost"]) == ("only T >= 64 (of 65)", False)
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
    with pytest.raises(ValueError, match="format 'yaml' is unknown; expected one of terminal, json, junit"):
        render(report(), "yaml")


def test_it_is_as_the_schema_says() -> None:
    schema = json.loads(FILE.read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    validator = jsonschema.Draft202012Validator(closed(schema))
    located = report(holding(), locations={"triton_sdpa": Location("kernels/a.py", 3)})
    for made in (everything(), report(), located, compared(), unchanged(), pictured()):
        validator.validate(load(render(made, "json")))
    assert schema["properties"]["schema"]["const"] == SCHEMA
    assert set(schema["$defs"]["cause"]["enum"]) == {"", *CAUSES}
    assert set(schema["$defs"]["status"]["enum"]) == {status.value for status in Status}
    assert set(schema["$defs"]["line"]["properties"]["kind"]["enum"]) == {kind.value for kind in Kind}
    kinds = (("report", Report), ("verdict", Verdict), ("finding", Finding), ("line", Line), ("comparison", Comparison))
    for name, fields in kinds:
        own = {key_of(field) for field in dataclasses.fields(fields)} - {"pool"}
        assert own <= set(schema["$defs"][name]["properties"]), name


@pytest.mark.parametrize("field", ["schema", "exit_code", "reports"])
def test_the_schema_misses_what_is_left_out(field: str) -> None:
    schema = json.loads(FILE.read_text())
    document = load(render(everything(), "json"))
    del document[field]
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(document, schema)


def test_what_was_written_can_be_read_again() -> None:
    for made in (
        [everything(), pictured()],
        [compared(), unchanged()],
        [report(holding(), locations={"k": Location("a.py", 3)})],
    ):
        text = render(made, "json")
        again = reports_in(text)
        assert render(again, "json") == text and [each.exit_code for each in again] == [m.exit_code for m in made]
