"""Request: what to check, as plain values; and Progress, what a run tells of itself while it goes on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from gradoracle.model.dims import Sizes
from gradoracle.model.errors import UsageError
from gradoracle.model.verdict import Verdict
from gradoracle.project.base_overlay import Places


@dataclass(frozen=True)
class Request:
    """What to check; plain values, as the command line gives them.

    Attributes:
        target: a shipped name, a file, ``file:callable`` or ``module:callable``.
        family: the definition that an outside callable claims to implement.
        device: auto, cpu or cuda.
        dtypes: None: those of the family that the kernel supports.
        contracts: dtype -> preset, against the kernel's own.
        arguments: options held fixed, and other keywords passed as they are.
        dims: narrower sizes, by dim.
        inputs: a file of saved tensors, ``torch.save({"q": q, ...}, path)``, that replaces the stream by one case:
            inputs by name, cotangents as ``d`` and the output's name, tangents as ``t`` and the input's; those that
            are missing are drawn. Nothing is known of where values come from, so roundings may line up (rule 1b).
        oracle: auto, float64, certified or mpmath.
        examples: how many cases in all.
        seconds: begin no further case or law once so much time has passed, and end a call that still runs
            ``check.execute.GRACE`` seconds later.
        fail_fast: stop at the first violation or crash.
        call_seconds: a kernel call that takes longer is run once more alone, with twice the time, and then hangs; None:
            ``examine.CALL_SECONDS``. UsageError where it is not a positive, finite number.
        seed: of the stream.
        property: only laws that match this glob.
        require: globs of laws that must have been checked.
        workers: how many processes, which several GPUs are dealt out to; None: one a core that this process may use,
            at most 32, and at least one a GPU; 0: none, kernels run here unprotected.
        shard: (i, n): the i-th of n parts of the stream, from 1.
        scheduler: the address of a dask cluster's scheduler, where cases run in place of ``workers``.
        shrink_seconds: how long violating cases are made smaller, in all, and for a third of that judged under other
            presets; None: as ``check.minimise`` has it, and all of them are. 0: they are shown as they were found.
        shrink_tries: on how many cases kernels may run to make smaller what tells the faults of a run, in all; other
            verdicts are shown as they were found. Where the seconds suffice, a report does not depend on how fast a
            machine is. None: any number, for every verdict.
        timed: problems at which a gate times kernels, by dim.
        places: where the kernels come from and where what judges them, if not both from the current folder.
        called_in: a folder: which of its functions run on a case is noted, on the CPU.
    """

    target: str
    family: str | None = None
    device: str = "auto"
    dtypes: tuple[str, ...] | None = None
    contracts: Mapping[str, str] = field(default_factory=dict)
    arguments: Mapping[str, Any] = field(default_factory=dict)
    dims: Mapping[str, Sizes] = field(default_factory=dict)
    inputs: str | None = None
    oracle: str = "auto"
    examples: int | None = None
    seconds: float | None = None
    fail_fast: bool = False
    call_seconds: float | None = None
    seed: int = 0
    property: str = "*"
    require: tuple[str, ...] = ()
    workers: int | None = None
    shard: tuple[int, int] = (1, 1)
    scheduler: str | None = None
    shrink_seconds: float | None = None
    shrink_tries: int | None = None
    timed: tuple[Mapping[str, int], ...] = ()
    places: Places | None = None
    called_in: str = ""

    def __post_init__(self) -> None:
        if self.call_seconds is not None and not 0 < self.call_seconds < float("inf"):
            raise UsageError(f"call_seconds must be a positive number, got {self.call_seconds!r}")
        if self.scheduler is not None and self.workers is not None:
            raise UsageError(
                f"--workers {self.workers} cannot go with --scheduler: each thread of a dask worker runs one case; "
                "expected --workers auto"
            )
        if self.scheduler is not None and self.inputs is not None:
            raise UsageError("--scheduler cannot go with --inputs: saved tensors are one case, which is checked here")


class Progress(Protocol):
    """What a run tells of itself while it goes on."""

    def plan(self, total: int) -> None:
        """So many cases are to run."""

    def case(self, done: int, properties: int, failing: int, note: str) -> None:
        """So many have run, with so many properties judged and so many failing verdicts so far."""

    def failure(self, verdict: Verdict) -> None:
        """The first verdict that fails, as it was found."""

    def shrinking(self, law: str, case: str) -> None:
        """A violation of this law is being made smaller."""

    def close(self) -> None:
        """The run is over."""


class Silent:
    """Progress that says nothing."""

    def plan(self, total: int) -> None:
        """Say nothing."""

    def case(self, done: int, properties: int, failing: int, note: str) -> None:
        """Say nothing."""

    def failure(self, verdict: Verdict) -> None:
        """Say nothing."""

    def shrinking(self, law: str, case: str) -> None:
        """Say nothing."""

    def close(self) -> None:
        """Say nothing."""
