"""Side: the process that checks the kernels of one of the gate's two trees, in that tree, and writes what it found.

It runs the gradoracle that judges, which need not be that of the gate; what they say to each other is JSON.
"""

from __future__ import annotations

import json
import os
import threading
import traceback
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gradoracle.gate.snapshot import UNDECIDED, OnCase, Snapshot
from gradoracle.model import serialize
from gradoracle.model.errors import UsageError
from gradoracle.model.finding import Outcome
from gradoracle.model.property import PropertyKind
from gradoracle.model.reason import Reason
from gradoracle.model.verdict import BROKEN, Status
from gradoracle.project import files, settings
from gradoracle.project.base_overlay import Apart, Places, modules_of, substituted
from gradoracle.project.settings import Setting

if TYPE_CHECKING:
    from gradoracle.model.case import Case
    from gradoracle.model.job import CaseResult, Job

PROTOCOL = "gradoracle-side/2"
CASES_OF_ALL_LAWS = 30  # on the CPU, where no number of cases is asked for: other laws are judged on so many first,
CASES_OF_EACH_LAW = 2  # and after these where a law has had fewer cases of a dtype than so many
SHRINK_TRIES = 60  # counted, so that a gate explains a fault in the same way on a busy machine;
SHRINK_SECONDS = 60.0  # the clock is for kernels that are too slow for so many


@dataclass(frozen=True)
class Task:
    """One target to look at.

    Attributes:
        target: from the project's folder.
        settings: as the command line has them.
        judge, kernels: folders of the projects that judge and that are judged; "" both: the current one.
        laws: case -> laws, beyond those that measure; None: all.
        measures: whether errors are measured on all cases; where not, ``laws`` are all that is judged.
        first: the cases that come before the others.
        tells: whether to tell of each verdict that fails as it is found.
        called_in: a folder: which of its functions run on a case is noted.
        barred: a folder that no module may come from; "" none.
    """

    target: str
    settings: dict[str, Setting] = field(default_factory=dict)
    judge: str = ""
    kernels: str = ""
    laws: dict[str, list[str]] | None = None
    measures: bool = True
    first: list[str] = field(default_factory=list)
    tells: bool = False
    called_in: str = ""
    barred: str = ""


@dataclass(frozen=True)
class Order:
    """What a side is to do: see what judges the targets, or check them too.

    Attributes:
        protocol: ``PROTOCOL``.
        folder: of the project.
        checks: whether to check.
        tasks: by the names of the targets.
    """

    protocol: str
    folder: str
    checks: bool
    tasks: dict[str, Task]


def main(arguments: Sequence[str]) -> None:
    """Do what the file of the first argument orders, and write the snapshots into that of the second.

    Where there is a third, and something fails, its file has all but the report as soon as every case is judged:
    counterexamples take time to be made smaller. Where a task ``tells``, it has what fails before that too.
    """
    threading.Thread(target=_listen, daemon=True).start()
    document = json.loads(Path(arguments[0]).read_text(encoding="utf-8"))
    if document.get("protocol") != PROTOCOL:
        raise SystemExit(f"the order is of protocol {document.get('protocol')!r}; expected {PROTOCOL!r}")
    order = serialize.from_plain(Order, document)
    os.chdir(order.folder)
    answer, *early = map(Path, arguments[1:])
    found: dict[str, Snapshot] = {}
    for name, task in order.tasks.items():
        found[name] = _standing(order, task, partial(_tell, early, name))
    _write(answer, found)


def _tell(files: Sequence[Path], name: str, found: Snapshot) -> None:
    for file in files:
        _write(file, {name: found})


def _write(file: Path, found: dict[str, Snapshot]) -> None:
    text = json.dumps(serialize.to_plain({"protocol": PROTOCOL, "snapshots": found}), allow_nan=False)
    files.write(file, text)


_stopped = threading.Event()


def _listen() -> None:
    """Standard input is a pipe from the gate: a byte asks for no further case, and the end is that of the gate itself.

    Nobody wants the answer then any more.
    """
    while os.read(0, 1):
        _stopped.set()
    os._exit(1)


def _standing(order: Order, task: Task, failing: Callable[[Snapshot], None]) -> Snapshot:
    try:
        return _checked(task, failing) if order.checks else _surveyed(order, task)
    except UsageError as error:
        return Snapshot(task.target, task.settings, error=str(error), is_lost=isinstance(error, Apart))
    except Exception as error:
        if os.environ.get("GRADORACLE_TRACEBACK") == "1":
            traceback.print_exc()
        last = traceback.format_exception_only(type(error), error)[-1].strip()
        return Snapshot(task.target, task.settings, error=last, is_fault=True)


def _surveyed(order: Order, task: Task) -> Snapshot:
    """What judges a target in its own project; that it can be imported is seen on the way."""
    from gradoracle.execution import device
    from gradoracle.gate.fingerprints import pieces
    from gradoracle.project.request import Request
    from gradoracle.project.target import resolve

    request = Request(task.target, **settings.fields(task.settings))
    device.prepare(device.choose(request.device))
    found = resolve(task.target, request.family)
    require_apart(task)
    return Snapshot(task.target, task.settings, pieces=pieces(found, os.path.abspath(order.folder)))


def require_apart(task: Task) -> None:
    """See that nothing was imported from the other tree, as an import hook may do."""
    if task.barred and (found := modules_of(task.barred)):
        raise Apart(f"it imports {found[0][1]}, which is not of the base; is the project installed in editable mode?")


def _checked(task: Task, failing: Callable[[Snapshot], None]) -> Snapshot:
    """Check a target on its cases: by all laws with a report, or by some with none.

    ``failing`` is told how it stands where a report must have counterexamples to find first, and of what fails
    before that where the task ``tells``.
    """
    from gradoracle.check.plan import plan, require_memory
    from gradoracle.check.run import Listener, running
    from gradoracle.project.request import Request
    from gradoracle.report.progress import progress

    places = Places(task.judge, task.kernels) if task.kernels else None
    limits: dict[str, Any] = {"shrink_tries": SHRINK_TRIES, "shrink_seconds": SHRINK_SECONDS}
    own = settings.fields(task.settings)
    request = Request(task.target, places=places, called_in=task.called_in, **limits, **own)
    found = Snapshot(task.target, task.settings)
    told: set[tuple[str, str, str]] = set()

    def watch(result: CaseResult) -> None:
        line = _key(result.kernel, result.case)
        found.cases[line] = _on_case(result, found.measured)
        broken = {(r.law, result.kernel, result.case.dtype) for r in result.results if r.status in BROKEN}
        if task.tells and not broken <= told:
            told.update(broken)
            failing(replace(found, cases={line: found.cases[line]}))

    first = set(task.first)
    listener = Listener(
        watch,
        lambda: "the first regression" if _stopped.is_set() else "",
        lambda job: _key(job.kernel, job.case) in first,
    )
    with running(request, progress()) as run:
        require_apart(task)
        found.measured = [law.name for law in run.subjects.laws.values() if law.kind is PropertyKind.ORACLE]
        pace = _Pace(
            found.measured, run.subjects.device == "cpu" and request.examples is None and request.seconds is None
        )

        def chosen(job: Job) -> tuple[str, ...]:
            if task.laws is None:
                return pace.laws(job)
            asked = task.laws.get(_key(job.kernel, job.case), ())
            return tuple(law for law in job.laws if (task.measures and law in found.measured) or law in asked)

        planned = plan(run.subjects, chosen)
        require_memory(planned, *run.executor.memory())
        run.over(planned, listener)
        found.is_whole = run.totals.done == len(planned.jobs) and not run.interrupted
        verdicts = run.totals.aggregate.verdicts({})
        found.pooled = [
            f"{v.law} {v.kernel} {v.dtype}" for v in verdicts if v.status is Status.VIOLATED and not v.cases_violated
        ]
        if task.laws is None:
            if any(True for _ in run.totals.aggregate.failing()):
                failing(found)
            found.report = run.report()
    if places is not None:
        found.missing = list(substituted(task.target, request.family, places).missing)
    return found


class _Pace:
    """Which laws a gate judges on a case: all that fall on it, or fewer where it is to be quick."""

    def __init__(self, measured: Collection[str], is_quick: bool) -> None:
        self._measured, self._is_quick = measured, is_quick
        self._cases: Counter[str] = Counter()  # by kernel
        self._judged: Counter[tuple[str, str, str]] = Counter()  # by law, kernel and dtype

    def laws(self, job: Job) -> tuple[str, ...]:
        """Of the next case; the laws that compare with the truth are always among them."""
        self._cases[job.kernel] += 1
        keys = {law: (law, job.kernel, job.case.dtype) for law in job.laws}
        chosen = job.laws
        if self._is_quick and self._cases[job.kernel] > CASES_OF_ALL_LAWS:
            few = {law for law, key in keys.items() if self._judged[key] < CASES_OF_EACH_LAW}
            chosen = tuple(law for law in job.laws if law in self._measured or law in few)
        self._judged.update(keys[law] for law in chosen)
        return chosen


def _key(kernel: str, case: Case) -> str:
    """A case of a kernel, whatever TARGET it is checked under."""
    return f"{kernel}: {case.line()}"


def _on_case(result: CaseResult, measured: Collection[str]) -> OnCase:
    laws = {each.law: each.status.value for each in result.results}
    reasons = {each.law: each.reason for each in result.results if each.status.value in UNDECIDED}
    memory = tuple(each.law for each in result.results if each.why is Reason.MEMORY)
    rms, worst = {}, {}
    for each in (law for law in result.results if law.law in measured):
        for finding in each.findings:
            place = f"{each.law}: {finding.tensor}"
            if finding.pool is not None and finding.pool.count:
                rms[place] = (finding.pool.squares / finding.pool.count) ** 0.5
            elif finding.outcome is Outcome.VIOLATED:
                worst[place] = finding.error_in_sigma or finding.error
    return OnCase(result.kernel, result.case.dtype, laws, reasons, rms, worst, result.called, memory)
