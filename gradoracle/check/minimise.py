"""Minimise: shrinks the case of each failing verdict, violated or crashed, as far as time allows."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, replace

from gradoracle.cases.shrinking import Late, shrink
from gradoracle.check.barring import Barring
from gradoracle.check.diagnosis.reconstruction import agreed
from gradoracle.check.fold import message_of
from gradoracle.check.plan import Subjects
from gradoracle.check.tally import Judged, Tally
from gradoracle.execution.executor import Executor, Lost
from gradoracle.model.case import Case
from gradoracle.model.derivative import Derivative
from gradoracle.model.fault import Fault, VerdictKey
from gradoracle.model.finding import LOCAL_SIGMA, EditedDefinition, Outcome
from gradoracle.model.job import Job, PropertyResult
from gradoracle.model.ledger import SmallerRecord
from gradoracle.model.property import DIRECT, PropertyKind
from gradoracle.model.reason import Reason
from gradoracle.model.severity import Severity
from gradoracle.model.verdict import Status
from gradoracle.model.wording import without_numbers
from gradoracle.project.request import Progress, Request

SHRINK_SECONDS, SHRINK_SECONDS_IN_ALL = 12.0, 60.0
EXPLAINED = 3  # cases for which an edited definition is searched
TRIES_OF_ONE, EXPLAINED_BY_TRIES = 30, 2  # where attempts count, not seconds; edits then come from smaller cases
INTERRUPTED, NOT_SHRUNK = "shrinking was interrupted", "not shrunk: the run was interrupted"
NOT_TELLING = "not shrunk: another verdict shows this fault"
Failing = tuple[VerdictKey, Judged]


@dataclass(frozen=True)
class Retry:
    """How cases are judged again.

    Attributes:
        executor: the executor that runs them.
        barring: counts calls that end their process.
        progress: the view of what is going on.
        until: the time after which no case is judged, on the monotonic clock; None: no limit.
    """

    executor: Executor
    barring: Barring
    progress: Progress
    until: float | None = None


def minimised(
    subjects: Subjects,
    tally: Tally,
    faults: Sequence[Fault],
    known: Container[tuple[VerdictKey, int]],
    retry: Retry | None,
) -> tuple[list[SmallerRecord], str]:
    """The case of each failing verdict, shrunk and judged again as far as time allows, leading verdicts first.

    After an interrupt no further case is judged, and what is known by then is returned.

    Args:
        subjects: the resolved request.
        tally: its results.
        faults: its verdicts grouped into faults.
        known: the verdict and the place of each case that was shrunk before.
        retry: the means to judge cases again; None: the run was interrupted, and no case is judged again.

    Returns:
        what was found, and what interrupted the shrinking, or "".
    """
    if not is_shrunk(subjects.request):
        return [], ""
    minimiser = _Minimiser(subjects, tally, retry)
    failing = [(key, judged) for key, judged in tally.failing() if (key, judged.place) not in known]
    return minimiser.all(failing, faults), minimiser.interrupted


def is_shrunk(request: Request) -> bool:
    """Whether failing cases are shrunk; one that is replayed, and saved tensors, are judged as they are."""
    return request.inputs is None and request.shrink_seconds != 0


class _Minimiser:
    """Shrinks the failures of one run within its seconds or attempts."""

    def __init__(self, subjects: Subjects, tally: Tally, retry: Retry | None) -> None:
        self._subjects, self._tally, self._retry = subjects, tally, retry
        self.interrupted = ""
        self._until = math.inf  # when to stop judging cases under other presets: a gate must be quick
        tries = subjects.request.shrink_tries
        self._by_tries = tries is not None
        self._tries = math.inf if tries is None else tries  # attempts left
        self._crashes: dict[tuple[str, str, str], tuple[Case, str]] = {}  # (kernel, dtype, how) -> smallest, note

    def all(self, failing: list[Failing], faults: Sequence[Fault]) -> list[SmallerRecord]:
        """What shrinking comes to for each failure."""
        crashed = {key for key, judged in failing if judged.result.status is Status.CRASHED}
        telling = _telling(faults, {key for key, _ in failing}, crashed)
        made: dict[VerdictKey, SmallerRecord] = {}
        if self._by_tries:
            made = {key: _as_it_is(key, each, NOT_TELLING) for key, each in failing if key not in telling}
            failing = [each for each in failing if each[0] in telling]
        failing = sorted(failing, key=self._specific)
        failing.sort(key=lambda each: telling.index(each[0]) if each[0] in telling else len(telling))
        left = dict(failing)
        try:
            deadline = self._deadline()
            for key, judged in failing:
                if self._retry is None or self.interrupted:
                    break
                smaller = self._crash if key in crashed else self._violation
                left_in_all = deadline - time.monotonic()
                seconds = left_in_all if self._by_tries else min(SHRINK_SECONDS, left_in_all)
                made[key] = smaller(key, judged, seconds)
                del left[key]
        except (KeyboardInterrupt, Lost) as error:
            self._interrupt(error)
        return [*made.values(), *(_as_it_is(key, judged, NOT_SHRUNK) for key, judged in left.items())]

    def _deadline(self) -> float:
        """When shrinking stops."""
        asked = self._subjects.request.shrink_seconds
        deadline = time.monotonic() + (SHRINK_SECONDS_IN_ALL if asked is None else asked)
        if self._retry is not None and self._retry.until is not None:
            self._until = deadline = min(deadline, self._retry.until)
        if asked is not None:
            self._until = min(self._until, deadline + asked / 3)
        return deadline

    def _interrupt(self, error: BaseException) -> None:
        how = f"{error}, while shrinking" if isinstance(error, Lost) else "interrupted while shrinking"
        self.interrupted = self.interrupted or how

    def _specific(self, failing: Failing) -> tuple[bool, int, str]:
        key, result = failing[0], failing[1].result
        if (
            result.status is Status.CRASHED
        ):  # calls on the sample itself come before those on variants, which have a prefix
            return True, result.reason.count(": "), key.property_name
        return False, -self._subjects.properties[key.property_name].rank, key.property_name

    def _violation(self, key: VerdictKey, judged: Judged, seconds: float) -> SmallerRecord:
        property_name, kernel, case, result = key.property_name, key.kernel, judged.record.built, judged.result
        known: dict[Case, PropertyResult] = {case: result}
        is_decided = result.severity not in (None, Severity.UNDECIDED)
        calls = tuple({each.call for each in judged.wrong if each.call is not None})

        def violates(candidate: Case) -> bool:
            if candidate not in known:
                known[candidate] = self._judge(kernel, candidate, property_name, calls, with_severity=is_decided)
            found = known[candidate]
            return as_plain(found, result) and (not is_decided or found.severity is result.severity)

        smallest, note = self._shrunk(key, case, violates, seconds)
        again = known[smallest]
        if not self.interrupted and time.monotonic() < self._until:
            try:
                again = self._again(kernel, smallest, property_name, calls)
                unexplained = again.severity is Severity.WRONG and again.constant is None
                if smallest != case and unexplained and self._subjects.properties[property_name].kind in DIRECT:
                    larger = self._again(
                        kernel, case, property_name, calls
                    )  # one element would be explained by any constant
                    again = replace(again, constant=larger.constant)
            except (KeyboardInterrupt, Lost) as error:
                self._interrupt(error)
        shown = again if again.status is Status.VIOLATED else known[smallest]
        shown = replace(shown, preset=again.preset, unexplained=again.unexplained)
        edited = self._edited(key, seconds)
        return SmallerRecord(key, judged.place, smallest.line(), shown, message_of(again), note, edited)

    def _edited(self, key: VerdictKey, seconds: float) -> EditedDefinition:
        """The edited definition that gives what the kernel gave on the largest few cases; none from one case."""
        property_name, kernel = key.property_name, key.kernel
        edited: list[tuple[EditedDefinition, ...] | None] = []
        telling = [each.record.built for each in self._tally.verdicts[key].telling]
        telling = telling[-EXPLAINED_BY_TRIES:] if self._by_tries else telling[:EXPLAINED]
        is_measured = self._subjects.properties[property_name].kind is PropertyKind.ORACLE
        if len(telling) > 1 and is_measured and seconds > 1 and not self.interrupted:
            try:
                for case in telling:
                    edited.append(self._settled(Job(kernel, case, (property_name,), edited=True)).edited)
            except (KeyboardInterrupt, Lost) as error:
                self._interrupt(error)
        return agreed(edited)

    def _crash(self, key: VerdictKey, judged: Judged, seconds: float) -> SmallerRecord:
        """One crashing call breaks every property that needs it; its case is shrunk once for all of them."""
        property_name, kernel, dtype = key.property_name, key.kernel, key.dtype
        case, result = judged.record.built, judged.result
        fault = (kernel, dtype, without_numbers(result.reason))
        known = self._crashes.get(fault)
        if known is None or not self._applies(property_name, kernel, known[0]):
            self._crashes[fault] = known = self._smaller_crash(key, case, result, seconds)
        smallest, note = known
        findings = result.findings if smallest == case else ()  # findings of another case would be misleading here
        shown = replace(result, findings=findings)
        return SmallerRecord(key, judged.place, smallest.line(), shown, message_of(result), note)

    def _smaller_crash(self, key: VerdictKey, case: Case, result: PropertyResult, seconds: float) -> tuple[Case, str]:
        """The smallest case found on which the call crashes as it did, and a note; a hang is not shrunk."""
        property_name, kernel = key.property_name, key.kernel
        if result.why is Reason.HUNG:
            return case, "not shrunk: every attempt at a call that hangs takes the whole time limit"
        deadline, expected = time.monotonic() + seconds, without_numbers(result.reason)

        def crashes(candidate: Case) -> bool:
            if self._retry is None or not self._applies(property_name, kernel, candidate):
                return False
            limit = max(1.0, deadline - time.monotonic()) / self._subjects.setup.call_seconds
            own = Job(kernel, candidate, (property_name,), patience=min(1.0, limit))
            tried = self._retry.barring.attempt(own).results
            return any(each.status is Status.CRASHED and without_numbers(each.reason) == expected for each in tried)

        try:
            for (other, dtype, _), (smallest, _) in list(self._crashes.items()):  # cases on which another call crashes
                if (other, dtype) == (kernel, key.dtype) and seconds > 1 and self._tries > 0:
                    self._tries -= 1
                    if crashes(smallest):
                        return smallest, ""
        except (KeyboardInterrupt, Lost) as error:
            self._interrupt(error)
            return case, INTERRUPTED
        return self._shrunk(key, case, crashes, seconds)

    def _shrunk(self, key: VerdictKey, case: Case, fails: Callable[[Case], bool], seconds: float) -> tuple[Case, str]:
        """The smallest case found that still fails, and a note on why it may not be the smallest."""
        property_name, kernel = key.property_name, key.kernel
        if seconds <= 1 or self._tries <= 0:
            used_up = "time for shrinking was" if seconds <= 1 else "attempts at shrinking were"
            return case, f"not shrunk: the {used_up} used up by other properties"
        best = [case]

        def failing(candidate: Case) -> bool:
            self._tries -= 1
            try:
                found = fails(candidate)
            except Lost as error:  # Hypothesis would take it for a failure
                self._interrupt(error)
                raise Late(INTERRUPTED) from None
            if found:
                best.append(candidate)
            return found

        own, dims = self._subjects.kernels[kernel], self._subjects.request.dims or None
        calls = min(TRIES_OF_ONE, int(self._tries)) if self._by_tries else None
        try:
            if self._retry is not None:
                self._retry.progress.shrinking(property_name, self._subjects.line(kernel, case))
            family = self._subjects.family
            return shrink(family, own, case, failing, seconds=seconds, dtypes=(case.dtype,), dims=dims, calls=calls)
        except KeyboardInterrupt as error:
            self._interrupt(error)
            return best[-1], INTERRUPTED

    def _judge(
        self,
        kernel: str,
        case: Case,
        property_name: str,
        calls: tuple[Derivative, ...] = (),
        *,
        with_severity: bool = False,
    ) -> PropertyResult:
        if not self._applies(property_name, kernel, case):
            return PropertyResult(property_name, Status.NOT_CHECKED)
        return self._settled(Job(kernel, case, (property_name,), with_severity=with_severity, calls=calls))

    def _again(self, kernel: str, case: Case, property_name: str, calls: tuple[Derivative, ...] = ()) -> PropertyResult:
        """The result on the smallest case, judged once more, with its severity."""
        return self._settled(Job(kernel, case, (property_name,), with_severity=True, located=True, calls=calls))

    def _settled(self, job: Job) -> PropertyResult:
        """The result of the one property of a job."""
        (property_name,) = job.properties
        if self._retry is None:
            return PropertyResult(property_name, Status.NOT_CHECKED)
        result = self._retry.barring.settle(next(iter(self._retry.executor.run([job]))))
        return result.results[0] if result.results else PropertyResult(property_name, Status.NOT_CHECKED)

    def _applies(self, property_name: str, kernel: str, case: Case) -> bool:
        return self._subjects.properties[property_name].applies(case, self._subjects.kernels[kernel]) is None


def as_plain(smaller: PropertyResult, first: PropertyResult) -> bool:
    """Whether a smaller case shows a violation as plainly as the case on which it was first seen.

    A tensor that was most wrong there is wrong in the same way: lost values (NaN, infinite) stay lost, facts without a
    budget facts, and an error is at least as many times its budget as it was, or L times: as far beyond the budget as
    the budget is beyond a standard deviation. So a search for few elements does not end where rounding nearly explains
    the error, or at another fault.

    Args:
        smaller: the result on the smaller case.
        first: the result on the first case, a violation.
    """
    wrong = [found for found in first.findings if found.outcome is Outcome.VIOLATED]
    if smaller.status is not Status.VIOLATED or not wrong:
        return smaller.status is Status.VIOLATED
    most = max(found.error for found in wrong)
    least = math.inf if most == math.inf else min(most, LOCAL_SIGMA)
    worst = [found for found in wrong if found.error == most]
    named, lost = {name for found in worst for name in found.named}, any(found.lost for found in worst)
    return any(
        found.error >= least and found.lost is lost and not named.isdisjoint(found.named)
        for found in smaller.findings
        if found.outcome is Outcome.VIOLATED
    )


def _telling(faults: Sequence[Fault], found: set[VerdictKey], crashed: set[VerdictKey]) -> list[VerdictKey]:
    """The verdicts whose cases a report shows: those that lead its faults, violations first, then specific ones."""
    leads = sorted((each.verdicts[0] for each in faults), key=lambda key: key in crashed)
    specific = [each.specific for each in faults if each.specific is not None]
    return [key for key in (*leads, *specific) if key in found]


def _as_it_is(key: VerdictKey, judged: Judged, note: str) -> SmallerRecord:
    """A failure whose case is not shrunk."""
    return SmallerRecord(key, judged.place, note=note)
