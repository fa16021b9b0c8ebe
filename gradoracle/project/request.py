"""Request: what to check, as plain values. Progress: what a run reports while it goes on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gradoracle.model.dims import Sizes
from gradoracle.model.errors import UsageError
from gradoracle.model.property import Property, PropertyKind, matches
from gradoracle.model.severity import Severity
from gradoracle.model.verdict import Verdict
from gradoracle.project.base_overlay import Places


@dataclass(frozen=True)
class Request:
    """What to check.

    Attributes:
        target: a shipped name, a file, ``file:callable`` or ``module:callable``.
        family: the definition that an outside callable claims to implement.
        device: auto, cpu or cuda.
        python: the interpreter in which kernels run, with its own PyTorch and Triton; None: this one.
        dtypes: None: those of the family that the kernel supports.
        contracts: dtype -> preset, instead of the kernel's own.
        claims: the derivatives that are judged, instead of those that the kernel claims.
        arguments: options held fixed, and further keywords that are passed on.
        dims: narrower sizes, by dim.
        inputs: a file of saved tensors, ``torch.save({"q": q, ...}, path)``, that replaces the stream by one case:
            inputs by name, cotangents as ``d`` and the output's name, tangents as ``t`` and the input's; missing ones
            are sampled. Where such values come from is unknown, so roundings may line up (worst case).
        oracle: auto, float64, certified or mpmath.
        examples: how many cases in all.
        seconds: begin no further case or property after this time, and end a call that still runs
            ``check.execute.GRACE`` seconds later.
        fail_fast: stop at the first violation that counts (``Verdict.counts``) or crash.
        fail_on: the least severity for which a violation counts; None: as ``Verdict.counts``.
        call_seconds: a kernel call that takes longer is run once more, alone and with twice the time, and then counts
            as hung; None: ``setup.CALL_SECONDS``.
        seed: the seed of the stream.
        property: only properties that match one of these globs, separated by commas.
        not_property: globs of properties that are not checked, which the report says.
        require: globs of properties that must have been checked.
        compilations: whether properties of compilations are checked although none is named (``asks_for``).
        workers: how many processes, among which several GPUs are shared out; None: one for each core that this process
            may use, at most 32, and at least one for each GPU; 0: kernels run in this process, unprotected.
        shard: (i, n): the i-th of n parts of the stream, from 1.
        scheduler: address of a dask cluster's scheduler, where cases run instead of in ``workers``.
        shrink_seconds: how long violating cases are shrunk, in all, and for a third of that judged under other presets;
            None: the default of ``check.minimise``. 0: they are reported as they were found.
        shrink_tries: the number of cases, in all, on which kernels may run to shrink the leading verdicts of the
            faults; other verdicts are reported as they were found. With enough seconds, a report then does not depend
            on the speed of the machine. None: any number, for every verdict.
        places: the projects that the kernels and their judge come from, if not both are the current folder.
        barred: a folder that no module of the target may come from; "": none.
        apart: whether kernels run in a process of their own even where nothing else does (``workers`` 0).
        called_in: a folder whose functions are recorded as they run on a case, on the CPU.

    Raises:
        UsageError: ``call_seconds`` is not a positive, finite number, or options exclude one another.
    """

    target: str
    family: str | None = None
    device: str = "auto"
    python: str | None = None
    dtypes: tuple[str, ...] | None = None
    contracts: Mapping[str, str] = field(default_factory=dict)
    claims: tuple[str, ...] = ()
    arguments: Mapping[str, Any] = field(default_factory=dict)
    dims: Mapping[str, Sizes] = field(default_factory=dict)
    inputs: str | None = None
    oracle: str = "auto"
    examples: int | None = None
    seconds: float | None = None
    fail_fast: bool = False
    fail_on: Severity | None = None
    call_seconds: float | None = None
    seed: int = 0
    property: str = "*"
    not_property: tuple[str, ...] = ()
    require: tuple[str, ...] = ()
    compilations: bool = False
    workers: int | None = None
    shard: tuple[int, int] = (1, 1)
    scheduler: str | None = None
    shrink_seconds: float | None = None
    shrink_tries: int | None = None
    places: Places | None = None
    barred: str = ""
    apart: bool = False
    called_in: str = ""

    def __post_init__(self) -> None:
        if self.call_seconds is not None and not 0 < self.call_seconds < float("inf"):
            raise UsageError(f"call_seconds must be a positive number, got {self.call_seconds!r}")
        if self.python is not None and self.workers == 0 and not self.apart:
            raise UsageError(
                f"--python {self.python} cannot be combined with --workers 0, which runs kernels in this process"
            )
        if self.scheduler is not None and self.workers is not None:
            raise UsageError(
                f"--workers {self.workers} cannot be combined with --scheduler: each thread of a dask worker runs one "
                "case; expected --workers auto"
            )
        if self.scheduler is not None and self.inputs is not None:
            raise UsageError(
                "--scheduler cannot be combined with --inputs: saved tensors are one case, which is checked on this "
                "machine"
            )

    def asks_for(self, prop: Property) -> bool:
        """Whether a property is checked, if it applies.

        No case changes what a kernel compiles to, and compiling takes longer than the cases: a property of compilations
        is checked where a glob other than ``*`` names it, or with ``compilations``.
        """
        if not matches(prop.name, self.property) or any(matches(prop.name, glob) for glob in self.not_property):
            return False
        return prop.kind is not PropertyKind.COMPILATION or self.compilations or self._names(prop)

    def _names(self, prop: Property) -> bool:
        globs = (*self.property.split(","), *self.require)
        return any(glob != "*" and matches(prop.name, glob) for glob in globs)


class Progress:
    """Called by a run as it goes on; shows nothing itself."""

    def plan(self, total: int) -> None:
        """The number of cases to run is known."""

    def case(self, done: int, properties: int, failing: int, note: str) -> None:
        """``done`` cases have run; ``properties`` were judged so far, and ``failing`` verdicts fail."""

    def failure(self, verdict: Verdict) -> None:
        """The first failure, as it was found."""

    def shrinking(self, property_name: str, case: str) -> None:
        """A case that violates this property is being shrunk."""

    def close(self) -> None:
        """The run is over."""
