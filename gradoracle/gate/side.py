"""Side: the process that checks targets in one of the gate's two trees, run by the gradoracle of that tree.

That need not be the gradoracle of the gate; the two exchange JSON files.
"""

from __future__ import annotations

import json
import os
import threading
import traceback
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gradoracle.gate.snapshot import UNDECIDED, Errors, OnCase, Snapshot
from gradoracle.model import files, serialize
from gradoracle.model.errors import UsageError
from gradoracle.model.fault import VerdictKey
from gradoracle.model.finding import Outcome
from gradoracle.model.property import PropertyKind
from gradoracle.model.verdict import BROKEN, Status
from gradoracle.project import config
from gradoracle.project.base_overlay import Apart, Places, require_apart
from gradoracle.project.config import Setting

if TYPE_CHECKING:
    from gradoracle.model.case import Case
    from gradoracle.model.job import CaseResult, Job

PROTOCOL = "gradoracle-side/3"  # raised when a field below, or of a Snapshot, is renamed or changes its meaning
# on the CPU, unless --examples is given: the first cases, on which all properties are judged;
CASES_OF_ALL_PROPERTIES = 30
CASES_OF_EACH_PROPERTY = 2  # later ones are also judged by a property with fewer cases of their dtype than this
SHRINK_TRIES = 60  # counted, so that a gate explains a fault in the same way on a busy machine;
SHRINK_SECONDS = 60.0  # the clock is for kernels that are too slow for so many


@dataclass(frozen=True)
class Task:
    """One target to look at.

    Attributes:
        target: relative to the project's folder.
        settings: as the command line has them.
        places: the projects that judge and that are judged; None: both are the current folder's.
        properties: case -> properties to judge beyond those that measure; None: all.
        measures: whether errors are measured on all cases; if not, ``properties`` alone are judged.
        first: cases to judge before the others.
        early: whether each failing verdict is reported as soon as it is found.
        called_in: a folder; which of its functions run on a case is recorded. "": of none.
        barred: a folder that no module may be imported from; "": none.
    """

    target: str
    settings: dict[str, Setting] = field(default_factory=dict)
    places: Places | None = None
    properties: dict[str, list[str]] | None = None
    measures: bool = True
    first: list[str] = field(default_factory=list)
    early: bool = False
    called_in: str = ""
    barred: str = ""


@dataclass(frozen=True)
class Assignment:
    """What a process of the gate is to do with which tasks, by the names of their targets.

    ``checks``: whether a side checks them, or only takes the fingerprints of what judges them.
    """

    protocol: str
    tasks: dict[str, Task]
    checks: bool = True


def _read_order(file: Path) -> Assignment:
    """The order in a file. Ends the process where it is of another protocol."""
    document = json.loads(file.read_text(encoding="utf-8"))
    if document.get("protocol") != PROTOCOL:
        raise SystemExit(f"the order is of protocol {document.get('protocol')!r}; expected {PROTOCOL!r}")
    return serialize.from_plain(Assignment, document)


def main(arguments: Sequence[str]) -> None:
    """Execute the order in the first file, and write the snapshots into the second.

    Shrinking counterexamples takes time: where something fails, the third file has the snapshot without its report as
    soon as every case is judged, and before that whatever fails where the task is ``early``.
    """
    threading.Thread(target=_listen, daemon=True).start()
    given, answer, early = map(Path, arguments)
    order = _read_order(given)
    _write(answer, {name: _snapshot(order, name, early) for name in order.tasks})


def _write(file: Path, found: Mapping[str, Snapshot]) -> None:
    text = json.dumps(serialize.to_plain({"protocol": PROTOCOL, "snapshots": found}), allow_nan=False)
    files.write(file, text)


_stopped = threading.Event()


def _listen() -> None:
    """Read the pipe from the gate: a byte asks to stop after the current case; its end ends this process."""
    while os.read(0, 1):
        _stopped.set()
    os._exit(1)


def _snapshot(order: Assignment, name: str, early: Path) -> Snapshot:
    task = order.tasks[name]
    try:
        if not order.checks:
            return _fingerprinted(task)
        return _checked(task, lambda known: _write(early, {name: known}))
    except UsageError as error:
        return Snapshot(task.target, task.settings, error=str(error), is_lost=isinstance(error, Apart))
    except Exception as error:
        if os.environ.get("GRADORACLE_TRACEBACK") == "1":
            traceback.print_exc()
        last = traceback.format_exception_only(type(error), error)[-1].strip()
        return Snapshot(task.target, task.settings, error=last, is_fault=True)


def _fingerprinted(task: Task) -> Snapshot:
    """What judges a target in its own project. Fails where the target cannot be imported."""
    from gradoracle.check.plan import resolved
    from gradoracle.gate.fingerprints import pieces
    from gradoracle.project.request import Request

    own = config.fields(task.settings)
    subjects = resolved(Request(task.target, barred=task.barred, apart=True, **own))
    require_apart(task.barred)
    found = pieces(subjects.family, subjects.kernels.values(), os.getcwd())
    return Snapshot(task.target, task.settings, pieces=found)


def _checked(task: Task, failing: Callable[[Snapshot], None]) -> Snapshot:
    """Check a target: by all properties, with a report; or by some of them, without.

    ``failing`` gets the snapshot before counterexamples are shrunk; where the task is ``early``, each failing case too.
    """
    from gradoracle.check.plan import plan, require_memory
    from gradoracle.check.run import Listener, running
    from gradoracle.project.request import Request
    from gradoracle.report.progress import progress

    limits: dict[str, Any] = {"shrink_tries": SHRINK_TRIES, "shrink_seconds": SHRINK_SECONDS}
    own = config.fields(task.settings)
    where: dict[str, Any] = {"places": task.places, "called_in": task.called_in, "barred": task.barred, "apart": True}
    request = Request(task.target, compilations=True, **where, **limits, **own)
    found = Snapshot(task.target, task.settings)
    reported: set[VerdictKey] = set()

    def watch(result: CaseResult) -> None:
        line = _key(result.kernel, result.case)
        found.cases[line] = _on_case(result, found.measured)
        broken = {
            VerdictKey(r.property_name, result.kernel, result.case.dtype) for r in result.results if r.status in BROKEN
        }
        if task.early and not broken <= reported:
            reported.update(broken)
            failing(replace(found, cases={line: found.cases[line]}))

    first = set(task.first)
    listener = Listener(
        watch,
        lambda: "the first regression" if _stopped.is_set() else "",
        lambda job: _key(job.kernel, job.case) in first,
    )
    with running(request, progress()) as run:
        require_apart(task.barred)
        found.measured = [prop.name for prop in run.subjects.properties.values() if prop.kind is PropertyKind.ORACLE]
        is_quick = run.subjects.device == "cpu" and request.examples is None and request.seconds is None
        pace = _Pace(found.measured, is_quick)

        def chosen(job: Job) -> tuple[str, ...]:
            if task.properties is None:
                return pace.properties(job)
            asked = task.properties.get(_key(job.kernel, job.case), ())
            return tuple(
                property_name
                for property_name in job.properties
                if (task.measures and property_name in found.measured) or property_name in asked
            )

        planned = plan(run.subjects, chosen)
        require_memory(planned, *run.executor.memory())
        run.over(planned, listener)
        found.is_whole = run.totals.done == len(planned.jobs) and not run.interrupted
        verdicts = run.totals.aggregate.verdicts({})
        pooled = [v for v in verdicts if v.status is Status.VIOLATED and not v.cases_violated]
        found.pooled = [v.key for v in pooled]
        if task.properties is None:
            if any(True for _ in run.totals.aggregate.failing()):
                failing(found)
            found.report = run.report(compared=True)
        found.missing = list(run.subjects.missing)
    return found


class _Pace:
    """Which properties a gate judges on a case: all that apply, or fewer where it is to be quick."""

    def __init__(self, measured: Collection[str], is_quick: bool) -> None:
        self._measured, self._is_quick = measured, is_quick
        self._cases: Counter[str] = Counter()  # by kernel
        self._judged: Counter[VerdictKey] = Counter()

    def properties(self, job: Job) -> tuple[str, ...]:
        """The properties for the next case; those that measure are always among them."""
        self._cases[job.kernel] += 1
        keys = {
            property_name: VerdictKey(property_name, job.kernel, job.case.dtype) for property_name in job.properties
        }
        chosen = job.properties
        if self._is_quick and self._cases[job.kernel] > CASES_OF_ALL_PROPERTIES:
            few = {property_name for property_name, key in keys.items() if self._judged[key] < CASES_OF_EACH_PROPERTY}
            chosen = tuple(
                property_name
                for property_name in job.properties
                if property_name in self._measured or property_name in few
            )
        self._judged.update(keys[property_name] for property_name in chosen)
        return chosen


def _key(kernel: str, case: Case) -> str:
    """The name of a case of a kernel, the same under whatever TARGET the kernel is checked."""
    return f"{kernel}: {case.line()}"


def _on_case(result: CaseResult, measured: Collection[str]) -> OnCase:
    rms: Errors = {}
    worst: Errors = {}
    for each in (judged for judged in result.results if judged.property_name in measured):
        for finding in each.findings:
            if finding.pool is not None and finding.pool.count:
                rms.setdefault(each.property_name, {})[finding.tensor] = (
                    finding.pool.squares / finding.pool.count
                ) ** 0.5
            elif finding.outcome is Outcome.VIOLATED:
                worst.setdefault(each.property_name, {})[finding.tensor] = finding.error_in_sigma or finding.error
    return OnCase(
        result.kernel,
        result.case.dtype,
        properties={each.property_name: each.status for each in result.results},
        reasons={each.property_name: each.reason for each in result.results if each.status in UNDECIDED},
        why={each.property_name: each.why for each in result.results if each.why is not None},
        rms=rms,
        worst=worst,
        called=result.called,
    )
