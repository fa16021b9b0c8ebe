"""Case results added up: the worst status that says something, reasons counted, pooled rules, what stays undecided."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

from gradoracle.check.completeness import undecided
from gradoracle.check.tally import Results, Tally, tallied, verdicts_of
from gradoracle.model.case import Case
from gradoracle.model.fault import VerdictKey
from gradoracle.model.finding import Finding, Outcome, Pool
from gradoracle.model.job import CaseResult, Job, PropertyResult
from gradoracle.model.ledger import CaseRecord, LedgerProperty, SeverityRecord
from gradoracle.model.property import PropertyKind
from gradoracle.model.reason import Reason
from gradoracle.model.severity import Severity
from gradoracle.model.verdict import Counterexample, Status, Verdict

KEY = VerdictKey("property", "k", "float32")
CASES = [Case("f", {"N": n}) for n in range(1, 9)]


def finding(outcome: Outcome = Outcome.HOLDS, **fields: Any) -> Finding:
    return Finding("y", outcome, "local", **fields)


def record(place: int, *results: PropertyResult, dtype: str = "float32") -> CaseRecord:
    """Results on one of ``CASES``."""
    return CaseRecord.of(CaseResult("k", replace(CASES[place], dtype=dtype), results), place)


def added(*results: PropertyResult) -> Tally:
    """A tally of one property on so many cases."""
    return tallied(record(place, result) for place, result in enumerate(results))


def left(tally: Tally, *decisive: str) -> list[str]:
    """What is undecided of these properties, as sentences that hold their reason."""
    found = undecided(tally.verdicts, decisive)
    assert all(each.reason in each.sentence for each in found)
    return [each.sentence for each in found]


def verdict(tally: Tally, counterexample: Counterexample | None = None, **like: Any) -> Verdict:
    (results,) = tally.verdicts.values()
    return results.verdict(LedgerProperty("", **like), counterexample)


HOLDS = PropertyResult("property", Status.HOLDS, (finding(error=0.5, error_in_sigma=2.0, sensitivity=1e-3),))
VIOLATED = PropertyResult("property", Status.VIOLATED, (finding(Outcome.VIOLATED, error=3.0, error_in_sigma=24.0),))
CRASHED = PropertyResult("property", Status.CRASHED, reason="vjp: exited with code 3")
REFUSED = PropertyResult("property", Status.REFUSED, reason="ValueError: no")
LEFT = PropertyResult(
    "property", Status.NOT_CHECKED, (finding(Outcome.NOT_CHECKED, message="budget too wide"),), "budget too wide"
)


@pytest.mark.parametrize(
    ("results", "status"),
    [
        ([HOLDS, HOLDS], Status.HOLDS),
        ([HOLDS, VIOLATED, CRASHED, REFUSED, LEFT], Status.VIOLATED),
        ([HOLDS, CRASHED, REFUSED, LEFT], Status.CRASHED),
        ([REFUSED, LEFT, HOLDS], Status.HOLDS),
        ([REFUSED, LEFT], Status.REFUSED),
        ([LEFT, LEFT], Status.NOT_CHECKED),
    ],
)
def test_the_worst_status_that_says_something_is_the_verdict(results: list[PropertyResult], status: Status) -> None:
    found = verdict(added(*results))
    assert found.status is status
    counts = (
        found.cases_held, found.cases_violated, found.cases_crashed, found.cases_refused, found.cases_not_checked
    )  # fmt: skip
    assert counts == tuple(results.count(each) for each in (HOLDS, VIOLATED, CRASHED, REFUSED, LEFT))


def test_reasons_and_worst_errors_are_counted() -> None:
    found = verdict(added(REFUSED, REFUSED, LEFT, HOLDS, VIOLATED))
    assert found.reasons == {"ValueError: no": 2, "budget too wide": 1}
    assert (found.worst_error, found.worst_in_sigma, found.sensitivity) == (3.0, 24.0, 1e-3)


def test_tensors_compared_are_those_that_hold_or_are_wrong() -> None:
    assert verdict(added(HOLDS, HOLDS, VIOLATED, CRASHED, LEFT)).tensors_compared == 3


def test_an_infinite_error_is_no_worst_error() -> None:
    exact = PropertyResult("property", Status.VIOLATED, (finding(Outcome.VIOLATED, error=float("inf")),))
    assert verdict(added(HOLDS, exact)).worst_error == 0.5


def test_the_first_failing_case_of_each_verdict_is_kept() -> None:
    tally = added(HOLDS, CRASHED, VIOLATED, VIOLATED)
    ((key, judged),) = tally.failing()
    assert (key, judged.result.status, judged.record.built) == (KEY, Status.VIOLATED, CASES[2])
    ((_, judged),) = added(HOLDS, CRASHED).failing()
    assert (judged.result.status, judged.record.built) == (Status.CRASHED, CASES[1])
    assert not list(added(HOLDS, LEFT, REFUSED).failing())
    shown = Counterexample("case:1 ...", ())
    assert verdict(tally, shown).counterexample is shown


def test_of_several_violations_the_first_of_the_gravest_is_shown() -> None:
    severities = (Severity.PRECISION, Severity.WRONG, Severity.WRONG)
    ((_, judged),) = added(HOLDS, *(replace(VIOLATED, severity=each) for each in severities)).failing()
    assert judged.place == 2


def test_a_verdict_that_is_owed_and_has_no_case_is_not_checked() -> None:
    found = verdict(Tally([KEY]))
    ((reason, cases),) = found.reasons.items()
    assert found.status is Status.NOT_CHECKED and "no case" in reason and cases == 0


def test_a_tensor_that_no_case_decides_is_named() -> None:
    (sentence,) = left(added(LEFT, LEFT), "property")
    assert sentence.startswith("y of property ") and sentence.endswith(f" any float32 case of k: {LEFT.reason}")
    assert left(added(LEFT, HOLDS), "property") == []
    assert left(added(LEFT, VIOLATED), "property") == []
    assert left(added(LEFT, LEFT)) == [], "only decisive properties must decide every tensor"


def test_a_reason_that_several_properties_share_is_said_once() -> None:
    lacking = "the rounding reading has no rule for the operator aten.i0.default"
    lacks = {name: PropertyResult(name, Status.NOT_CHECKED, reason=lacking) for name in ("one", "two")}
    other = PropertyResult("three", Status.NOT_CHECKED, reason="no rule for the operator aten.special_i1.default")
    tally, properties = Tally(), ("one", "two", "three")
    tally.add(record(0, *lacks.values(), other))
    tally.add(record(1, *lacks.values(), dtype="bfloat16"))
    shared, own = left(tally, *properties)
    assert "(one, two)" in shared and "float32 or bfloat16" in shared and shared.endswith(f" of k: {lacking}")
    assert own.startswith("three ") and own.endswith(f" any float32 case of k: {other.reason}")
    tally.add(record(2, PropertyResult("two", Status.HOLDS, HOLDS.findings)))
    assert left(tally, *properties)[0] == shared
    assert left(Tally(), *properties) == []


def test_a_backward_that_always_refuses_is_owed_where_the_forward_was_judged() -> None:
    refused = PropertyResult("vjp", Status.REFUSED, reason="RuntimeError: modified by an inplace operation")
    tally = tallied([record(0, HOLDS, refused)])
    (sentence,) = left(tally, "property", "vjp")
    assert sentence.startswith("vjp ") and sentence.endswith(f" float32 case of k: refused: {refused.reason}")
    tally.add(record(1, HOLDS, PropertyResult("vjp", Status.HOLDS, HOLDS.findings)))
    assert left(tally, "property", "vjp") == []
    unsupported = [record(0, REFUSED, refused), record(1, HOLDS, dtype="bfloat16")]
    assert left(tallied(unsupported), "property", "vjp") == [], "a dtype that the kernel does not take"
    assert len(left(tallied(unsupported[:1]), "property", "vjp")) == 2, "a kernel that takes no dtype at all"


def slanted(slope: float) -> PropertyResult:
    """A tensor within its budget whose errors all lean one way by so much."""
    pool = Pool(1000, 1000.0, (1000.0,) * 16, slope * 1e12, 1e12, tuple((-1) ** i * 1e-7 * 1e12 for i in range(16)))
    return PropertyResult("property", Status.HOLDS, (finding(error=0.9, pool=pool),))


def test_what_each_case_explains_and_all_together_do_not_is_violated_with_a_line_that_can_be_read() -> None:
    assert verdict(added(*[slanted(1e-8)] * 8)).status is Status.HOLDS
    found = verdict(added(*[slanted(4e-6)] * 8))
    assert found.status is Status.VIOLATED and found.counterexample is not None
    assert found.counterexample.case == CASES[0].line()
    assert found.counterexample.pooled and found.worst_error > 1
    assert "8 tensors" in found.counterexample.message and "float32" in found.counterexample.message


def test_what_results_add_up_to_does_not_depend_on_the_order_in_which_they_come() -> None:
    """Counts, reasons and first cases are those of the stream."""
    told = [HOLDS, LEFT, VIOLATED, REFUSED, CRASHED, VIOLATED, HOLDS, LEFT]
    records = [record(place, each) for place, each in enumerate(told)]
    whole = tallied(records)
    for seed in range(10):
        random.Random(seed).shuffle(records)
        again = tallied(records)
        assert verdict(again) == verdict(whole) and list(again.failing()) == list(whole.failing())
        assert again.verdicts[KEY].telling == whole.verdicts[KEY].telling
        assert undecided(again.verdicts, ["property"]) == undecided(whole.verdicts, ["property"])


def test_the_first_case_without_a_gradient_is_that_of_the_stream_whatever_its_outputs() -> None:
    """Cases that return other outputs are said in other words, and count together."""
    said = [
        PropertyResult("property", Status.NOT_CHECKED, (), f"the output {x}", why=Reason.DETACHED)
        for x in ("y", "y, z")
    ]
    records = [record(place, each) for place, each in enumerate((HOLDS, *said, *said))]
    for seed in range(10):
        random.Random(seed).shuffle(records)
        found = verdict(tallied(records), kind=PropertyKind.ORACLE, decisive=True)
        assert found.status is Status.VIOLATED and found.cases_violated == 4
        assert found.counterexample is not None and found.counterexample.case == CASES[1].line()


@pytest.mark.parametrize(
    ("kind", "severity"), [(PropertyKind.ARGUMENTS, Severity.ROBUSTNESS), (PropertyKind.ORACLE, Severity.WRONG)]
)
def test_a_crash_is_wrong_but_where_the_argument_was(kind: PropertyKind, severity: Severity) -> None:
    found = verdict(added(HOLDS, CRASHED), kind=kind)
    assert found.status is Status.CRASHED and (found.severity or Severity.WRONG) is severity


def test_a_property_is_known_to_be_wrong_only_after_the_case_that_shows_it() -> None:
    wrong, precise = (replace(VIOLATED, severity=each) for each in (Severity.WRONG, Severity.PRECISION))
    shown = ((4, precise), (5, wrong), (6, replace(precise, property_name="other")))
    tally = tallied(record(place, result) for place, result in shown)
    jobs = {place: Job("k", case, ("property", "other")) for place, case in enumerate(CASES)}
    assert [place for place, job in jobs.items() if tally.wrong_before(job, place)] == [6, 7]
    assert tally.wrong_before(jobs[7], 7) == {"property"}
    last = jobs[7]
    assert not tally.wrong_before(replace(last, kernel="other"), 7)
    assert not tally.wrong_before(replace(last, case=replace(last.case, dtype="bfloat16")), 7)


def test_how_grave_it_is_does_not_depend_on_which_later_cases_were_asked() -> None:
    wrong = replace(VIOLATED, severity=Severity.WRONG)
    precise = replace(VIOLATED, severity=Severity.PRECISION, preset="bf16")
    asked = added(HOLDS, precise, wrong, precise, wrong)
    spared = added(HOLDS, precise, wrong, VIOLATED, VIOLATED)
    assert verdict(asked) == verdict(spared)
    assert verdict(spared).severity is Severity.WRONG and verdict(spared).cases_violated == 4


def test_what_triage_decides_holds_for_every_case_that_was_undecided() -> None:
    open_ = replace(VIOLATED, severity=Severity.UNDECIDED, undecided="it reads bits", preset="bf16")
    tally = added(HOLDS, open_, open_)
    before = verdict(tally)
    assert (before.severity, before.severity_note) == (Severity.UNDECIDED, "it reads bits")
    tally.verdicts[KEY].settled = SeverityRecord(KEY, 1, Severity.PRECISION)
    after = verdict(tally)
    assert (after.severity, after.severity_note, after.keeps, after.notes) == (Severity.PRECISION, "", "bf16", [])
    tally.verdicts[KEY].settled = SeverityRecord(KEY, 1, Severity.WRONG)
    assert verdict(tally).severity is Severity.WRONG and not verdict(tally).keeps


def test_results_by_themselves_have_verdicts_too() -> None:
    found = verdicts_of([CaseResult("k", case, (HOLDS, replace(VIOLATED, property_name="o"))) for case in CASES])
    assert {(each.property_name, each.status, each.cases_held) for each in found} == {
        ("property", Status.HOLDS, 8),
        ("o", Status.VIOLATED, 0),
    }
    assert not Results(KEY).statuses


def test_notes_of_findings_are_counted_by_case_and_stand_where_the_property_holds():
    note = "k.py:7: k stores what it loaded"
    noted = finding(Outcome.NOT_CHECKED, message="X[0] in program 3", notes=(note,))
    held, alone = replace(HOLDS, findings=(*HOLDS.findings, noted, noted)), replace(LEFT, findings=(noted,))
    assert verdict(added(held, HOLDS, held)).notes == [f"{note} on 2 cases"]
    assert not verdict(added(alone)).notes
