"""Worker: what a worker process does with each job that it is sent."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any

import torch

from gradoracle.cases.saved_tensors import sample_of
from gradoracle.check.judge_case import examine
from gradoracle.check.rehearsal import rehearse
from gradoracle.check.setup import Setup, functions_of, subjects
from gradoracle.check.usable_case import require_case
from gradoracle.execution.device import prepare
from gradoracle.execution.kernel_runner import KernelRunner
from gradoracle.host.compiling import Compiling, compilations_of, compile_ahead
from gradoracle.host.interpreter.launch_hooks import CalledFunctions
from gradoracle.model.call_errors import Crashed, Unavailable
from gradoracle.model.errors import UsageError
from gradoracle.model.family import Family
from gradoracle.model.job import Compilation, DefinitionJob, Job, Phase, Rehearsal
from gradoracle.model.kernel import Kernel
from gradoracle.model.property import Property
from gradoracle.oracle.truth import Oracle
from gradoracle.project.provenance import ProvenanceJob, provenance

ENTRY = "gradoracle.check.worker:entry"  # the entry point of worker processes


def entry(setup: Setup) -> Callable[[Any, Phase], Any]:
    """The entry point of a worker process: resolve the target once, then judge cases.

    A Job gives a CaseResult, a ProvenanceJob a Provenance, a DefinitionJob a sentence ("" where the definition can be
    used), a Rehearsal the Compilations that its case needs, and a Compilation the seconds that it took.
    """
    prepare(setup.device)
    return examiner(setup, *subjects(setup))


def examiner(
    setup: Setup, family: Family, kernels: Mapping[str, Kernel], properties: Mapping[str, Property]
) -> Callable[[Any, Phase], Any]:
    """What ``entry`` returns, for a target that is resolved already."""
    torch.set_num_threads(1)
    oracle = Oracle(family, setup.oracle)
    compiling = Compiling()
    called = CalledFunctions(setup.called_in) if setup.called_in else None
    if setup.device == "cuda":
        compiling.watch()

    def work(job: Job | DefinitionJob | ProvenanceJob | Rehearsal | Compilation, phase: Phase) -> Any:
        if isinstance(job, Compilation):
            return compile_ahead(job, phase)
        if isinstance(job, Rehearsal):
            phase("a rehearsal", setup.call_seconds)
            own, subject = oracle.at(job.case.dims), KernelRunner(family, kernels[job.kernel], device=setup.device)
            sample, chosen = (
                sample_of(job.case, own.family, setup.inputs),
                [properties[n] for n in job.properties],
            )
            return compilations_of(lambda: rehearse(job.case, sample, subject, own, chosen))
        if isinstance(job, ProvenanceJob):
            return provenance(functions_of(family, kernels, properties.values()), setup.target)
        if isinstance(job, DefinitionJob):
            try:
                require_case(job.case, family, kernels[job.kernel], setup.inputs)
            except UsageError as error:
                return str(error)
            return ""

        @contextmanager
        def guard(name: str) -> Iterator[None]:
            if name in job.crashes:
                why, text = job.crashes[name]
                raise Crashed(text, why, name)
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

        subject = KernelRunner(family, kernels[job.kernel], guard, device=setup.device)
        before, compiling.longest = compiling.seconds, 0.0
        result = examine(job, subject, oracle, [properties[name] for name in job.properties], setup.inputs)
        ran = () if called is None else called.take()
        taken = compiling.seconds - before
        return replace(result, compiling=taken, longest_compilation=compiling.longest, called=ran)

    return work
