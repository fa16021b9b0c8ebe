"""Compare: two answers about one target, case by case; each difference is a line, and some lines are regressions."""

from __future__ import annotations

import datetime
import fnmatch
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from gradoracle.gate.accuracy import FEWEST, MEDIAN, change
from gradoracle.gate.answer import UNDECIDED, Answer, rms, worst
from gradoracle.gate.known_failures import KnownFailure
from gradoracle.model.comparison import Kind, Line, Weight
from gradoracle.model.fault import VerdictKey
from gradoracle.model.reason import Reason
from gradoracle.model.severity import Severity
from gradoracle.model.verdict import BROKEN, Report, Status, Verdict
from gradoracle.model.wording import counted
from gradoracle.report.shown_fault import ShownFault, shown_faults

ASKED_FIRST = 2  # cases of a verdict on which the base is judged before it is judged on all of them
_UNCHECKED = (Status.REFUSED, Status.NOT_CHECKED)
_SUSPECT = 0.01  # p below which a line says that there were too few pairs


def asked_of_base(head: Answer, base: Answer | None = None) -> dict[str, list[str]]:
    """By case, the properties by which the base must be judged: on some of the cases on which they fail in the change.

    One case on which a property holds in the base decides; if it holds on none of those tried, all are needed.

    Args:
        head: of the change.
        base: what is known so far; None: nothing.
    """
    failing: dict[tuple[VerdictKey, bool], list[str]] = {}  # verdict, whether broken -> cases
    for line, case in head.cases.items():
        for each in case.results:
            if each.status is not Status.HOLDS:
                key = VerdictKey(each.property_name, case.kernel, case.dtype)
                failing.setdefault((key, each.status in BROKEN), []).append(line)
    found: dict[str, list[str]] = {}
    for (key, broken), lines in failing.items():
        there = [] if base is None else [base.cases[line] for line in lines if line in base.cases]
        answers = [status for case in there if (status := case.status(key.property_name)) is not None]
        decides = any(s is Status.HOLDS if broken else s not in UNDECIDED for s in answers)
        for line in lines[:ASKED_FIRST] if decides or not answers else lines:
            found.setdefault(line, []).append(key.property_name)
    return found


def proven(base: Answer | None, head: Answer, known: Sequence[KnownFailure], today: datetime.date) -> bool:
    """Whether some case already shows a regression; the arguments are those of ``compare``."""
    broken = _broken(base, head)
    excused = _excused(broken, known, today)
    return any(
        base is None or (each.case and (each.held or each.crashes))
        for key, each in broken.items()
        if key not in excused
    )


@dataclass
class Broken:
    """A verdict that is broken in the change, with counts of its cases by the result of the base.

    Attributes:
        held: the property held in the base.
        too: it was broken there too.
        undecided: it was not decided.
        crashes: it was violated, and the change crashes.
        unasked: the base was not judged.
        case: the first on which the property held in the base, else the first of all.
    """

    held: int = 0
    too: int = 0
    undecided: int = 0
    crashes: int = 0
    unasked: int = 0
    case: str = ""

    @property
    def is_new(self) -> bool:
        """Whether it was not broken in the base on all of these cases."""
        return bool(self.held or self.undecided or self.crashes or self.unasked)


def compare(
    base: Answer | None,
    head: Answer,
    known: Sequence[KnownFailure],
    today: datetime.date,
    same_cases: bool = True,
) -> list[Line]:
    """Everything to report about a change.

    Args:
        base: of the base, on the cases on which it was judged; None: the kernel is new.
        head: of the change, with its report.
        known: known failures.
        today: decides which of them have expired.
        same_cases: whether both sides had the same cases, which they do not after an acknowledged change of the judge.
    """
    report = head.report
    assert report is not None
    broken = _broken(base, head, same_cases)
    excused = _excused(broken, known, today)
    lines = [*_violations(report, broken, excused, base is not None), *_known(report, known, excused, today)]
    if base is not None and not base.cases.keys() & head.cases.keys():
        lines.append(Line(Kind.BASE, Weight.OPEN, "the base and the change have no case in common"))
    if base is not None:
        lines += [*_unchecked(base, head, same_cases), *_accuracy(base, head, broken)]
    lines += [Line(Kind.UNCHECKED, Weight.RED, f"the base has {name}, which no longer exists") for name in head.missing]
    return lines


def shared_gaps(base: Answer | None, head: Answer) -> list[str]:
    """What was not checked though it should be, in the base neither: no question about the change is open."""
    if base is None or base.report is None or head.report is None:
        return []
    return [each for each in head.report.unmet if each in base.report.unmet]


def _broken(base: Answer | None, head: Answer, same_cases: bool = True) -> dict[VerdictKey, Broken]:
    """The verdicts that are broken in the change, pooled ones included."""
    found: dict[VerdictKey, Broken] = {}
    for line, case in head.cases.items():
        there = base.cases.get(line) if base is not None else None
        for each in case.results:
            property_name, status = each.property_name, each.status
            if status not in BROKEN:
                continue
            before = None if there is None else there.status(property_name)
            entry = found.setdefault(VerdictKey(property_name, case.kernel, case.dtype), Broken(case=line))
            if before is Status.HOLDS:
                entry.case = entry.case if entry.held else line
                entry.held += 1
            elif before is Status.VIOLATED and status is Status.CRASHED:
                entry.crashes += 1
            elif before in BROKEN:
                entry.too += 1
            elif there is not None and before is None and same_cases:
                entry.unasked += 1
            else:
                entry.undecided += 1
    for key in head.pooled:
        too = base is not None and key in base.pooled
        found.setdefault(key, Broken(held=int(not too), too=int(too)))
    return found


def _violations(
    report: Report,
    broken: Mapping[VerdictKey, Broken],
    excused: Mapping[VerdictKey, KnownFailure],
    compared: bool,
) -> Iterator[Line]:
    """A line for each fault: a regression where it breaks something new, a note where the base has it too."""
    for fault in shown_faults(report):
        lead = fault.lead
        if lead.status is Status.ERROR:
            why = lead.counterexample.message if lead.counterexample is not None else "no reason is known"
            text = f"{lead.property_name} could not be judged{_in(lead)} because gradoracle itself failed: {why}"
            yield _line(Kind.UNCHECKED, Weight.OPEN, text, lead)
            continue
        verdicts = [v for v in (lead, *fault.others) if v.key not in excused]
        new = [v for v in verdicts if v.key in broken and broken[v.key].is_new]
        if new and all(_is_open(v, broken[v.key]) for v in new):
            text = (
                f"{new[0].property_name} is violated{_in(new[0])}, and may be wrong or only imprecise: "
                f"{new[0].severity_note}"
            )
            yield _line(Kind.VIOLATED, Weight.OPEN, f"{text}{_with(new)}", new[0])
        elif new:
            yield _regression(fault, new, broken[new[0].key], compared)
        elif verdicts:
            text = (
                f"{verdicts[0].property_name} is violated{_in(verdicts[0])}, and was violated in the base on the "
                f"same cases"
            )
            yield _line(Kind.VIOLATED, Weight.NOTE, f"{text}{_with(verdicts)}", verdicts[0])


def _is_open(verdict: Verdict, where: Broken) -> bool:
    """Whether it may be lost precision under a contract that nobody declared, and the base does not decide."""
    return verdict.severity is Severity.UNDECIDED and not (verdict.declared or where.held or where.crashes)


def _regression(fault: ShownFault, new: Sequence[Verdict], where: Broken, compared: bool) -> Line:
    lead = fault.lead if fault.lead in new else new[0]
    status = f"{'crashes' if lead.status is Status.CRASHED else 'is violated'}{_in(lead)}"
    if not compared:
        text = f"{lead.property_name} {status}"
    elif where.held:
        every = where.held + where.too + where.undecided + where.crashes
        if where.unasked:
            count = f"on {every + where.unasked} cases; in the base it held on {where.held} of the {every} judged"
        else:
            cases = f"{where.held} of these {every} cases" if every > 1 else "this case"
            count = f"in the base it held on {cases}" if where.case else "over all cases together"
        text = f"{lead.property_name} held in the base and {status} ({count})"
    elif where.crashes:
        text = f"{lead.property_name} {status}; in the base it was violated without a crash"
    else:
        text = f"{lead.property_name} {status}, on cases that were not decided in the base"
    return _line(Kind.VIOLATED, Weight.RED, f"{text}{_with(new)}", lead, where.case)


def _line(kind: Kind, weight: Weight, text: str, verdict: Verdict, case: str = "") -> Line:
    """A line about a verdict; ``case`` where it has no counterexample."""
    shown = verdict.counterexample.case if verdict.counterexample is not None else ""
    return Line(kind, weight, text, verdict.kernel, verdict.property_name, verdict.dtype, shown or case)


def _with(verdicts: Sequence[Verdict]) -> str:
    return f"; {counted(len(verdicts) - 1, 'further verdict')} with the same cause" if len(verdicts) > 1 else ""


def _in(verdict: Verdict) -> str:
    return f" in {verdict.dtype}" if verdict.dtype else ""


def _excused(
    broken: Mapping[VerdictKey, Broken], known: Sequence[KnownFailure], today: datetime.date
) -> dict[VerdictKey, KnownFailure]:
    """The broken verdicts that a known failure covers which has not expired."""
    found = {}
    for key in broken:
        entries = [e for e in known if e.matches(key.kernel, key.property_name, key.dtype) and not e.has_expired(today)]
        if entries:
            found[key] = entries[0]
    return found


def _known(
    report: Report, known: Sequence[KnownFailure], excused: Mapping[VerdictKey, KnownFailure], today: datetime.date
) -> Iterator[Line]:
    """Known failures that still fail, that hold, that have expired, that match nothing."""
    for entry in known:
        verdicts = [v for v in report.verdicts if entry.matches(v.kernel, v.property_name, v.dtype)]
        if not verdicts and not any(fnmatch.fnmatchcase(kernel, entry.kernel) for kernel in report.kernels):
            continue  # of another kernel
        property_name = entry.property_name if verdicts else ""
        if not verdicts:
            weight, text = Weight.RED, f"known failure that matches no property: {entry}; remove or correct the entry"
        elif entry.has_expired(today):
            weight, text = Weight.RED, f"known failure that has expired: {entry}"
        elif any(v.status in BROKEN for v in verdicts):
            count = sum(1 for each in excused.values() if each is entry)
            weight, text = Weight.NOTE, f"known failure, {counted(count, 'verdict')}: {entry}"
        elif any(v.status is Status.HOLDS for v in verdicts):
            weight, text = Weight.RED, f"known failure whose property now holds: {entry}; remove the entry"
        else:
            weight, text = Weight.OPEN, f"known failure that was not checked: {entry}"
        yield Line(Kind.KNOWN, weight, text, verdicts[0].kernel if verdicts else "", property_name)


def _unchecked(base: Answer, head: Answer, same_cases: bool) -> Iterator[Line]:
    """What was decided in the base and is not in the change: a regression, or open where the machine lacked memory.

    Cases that the change was not given, or had no time for, are passed over.
    """
    assert head.report is not None
    all_ran = same_cases and head.report.cases_run >= head.report.cases_planned
    lost: dict[tuple[str, str, bool], dict[VerdictKey, list[str]]] = {}  # kernel, reason, whether memory -> cases
    for line, case in base.cases.items():
        there = head.cases.get(line)
        if there is None and not all_ran:
            continue
        for each in case.results:
            now = None if there is None else there.by_property.get(each.property_name)
            if each.status in UNDECIDED or (now is not None and now.status not in _UNCHECKED):
                continue  # an error has a line of its own
            if now is not None and now.why is Reason.MALFORMED:
                continue  # the property that reports the malformed tensor has one
            unjudged = "the change has no such case" if there is None else "it was not judged in the change"
            reason, memory = (unjudged, False) if now is None else (now.reason, now.why is Reason.MEMORY)
            verdicts = lost.setdefault((case.kernel, reason, memory), {})
            verdicts.setdefault(VerdictKey(each.property_name, case.kernel, case.dtype), []).append(line)
    for (kernel, reason, memory), verdicts in lost.items():
        first, *others = verdicts
        dtypes = ", ".join(dict.fromkeys(key.dtype for key in verdicts))
        also = f" and {counted(len(others), 'further verdict')}" if others else ""
        count = len({case for own in verdicts.values() for case in own})
        cases = f"{counted(count, 'case')} in {dtypes}"
        text = f"{first.property_name}{also} decided in the base but not in the change, on {cases}: {reason}"
        weight = Weight.OPEN if memory else Weight.RED
        yield Line(Kind.UNCHECKED, weight, text, kernel, first.property_name, first.dtype, verdicts[first][0])


def _accuracy(base: Answer, head: Answer, broken: Mapping[VerdictKey, Broken]) -> Iterator[Line]:
    """Where errors have grown: by tensor and dtype, else by tensor over all dtypes; not where one is violated."""
    pairs: dict[tuple[str, str, str], dict[str, list[tuple[float, float]]]] = {}  # kernel, property, error -> dtype
    for line, case in head.cases.items():
        there = base.cases.get(line)
        if there is None:
            continue
        for property_name in base.measured:
            before, now = there.by_property.get(property_name), case.by_property.get(property_name)
            known = broken.get(VerdictKey(property_name, case.kernel, case.dtype))
            if before is None or now is None or (known is not None and known.is_new):
                continue
            for measure, of in (("rms", rms), ("largest", worst)):
                were, are = of(before), of(now)
                for tensor in were.keys() & are.keys():
                    own = pairs.setdefault((case.kernel, property_name, f"{measure} error of {tensor}"), {})
                    own.setdefault(case.dtype, []).append((were[tensor], are[tensor]))
    for (kernel, property_name, error), dtypes in sorted(pairs.items()):
        found = [line for dtype, own in dtypes.items() for line in _grown(kernel, property_name, error, dtype, own)]
        if not found and len(dtypes) > 1:
            every = [pair for own in dtypes.values() for pair in own]
            found = list(_grown(kernel, property_name, error, "", every))
        yield from found


def _grown(
    kernel: str, property_name: str, error: str, dtype: str, pairs: Sequence[tuple[float, float]]
) -> Iterator[Line]:
    found = change([base for base, _ in pairs], [head for _, head in pairs])
    where = dtype or "all dtypes together"
    size = f"{error} in {where} is 2^{found.median:.2f} times the base's (median of {len(pairs)} cases"
    if found.is_worse:
        yield Line(
            Kind.ACCURACY, Weight.RED, f"accuracy fell: {size}, p = {found.p:.0e})", kernel, property_name, dtype
        )
    elif found.median > MEDIAN and found.p < _SUSPECT and len(pairs) < FEWEST and dtype:
        text = f"accuracy is not decided: {size}; {FEWEST} expected)"
        yield Line(Kind.ACCURACY, Weight.NOTE, text, kernel, property_name, dtype)
