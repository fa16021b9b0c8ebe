"""Plan: a request resolved into kernels, cases and the properties judged on each case. Nothing has run yet."""

from __future__ import annotations

import fnmatch
import hashlib
import itertools
import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from gradoracle.cases.coverage import wanted_goals
from gradoracle.cases.saved_tensors import saved_case, saved_line
from gradoracle.cases.stream import stream
from gradoracle.check import memory_estimate, worker
from gradoracle.check.properties import no_such_property
from gradoracle.check.setup import CALL_SECONDS, IMPORT_GRACE, IMPORT_SECONDS, Setup, functions_of, subjects
from gradoracle.check.usable_case import require_case
from gradoracle.execution import device
from gradoracle.model.case import Case, parse
from gradoracle.model.contract import contract
from gradoracle.model.errors import UsageError
from gradoracle.model.family import Family
from gradoracle.model.fault import VerdictKey
from gradoracle.model.formats import DTYPES, FORMATS
from gradoracle.model.job import DefinitionJob, Job
from gradoracle.model.kernel import Kernel
from gradoracle.model.property import Property, PropertyKind
from gradoracle.project.definition import family_for
from gradoracle.project.request import Request

CASES_ON_CPU, CASES_ON_CUDA = 126, 200


@dataclass(frozen=True)
class Subjects:
    """The family, kernels and properties that a request names, resolved for one device.

    Attributes:
        request: the request itself.
        device: cpu or cuda.
        setup: the data that a worker process needs to resolve the same request.
        family: its dims limited to the sizes used on that device.
        kernels: the kernels by name, with the contracts and arguments of the request.
        properties: the properties that the request selects, by name.
        functions: every function that a run calls: the definition, the kernels and all properties.
        unasked: names of properties of the kernels' compilations that the request does not ask for (``asks_for``).
        missing: kernels and block configurations that only the judge's project has (``base_overlay.Overlaid``).
    """

    request: Request
    device: str
    setup: Setup
    family: Family
    kernels: Mapping[str, Kernel]
    properties: Mapping[str, Property]
    functions: tuple[Callable[..., Any], ...]
    unasked: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()

    def target(self, kernel: str) -> str:
        """The target, with the kernel's name where it has several."""
        asked = self.request.target
        return f"{asked}:{kernel}" if len(self.kernels) > 1 and ":" not in asked else asked

    def line(self, kernel: str, case: Case) -> str:
        """A case as one line that replays this target's kernel; for saved tensors, which tensors they are."""
        if self.request.inputs is not None:
            return saved_line(case, self.family, self.request.inputs)
        own = self.request.family
        return case.line(self.target(kernel), self.device, own if own and own != case.family else "")

    def dtypes(self, kernel: str) -> tuple[str, ...]:
        """The dtypes in which a kernel is checked."""
        return _dtypes_of(self.request, self.family, self.kernels[kernel])


@dataclass(frozen=True)
class Plan:
    """The cases of a run, each with the properties to judge on it.

    Attributes:
        subjects: the resolved request.
        jobs: the jobs of this run, in stream order.
        whole: the jobs of the whole stream; a shard runs some of them.
        dtypes: the dtypes in which each kernel is checked.
        owed: the verdicts that the whole stream must give, even where no case decides one.
        expected: the minimum number of cases of each coverage goal.
        trial: a first call of the definition, to see that it accepts the cases; None where nothing is run.
    """

    subjects: Subjects
    jobs: tuple[Job, ...]
    whole: tuple[Job, ...]
    dtypes: Mapping[str, tuple[str, ...]]
    owed: tuple[VerdictKey, ...] = ()
    expected: Mapping[str, int] = field(default_factory=dict)
    trial: DefinitionJob | None = None

    @cached_property
    def places(self) -> Mapping[tuple[str, Case], int]:
        """The position of each kernel's cases in the stream, from 0."""
        return {(job.kernel, job.case): place for place, job in enumerate(self.whole)}

    def place(self, kernel: str, case: Case) -> int:
        """The position of one case in the stream, from 0."""
        return self.places[kernel, case]

    @property
    def digest(self) -> str:
        """A digest of the whole stream and the properties judged on each case; the same for all shards of one run."""
        lines = "\n".join(f"{job.kernel} {job.case} {','.join(job.properties)}" for job in self.whole)
        return hashlib.sha256(lines.encode()).hexdigest()


def resolved(request: Request) -> Subjects:
    """Resolve a request.

    Raises:
        UsageError: an unknown target, dtype, contract or property, or no GPU.
    """
    chosen = device.choose(request.device, elsewhere=request.scheduler is not None, python=request.python)
    setup = setup_of(request, chosen)
    missing: tuple[str, ...] = ()
    if request.workers == 0 and not request.apart:  # kernels run, and are imported, in this process
        device.prepare(chosen)
        family, kernels, properties = subjects(setup)
    else:
        apart = worker.resolved(setup)
        setup, family, missing = apart.setup, apart.family, apart.missing
        kernels, properties = dict(apart.kernels), dict(apart.properties)
    functions = tuple(functions_of(family, kernels, properties.values()))
    family = family.on(chosen)
    for glob in request.property.split(","):
        if not fnmatch.filter(properties, glob):
            raise UsageError(no_such_property(family, glob))
    for glob in request.not_property:
        if not fnmatch.filter(properties, glob):
            raise UsageError(f"--not-property {glob}: {no_such_property(family, glob)}")
    matching = {name: prop for name, prop in properties.items() if request.asks_for(prop)}
    if not matching:
        raise UsageError(f"--not-property {' '.join(request.not_property)} leaves no property to check")
    for glob in request.require:
        if not fnmatch.filter(properties, glob):
            raise UsageError(f"--require {glob}: {no_such_property(family, glob)}")
    every = replace(request, compilations=True)
    left = [prop for name, prop in properties.items() if name not in matching and every.asks_for(prop)]
    unasked = tuple(prop.name for prop in left if any(prop.lacks(kernel) is None for kernel in kernels.values()))
    found = Subjects(request, chosen, setup, family, kernels, matching, functions, unasked, missing)
    for name in kernels:
        found.dtypes(name)
    return found


def setup_of(request: Request, device: str) -> Setup:
    """What a worker process needs to resolve the request on this device."""
    return Setup(
        request.target,
        request.family,
        device,
        request.oracle,
        dict(request.contracts),
        dict(request.arguments),
        CALL_SECONDS if request.call_seconds is None else request.call_seconds,
        min(IMPORT_SECONDS, math.inf if request.seconds is None else request.seconds + IMPORT_GRACE),
        request.inputs,
        request.places,
        request.called_in if device == "cpu" else "",
        request.claims,
        barred=request.barred,
        python=request.python,
        dims=dict(request.dims),
    )


def plan(
    subjects: Subjects, chosen: Callable[[Job], tuple[str, ...]] | None = None, *, with_severity: bool = False
) -> Plan:
    """The cases of every kernel with the properties to judge on each, or the one case of saved tensors.

    Args:
        subjects: the resolved request.
        chosen: selects the properties of a job; a job left with none is dropped. None: all.
        with_severity: whether the severity of violations is found at once (``Job.with_severity``).

    Raises:
        UsageError: sizes or saved tensors do not fit.
    """
    request = subjects.request
    if request.inputs is not None:
        whole = _saved_jobs(subjects, request.inputs)
        saved = {job.kernel: (job.case.dtype,) for job in whole}
        return Plan(subjects, whole, whole, saved, _owed(whole), {}, _trial(whole))
    examples = request.examples or (CASES_ON_CUDA if subjects.device == "cuda" else CASES_ON_CPU)
    streams = {name: _stream(subjects, name, examples) for name in subjects.kernels}
    turns = itertools.zip_longest(*streams.values())  # kernels take turns, so that a run cut short has seen all of them
    every = [job for turn in turns for job in turn if job is not None]
    owed = _owed(itertools.chain(*streams.values()))
    whole = tuple(every)
    jobs = whole if request.shard == (1, 1) else part(whole, *request.shard)
    if chosen is not None:
        jobs = tuple(replace(job, properties=properties) for job in jobs if (properties := chosen(job)))
    if with_severity:
        jobs = tuple(replace(job, with_severity=True) for job in jobs)
    dtypes = {name: subjects.dtypes(name) for name in subjects.kernels}
    goals = _wanted(subjects, examples)
    return Plan(subjects, jobs, whole, dtypes, owed, goals, _trial(jobs))


def replayed(line: str, **fields: Any) -> tuple[Request, Case]:
    """The request and the case that a case line stands for; the case is judged unchanged.

    Raises:
        UsageError: the line is malformed, or its target cannot be resolved.
    """
    try:
        target, device, case = parse(line)
    except ValueError as error:
        raise UsageError(str(error)) from None
    fields.setdefault("device", device or "auto")
    target = target or case.family
    family = family_for(line, target, case.family)
    return Request(**{"target": target, "family": family, "shrink_seconds": 0.0, **fields}), case


def plan_of(case: Case, subjects: Subjects, there: int, where: str) -> Plan:
    """One case with all properties that apply to it; ``there`` is the memory available in bytes, ``where`` names it.

    Raises:
        UsageError: the case does not fit the family, a kernel, or the memory.
    """
    jobs = []
    for name, kernel in subjects.kernels.items():
        require_case(case, subjects.family, kernel, memory=(there, where))
        (properties,) = properties_on(subjects.properties.values(), kernel, [case])
        jobs.append(Job(name, case, properties, with_severity=True, located=True))
    dtypes = {name: subjects.dtypes(name) for name in subjects.kernels}
    return Plan(subjects, tuple(jobs), tuple(jobs), dtypes)


def require_memory(plan: Plan, there: int, where: str) -> None:
    """Check that each case fits into the memory available.

    Raises:
        UsageError: one does not.
    """
    for job in plan.jobs:
        memory_estimate.require(job.case, plan.subjects.family, there, where)


def part(jobs: Sequence[Job], part: int, parts: int) -> tuple[Job, ...]:
    """Every N-th job of each kernel and dtype, so that every shard has some of each; ``part`` counts from 1."""
    turns: dict[tuple[str, str], itertools.count[int]] = {}
    mine = []
    for job in jobs:
        turn = next(turns.setdefault((job.kernel, job.case.dtype), itertools.count()))
        if turn % parts == part - 1:
            mine.append(job)
    return tuple(mine)


def properties_on(properties: Collection[Property], kernel: Kernel, cases: Sequence[Case]) -> list[tuple[str, ...]]:
    """The properties to judge on each case of a kernel: each on the first case that it applies to, and on its share.

    In each dtype the first case has the decisive properties, the second all others and the third those judged once a
    kernel, such as compilations, so that results appear early. A property that applies to no case from there on is
    judged on the last case before. Those of the widened kernel are judged on their share and on the case with the most
    tiles of each block configuration: what one tile carries over to the next shows there alone.
    """
    chosen: list[set[str]] = [set() for _ in cases]
    for prop in properties:
        applies: dict[str, list[tuple[int, int]]] = {}  # dtype -> (which of its dtype, place) of cases
        seen: Counter[str] = Counter()
        for place, case in enumerate(cases):
            if prop.applies(case, kernel) is None:
                applies.setdefault(case.dtype, []).append((seen[case.dtype], place))
            seen[case.dtype] += 1
        start = 2 if prop.scope == "kernel" else 0 if prop.decisive else 1
        for own in applies.values():
            first = next((place for turn, place in own if turn >= start), own[-1][1])
            chosen[first].add(prop.name)
            if prop.scope != "kernel":
                for _, place in own:
                    if prop.falls_on(cases[place]):
                        chosen[place].add(prop.name)
        if prop.kind is PropertyKind.DEFINITION:
            for place in _of_the_most_tiles(kernel, cases, [place for own in applies.values() for _, place in own]):
                chosen[place].add(prop.name)
    return [tuple(prop.name for prop in properties if prop.name in names) for names in chosen]


def _of_the_most_tiles(kernel: Kernel, cases: Sequence[Case], places: Sequence[int]) -> set[int]:
    """Of some places of cases, that with the most tiles of each block configuration; of equals, one in few bits."""

    def tiles(place: int) -> tuple[int, float]:
        case = cases[place]
        rows = kernel.tiles_of(case.dtype, case.dims, case.blocks, 1)
        many = math.prod(-(-case.dims[dim] // size) for dim, size in rows.items() if dim in case.dims)
        return many, FORMATS[case.dtype].unit_roundoff

    return set({cases[place].blocks: place for place in sorted(places, key=tiles)}.values())


def _owed(jobs: Iterable[Job]) -> tuple[VerdictKey, ...]:
    """The verdicts that jobs give, in their order."""
    keys = (VerdictKey(name, job.kernel, job.case.dtype) for job in jobs for name in job.properties)
    return tuple(dict.fromkeys(keys))


def _trial(jobs: Sequence[Job]) -> DefinitionJob | None:
    return DefinitionJob(jobs[0].kernel, jobs[0].case) if jobs else None


def _stream(subjects: Subjects, name: str, examples: int) -> list[Job]:
    """The jobs of one kernel; cases on which no property is judged are left out."""
    request, kernel = subjects.request, subjects.kernels[name]
    try:
        cases = stream(
            subjects.family,
            kernel,
            dtypes=subjects.dtypes(name),
            dims=request.dims or None,
            examples=examples,
            seed=request.seed,
            few_compilations=subjects.device == "cuda",
        )
    except ValueError as error:
        raise UsageError(str(error)) from None
    properties = properties_on(subjects.properties.values(), kernel, cases)
    return [Job(name, case, own) for case, own in zip(cases, properties, strict=True) if own]


def _wanted(subjects: Subjects, examples: int) -> dict[str, int]:
    """The coverage goals, which only a run of all properties over the default number of cases has."""
    request, found = subjects.request, dict[str, int]()
    if request.examples is None and request.seconds is None and request.property == "*":
        for name, kernel in subjects.kernels.items():
            goals = wanted_goals(subjects.family, kernel, subjects.dtypes(name), examples, dims=request.dims or None)
            for goal, count in goals.items():
                found[goal] = max(found.get(goal, 0), count)
    return found


def _saved_jobs(subjects: Subjects, inputs: str) -> tuple[Job, ...]:
    """The case of saved tensors for every kernel, with all properties that apply."""
    request = subjects.request
    if request.shard != (1, 1):
        raise UsageError("--shard cannot be combined with --inputs: saved tensors are one case, which has no parts")
    if request.dims:
        raise UsageError(
            f"--dim {next(iter(request.dims))} cannot be combined with --inputs: sizes are those of the saved tensors"
        )
    jobs = []
    for name, kernel in subjects.kernels.items():
        defaults = {spec.name: spec.default for spec in subjects.family.signature.options}
        options = {n: values[0] for n, values in kernel.options.items() if values and defaults[n] not in values}
        case = saved_case(subjects.family, inputs, options=options, seed=request.seed, supported=kernel.options)
        if case.dtype not in (request.dtypes or (case.dtype,)):
            raise UsageError(
                f"--inputs {inputs} holds {case.dtype} tensors, but --dtype is {','.join(request.dtypes or ())}"
            )
        if case.dtype not in (kernel.dtypes or (case.dtype,)):
            raise UsageError(
                f"--inputs {inputs} holds {case.dtype} tensors, but {name} supports {', '.join(kernel.dtypes or ())}"
            )
        (properties,) = properties_on(subjects.properties.values(), kernel, [case])
        jobs.append(Job(name, case, properties, with_severity=True, located=True))
    return tuple(jobs)


def _dtypes_of(request: Request, family: Family, kernel: Kernel) -> tuple[str, ...]:
    """The dtypes in which a kernel is checked.

    Raises:
        UsageError: an unknown dtype, none that the kernel supports, or a contract that does not fit one.
    """
    asked = request.dtypes or family.dtypes
    unknown = [dtype for dtype in asked if dtype not in DTYPES]
    if unknown:
        raise UsageError(f"--dtype {','.join(unknown)} is unknown; expected some of {', '.join(DTYPES)}")
    supported = kernel.dtypes or DTYPES
    chosen = tuple(dtype for dtype in asked if dtype in supported)
    if not chosen:
        raise UsageError(
            f"{kernel.name} supports {', '.join(supported)}, none of which is in --dtype {','.join(asked)}"
        )
    for dtype, preset in request.contracts.items():
        try:
            contract(preset, dtype)
        except ValueError as error:
            raise UsageError(f"--contract {dtype}={preset}: {error}") from None
    return chosen
