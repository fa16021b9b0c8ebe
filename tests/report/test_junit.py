"""The JUnit view: valid XML for any text, and never green where the run is not."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree

from example import everything, holding, report, violated
from grouping import with_faults

from gradoracle.report.formats import render
from gradoracle.report.junit import CONCLUSIVE


def suites(*reports: object) -> list[ElementTree.Element]:
    return ElementTree.fromstring(render(list(reports), "junit").encode()).findall("testsuite")  # type: ignore[arg-type]


def test_each_verdict_is_a_test_case_of_its_kind() -> None:
    (suite,) = suites(everything())
    kinds = {
        f"{test.get('classname')} {test.get('name')}": [child.tag for child in test] for test in suite.iter("testcase")
    }
    assert kinds == {
        "sdpa.triton_sdpa forward_matches_the_oracle[float32]": [],
        "sdpa.triton_sdpa vjp_matches_the_oracle[float32]": ["failure"],
        "sdpa.triton_sdpa adjoint_identity[float32]": ["failure"],
        "sdpa.triton_sdpa vjp_is_linear[bfloat16]": ["failure"],
        "sdpa.triton_sdpa hvp_matches_the_oracle[bfloat16]": ["error"],
        "sdpa.triton_sdpa forward_matches_the_oracle[float16]": ["skipped"],
        "sdpa.triton_sdpa second_device[float32]": ["skipped"],
        f"sdpa {CONCLUSIVE}": ["error"],
    }
    assert [suite.get(name) for name in ("tests", "failures", "errors", "skipped")] == ["8", "3", "2", "2"]


def test_a_green_run_has_no_failure_and_an_empty_one_does() -> None:
    green, empty = suites(report(holding()), report())
    assert (green.get("failures"), green.get("errors"), green.get("tests")) == ("0", "0", "2")
    assert (empty.get("errors"), empty.get("tests")) == ("1", "1")
    error = empty.find("testcase/error")
    assert error is not None and error.get("message") == "nothing was checked"


def test_any_text_gives_valid_xml() -> None:
    awkward = "".join(map(chr, [*range(0x100), 0xD800, 0xFFFE, 0x1F600])) + "]]></failure>"
    made = report(violated(), target=awkward)
    made.verdicts[0].notes.append(awkward)
    made.verdicts[0].property_name = awkward
    with_faults(made)
    (suite,) = suites(made)
    failure = suite.find("testcase/failure")
    assert failure is not None and "]]></failure>" in str(failure.text) and "\U0001f600" in str(failure.text)
