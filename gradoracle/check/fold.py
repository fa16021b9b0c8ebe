"""Fold: the report of a ledger. It depends on the records alone, and not on the order in which they come."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from gradoracle.check.completeness import shortfall
from gradoracle.check.faults import diagnosed, grouped
from gradoracle.check.repeat_command import command
from gradoracle.check.severity import leave_open, settle_pooled
from gradoracle.check.tally import Judged, Results, tallied
from gradoracle.model.case import parse
from gradoracle.model.fault import Fault, VerdictKey
from gradoracle.model.finding import NO_EDIT, Finding
from gradoracle.model.job import PropertyResult
from gradoracle.model.ledger import (
    CaseRecord,
    EndRecord,
    Header,
    Ledger,
    Section,
    SeverityRecord,
    SmallerRecord,
    largest,
)
from gradoracle.model.property import PropertyKind
from gradoracle.model.reason import Reason
from gradoracle.model.severity import Severity
from gradoracle.model.statistics import Measurements
from gradoracle.model.verdict import BROKEN, FAILING, Counterexample, Report, Status, Verdict

_ANSWERS = (Status.HOLDS, Status.REFUSED, *BROKEN)


def report_of(ledger: Ledger, *, whole: bool = False, compared: bool = False) -> Report:
    """The report of a ledger.

    Args:
        ledger: of one run.
        whole: whether it should have all parts of the run.
        compared: whether it is compared with a base, which decides about violations of undecided severity.
    """
    return _Fold(ledger, whole).report(compared)


def faults_of(ledger: Ledger) -> list[Fault]:
    """The failing verdicts of a ledger, grouped by what the cases of the stream show."""
    return grouped(_Fold(ledger).verdicts(is_shown=False))


def shown_cases(ledger: Ledger) -> Iterator[tuple[Results, Judged, Counterexample]]:
    """Each verdict of which a case fails: its results, the first such case, and what a report shows."""
    fold = _Fold(ledger)
    for key, judged in fold.tally.failing():
        results = fold.tally.verdicts[key]
        yield results, judged, fold.counterexample(results, judged)


def first_failure(header: Header, key: VerdictKey, judged: Judged) -> Verdict:
    """A verdict that fails as it was found, before anything is shrunk."""
    alone = Results(key)
    alone.add(judged)
    line = header.line(key.kernel, judged.record.built)
    return _Fold(Ledger([Section(header)])).completed(alone, shown_as(line, judged.result))


class _Fold:
    """What a report says of the records of a run."""

    def __init__(self, ledger: Ledger, whole: bool = False) -> None:
        self.header = ledger.header
        self._ledger, self._parts, self._whole = ledger, ledger.parts, whole
        self._cases = list(ledger.cases.values())
        self.tally = tallied(self._cases, self.header.owed)
        self._ends = ledger.of(EndRecord)
        self.interrupted = self._interrupted()
        self._smaller: dict[VerdictKey, list[SmallerRecord]] = {}
        for each in ledger.of(SmallerRecord):
            self._smaller.setdefault(each.verdict, []).append(each)
        self._lost, self._mended = ([], ledger.damage) if ledger.is_whole else (ledger.damage, [])
        self._missing = [n for n in range(1, self.header.part[1] + 1) if whole and n not in self._parts]

    def report(self, compared: bool) -> Report:
        """The report; ``compared``: as of ``report_of``."""
        header = self.header
        faults = grouped(self.verdicts(is_shown=False))
        verdicts = self.verdicts(is_shown=True)
        if not compared:
            leave_open(verdicts, header.fail_on)
        statuses = [{each.status for each in record.results} for record in self._cases]
        timed: list[CaseRecord | EndRecord] = [*self._cases, *self._ends]
        contracts = {d: name for kernel in header.kernels.values() for d, name in kernel.contracts.items()}
        return Report(
            header.target,
            header.family,
            list(header.kernels),
            header.device,
            header.seed,
            contracts,
            self._environment(),
            verdicts=verdicts,
            goals=dict(Counter(goal for record in self._cases for goal in record.goals)),
            goals_wanted=dict(header.goals),
            cases_planned=header.cases if self._whole else sum(sum(p.planned.values()) for p in self._parts.values()),
            cases_run=len(self._cases),
            seconds=sum(end.seconds for end in self._ends),
            refusals=self._refusals(),
            notes=[*header.notes, *(f"{each}; every case was judged again" for each in self._mended)],
            unmet=self._unmet(verdicts),
            interrupted=self.interrupted,
            cases_judged=sum(1 for own in statuses if not own.isdisjoint((Status.HOLDS, *BROKEN))),
            cases_alarming=sum(1 for own in statuses if not own.isdisjoint(BROKEN)),
            locations={name: own.location for name, own in header.kernels.items() if own.location is not None},
            measurements=self._measurements(),
            faults=diagnosed(faults, verdicts),
            planned=_counted(each for part in self._parts.values() for each in part.planned.items()),
            judged=_counted((_of(record), _is_answered(record)) for record in self._cases),
            stopped=largest(part.stopped for part in self._parts.values()),
            seconds_compiling=sum(each.compiling for each in timed),
            longest_compilation=max((each.longest_compilation for each in timed), default=0.0),
            claims={name: dict(own.claims) for name, own in header.kernels.items()},
            narrowed={name: own.narrowed for name, own in header.kernels.items() if own.narrowed},
            fail_on=header.fail_on,
        )

    def verdicts(self, *, is_shown: bool) -> list[Verdict]:
        """The verdicts; not ``is_shown``: of the cases of the stream alone."""
        for record in self._ledger.of(SeverityRecord) if is_shown else ():
            self.tally.verdicts[record.verdict].settled = record
        own = dict(self.tally.failing(FAILING))
        make = self.counterexample if is_shown else self._found
        found = [
            self.completed(results, make(results, own[key]) if key in own else None)
            for key, results in self.tally.verdicts.items()
        ]
        settle_pooled(found)
        return found

    def completed(self, own: Results, counterexample: Counterexample | None) -> Verdict:
        """The verdict of some results, with what its kernel and property say, and the command that shows it again."""
        header, key = self.header, own.key
        like, kernel = header.properties[key.property_name], header.kernels[key.kernel]
        verdict = own.verdict(like, counterexample, lambda record: header.line(key.kernel, record.built))
        verdict.contract, verdict.declared = kernel.contracts[key.dtype], key.dtype in kernel.declared
        if not own.statuses and (self.interrupted or self._missing):
            verdict.reasons = {"the run was interrupted before its first case": 0}
        if (shown := verdict.counterexample) is not None:
            verdict.counterexample = replace(shown, command=command(header, key, shown, is_of_all=self._whole))
        return verdict

    def _found(self, own: Results, judged: Judged) -> Counterexample:
        """The counterexample of a failing case, as the stream has it."""
        shown = shown_as(self._line(judged.record), judged.result)
        return replace(shown, further=self._further(own)) if judged.result.status is Status.VIOLATED else shown

    def counterexample(self, own: Results, judged: Judged) -> Counterexample:
        """The counterexample of a failing case, as a report shows it."""
        found = self._found(own, judged)
        of_verdict = self._smaller.get(own.key, [])
        here = [each for each in of_verdict if each.place == judged.place]
        if here:  # one that was interrupted may have been shrunk later
            found = self._shrunk(found, judged, next((each for each in here if each.result is not None), here[0]))
        edited = {each.edited for each in of_verdict} - {NO_EDIT}
        found = replace(found, edited_definition=edited.pop() if len(edited) == 1 else NO_EDIT)  # parts may disagree
        if own.settled is not None:
            found = _settled(found, own)
        return mapped(found)

    def _shrunk(self, found: Counterexample, judged: Judged, smaller: SmallerRecord) -> Counterexample:
        """The counterexample with the smallest case."""
        if smaller.result is None:
            return replace(found, shrink_note=smaller.note)
        line = self.header.line(judged.record.kernel, parse(smaller.case)[2])
        shown = replace(shown_as(line, smaller.result), message=smaller.message, shrink_note=smaller.note)
        shown = replace(shown, further=found.further)
        return shown if line == found.case else replace(shown, shrunk_from=found.case, first_findings=judged.wrong)

    def _further(self, own: Results) -> tuple[Finding, ...]:
        """The violations found on the largest cases of a verdict."""
        return tuple(each for judged in own.telling for each in judged.wrong) if self.header.is_shrunk else ()

    def _line(self, record: CaseRecord) -> str:
        return self.header.line(record.kernel, record.built)

    def _interrupted(self) -> str:
        own = {number: part.interrupted for number, part in self._parts.items()}
        if self.header.part[1] == 1 or not self._whole:
            return "; ".join(why for why in own.values() if why)
        return "; ".join(f"shard {number}/{self.header.part[1]}: {why}" for number, why in own.items() if why)

    def _unmet(self, verdicts: Sequence[Verdict]) -> list[str]:
        header, parts = self.header, self.header.part[1]
        missing = ", ".join(f"{each}/{parts}" for each in self._missing)
        lacking = [f"shard {missing} of {header.target} is missing; expected all {parts}"] if missing else []
        outside = (Reason.OUTSIDE, Reason.UNDEFINED)
        undefined = [sorted({r.reason for r in record.results if r.why in outside})[:1] for record in self._cases]
        return [
            *self._lost,
            *lacking,
            *shortfall(
                verdicts,
                self.tally.verdicts,
                decisive={name for name, prop in header.properties.items() if prop.decisive},
                require=header.require,
                undefined=[sentence for own in undefined for sentence in own],
                cases=len(self._cases),
                sizes=header.sizes,
            ),
        ]

    def _refusals(self) -> dict[str, dict[str, int]]:
        """By message, what the refused cases have in common, so that the rule behind it shows."""
        tables: dict[str, Counter[str]] = {}
        for record in self._cases:
            refused = [each.reason for each in record.results if each.status is Status.REFUSED]
            if refused:
                tables.setdefault(refused[0], Counter()).update(record.marks)
        return {message: dict(table) for message, table in tables.items()}

    def _measurements(self) -> Measurements:
        found = Measurements(self.header.dim)
        for record in self._cases:
            for each in record.results:
                is_direct = self.header.properties[each.property_name].kind is PropertyKind.ORACLE
                found.add(record.kernel, record.built, each.findings, is_direct)
        return found

    def _environment(self) -> dict[str, str]:
        """The environments of the parts, each fact once."""
        facts: dict[str, dict[str, None]] = {}
        for section in self._ledger.sections:
            for name, fact in section.header.environment.items():
                facts.setdefault(name, {})[fact] = None
        return {name: "; ".join(found) for name, found in facts.items()}


def shown_as(line: str, result: PropertyResult) -> Counterexample:
    """A failing case as a counterexample."""
    return Counterexample(
        line,
        result.findings,
        message=message_of(result),
        trace=result.trace,
        preset=result.preset,
        unexplained=result.unexplained,
        severity=result.severity,
        undecided=result.undecided,
        crashed_in=result.crashed_in,
        loss=result.loss,
        constant=result.constant,
    )


def message_of(result: PropertyResult) -> str:
    """The message of a failing case: how it crashed, or what would explain it."""
    if result.status in (Status.CRASHED, Status.ERROR):
        return result.reason
    if result.status is Status.HOLDS:
        return "held when judged again: the kernel's results differ from run to run"
    return f"holds under {result.preset}" if result.preset else ""


def mapped(shown: Counterexample) -> Counterexample:
    """A counterexample with one error map a tensor: that of the case with the most elements."""
    largest: dict[str, Finding] = {}
    for found in (*shown.further, *shown.findings, *shown.first_findings):
        if found.map is not None and (found.tensor not in largest or found.elements > largest[found.tensor].elements):
            largest[found.tensor] = found

    def kept(findings: Sequence[Finding]) -> tuple[Finding, ...]:
        return tuple(each if each is largest.get(each.tensor) else replace(each, map=None) for each in findings)

    return replace(
        shown,
        findings=kept(shown.findings),
        first_findings=kept(shown.first_findings),
        further=kept(shown.further),
    )


def _settled(shown: Counterexample, own: Results) -> Counterexample:
    """A counterexample with the severity that triage found."""
    assert own.settled is not None
    record = own.settled
    if record.severity is Severity.WRONG and shown.preset:  # no contract explains a wrong formula
        shown = replace(shown, preset="", message="")
    shown = replace(shown, severity=record.severity, undecided=record.undecided)
    return replace(shown, loss=record.loss, constant=record.constant) if record.is_located else shown


def _of(record: CaseRecord) -> str:
    """The key under which cases are counted."""
    return f"{record.kernel} in {record.dtype}"


def _is_answered(record: CaseRecord) -> bool:
    """Whether a case has an answer about the kernel, a refusal included."""
    return any(each.status in _ANSWERS for each in record.results)


def _counted(several: Iterable[tuple[str, int]]) -> dict[str, int]:
    """The numbers of each name, added up."""
    found: dict[str, int] = {}
    for name, number in several:
        found[name] = found.get(name, 0) + number
    return found
