"""Schedule: which job of a plan runs next, so that each kernel is compiled once, before the cases that call it."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from gradoracle.execution.executor import LATER, Result
from gradoracle.model.job import Compilation, Job, Rehearsal

Ahead = Compilation | Rehearsal


class Schedule:
    """Jobs in the order of the plan, as soon as their kernels are compiled.

    A case is first rehearsed, which says what it needs compiled. Processes that are free compile what no other has
    begun, in the order in which it was first asked for. Of the cases for which everything is there the first runs
    next, before any further compilation, so that results come early. What a rehearsal misses is compiled in its case.

    Args:
        jobs: the jobs of the plan, in the order in which to begin them.
        ahead: whether the compilations of a job are made ahead.
    """

    def __init__(self, jobs: Sequence[Job], ahead: Callable[[Job], bool]) -> None:
        self._jobs = jobs
        self._ready = [place for place, job in enumerate(jobs) if not ahead(job)]
        self._unrehearsed = deque(place for place, job in enumerate(jobs) if ahead(job))
        self._rehearsed: dict[Rehearsal, list[int]] = {}  # that run now, and whose
        self._asked: dict[Compilation, list[int]] = {}  # in order; that nobody has made yet, and by which jobs
        self._begun: set[Compilation] = set()
        self._made: set[Compilation] = set()
        self._lacking: dict[int, int] = {}  # how many compilations a job waits for

    def __iter__(self) -> Iterator[Any]:
        """Jobs, and what is done ahead of them; ``LATER`` where what runs must end first."""
        while True:
            if self._ready:
                yield self._jobs[heapq.heappop(self._ready)]
            elif (found := next((each for each in self._asked if each not in self._begun), None)) is not None:
                self._begun.add(found)
                yield found
            elif self._unrehearsed:
                place = self._unrehearsed.popleft()
                job = self._jobs[place]
                rehearsal = Rehearsal(job.kernel, job.case, job.properties)
                self._rehearsed.setdefault(rehearsal, []).append(place)
                yield rehearsal
            elif self._lacking or self._rehearsed:
                yield LATER
            else:
                return

    def took(self, result: Result) -> bool:
        """Note the result of what was done ahead, however it ended; False for that of a job."""
        job = result.job
        if isinstance(job, Rehearsal):
            needed = [each for each in dict.fromkeys(result.value or ()) if each not in self._made]
            for place in self._rehearsed.pop(job, ()):
                self._lacking[place] = len(needed)
                for each in needed:
                    self._asked.setdefault(each, []).append(place)
                self._let_go(place)
        elif isinstance(job, Compilation):
            self._made.add(job)
            for place in self._asked.pop(job, ()):
                self._lacking[place] -= 1
                self._let_go(place)
        return isinstance(job, Ahead)

    def _let_go(self, place: int) -> None:
        """A job that lacks nothing is ready."""
        if not self._lacking[place]:
            del self._lacking[place]
            heapq.heappush(self._ready, place)
