"""Jobs: the cases that a request asks for, in the order of the stream, with the laws that fall on each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from gradoracle import capacity
from gradoracle.errors import UsageError
from gradoracle.examine import Job, require_case
from gradoracle.saved import saved_case
from gradoracle.sharding import Stream
from gradoracle.strategies import stream, wanted_situations

if TYPE_CHECKING:
    from gradoracle.check import Run

CASES_ON_CPU, CASES_ON_CUDA = 126, 2000


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
        require_case(jobs[0].case, run.family, run.kernels[jobs[0].kernel], run.request.inputs, run.memory())
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
    for name, kernel in run.kernels.items():
        dtypes = run.dtypes[name]
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
        judged: dict[str, set[str]] = {dtype: set() for dtype in dtypes}
        for case in cases:
            laws = run.laws_on(kernel, case, judged[case.dtype])
            judged[case.dtype].update(laws)
            for law in laws:
                run.tally.expect(law, name, case.dtype)
            if laws:
                yield Job(name, case, laws)


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
        laws = run.laws_on(kernel, case)
        for law in laws:
            run.tally.expect(law, name, case.dtype)
        yield Job(name, case, laws, presets=True)
