"""Judge one case by all its properties, in the process where the kernel runs. Takes and returns plain values."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

from gradoracle.cases.saved_tensors import sample_of
from gradoracle.check.edited_definition import edited_definitions
from gradoracle.check.evidence import Evidence
from gradoracle.check.judge_property import judge_property, kind_of, lacking
from gradoracle.check.severity import located, with_severity
from gradoracle.check.usable_case import is_tried
from gradoracle.check.widened import Widened, judged_widened, widened
from gradoracle.execution.kernel_runner import KernelRunner
from gradoracle.model.call_errors import Crashed, Refused, Unavailable, Wrong
from gradoracle.model.case import Case
from gradoracle.model.derivative import Derivative
from gradoracle.model.errors import forgive, out_of_memory
from gradoracle.model.finding import Finding, Outcome
from gradoracle.model.job import CaseResult, Job, PropertyResult
from gradoracle.model.property import Property
from gradoracle.model.reason import Reason
from gradoracle.model.signature import undifferentiated
from gradoracle.model.verdict import Status
from gradoracle.oracle.exact.definition import Undefined, require
from gradoracle.oracle.truth import Oracle


def _evaluate(evidence: Evidence, derivatives: Sequence[Derivative]) -> None:
    """Evaluate derivatives for what their calls do besides; those that the kernel has not are left out."""
    for derivative in derivatives:
        try:
            evidence.tensors(derivative)
        except (Refused, Unavailable, Crashed, Wrong):
            continue


def examine(
    job: Job,
    subject: KernelRunner,
    oracle: Oracle,
    properties: Sequence[Property],
    inputs: str | None = None,
) -> CaseResult:
    """Judge one case by each property, sharing one Evidence; ``inputs`` is a file of saved tensors.

    What is judged is the family of cases that have this number of dims (``Family.at``).
    Where the definition raises there is nothing to compare with, and whatever the kernel does there is no refusal.
    """
    oracle = oracle.at(job.case.dims)
    try:
        sample = sample_of(job.case, oracle.family, inputs)
        if is_tried(job.case) and oracle.scalable(sample) is None:
            require(oracle.family, sample)
    except (RuntimeError, MemoryError, Undefined) as error:
        if not isinstance(error, Undefined) and not out_of_memory(error):
            raise
        text, why = (str(error), kind_of(error)) if isinstance(error, Undefined) else (lacking(error), Reason.MEMORY)
        unknown = (PropertyResult(prop.name, Status.NOT_CHECKED, reason=text, why=why) for prop in properties)
        return CaseResult(job.kernel, job.case, tuple(unknown))
    evidence = Evidence(job.case, sample, subject, oracle)
    if job.widened:
        evidence = widened(evidence)
    results: list[PropertyResult] = []
    begun = time.monotonic()
    for prop in properties:
        if results and job.seconds is not None and time.monotonic() - begun > job.seconds:
            break
        if not results:
            _evaluate(evidence, job.calls)
        judged = judged_widened(prop, evidence) if isinstance(evidence, Widened) else judge_property(prop, evidence)
        result = _unless_reported(judged, results)
        if result.status is Status.VIOLATED:
            result = replace(result, findings=tuple(_tiled(each, job.case, subject) for each in result.findings))
        if job.with_severity and result.status is Status.VIOLATED and prop.name not in job.known_wrong:
            result = with_severity(prop, evidence, result)
            if job.located:
                result = located(prop, evidence, result)
        if job.edited and result.status is Status.VIOLATED and not any(map(_is_compared, results)):
            try:
                result = replace(result, edited=edited_definitions(prop, evidence, result.findings))
            except Exception as error:
                forgive(error)
        results.append(result)
    return CaseResult(job.kernel, job.case, tuple(results))


def _tiled(found: Finding, case: Case, subject: KernelRunner) -> Finding:
    """A finding whose map has the kernel's tiles."""
    if found.map is None:
        return found
    order = {Derivative.FORWARD: 0, Derivative.HVP: 2}.get(found.derivative or Derivative.VJP, 1)
    tiles = subject.kernel.tiles_of(case.dtype, case.dims, case.blocks, order)
    return replace(found, map=replace(found.map, tiles=found.map.tiled(tiles)))


def _unless_reported(result: PropertyResult, before: Sequence[PropertyResult]) -> PropertyResult:
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
    return PropertyResult(result.property_name, Status.NOT_CHECKED, reason=found[0].message, why=Reason.MALFORMED)


def _is_compared(result: PropertyResult) -> bool:
    """Whether a property has found wrong values: later ones would show the same fault less plainly."""
    return result.status is Status.VIOLATED and any(f.worst is not None and f.rule != "exact" for f in result.findings)
