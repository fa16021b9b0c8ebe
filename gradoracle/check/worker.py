"""Worker: what a process that judges does with each job that it is sent, and the host of the kernel that it asks."""

from __future__ import annotations

import os
import resource
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch

from gradoracle.cases.saved_tensors import sample_of
from gradoracle.check.judge_case import examine
from gradoracle.check.rehearsal import rehearse
from gradoracle.check.setup import (
    Setup,
    functions_of,
    host_setup,
    judged,
    require_unchanged,
    sources_of,
    subjects,
    within,
)
from gradoracle.check.usable_case import require_case
from gradoracle.execution import hosted
from gradoracle.execution.device import prepare, variables
from gradoracle.execution.executor import StartupError
from gradoracle.execution.host_process import HostProcess
from gradoracle.execution.kernel_runner import KernelRunner
from gradoracle.execution.own_host import OwnHost
from gradoracle.model.call import KernelHost
from gradoracle.model.call_errors import Unavailable
from gradoracle.model.description import HostedTarget
from gradoracle.model.errors import TargetError, UsageError
from gradoracle.model.family import Family
from gradoracle.model.job import Compilation, DefinitionJob, Job, Phase, Rehearsal
from gradoracle.model.kernel import Kernel
from gradoracle.model.property import Property
from gradoracle.model.reason import Reason
from gradoracle.model.serialize import to_plain
from gradoracle.oracle.truth import Oracle
from gradoracle.project.base_overlay import OF_THE_JUDGE, Places, enter, inside, overlaid
from gradoracle.project.definition import definition, family_apart
from gradoracle.project.provenance import ProvenanceJob, provenance
from gradoracle.project.shipped_names import family_names

ENTRY = "gradoracle.check.worker:entry"
"""The entry point of processes that judge; the kernel runs in another."""
ENTRY_OF_ONE_PROCESS = "gradoracle.check.worker:entry_of_one_process"
"""The entry point where the kernel runs in the process that judges."""
_MOST_OF_A_CASE = 4  # calls that may end their process on one case; the rest of the case is then not checked


def entry(setup: Setup) -> Callable[[Any, Phase], Any]:
    """The entry point of a worker process: resolve the target once, then judge cases.

    A Job gives a CaseResult, a ProvenanceJob a Provenance, a DefinitionJob a sentence ("" where the definition can be
    used), a Rehearsal the Compilations that its case needs, and a Compilation the seconds that it took.
    """
    announced: list[Phase] = []

    def announce(name: str | None, limit: float | None) -> None:
        for phase in announced:
            phase(name, None)

    found = resolved(setup, announce)
    return examiner(found.setup, found.family, found.kernels, found.properties, found.host, announced)


@dataclass(frozen=True)
class Resolved:
    """A target whose kernels are in a process of their own.

    Attributes:
        setup: with what the host says of it.
        family: that judges it.
        kernels: by name, as described.
        properties: by name.
        host: of the kernels.
        missing: as of ``base_overlay.Overlaid``.
    """

    setup: Setup
    family: Family
    kernels: Mapping[str, Kernel]
    properties: Mapping[str, Property]
    host: HostProcess
    missing: tuple[str, ...] = ()

    def place(self, kernel: str) -> tuple[str, str]:
        """Where a kernel can be imported from: module or file, and its name there.

        Raises:
            TargetError: it has no such name.
        """
        known = {} if self.setup.hosted is None else {each.name: each.imported for each in self.setup.hosted.kernels}
        match known.get(kernel, ()):
            case (place, name):
                return place, name
        raise TargetError(f"{kernel} of {self.setup.target} cannot be imported by name")


def resolved(setup: Setup, announce: Phase = lambda name, limit: None) -> Resolved:
    """Resolve a target, whose kernels are imported in another process; of two projects, those of each in its own.

    Raises:
        TargetError: the target or its family cannot be resolved.
        UsageError: a contract or argument does not fit.
    """
    if not setup.sources:
        setup = replace(setup, sources=sources_of(setup))
    places = setup.places
    if places is None:
        apart = family_apart(setup.target, setup.family)
        own = _started(setup, apart, announce)
        known = setup.hosted or _described(own, setup)
        setup = replace(setup, hosted=known)
        family = apart or definition(setup.target, setup.family, known)
        require_unchanged(setup)
        return Resolved(setup, *judged(setup, family, known, own.ask), own)
    enter(places.judge, places.kernels)
    with inside(places.judge):
        apart = family_apart(setup.target, setup.family)
    own = _started(setup, apart, announce)
    base = _started(replace(setup, places=Places(places.kernels, places.judge)), apart, announce)
    try:
        declared = _described(base, setup)
    except TargetError as error:
        raise TargetError(f"in the base: {error}") from None
    overlay = overlaid(setup.target, declared, _described(own, setup))
    with inside(places.judge):
        family = apart or definition(setup.target, setup.family, declared)
    require_unchanged(setup)

    def ask(kernel: str, what: str, arguments: tuple[Any, ...]) -> Any:
        of_base = what in OF_THE_JUDGE and any(each.name == kernel for each in declared.kernels)
        return (base if of_base else own).ask(kernel, what, arguments)

    return Resolved(setup, *judged(setup, family, overlay.target, ask), own, overlay.missing)


def _started(setup: Setup, apart: Family | None, announce: Phase) -> HostProcess:
    """The host of a target, in a process that starts meanwhile."""
    limit = resource.getrlimit(resource.RLIMIT_DATA)[0]
    own = HostProcess(
        hosted.ENTRY,
        to_plain(host_setup(setup, apart)),
        seconds=setup.call_seconds,
        startup=setup.import_seconds,
        env=variables(setup.device),
        memory=None if limit == resource.RLIM_INFINITY else limit,
        folder=os.getcwd() if setup.places is None else setup.places.kernels,
        announce=announce,
        python=setup.python,
    )
    own.begin()
    return own


def _described(own: HostProcess, setup: Setup) -> HostedTarget:
    """What a host says of its target.

    Raises:
        TargetError: the kernels cannot be imported.
        StartupError: something else cannot.
    """
    try:
        return own.describe()
    except StartupError as error:
        place = setup.target.rpartition(":")[0] or setup.target
        if place in family_names() and error.kind not in ("", TargetError.__name__, UsageError.__name__):
            raise  # what is shipped beside the kernels cannot be imported
        raise TargetError(error.sentence) from None


def entry_of_one_process(setup: Setup) -> Callable[[Any, Phase], Any]:
    """As ``entry``, with the kernel in this process, unprotected from what it may do."""
    prepare(setup.device)
    family, kernels, properties = subjects(setup)
    own = OwnHost(kernels, device=setup.device, called_in=setup.called_in)
    return examiner(setup, family, kernels, properties, own)


def examiner(
    setup: Setup,
    family: Family,
    kernels: Mapping[str, Kernel],
    properties: Mapping[str, Property],
    own: KernelHost,
    announced: list[Phase] | None = None,
) -> Callable[[Any, Phase], Any]:
    """What ``entry`` returns, for a target that is resolved already, whose kernels run in ``own`` host.

    ``announced`` gets what announces the phases of the running job.
    """
    torch.set_num_threads(1)
    kernels = {name: within(kernel, setup.dims) for name, kernel in kernels.items()}
    oracle = Oracle(family, setup.oracle)
    announced = [] if announced is None else announced

    def work(job: Job | DefinitionJob | ProvenanceJob | Rehearsal | Compilation, phase: Phase) -> Any:
        announced[:] = [phase]
        if isinstance(job, Compilation):
            phase(job.phase, None)
            taken = own.compile_ahead(job)
            phase(None, None)
            return taken
        if isinstance(job, Rehearsal):
            phase("a rehearsal", setup.call_seconds)
            at, subject = oracle.at(job.case.dims), KernelRunner(family, kernels[job.kernel], host=own)
            sample, chosen = sample_of(job.case, at.family, setup.inputs), [properties[n] for n in job.properties]
            with own.rehearsal() as found:
                rehearse(job.case, sample, subject.on(setup.device), at, chosen)
            return tuple(found)
        if isinstance(job, ProvenanceJob):
            return provenance(functions_of(family, kernels, properties.values()), setup.target)
        if isinstance(job, DefinitionJob):
            try:
                require_case(job.case, family, kernels[job.kernel], setup.inputs)
            except UsageError as error:
                return str(error)
            return ""
        before = len(own.ended)

        @contextmanager
        def guard(name: str) -> Iterator[None]:
            lost = len(own.ended) - before
            if lost >= _MOST_OF_A_CASE:
                raise Unavailable(f"skipped after {lost} calls had crashed on the same case", Reason.BARRED)
            if (barred := job.barred.get(name.rpartition(": ")[2])) is not None:
                why, text = barred
                raise Unavailable(text, why)
            phase(name, None)
            yield
            phase(None, None)

        subject = KernelRunner(family, kernels[job.kernel], guard, host=own, device=setup.device)
        own.seconds = setup.call_seconds * job.patience
        result = examine(job, subject, oracle, [properties[name] for name in job.properties], setup.inputs)
        seen = subject.totals
        return replace(
            result,
            compiling=seen.compiling,
            longest_compilation=seen.longest,
            called=tuple(sorted(seen.called)),
            ended=tuple(own.ended[before:]),
        )

    return work
