"""Counterexamples: each failing verdict's case, made smaller where time allows, whether it violates or crashes."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from gradoracle.case import Case
from gradoracle.crashes import TIME_LIMIT
from gradoracle.examine import Job, LawResult
from gradoracle.finding import Finding, Outcome
from gradoracle.likeness import NO_LIKENESS, Likeness, is_one_factor
from gradoracle.report.failure import faults
from gradoracle.shrinking import Late
from gradoracle.strategies import shrink
from gradoracle.symptom import MATCHES
from gradoracle.tally import Key
from gradoracle.verdict import Counterexample, Status, without_numbers
from gradoracle.worker import Lost

if TYPE_CHECKING:
    from gradoracle.check import Run

SHRINK_SECONDS, SHRINK_SECONDS_IN_ALL = 12.0, 60.0
EXPLAINED = 3  # cases for which a formula is looked for
TRIES_OF_ONE, EXPLAINED_BY_TRIES = 30, 2  # where tries are counted; a formula is looked for on smaller cases then
INTERRUPTED, NOT_SHRUNK = "shrinking was interrupted", "not shrunk: the run was interrupted"
NOT_TELLING = "not shrunk: another verdict tells this fault"
Failing = tuple[Key, Status, Case, LawResult]


class Counterexamples:
    """What fails in a run, shrunk while there is time: what tells the faults of a run before all else."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._until = math.inf  # when cases are no more judged under other presets: where a gate is to be quick
        tries = run.request.shrink_tries
        self._by_tries = tries is not None
        self._tries = math.inf if tries is None else tries  # cases that may still be judged
        self._crashes: dict[tuple[str, str, str], tuple[Case, str]] = {}  # (kernel, dtype, how) -> smallest, note

    def all(self) -> dict[Key, Counterexample]:
        """Each failing verdict's case; a violation is judged once more under the other presets.

        After an interrupt, or without workers, no further case is judged, and what is known by then is given.
        """
        run, failing = self._run, sorted(self._run.tally.failing(), key=self._specific)
        found = {key: self._as_found(key, case, result) for key, _, case, result in failing}
        errors = {key: self._as_found(key, case, law) for key, _, case, law in run.tally.failing([Status.ERROR])}
        return errors | self._explained_all(failing, found)

    def _explained_all(self, failing: list[Failing], found: dict[Key, Counterexample]) -> dict[Key, Counterexample]:
        """What was found, made smaller and explained as far as there is time."""
        run = self._run
        if run.request.inputs:
            return {key: mapped(shown) for key, shown in found.items()}
        if run.request.shrink_seconds == 0:  # a case that was asked for is judged as it is
            found |= {key: replace(found[key], formula=agreed([result.formula])) for key, _, _, result in failing}
            return {key: mapped(shown) for key, shown in found.items()}
        found = {key: replace(shown, further=self._further(key)) for key, shown in found.items()}
        telling = self._telling(found)
        if self._by_tries:
            others = [key for key in found if key not in telling]
            found |= {key: replace(found[key], shrink_note=NOT_TELLING) for key in others}
            failing = [each for each in failing if each[0] in telling]
        failing.sort(key=lambda each: telling.index(each[0]) if each[0] in telling else len(telling))
        left = [key for key, *_ in failing]
        try:
            asked = run.request.shrink_seconds
            deadline = time.monotonic() + (SHRINK_SECONDS_IN_ALL if asked is None else asked)
            if run.until is not None:
                deadline = min(deadline, run.until)
                self._until = deadline
            if asked is not None:
                self._until = min(self._until, deadline + asked / 3)
            for key, status, case, result in failing:
                if run.interrupted:
                    break
                smaller = self._crash if status is Status.CRASHED else self._violation
                left_in_all = deadline - time.monotonic()
                seconds = left_in_all if self._by_tries else min(SHRINK_SECONDS, left_in_all)
                found[key] = smaller(key, case, result, seconds)
                left.remove(key)
        except (KeyboardInterrupt, Lost) as error:
            self._interrupt(error)
        found |= {key: replace(found[key], shrink_note=NOT_SHRUNK) for key in left}
        return {key: mapped(shown) for key, shown in found.items()}

    def _as_found(self, key: Key, case: Case, result: LawResult) -> Counterexample:
        line = self._run.line(key[1], case)
        return Counterexample(line, result.findings, message=_message(result), trace=result.trace)

    def _interrupt(self, error: BaseException) -> None:
        told = f"{error}, while shrinking" if isinstance(error, Lost) else "interrupted while shrinking"
        self._run.interrupted = self._run.interrupted or told

    def _telling(self, found: dict[Key, Counterexample]) -> list[Key]:
        """The verdicts whose cases a report shows: those that lead its faults, violations first, and direct ones."""
        told = faults(self._run.verdicts(found))
        leads = sorted((fault.lead for fault in told), key=lambda lead: lead.status is Status.CRASHED)
        direct = [fault.direct for fault in told if fault.direct is not None]
        return [key for each in (*leads, *direct) if (key := (each.law, each.kernel, each.dtype)) in found]

    def _further(self, key: Key) -> tuple[Finding, ...]:
        """What the largest cases of a verdict show to be wrong."""
        telling = self._run.tally.telling(key)
        return tuple(f for _, result in telling for f in result.findings if f.outcome is Outcome.VIOLATED)

    def _specific(self, failing: Failing) -> tuple[bool, int, str]:
        (law, _, _), status, _, result = failing
        if status is Status.CRASHED:  # calls on the sample itself before those on variants, whose names come first
            return True, result.reason.count(": "), law
        return False, -self._run.laws[law].rank if law in self._run.laws else 0, law

    def _violation(self, key: Key, case: Case, result: LawResult, seconds: float) -> Counterexample:
        law, kernel, _ = key
        known: dict[Case, LawResult] = {case: result}

        def violates(candidate: Case) -> bool:
            if candidate not in known:
                known[candidate] = self._judge(kernel, candidate, law)
            return known[candidate].status is Status.VIOLATED

        smallest, note = self._shrunk(key, case, violates, seconds)
        explained = known[smallest]
        if not self._run.interrupted and time.monotonic() < self._until:
            try:
                explained = self._judge(kernel, smallest, law, presets=True)
            except (KeyboardInterrupt, Lost) as error:
                self._interrupt(error)
        findings = (explained if explained.status is Status.VIOLATED else known[smallest]).findings
        shown = Counterexample(
            self._run.line(kernel, smallest), findings, shrink_note=note, message=_message(explained)
        )
        return self._explained(self._shrunk_from(shown, key, case, result), key, seconds)

    def _explained(self, shown: Counterexample, key: Key, seconds: float) -> Counterexample:
        """A counterexample with what larger cases show, and with the formula that explains the largest few."""
        law, kernel, _ = key
        formulas: list[Likeness] = []
        if law.endswith(MATCHES) and seconds > 1 and not self._run.interrupted:
            try:
                telling = self._run.tally.telling(key)
                for case, _ in telling[-EXPLAINED_BY_TRIES:] if self._by_tries else telling[:EXPLAINED]:
                    formulas.append(self._settled(Job(kernel, case, (law,), formulas=True)).formula)
            except (KeyboardInterrupt, Lost) as error:
                self._interrupt(error)
        return replace(shown, formula=agreed(formulas), further=self._further(key))

    def _shrunk_from(self, shown: Counterexample, key: Key, case: Case, result: LawResult) -> Counterexample:
        """A counterexample with its first case and what was wrong on it, where that is another case."""
        if shown.case == (first := self._run.line(key[1], case)):
            return shown
        wrong = tuple(finding for finding in result.findings if finding.outcome is Outcome.VIOLATED)
        return replace(shown, shrunk_from=first, first_findings=wrong)

    def _crash(self, key: Key, case: Case, result: LawResult, seconds: float) -> Counterexample:
        """One call that crashes breaks every law that needs it: its case is made smaller once for all of them."""
        law, kernel, dtype = key
        fault = (kernel, dtype, without_numbers(result.reason))
        known = self._crashes.get(fault)
        if known is None or not self._applies(law, kernel, known[0]):
            self._crashes[fault] = known = self._smaller_crash(key, case, result, seconds)
        smallest, note = known
        findings = result.findings if smallest == case else ()  # those of another case would be shown beside this one
        shown = Counterexample(self._run.line(kernel, smallest), findings, shrink_note=note, message=result.reason)
        return self._shrunk_from(shown, key, case, result)

    def _smaller_crash(self, key: Key, case: Case, result: LawResult, seconds: float) -> tuple[Case, str]:
        """The smallest case found on which a law's call crashes as it did, and a note; hangs are left as they are."""
        law, kernel, _ = key
        if TIME_LIMIT in result.reason:
            return case, "not shrunk: each try of a call that hangs would take its time limit"
        deadline, wanted = time.monotonic() + seconds, without_numbers(result.reason)

        def crashes(candidate: Case) -> bool:
            if not self._applies(law, kernel, candidate):
                return False
            limit = max(1.0, deadline - time.monotonic()) / self._run.setup.call_seconds
            tried = self._run.crashes.attempt(Job(kernel, candidate, (law,)), min(1.0, limit)).results
            return any(each.status is Status.CRASHED and without_numbers(each.reason) == wanted for each in tried)

        try:
            for (other, dtype, _), (smallest, _) in list(self._crashes.items()):  # what another call crashes on
                if (other, dtype) == key[1:] and seconds > 1 and self._tries > 0:
                    self._tries -= 1
                    if crashes(smallest):
                        return smallest, ""
        except (KeyboardInterrupt, Lost) as error:
            self._interrupt(error)
            return case, INTERRUPTED
        return self._shrunk(key, case, crashes, seconds)

    def _shrunk(self, key: Key, case: Case, fails: Callable[[Case], bool], seconds: float) -> tuple[Case, str]:
        """The smallest case found that still fails, and why it may not be the smallest."""
        law, kernel, _ = key
        if seconds <= 1 or self._tries <= 0:
            used_up = "time for shrinking was" if seconds <= 1 else "tries for shrinking were"
            return case, f"not shrunk: the {used_up} used up by other laws"
        best = [case]

        def failing(candidate: Case) -> bool:
            self._tries -= 1
            try:
                found = fails(candidate)
            except Lost as error:  # which Hypothesis would take for a failure
                self._interrupt(error)
                raise Late(INTERRUPTED) from None
            if found:
                best.append(candidate)
            return found

        run, dims = self._run, self._run.request.dims or None
        calls = min(TRIES_OF_ONE, int(self._tries)) if self._by_tries else None
        try:
            run.progress.shrinking(law, run.line(kernel, case))
            own, dtypes = run.kernels[kernel], (case.dtype,)
            return shrink(run.family, own, case, failing, seconds=seconds, dtypes=dtypes, dims=dims, calls=calls)
        except KeyboardInterrupt as error:
            self._interrupt(error)
            return best[-1], INTERRUPTED

    def _judge(self, kernel: str, case: Case, law: str, presets: bool = False) -> LawResult:
        if not self._applies(law, kernel, case):
            return LawResult(law, Status.NOT_CHECKED)
        return self._settled(Job(kernel, case, (law,), presets=presets))

    def _settled(self, job: Job) -> LawResult:
        """What the one law of a job says."""
        (law,) = job.laws
        result = self._run.crashes.settle(next(iter(self._run.workers.run([job]))))
        return result.results[0] if result.results else LawResult(law, Status.NOT_CHECKED)

    def _applies(self, law: str, kernel: str, case: Case) -> bool:
        return self._run.laws[law].applies(case, self._run.kernels[kernel]) is None


def mapped(shown: Counterexample) -> Counterexample:
    """A counterexample with one map a tensor, that of the case of most elements."""
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


def agreed(formulas: Sequence[Likeness]) -> Likeness:
    """The formula of most cases that one explains, by its cause; none where they do not agree.

    A factor near 1 may be what a rounding makes of one; not so where it is the same on all.
    """
    known = [formula for formula in formulas if formula.cause]
    ratios = [formula.ratio for formula in known if formula.ratio is not None]
    if len(ratios) == len(known) and is_one_factor(ratios):
        return replace(known[0], cause="ratio")
    for cause, count in Counter(formula.cause for formula in known).most_common(1):
        if 2 * count > len(known):
            return next(formula for formula in known if formula.cause == cause)
    return NO_LIKENESS


def _message(result: LawResult) -> str:
    """What is said of a failing case beside its findings: how it crashed, or what would explain it."""
    if result.status in (Status.CRASHED, Status.ERROR):
        return result.reason
    if result.status is Status.HOLDS:
        return "held when it was judged once more: the kernel differs from run to run"
    return f"holds under {result.preset}" if result.preset else ""
