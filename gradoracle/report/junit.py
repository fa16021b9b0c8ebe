"""Reports as JUnit XML: a test case for each property, kernel and dtype."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence

from gradoracle.model.claims import standings
from gradoracle.model.comparison import Line, Weight
from gradoracle.model.verdict import BROKEN, FAILING, Report, Status, Verdict
from gradoracle.report.shown_fault import as_text, headline, tell
from gradoracle.report.summary import compared, outcome

_NOT_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
CONCLUSIVE = "the_run_is_conclusive"  # a test case of its own, so that a run which checked too little is not green


def render(reports: Sequence[Report]) -> str:
    """The reports of a run as one XML document with a suite each.

    Violated is a failure, crashed an error, refused and not checked are skipped with their reasons. A violation that
    does not count passes, with its text as output.
    """
    root = ElementTree.Element("testsuites", name="gradoracle")
    for report in reports:
        root.append(_suite(report))
    ElementTree.indent(root)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ElementTree.tostring(root, encoding="unicode") + "\n"


def _suite(report: Report) -> ElementTree.Element:
    suite = ElementTree.Element("testsuite", name=_clean(f"gradoracle {report.target}"), time=f"{report.seconds:.3f}")
    properties = ElementTree.SubElement(suite, "properties")
    facts = {"device": report.device, "seed": str(report.seed), "cases": f"{report.cases_run}/{report.cases_planned}"}
    for kernel in report.kernels:
        facts |= {f"{kernel} {each.value}": str(known) for each, known in standings(report, kernel).items()}
    facts |= {f"contract {dtype}": preset for dtype, preset in report.contracts.items()}
    for name, value in {**facts, **report.environment}.items():
        ElementTree.SubElement(properties, "property", name=_clean(name), value=_clean(value))
    for verdict in report.verdicts:
        suite.append(_test(report, verdict))
    for line in compared(report):
        suite.append(_line(report, line))
    suite.append(_conclusive(report))
    for attribute, tags in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        suite.set(attribute, str(len(suite.findall(f"testcase/{tags}"))))
    suite.set("tests", str(len(suite.findall("testcase"))))
    return suite


def _test(report: Report, verdict: Verdict) -> ElementTree.Element:
    test = ElementTree.Element(
        "testcase",
        classname=_clean(f"{report.family}.{verdict.kernel}"),
        name=_clean(f"{verdict.property_name}[{verdict.dtype}]"),
        time="0",
    )
    passes = report.comparison is not None or (verdict.status in BROKEN and not verdict.counts(report.fail_on))
    if passes and verdict.status in FAILING:
        output = ElementTree.SubElement(test, "system-out")  # whether it is a regression, a line of the comparison says
        output.text = _clean(as_text([("", headline(verdict)), *tell(verdict)]))
    elif verdict.status in FAILING:
        tag = "failure" if verdict.status is Status.VIOLATED else "error"
        failure = ElementTree.SubElement(test, tag, type=verdict.status.value, message=_clean(headline(verdict)))
        failure.text = _clean(as_text(tell(verdict)))
    elif verdict.status in (Status.REFUSED, Status.NOT_CHECKED):
        reasons = "; ".join(f"{reason} ({count} cases)" for reason, count in verdict.reasons.items())
        message = _clean(f"{verdict.status.value}: {reasons or 'no case'}")
        ElementTree.SubElement(test, "skipped", type=verdict.status.value, message=message)
    return test


def _line(report: Report, line: Line) -> ElementTree.Element:
    """A line of a gate as a test: a regression is a failure, an open question an error, a note passes."""
    name = f"{line.kind.value}: {line.property_name or line.text[:60]}{f'[{line.dtype}]' if line.dtype else ''}"
    test = ElementTree.Element(
        "testcase", classname=_clean(f"gate.{line.kernel or report.target}"), name=_clean(name), time="0"
    )
    tag = {Weight.RED: "failure", Weight.OPEN: "error"}.get(line.weight, "system-out")
    result = ElementTree.SubElement(test, tag)
    result.text = _clean(f"{line.text}\n{line.case}".strip())
    if tag != "system-out":
        result.set("type", _clean(line.kind.value))
        result.set("message", _clean(line.text))
    return test


def _conclusive(report: Report) -> ElementTree.Element:
    test = ElementTree.Element("testcase", classname=_clean(report.family), name=CONCLUSIVE, time="0")
    if report.comparison is not None and report.comparison.unchanged:
        ElementTree.SubElement(test, "skipped", type="unchanged", message=_clean(outcome(report)))
    reasons = report.inconclusive()
    if reasons:
        error = ElementTree.SubElement(test, "error", type="inconclusive", message=_clean(reasons[0]))
        error.text = _clean("\n".join(reasons))
    return test


def _clean(text: str) -> str:
    """Text without the characters that XML does not allow."""
    return _NOT_XML.sub("\ufffd", text)
