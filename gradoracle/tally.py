"""Tally: case results added up into one Verdict per law, kernel and dtype."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

from gradoracle.case import Case
from gradoracle.examine import CaseResult, LawResult
from gradoracle.finding import Outcome, Pool
from gradoracle.rules import pooled
from gradoracle.verdict import BROKEN, FAILING, Counterexample, Status, Verdict

DECLARED_MISSING = ("no forward mode", "no double backward")  # a derivative that a kernel need not have
TELLING, _TOLD = 8, 1 << 18  # violating cases of a verdict that are kept, and elements of one
Key = tuple[str, str, str]  # law, kernel, dtype


@dataclass
class Count:
    """What is known of one verdict so far."""

    statuses: Counter[Status] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    refusals: Counter[str] = field(default_factory=Counter)
    notes: Counter[str] = field(default_factory=Counter)
    decided: Counter[str] = field(default_factory=Counter)  # tensor -> cases on which it was decided
    left: dict[str, str] = field(default_factory=dict)  # tensor -> a reason why it was not
    sensitivities: list[float] = field(default_factory=list)
    error: float = 0.0
    in_sigma: float = 0.0
    pools: dict[str, Pool] = field(default_factory=dict)  # tensor -> what its findings pool, added up
    pooled: int = 0  # tensors in them
    cases: dict[str, Case] = field(default_factory=dict)  # reason, or tensor in ``left`` -> the first such case
    first: dict[Status, tuple[Case, LawResult]] = field(default_factory=dict)
    telling: list[tuple[Case, LawResult]] = field(default_factory=list)  # violating cases of most elements


class Tally:
    """Adds up case results; ``verdicts`` may be asked for at any time.

    Attributes:
        judged: cases on which some law held, was violated or crashed.
        planned: cases that are to come, by "kernel in dtype".
        answered: cases on which some law said something of the kernel, a refusal too, by the same.
        alarming: those on which some law was violated or crashed.

    Args:
        decisive: names of the laws whose every tensor must be decided on some case of each dtype.
        line: how a case of a kernel is written; by default with the kernel as its target.
    """

    def __init__(
        self,
        decisive: Iterable[str] = (),
        line: Callable[[str, Case], str] = lambda kernel, case: case.line(kernel),
    ) -> None:
        self._decisive, self._line = set(decisive), line
        self._counts: dict[Key, Count] = defaultdict(Count)
        self.judged = self.alarming = 0
        self.planned: Counter[str] = Counter()
        self.answered: Counter[str] = Counter()

    def plan(self, kernel: str, case: Case) -> None:
        """Name a case that is to come."""
        self.planned[_of(kernel, case)] += 1

    @property
    def counts(self) -> dict[Key, Count]:
        """What is known of each verdict so far, in the order in which they are told."""
        return self._counts

    def expect(self, law: str, kernel: str, dtype: str) -> None:
        """Name a verdict that the run owes, so that it is missed where no case decides it."""
        self._counts[law, kernel, dtype]

    def add(self, result: CaseResult) -> None:
        """Add one case."""
        statuses = {law.status for law in result.results}
        alarm = not statuses.isdisjoint(BROKEN)
        self.alarming += alarm
        self.judged += alarm or Status.HOLDS in statuses
        self.answered[_of(result.kernel, result.case)] += not statuses <= {Status.NOT_CHECKED, Status.ERROR}
        for law in result.results:
            self._add(self._counts[law.law, result.kernel, result.case.dtype], result.case, law)

    def failing(self, statuses: Sequence[Status] = BROKEN) -> Iterable[tuple[Key, Status, Case, LawResult]]:
        """The first case of each verdict that has one of these statuses, of the first of them."""
        for key, count in self._counts.items():
            for status in statuses:
                if status in count.first:
                    yield key, status, *count.first[status]
                    break

    def telling(self, key: Key) -> list[tuple[Case, LawResult]]:
        """The violating cases of a verdict that show most, since they have the most elements; most first."""
        return self._counts[key].telling

    def verdicts(self, counterexamples: Mapping[Key, Counterexample]) -> list[Verdict]:
        """One Verdict per law, kernel and dtype, the pooled rules applied to all its cases."""
        return [self._verdict(key, count, counterexamples.get(key)) for key, count in self._counts.items()]

    def undecided(self) -> list[str]:
        """What no case decided of decisive laws, as sentences, each reason said once: such a run is not green."""
        laws: dict[tuple[str, str], dict[str, list[str]]] = {}  # (kernel, reason) -> dtype -> laws
        found = []
        taken = {  # where some decisive law has judged, a backward that always refuses is no want of support
            (kernel, dtype)
            for (law, kernel, dtype), count in self._counts.items()
            if law in self._decisive and count.statuses.keys() & {Status.HOLDS, Status.VIOLATED}
        }
        for (law, kernel, dtype), count in self._counts.items():
            if law not in self._decisive:
                continue
            if set(count.statuses) == {Status.NOT_CHECKED} and not count.left:
                reason = next(iter(count.reasons))
                if not reason.startswith(DECLARED_MISSING):
                    laws.setdefault((kernel, reason), {}).setdefault(dtype, []).append(law)
            only_refused = count.refusals and not set(count.statuses) - {Status.REFUSED, Status.NOT_CHECKED}
            if only_refused and (kernel, dtype) in taken:
                reason = f"refused: {next(iter(count.refusals))}"
                laws.setdefault((kernel, reason), {}).setdefault(dtype, []).append(law)
            for tensor, reason in count.left.items():
                if not count.decided[tensor] and not count.statuses[Status.VIOLATED]:
                    found.append(f"{tensor} of {law} was decided on no {dtype} case of {kernel}: {reason}")
        return [*_undecided(laws), *found]

    def _add(self, count: Count, case: Case, law: LawResult) -> None:
        count.statuses[law.status] += 1
        count.first.setdefault(law.status, (case, law))
        if law.status is Status.REFUSED:
            count.refusals[law.reason] += 1
        if law.status in (Status.REFUSED, Status.NOT_CHECKED):
            count.reasons[law.reason] += 1
            count.cases.setdefault(law.reason, case)
        if law.status is Status.VIOLATED and _elements(law) <= _TOLD:
            count.telling = sorted([*count.telling, (case, law)], key=lambda each: -_elements(each[1]))[:TELLING]
        for finding in law.findings:
            if finding.outcome is Outcome.NOT_CHECKED:
                count.left.setdefault(finding.tensor, finding.message)
                count.cases.setdefault(finding.tensor, case)
                continue
            count.decided[finding.tensor] += 1
            if finding.error < float("inf"):
                count.error = max(count.error, finding.error)
                count.in_sigma = max(count.in_sigma, finding.error_in_sigma)
            if finding.sensitivity is not None:
                count.sensitivities.append(finding.sensitivity)
            if finding.message and finding.outcome is Outcome.HOLDS and finding.message.startswith("gives away"):
                count.notes["gives away accuracy against 'definition': " + finding.tensor] += 1
            if finding.pool is not None:
                known = count.pools.get(finding.tensor)
                count.pools[finding.tensor] = finding.pool if known is None else known + finding.pool
                count.pooled += 1

    def _verdict(self, key: Key, count: Count, counterexample: Counterexample | None) -> Verdict:
        law, kernel, dtype = key
        verdict = Verdict(
            law,
            kernel,
            dtype,
            _status(count),
            cases_held=count.statuses[Status.HOLDS],
            cases_violated=count.statuses[Status.VIOLATED],
            cases_crashed=count.statuses[Status.CRASHED],
            cases_error=count.statuses[Status.ERROR],
            cases_refused=count.statuses[Status.REFUSED],
            cases_not_checked=count.statuses[Status.NOT_CHECKED],
            reasons=dict(count.reasons),
            worst_error=count.error,
            worst_in_sigma=count.in_sigma,
            sensitivity=median(count.sensitivities) if count.sensitivities else None,
            counterexample=counterexample,
            notes=[f"{note} on {n} cases" for note, n in count.notes.items()],
            tensors_compared=count.decided.total(),
        )
        if not count.statuses:
            verdict.reasons = {"no case of this run applies": 0}
        if verdict.status is Status.HOLDS:
            broken = [f for f in pooled(count.pools) if f.outcome is Outcome.VIOLATED]
            if broken:
                verdict.status = Status.VIOLATED
                verdict.worst_error = max(f.error for f in broken)
                case, _ = count.first[Status.HOLDS]
                message = f"over {count.pooled} tensors of all {dtype} cases together, each within its own budget"
                line = self._line(kernel, case)
                verdict.counterexample = Counterexample(line, tuple(broken), message=message, pooled=True)
        return verdict


def _of(kernel: str, case: Case) -> str:
    """What cases are counted by."""
    return f"{kernel} in {case.dtype}"


def _elements(result: LawResult) -> int:
    """How many elements the tensors have that a law finds wrong."""
    return sum(finding.elements for finding in result.findings if finding.outcome is Outcome.VIOLATED)


def _undecided(laws: Mapping[tuple[str, str], Mapping[str, list[str]]]) -> Iterator[str]:
    """One sentence for each kernel and reason; ``laws``: (kernel, reason) -> dtype -> laws that were not decided."""
    for (kernel, reason), by_dtype in laws.items():
        names = list(dict.fromkeys(name for own in by_dtype.values() for name in own))
        who = f"{names[0]} was" if len(names) == 1 else f"{len(names)} laws ({', '.join(names)}) were"
        yield f"{who} decided on no {' or '.join(by_dtype)} case of {kernel}: {reason}"


def _status(count: Count) -> Status:
    """The worst status that says something; refused and not checked only where no case held."""
    for status in (*FAILING, Status.HOLDS, Status.REFUSED):
        if count.statuses[status]:
            return status
    return Status.NOT_CHECKED
