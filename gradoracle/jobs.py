"""Jobs: the cases that a request asks for, in the order of the stream, with the laws that fall on each."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from gradoracle import capacity
from gradoracle.case import Case
from gradoracle.errors import UsageError
from gradoracle.examine import CALL_SECONDS, CaseResult, Job, Setup, Trial
from gradoracle.kernel import Kernel
from gradoracle.property import Property
from gradoracle.request import Request
from gradoracle.saved import saved_case
from gradoracle.sharding import Stream
from gradoracle.strategies import stream, wanted_situations

if TYPE_CHECKING:
    from gradoracle.check import Run

CASES_ON_CPU, CASES_ON_CUDA = 126, 2000


class Turns:
    """Results in the order in which their jobs were planned, whatever order they come in.

    What a run says, which of several cases it shows say, then depends on the plan alone.
    """

    def __init__(self, planned: Sequence[Job]) -> None:
        self._places = {(job.kernel, job.case): place for place, job in enumerate(planned)}
        self._waiting: dict[int, CaseResult] = {}
        self._next = 0

    def add(self, result: CaseResult) -> Iterator[CaseResult]:
        """One more result: those whose turn it is."""
        self._waiting[self._places[result.kernel, result.case]] = result
        while self._next in self._waiting:
            yield self._waiting.pop(self._next)
            self._next += 1

    def rest(self) -> Iterator[CaseResult]:
        """What still waits for others, which do not come any more."""
        for place in sorted(self._waiting):
            yield self._waiting.pop(place)


def setup_of(request: Request, device: str) -> Setup:
    """What a request asks a worker to rebuild, on this device."""
    return Setup(
        request.target,
        request.family,
        device,
        request.oracle,
        dict(request.contracts),
        dict(request.arguments),
        CALL_SECONDS if request.call_seconds is None else request.call_seconds,
        request.inputs,
        request.places,
        request.called_in if device == "cpu" else "",
    )


def jobs_of_request(run: Run, chosen: Callable[[Job], tuple[str, ...]] | None = None) -> list[Job]:
    """The cases that a request asks for, seen to fit the family and the memory.

    Args:
        run: of the request.
        chosen: which of a job's laws to judge; a job of none is left out. None: all.

    Raises:
        UsageError: a case that does not fit.
    """
    if run.request.shard == (1, 1):
        jobs = list(jobs_of(run))
    else:
        run.stream = Stream(jobs_of(run))
        jobs = run.stream.part(*run.request.shard)
    if chosen is not None:
        jobs = [replace(job, laws=laws) for job in jobs if (laws := chosen(job))]
    if jobs:
        run.trial = Trial(jobs[0].kernel, jobs[0].case)
    for job in jobs:
        run.tally.plan(job.kernel, job.case)
    there, where = run.memory()
    for job in jobs:
        capacity.require(job.case, run.family, there, where)
    return jobs


def jobs_of(run: Run) -> Iterator[Job]:
    """The stream of every kernel, with the laws that fall on each case; or the one case of saved tensors."""
    request = run.request
    if request.inputs is not None:
        yield from _saved_jobs(run, request.inputs)
        return
    examples = request.examples or (CASES_ON_CUDA if run.device == "cuda" else CASES_ON_CPU)
    planned = [list(_jobs_of(run, name, examples)) for name in run.kernels]
    for turn in itertools.zip_longest(*planned):  # kernels take turns, so that a run that is cut short has seen all
        yield from (job for job in turn if job is not None)


def _jobs_of(run: Run, name: str, examples: int) -> Iterator[Job]:
    """The stream of one kernel."""
    request, kernel, dtypes = run.request, run.kernels[name], run.dtypes[name]
    try:
        cases = stream(
            run.family, kernel, dtypes=dtypes, dims=request.dims or None, examples=examples, seed=request.seed
        )
    except ValueError as error:
        raise UsageError(str(error)) from None
    if request.examples is None and request.seconds is None and request.property == "*":
        wanted = wanted_situations(run.family, kernel, dtypes, examples, dims=request.dims or None)
        for situation, count in wanted.items():
            run.wanted[situation] = max(run.wanted.get(situation, 0), count)
    for case, laws in zip(cases, laws_on(run.laws.values(), kernel, cases), strict=True):
        for law in laws:
            run.tally.expect(law, name, case.dtype)
        if laws:
            yield Job(name, case, laws)


def laws_on(laws: Collection[Property], kernel: Kernel, cases: Sequence[Case]) -> list[tuple[str, ...]]:
    """The laws that are judged on each case of a kernel: once on the first that fits, and then on their share of cases.

    Of each dtype the first case has the decisive laws, the second all others, the third those of the kernel alone, such
    as its compilations: so that the first answers come soon. A law that applies to none of these or of those that
    follow is judged on the last before them.
    """
    chosen: list[set[str]] = [set() for _ in cases]
    for law in laws:
        applies: dict[str, list[tuple[int, int]]] = {}  # dtype -> (which of its dtype, place) of cases
        seen: Counter[str] = Counter()
        for place, case in enumerate(cases):
            if law.applies(case, kernel) is None:
                applies.setdefault(case.dtype, []).append((seen[case.dtype], place))
            seen[case.dtype] += 1
        start = 2 if law.scope == "kernel" else 0 if law.decisive else 1
        for own in applies.values():
            first = next((place for turn, place in own if turn >= start), own[-1][1])
            chosen[first].add(law.name)
            if law.scope != "kernel":
                for _, place in own:
                    if law.falls_on(cases[place]):
                        chosen[place].add(law.name)
    return [tuple(law.name for law in laws if law.name in names) for names in chosen]


def _saved_jobs(run: Run, inputs: str) -> Iterator[Job]:
    """The case of saved tensors for every kernel, with all laws that apply."""
    request = run.request
    if request.shard != (1, 1):
        raise UsageError("--shard cannot go with --inputs: saved tensors are one case, which has no parts")
    if request.dims:
        raise UsageError(
            f"--dim {next(iter(request.dims))} cannot go with --inputs: sizes are those of the saved tensors"
        )
    for name, kernel in run.kernels.items():
        defaults = {spec.name: spec.default for spec in run.family.signature.options}
        options = {n: values[0] for n, values in kernel.options.items() if values and defaults[n] not in values}
        case = saved_case(run.family, inputs, options=options, seed=request.seed, supported=kernel.options)
        if case.dtype not in (request.dtypes or (case.dtype,)):
            raise UsageError(
                f"--inputs {inputs} holds {case.dtype} tensors, but --dtype is {','.join(request.dtypes or ())}"
            )
        if case.dtype not in (kernel.dtypes or (case.dtype,)):
            raise UsageError(
                f"--inputs {inputs} holds {case.dtype} tensors, but {name} supports {', '.join(kernel.dtypes or ())}"
            )
        run.dtypes[name] = (case.dtype,)
        (laws,) = laws_on(run.laws.values(), kernel, [case])
        for law in laws:
            run.tally.expect(law, name, case.dtype)
        yield Job(name, case, laws, presets=True)
