"""Judge one case by all its properties, in the process where the kernel runs. Takes and returns plain values."""

from __future__ import annotations

import fnmatch
import functools
import importlib
import inspect
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from typing import Any

import torch

from gradoracle.cases.saved_tensors import sample_of
from gradoracle.check import memory_estimate
from gradoracle.check.evidence import Evidence
from gradoracle.check.formula import formulas
from gradoracle.check.judge_law import LACKING, judge_law, kind_of
from gradoracle.check.rehearsal import rehearse
from gradoracle.check.severity import explained, located
from gradoracle.check.widened import Widened, judged_widened, widened
from gradoracle.execution.call_errors import Crashed, DeviceLost, Unavailable
from gradoracle.execution.called_functions import CalledFunctions
from gradoracle.execution.compiling import Compiling, compilations_of, compile_ahead
from gradoracle.execution.device import prepare
from gradoracle.execution.kernel_runner import KernelRunner
from gradoracle.execution.process import Phase, Poisoned
from gradoracle.model.case import Case, require_fit
from gradoracle.model.contract import contract
from gradoracle.model.derivative import Derivative
from gradoracle.model.errors import UsageError, out_of_memory
from gradoracle.model.family import Family
from gradoracle.model.finding import Finding, Outcome
from gradoracle.model.job import CaseResult, Compilation, Job, LawResult, Rehearsal, Trial
from gradoracle.model.kernel import Kernel, claims_of
from gradoracle.model.property import Property, PropertyKind
from gradoracle.model.reason import Reason
from gradoracle.model.signature import undifferentiated
from gradoracle.model.verdict import Status
from gradoracle.oracle.exact.definition import Raises, Undefined, require
from gradoracle.oracle.truth import Oracle
from gradoracle.project.base_overlay import Places, resolved
from gradoracle.project.provenance import ProvenanceJob, provenance

_LARGEST_TRIED = 512  # sizes up to which a definition is tried before the run
ENTRY = "gradoracle.check.judge_case:entry"  # the entry point of worker processes
CALL_SECONDS = 60.0  # a kernel call that takes longer counts as hanging, once it has done so again alone


@dataclass(frozen=True)
class Setup:
    """What a worker process needs to resolve the target by itself."""

    target: str
    family: str | None
    device: str
    oracle: str
    contracts: Mapping[str, str]
    arguments: Mapping[str, Any]
    call_seconds: float = CALL_SECONDS
    inputs: str | None = None
    places: Places | None = None
    called_in: str = ""  # a folder: which of its functions the kernel's calls run is noted
    claims: tuple[str, ...] = ()


def subjects(setup: Setup) -> tuple[Family, dict[str, Kernel], dict[str, Property]]:
    """Resolve a target: its family, its kernels with contracts and arguments applied, and all properties by name.

    Raises:
        TargetError: the target or its family cannot be resolved.
        UsageError: a contract or argument does not fit.
    """
    target = resolved(setup.target, setup.family, setup.places)
    kernels = {}
    for kernel in target.kernels:
        contracts = {dtype: contract(name, dtype) for dtype, name in setup.contracts.items()}
        kernel = replace(kernel, contracts={**kernel.contracts, **contracts})
        if setup.claims:
            kernel = replace(kernel, claims=claims_of(setup.claims))
        kernels[kernel.name] = _with_arguments(kernel, target.family, setup.arguments)
    return target.family, kernels, {law.name: law for law in laws_of(target.family)}


def require_case(
    case: Case, family: Family, kernel: Kernel, inputs: str | None = None, memory: tuple[int, str] | None = None
) -> None:
    """Check that a case, possibly written by a user, fits the family, the kernel and the memory.

    ``memory``: the bytes available, and where; by default on this machine.

    Raises:
        UsageError: another family, a dim, option, tensor or block configuration that is missing or unknown; a
            definition that raises, gives what its annotations do not say, or cannot be traced; sizes that need more
            memory than there is.
    """
    if case.family != family.name:
        raise UsageError(f"the case belongs to family {case.family!r}, but its target is checked against {family.name}")
    if case.blocks and case.blocks not in kernel.blocks:
        known = ", ".join(kernel.blocks) or "none"
        raise UsageError(f"{kernel.name} has no block configuration {case.blocks!r}; it has {known}")
    defaults = {spec.name: spec.default for spec in family.signature.options}
    for name, value in case.options.items():
        if kernel.options.get(name) == () and value != defaults.get(name):
            raise UsageError(f"the case gives option {name}, which {kernel.name} does not take; expected none")
    for name in case.draws:
        if kernel.options.get(name) == ():
            raise UsageError(f"the case draws {name}, which {kernel.name} does not take; expected none")
    try:
        require_fit(case, family.signature)
        memory_estimate.require(case, family, *memory or ())
        if _is_tried(case):
            sample = sample_of(case, family, inputs, "cpu")
            oracle = Oracle(family).at(case.dims)
            if oracle.scalable(sample) is None:
                require(oracle.family, sample)
                oracle.graph(sample, Derivative.VJP if sample.tangents else Derivative.FORWARD)
    except Raises as error:
        unwritten = isinstance(error.__cause__, NotImplementedError)  # as ``gradoracle new`` leaves it
        raise UsageError(str(error) if unwritten else f"{error}; {sizes_wanted(family)}") from None
    except (ValueError, Undefined) as error:
        raise UsageError(str(error)) from None
    except (RuntimeError, MemoryError) as error:
        if not out_of_memory(error):  # lack of memory is reported case by case
            raise


def _is_tried(case: Case) -> bool:
    """Whether a case is small enough for its definition to be tried first."""
    return all(size <= _LARGEST_TRIED for size in case.dims.values())


def sizes_wanted(family: Family) -> str:
    """How to declare the sizes that a definition is meant for, as advice in an error message."""
    if not family.signature.dims:
        return "expected a definition that takes every case of its family"
    dim, wanted, only = family.signature.dims[-1], "multiples(16)", "sizes"
    if family.signature.spreads:
        dim, wanted, only = min(family.signature.spreads), "sizes(1, 3)", "sizes or numbers of dims"
    example = f"@gradoracle.family(dims={{{dim!r}: gradoracle.{wanted}}})"
    return f"where it takes some {only} only, declare them, as in {example}"


def functions_of(family: Family, kernels: Mapping[str, Kernel], laws: Iterable[Property]) -> list[Callable[..., Any]]:
    """The functions that a run calls: the definition, the kernels and the properties."""
    return [family.definition, *(kernel.call for kernel in kernels.values()), *(law.law for law in laws)]


def laws_of(family: Family) -> tuple[Property, ...]:
    """The universal properties that the family's signature does not rule out, then the family's own; memory's last."""
    own = (*(law for law in universal_laws() if law.families.hold(family)), *family.properties)
    return tuple(sorted(own, key=lambda law: law.kind is PropertyKind.MEMORY))


def universal_laws() -> tuple[Property, ...]:
    """The universal properties in the order in which they are judged; some apply only to families of a certain form."""
    universal: tuple[Property, ...] = importlib.import_module("gradoracle.properties.universal").UNIVERSAL
    return tuple(sorted(universal, key=lambda law: law.kind is PropertyKind.MEMORY))


def no_such_law(family: Family, glob: str) -> str:
    """Why no property of a family matches a glob, as a sentence."""
    for law in universal_laws():
        if fnmatch.fnmatchcase(law.name, glob) and not law.families.hold(family):
            return f"{law.name} is a property of {law.families.words}, which {family.name} is not"
    return f"no property of {family.name} matches {glob!r}; see gradoracle list"


def _with_arguments(kernel: Kernel, family: Family, arguments: Mapping[str, Any]) -> Kernel:
    """A kernel with the values of ``--arg``: an option of the family is drawn so, others are passed on."""
    own = {spec.name for spec in family.signature.options}
    fixed = {name: (value,) for name, value in arguments.items() if name in own}
    passed = {name: value for name, value in arguments.items() if name not in own}
    for name in (*passed, *(option for option in fixed if kernel.options.get(option) == ())):
        _require_parameter(kernel, name)
    call = functools.partial(kernel.call, **passed) if passed else kernel.call
    return replace(kernel, call=call, options={**kernel.options, **fixed}, arguments={**kernel.arguments, **passed})


def _require_parameter(kernel: Kernel, name: str) -> None:
    """Refuse a keyword that the callable does not have, where its signature can be read."""
    try:
        parameters = inspect.signature(kernel.call).parameters
    except (TypeError, ValueError):
        return
    if name not in parameters and not any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        raise UsageError(f"--arg {name}: {kernel.name} takes no such argument; it takes {', '.join(parameters)}")


def entry(setup: Setup) -> Callable[[Any, Phase], Any]:
    """The entry point of a worker process: resolve the target once, then judge cases.

    A Job gives a CaseResult, a ProvenanceJob a Provenance, a Trial a sentence ("" where the definition can be used), a
    Rehearsal the Compilations that its case needs, and a Compilation the seconds that it took.
    """
    prepare(setup.device)
    return examiner(setup, *subjects(setup))


def examiner(
    setup: Setup, family: Family, kernels: Mapping[str, Kernel], laws: Mapping[str, Property]
) -> Callable[[Any, Phase], Any]:
    """What ``entry`` returns, for a target that is resolved already."""
    torch.set_num_threads(1)
    oracle = Oracle(family, setup.oracle)
    compiling = Compiling()
    called = CalledFunctions(setup.called_in) if setup.called_in else None
    if setup.device == "cuda":
        compiling.watch()

    def work(job: Job | Trial | ProvenanceJob | Rehearsal | Compilation, phase: Phase) -> Any:
        if isinstance(job, Compilation):
            return compile_ahead(job, phase)
        if isinstance(job, Rehearsal):
            phase("a rehearsal", setup.call_seconds)
            own, subject = oracle.at(job.case.dims), KernelRunner(family, kernels[job.kernel])
            sample, chosen = sample_of(job.case, own.family, setup.inputs, setup.device), [laws[n] for n in job.laws]
            return compilations_of(lambda: rehearse(job.case, sample, subject, own, chosen))
        if isinstance(job, ProvenanceJob):
            return provenance(functions_of(family, kernels, laws.values()), setup.target)
        if isinstance(job, Trial):
            try:
                require_case(job.case, family, kernels[job.kernel], setup.inputs)
            except UsageError as error:
                return str(error)
            return ""

        @contextmanager
        def guard(name: str) -> Iterator[None]:
            if name in job.crashes:
                why, text = job.crashes[name]
                raise Crashed(text, why)
            if (barred := job.barred.get(name.rpartition(": ")[2]) or job.barred.get("*")) is not None:
                why, text = barred
                raise Unavailable(text, why)
            phase(name, setup.call_seconds)
            compiling.begin(name, setup.call_seconds, phase)
            try:
                with nullcontext() if called is None else called.watching():
                    yield
            finally:
                compiling.end()
                phase(None, None)

        subject = KernelRunner(family, kernels[job.kernel], guard)
        before, compiling.longest = compiling.seconds, 0.0
        result = examine(job, subject, oracle, [laws[name] for name in job.laws], setup.device, setup.inputs)
        ran = () if called is None else called.take()
        taken = compiling.seconds - before
        return replace(result, compiling=taken, longest_compilation=compiling.longest, called=ran)

    return work


def examine(
    job: Job, subject: KernelRunner, oracle: Oracle, laws: Sequence[Property], device: str, inputs: str | None = None
) -> CaseResult:
    """Judge one case by each property, sharing one Evidence; ``inputs`` is a file of saved tensors.

    What is judged is the family of cases that have this number of dims (``Family.at``).
    Where the definition raises there is nothing to compare with, and whatever the kernel does there is no refusal.
    """
    oracle = oracle.at(job.case.dims)
    try:
        sample = sample_of(job.case, oracle.family, inputs, device)
        if _is_tried(job.case) and oracle.scalable(sample) is None:
            require(oracle.family, sample)
    except (RuntimeError, MemoryError, Undefined) as error:
        if not isinstance(error, Undefined) and not out_of_memory(error):
            raise
        text, why = (str(error), kind_of(error)) if isinstance(error, Undefined) else (LACKING, Reason.MEMORY)
        unknown = (LawResult(law.name, Status.NOT_CHECKED, reason=text, why=why) for law in laws)
        return CaseResult(job.kernel, job.case, tuple(unknown))
    evidence = Evidence(job.case, sample, subject, oracle)
    if job.widened:
        evidence = widened(evidence)
    results: list[LawResult] = []
    begun = time.monotonic()
    for law in laws:
        if results and job.seconds is not None and time.monotonic() - begun > job.seconds:
            break
        try:
            judged = judged_widened(law, evidence) if isinstance(evidence, Widened) else judge_law(law, evidence)
            result = _unless_reported(judged, results)
        except DeviceLost as lost:
            results.append(LawResult(law.name, Status.CRASHED, reason=str(lost), why=lost.why))
            raise Poisoned(lost.how, CaseResult(job.kernel, job.case, tuple(results), lost.call)) from None
        if result.status is Status.VIOLATED:
            result = replace(result, findings=tuple(_tiled(each, job.case, subject) for each in result.findings))
        if job.explained and result.status is Status.VIOLATED and law.name not in job.known_wrong:
            result = explained(law, evidence, result)
            if job.located:
                result = located(law, evidence, result)
        if job.formulas and result.status is Status.VIOLATED and not any(map(_is_compared, results)):
            with suppress(Exception):
                result = replace(result, formulas=formulas(law, evidence, result.findings))
        results.append(result)
    return CaseResult(job.kernel, job.case, tuple(results))


def _tiled(found: Finding, case: Case, subject: KernelRunner) -> Finding:
    """A finding whose map has the kernel's tiles."""
    if found.map is None:
        return found
    order = {Derivative.FORWARD: 0, Derivative.HVP: 2}.get(found.derivative or Derivative.VJP, 1)
    tiles = subject.kernel.tiles_of(case.dtype, case.dims, case.blocks, order)
    return replace(found, map=replace(found.map, tiles=found.map.tiled(tiles)))


def _unless_reported(result: LawResult, before: Sequence[LawResult]) -> LawResult:
    """A result; *not checked* where all that it finds is malformed tensors that earlier properties have reported.

    A property has nothing to judge where the kernel gives a tensor of another shape. The first one that needs it, which
    compares it with the truth, is violated; whatever else is violated has found something else.
    """
    found = [f for f in result.findings if f.outcome is Outcome.VIOLATED]
    known = {f.tensor for each in before if each.status is Status.VIOLATED for f in each.findings if f.malformed}
    if result.status is not Status.VIOLATED or not all(
        f.malformed and {f.tensor, undifferentiated(f.tensor)} & known for f in found
    ):
        return result
    return LawResult(result.law, Status.NOT_CHECKED, reason=found[0].message, why=Reason.MALFORMED)


def _is_compared(result: LawResult) -> bool:
    """Whether a property has found wrong values: later ones would show the same fault less plainly."""
    return result.status is Status.VIOLATED and any(f.worst is not None and f.rule != "exact" for f in result.findings)
