"""Each property is violated by a wrong kernel, on a case where correct kernels satisfy it."""

from __future__ import annotations

import pytest

from gradoracle.check.evidence import Evidence
from gradoracle.model.finding import Outcome
from gradoracle.model.verdict import Status
from gradoracle.project.target import shipped
from tests.properties.judging import Row, evidence, judge_on
from tests.properties.lightning import wrong as lightning
from tests.properties.lse import wrong as lse
from tests.properties.sdpa import wrong as sdpa
from tests.properties.semicrf import wrong as semicrf

ROWS = [*sdpa.ROWS, *lse.ROWS, *lightning.ROWS, *semicrf.ROWS]
NAMED = [pytest.param(row, id=f"{row.oracle.family.name}-{row.law}-{row.fault}", marks=row.marks) for row in ROWS]
# where no row does, the test that shows a violation
ELSEWHERE = {
    "no_shared_allocation_has_two_chunk_axes": "lightning/test_memory.py::test_scores_that_are_turned_are_named_with_the_gpu",
}
FAMILIES = {name: target.family for name, target in shipped().items()}


def holding(own: Evidence, laws: tuple[str, ...]) -> None:
    for law in laws:
        found = judge_on(law, own)
        violated = [finding for finding in found.findings if finding.outcome is Outcome.VIOLATED]
        assert found.status is Status.HOLDS, (law, found.status, violated or found.reason)


@pytest.mark.parametrize("row", NAMED)
def test_the_wrong_kernel_is_caught_where_correct_ones_hold(row: Row) -> None:
    laws = (row.law, *row.also)
    for subject in row.correct:
        holding(evidence(row.case, subject, row.oracle), laws)
    own = evidence(row.case, row.wrong, row.oracle)
    for law in laws:
        found = judge_on(law, own)
        assert found.status is Status.VIOLATED, (law, found.status, found.reason, found.findings)
        if law == row.law:
            violated = [finding.message for finding in found.findings if finding.outcome is Outcome.VIOLATED]
            assert any(row.says in message for message in violated)
    holding(evidence(row.case, row.wrong, row.oracle), tuple(row.holds))


def caught(family: str) -> set[str]:
    """The properties that rows of a family show a violation of."""
    return {law for row in ROWS if row.oracle.family.name == family for law in (row.law, *row.also)}


@pytest.mark.parametrize("name", FAMILIES)
def test_every_property_of_a_family_has_a_row_or_a_test_of_its_own(name: str) -> None:
    own = {law.name for law in FAMILIES[name].properties}
    assert own - caught(name) <= set(ELSEWHERE) and not caught(name) & set(ELSEWHERE)
