"""Totals: the sum of the results of a plan: verdicts, coverage, refusals and measurements."""

from __future__ import annotations

from gradoracle.cases.case_space import length
from gradoracle.cases.coverage import goals_of
from gradoracle.check.aggregate import Aggregate
from gradoracle.check.plan import Plan
from gradoracle.model.case import Case
from gradoracle.model.job import CaseResult
from gradoracle.model.property import PropertyKind
from gradoracle.model.reason import Reason
from gradoracle.model.statistics import Measurements
from gradoracle.model.verdict import BROKEN, Status


class Totals:
    """Adds up the results of a plan, in any order.

    Attributes:
        aggregate: the sums of each verdict.
        measurements: the distributions that no verdict holds.
        goals: the number of cases that meet each coverage goal.
        refusals: by message, what the refused cases have in common: ``{"dtype=..": cases, "layout=..": cases}``.
        first: the place of the first case of each coverage goal and message.
        undefined: the mistakes of the definition, by the place of the case.
        done: the number of cases that were added.
        seconds_compiling: the total over all processes.
        longest_compilation: seconds of the longest.
    """

    def __init__(self, plan: Plan) -> None:
        self._plan, subjects = plan, plan.subjects
        self.aggregate = Aggregate(subjects.line, plan.place)
        for key in plan.owed:
            self.aggregate.expect(key)
        for job in plan.jobs:
            self.aggregate.plan(job.kernel, job.case)
        self.measurements = Measurements(length(subjects.family))
        self.goals: dict[str, int] = {}
        self.refusals: dict[str, dict[str, int]] = {}
        self.first: dict[str, int] = {}
        self.undefined: dict[int, str] = {}
        self.done = 0
        self.seconds_compiling = self.longest_compilation = 0.0

    def add(self, result: CaseResult) -> None:
        """Add one case."""
        subjects, place = self._plan.subjects, self._plan.place(result.kernel, result.case)
        self.aggregate.add(result)
        for each in result.results:
            direct = subjects.properties[each.property_name].kind is PropertyKind.ORACLE
            self.measurements.add(result.kernel, result.case, each.findings, direct)
        self.done += 1
        self.compiled(result.compiling, result.longest_compilation)
        for sentence in sorted({r.reason for r in result.results if r.why in (Reason.OUTSIDE, Reason.UNDEFINED)})[:1]:
            self.undefined[place] = sentence
        refused = [r.reason for r in result.results if r.status is Status.REFUSED]
        if refused:
            self._tabulate(refused[0], result.case)
            self._see(refused[0], place)
        decided = any(r.status in (Status.HOLDS, *BROKEN) for r in result.results)
        if decided and not subjects.request.inputs:
            for name in sorted(goals_of(subjects.family, subjects.kernels[result.kernel], result.case)):
                self.goals[name] = self.goals.get(name, 0) + 1
                self._see(name, place)

    def compiled(self, seconds: float, longest: float) -> None:
        """Add compilations: the seconds of all and of the longest."""
        self.seconds_compiling += seconds
        self.longest_compilation = max(self.longest_compilation, longest)

    def in_order(self) -> tuple[dict[str, int], dict[str, dict[str, int]]]:
        """Coverage and refusals in stream order."""
        names = sorted(self.first, key=lambda name: self.first[name])
        return (
            {name: self.goals[name] for name in names if name in self.goals},
            {name: self.refusals[name] for name in names if name in self.refusals},
        )

    def _see(self, name: str, place: int) -> None:
        """Note the first case of something; within one case the order of the calls counts."""
        if name not in self.first or place < self.first[name]:
            self.first.pop(name, None)
            self.first[name] = place

    def _tabulate(self, message: str, case: Case) -> None:
        """Count a refusal by dtype, dims and layouts, so that the rule behind it shows."""
        table = self.refusals.setdefault(message, {})
        layouts = {draw.layout for draw in dict(case.draws).values()} - {"contiguous"}
        ranks = self._plan.subjects.family.signature.ranks(case.dims)
        sizes = [f"{name}={size}" for name, size in (ranks | dict(case.dims)).items()]
        for mark in (f"dtype={case.dtype}", *sizes, *(f"layout={layout}" for layout in sorted(layouts))):
            table[mark] = table.get(mark, 0) + 1
