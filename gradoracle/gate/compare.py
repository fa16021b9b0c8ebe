"""Compare: two snapshots of one kernel, case by case, as lines that close the gate or do not."""

from __future__ import annotations

import datetime
import fnmatch
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from gradoracle.gate.accuracy import FEWEST, MEDIAN, change
from gradoracle.gate.known_failures import KnownFailure
from gradoracle.gate.snapshot import UNDECIDED, Snapshot
from gradoracle.model.comparison import Kind, Line, Weight
from gradoracle.model.verdict import BROKEN, Report, Status, Verdict
from gradoracle.model.wording import counted
from gradoracle.report.failure import Failure, failures

_BROKEN = tuple(status.value for status in BROKEN)
ASKED_FIRST = 2  # cases of a verdict that the base is asked before it is asked for all
_SUSPECT = 0.01  # p below which too few pairs are told of
Key = tuple[str, str, str]  # law, kernel, dtype


def asked_of_base(head: Snapshot, base: Snapshot | None = None) -> dict[str, list[str]]:
    """What the base must be asked beyond its accuracy: some of the cases on which the change does not keep a law.

    Where the base keeps a law on one of them, that decides; where it keeps it on none, it is asked for all.

    Args:
        head: of the change.
        base: as far as it is known; None: nothing is.
    """
    expected: dict[tuple[str, str, str, bool], list[str]] = {}  # law, kernel, dtype, whether broken -> cases
    for line, case in head.cases.items():
        for law, status in case.laws.items():
            if status != Status.HOLDS.value:
                expected.setdefault((law, case.kernel, case.dtype, status in _BROKEN), []).append(line)
    found: dict[str, list[str]] = {}
    for (law, *_, broken), lines in expected.items():
        said = [base.cases[line].laws.get(law, "") for line in lines if base is not None and line in base.cases]
        answers = [status for status in said if status]
        decides = any(s == Status.HOLDS.value if broken else s not in UNDECIDED for s in answers)
        for line in lines[:ASKED_FIRST] if decides or not answers else lines:
            found.setdefault(line, []).append(law)
    return found


def proven(base: Snapshot | None, head: Snapshot, known: Sequence[KnownFailure], today: datetime.date) -> bool:
    """Whether a change is known to break on some case what the base keeps there; arguments as ``compare`` has them."""
    broken = _broken(base, head)
    excused = _excused(broken, known, today)
    return any(
        base is None or (each.case and (each.held or each.crashes))
        for key, each in broken.items()
        if key not in excused
    )


@dataclass
class Broken:
    """A verdict that the change breaks: on how many of its cases the base held, broke it too, or decided nothing.

    ``crashes``: on how many the base violated what crashes now. ``unasked``: on how many it was not asked.
    """

    held: int = 0
    too: int = 0
    undecided: int = 0
    crashes: int = 0
    unasked: int = 0
    case: str = ""  # the first that the base held, or else the first

    @property
    def is_new(self) -> bool:
        """Whether the base did not break it on all of these cases."""
        return bool(self.held or self.undecided or self.crashes or self.unasked)


def compare(
    base: Snapshot | None,
    head: Snapshot,
    known: Sequence[KnownFailure],
    today: datetime.date,
    same_cases: bool = True,
) -> list[Line]:
    """All that there is to say of a change beside its base; None: the kernel is new, and judged alone.

    Args:
        base: of the base, on the cases that it was asked for.
        head: of the change, with its report.
        known: failures that are known.
        today: which of them have expired.
        same_cases: whether both were asked for the same cases; not so where somebody answers for another judge.
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
    lines += [
        Line(Kind.UNCHECKED, Weight.RED, f"the base has {name}, which is not here any more") for name in head.missing
    ]
    return lines


def _broken(base: Snapshot | None, head: Snapshot, same_cases: bool = True) -> dict[Key, Broken]:
    """The verdicts that the change breaks, those too that only all cases together break."""
    found: dict[Key, Broken] = {}
    for line, case in head.cases.items():
        there = base.cases.get(line) if base is not None else None
        for law, status in case.laws.items():
            if status not in _BROKEN:
                continue
            before = "" if there is None else there.laws.get(law, "")
            entry = found.setdefault((law, case.kernel, case.dtype), Broken(case=line))
            if before == Status.HOLDS.value:
                entry.case = entry.case if entry.held else line
                entry.held += 1
            elif before == Status.VIOLATED.value and status == Status.CRASHED.value:
                entry.crashes += 1
            elif before in _BROKEN:
                entry.too += 1
            elif there is not None and not before and same_cases:
                entry.unasked += 1
            else:
                entry.undecided += 1
    for words in head.pooled:
        law, _, rest = words.partition(" ")
        kernel, _, dtype = rest.rpartition(" ")
        too = base is not None and words in base.pooled
        found.setdefault((law, kernel, dtype), Broken(held=int(not too), too=int(too)))
    return found


def _violations(
    report: Report, broken: Mapping[Key, Broken], excused: Mapping[Key, KnownFailure], compared: bool
) -> Iterator[Line]:
    """One line a fault: red where it breaks something that the base did not, a note where it was there before."""
    for failure in failures(report):
        lead = failure.lead
        if lead.status is Status.ERROR:
            said = lead.counterexample.message if lead.counterexample is not None else "no reason is known"
            text = f"{lead.law} could not be judged{_in(lead)}, an error of gradoracle's own: {said}"
            yield Line(Kind.UNCHECKED, Weight.OPEN, text, lead.kernel, lead.law, lead.dtype, _case(lead))
            continue
        verdicts = [v for v in (failure.lead, *failure.others) if _key(v) not in excused]
        new = [v for v in verdicts if _key(v) in broken and broken[_key(v)].is_new]
        if new:
            yield _fault(failure, new, broken[_key(new[0])], compared)
        elif verdicts:
            lead = verdicts[0]
            text = f"{lead.law} is violated{_in(lead)}, and was by the base on the same cases{_with(verdicts)}"
            yield Line(Kind.VIOLATED, Weight.NOTE, text, lead.kernel, lead.law, lead.dtype, _case(lead))


def _fault(failure: Failure, new: Sequence[Verdict], where: Broken, compared: bool) -> Line:
    lead = failure.lead if failure.lead in new else new[0]
    status = f"{'crashes' if lead.status is Status.CRASHED else 'is violated'}{_in(lead)}"
    if not compared:
        text = f"{lead.law} {status}"
    elif where.held:
        every = where.held + where.too + where.undecided + where.crashes
        if where.unasked:
            count = f"on {every + where.unasked} cases; the base held on {where.held} of the {every} that it was asked"
        else:
            count = f"the base held on {where.held} of these {every} cases" if where.case else "over all cases together"
        text = f"{lead.law} held in the base and {status} ({count})"
    elif where.crashes:
        text = f"{lead.law} {status}, where the base violated it and did not crash"
    else:
        text = f"{lead.law} {status}, on cases that the base did not decide"
    return Line(
        Kind.VIOLATED, Weight.RED, f"{text}{_with(new)}", lead.kernel, lead.law, lead.dtype, _case(lead) or where.case
    )


def _with(verdicts: Sequence[Verdict]) -> str:
    return f"; with it {counted(len(verdicts) - 1, 'further verdict')}" if len(verdicts) > 1 else ""


def _in(verdict: Verdict) -> str:
    return f" in {verdict.dtype}" if verdict.dtype else ""


def _case(verdict: Verdict) -> str:
    return verdict.counterexample.case if verdict.counterexample is not None else ""


def _key(verdict: Verdict) -> Key:
    return verdict.law, verdict.kernel, verdict.dtype


def _excused(
    broken: Mapping[Key, Broken], known: Sequence[KnownFailure], today: datetime.date
) -> dict[Key, KnownFailure]:
    """The broken verdicts that an entry speaks of which has not expired."""
    found = {}
    for law, kernel, dtype in broken:
        entries = [e for e in known if e.matches(kernel, law, dtype) and not e.has_expired(today)]
        if entries:
            found[law, kernel, dtype] = entries[0]
    return found


def _known(
    report: Report, known: Sequence[KnownFailure], excused: Mapping[Key, KnownFailure], today: datetime.date
) -> Iterator[Line]:
    """Known failures that are there, that are none any more, and that have expired."""
    for entry in known:
        verdicts = [v for v in report.verdicts if entry.matches(v.kernel, v.law, v.dtype)]
        if not verdicts and not any(fnmatch.fnmatchcase(kernel, entry.kernel) for kernel in report.kernels):
            continue  # of another kernel
        kernel = verdicts[0].kernel if verdicts else ""
        if not verdicts:
            yield Line(Kind.KNOWN, Weight.RED, f"known failure of no law: {entry}; remove or mend the entry", kernel)
        elif entry.has_expired(today):
            yield Line(Kind.KNOWN, Weight.RED, f"known failure that has expired: {entry}", kernel, entry.law)
        elif any(v.status in BROKEN for v in verdicts):
            count = sum(1 for each in excused.values() if each is entry)
            yield Line(Kind.KNOWN, Weight.NOTE, f"known failure, {count} verdicts: {entry}", kernel, entry.law)
        elif any(v.status is Status.HOLDS for v in verdicts):
            text = f"known failure that holds: {entry}; remove the entry"
            yield Line(Kind.KNOWN, Weight.RED, text, kernel, entry.law)
        else:
            yield Line(Kind.KNOWN, Weight.OPEN, f"known failure that was not checked: {entry}", kernel, entry.law)


def _unchecked(base: Snapshot, head: Snapshot, same_cases: bool) -> Iterator[Line]:
    """What the base decided and the change did not: red; where the machine had no memory for it, an open question.

    Cases that the change was not asked for, or had no time for, are passed over.
    """
    assert head.report is not None
    all_ran = same_cases and head.report.cases_run >= head.report.cases_planned
    lost: dict[tuple[Key, str, bool], list[str]] = {}  # verdict, reason, whether it is the machine's -> cases
    for line, case in base.cases.items():
        there = head.cases.get(line)
        if there is None and not all_ran:
            continue
        for law, status in case.laws.items():
            if status in UNDECIDED or (there is not None and there.laws.get(law, "refused") not in UNDECIDED):
                continue
            if there is not None and there.laws.get(law) == Status.ERROR.value:
                continue  # a line of its own
            reason = "there is no such case" if there is None else there.reasons.get(law, "it is not judged there")
            machine = there is not None and law in there.memory
            lost.setdefault(((law, case.kernel, case.dtype), reason, machine), []).append(line)
    by_reason: dict[tuple[str, str, bool], list[tuple[Key, list[str]]]] = {}
    for (key, reason, machine), cases in lost.items():
        by_reason.setdefault((key[1], reason, machine), []).append((key, cases))
    for (kernel, reason, machine), entries in by_reason.items():
        (law, _, dtype), cases = entries[0]
        dtypes = ", ".join(dict.fromkeys(key[2] for key, _ in entries))
        also = f" and {counted(len(entries) - 1, 'further verdict')}" if len(entries) > 1 else ""
        count = len({case for _, own in entries for case in own})
        text = f"{law}{also} decided by the base, not decided here on {count} cases in {dtypes}: {reason}"
        yield Line(Kind.UNCHECKED, Weight.OPEN if machine else Weight.RED, text, kernel, law, dtype, cases[0])


def _accuracy(base: Snapshot, head: Snapshot, broken: Mapping[Key, Broken]) -> Iterator[Line]:
    """Where errors have grown: by tensor and dtype, or else by tensor over all dtypes; not what is violated anyway."""
    pairs: dict[tuple[str, str, str], dict[str, list[tuple[float, float]]]] = {}  # kernel, law, error -> by dtype
    for line, case in head.cases.items():
        there = base.cases.get(line)
        if there is None:
            continue
        measures = (("rms", there.rms, case.rms), ("largest", there.worst, case.worst))
        for measure, before, now in measures:
            for place in before.keys() & now.keys():
                law, _, tensor = place.partition(": ")
                known = broken.get((law, case.kernel, case.dtype))
                if known is None or not known.is_new:
                    own = pairs.setdefault((case.kernel, law, f"{measure} error of {tensor}"), {})
                    own.setdefault(case.dtype, []).append((before[place], now[place]))
    for (kernel, law, error), dtypes in sorted(pairs.items()):
        found = [line for dtype, own in dtypes.items() for line in _worse(kernel, law, error, dtype, own)]
        if not found and len(dtypes) > 1:
            every = [pair for own in dtypes.values() for pair in own]
            found = list(_worse(kernel, law, error, "", every))
        yield from found


def _worse(kernel: str, law: str, error: str, dtype: str, pairs: Sequence[tuple[float, float]]) -> Iterator[Line]:
    found = change([base for base, _ in pairs], [head for _, head in pairs])
    where = dtype or "all dtypes together"
    said = f"{error} in {where} is 2^{found.median:.2f} times the base's (median of {len(pairs)} cases"
    if found.is_worse:
        yield Line(Kind.ACCURACY, Weight.RED, f"accuracy fell: {said}, p = {found.p:.0e})", kernel, law, dtype)
    elif found.median > MEDIAN and found.p < _SUSPECT and len(pairs) < FEWEST and dtype:
        text = f"accuracy is not decided: {said}; {FEWEST} expected)"
        yield Line(Kind.ACCURACY, Weight.NOTE, text, kernel, law, dtype)
