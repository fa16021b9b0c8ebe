"""Side: the process that checks targets in one of the gate's two trees, run by the gradoracle of that tree.

That need not be the gradoracle of the gate; the two exchange an order in JSON, a ledger, and an answer in JSON.
"""

from __future__ import annotations

import json
import os
import threading
import traceback
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gradoracle.model import files, serialize
from gradoracle.model.errors import UsageError
from gradoracle.model.fault import VerdictKey
from gradoracle.model.ledger import Piece, name_of
from gradoracle.model.ledger_file import LedgerFile
from gradoracle.model.property import PropertyKind
from gradoracle.project import config
from gradoracle.project.base_overlay import Apart, Places, require_apart
from gradoracle.project.config import Setting

if TYPE_CHECKING:
    from gradoracle.model.job import Job

PROTOCOL = "gradoracle-side/4"  # raised when a field below is renamed or changes its meaning
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
        called_in: a folder; which of its functions run on a case is recorded. "": of none.
        barred: a folder that no module may be imported from; "": none.
    """

    target: str
    settings: dict[str, Setting] = field(default_factory=dict)
    places: Places | None = None
    properties: dict[str, list[str]] | None = None
    measures: bool = True
    first: list[str] = field(default_factory=list)
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


@dataclass(frozen=True)
class Told:
    """What a side answers besides the ledger: the fields of an ``Answer``."""

    pieces: dict[str, Piece] = field(default_factory=dict)
    error: str = ""
    is_fault: bool = False
    is_lost: bool = False


def main(arguments: Sequence[str]) -> None:
    """Execute the order in the first file: write the ledger of a check into the third, then the answer, the second."""
    threading.Thread(target=_listen, daemon=True).start()
    given, answer, ledger = map(Path, arguments)
    order = _read_order(given)
    told = {name: _told(order, task, ledger) for name, task in order.tasks.items()}
    text = json.dumps(serialize.to_plain({"protocol": PROTOCOL, "answers": told}), allow_nan=False)
    files.write(answer, text)


_stopped = threading.Event()


def _listen() -> None:
    """Read the pipe from the gate: a byte asks to stop after the current case; its end ends this process."""
    while os.read(0, 1):
        _stopped.set()
    os._exit(1)


def _told(order: Assignment, task: Task, ledger: Path) -> Told:
    try:
        if not order.checks:
            return Told(_fingerprinted(task))
        _check(task, LedgerFile(ledger))
    except UsageError as error:
        return Told(error=str(error), is_lost=isinstance(error, Apart))
    except Exception as error:
        if os.environ.get("GRADORACLE_TRACEBACK") == "1":
            traceback.print_exc()
        return Told(error=traceback.format_exception_only(type(error), error)[-1].strip(), is_fault=True)
    return Told()


def _fingerprinted(task: Task) -> dict[str, Piece]:
    """What judges a target in its own project. Fails where the target cannot be imported."""
    from gradoracle.check.plan import resolved
    from gradoracle.gate.fingerprints import pieces
    from gradoracle.project.request import Request

    own = config.fields(task.settings)
    subjects = resolved(Request(task.target, barred=task.barred, apart=True, **own))
    require_apart(task.barred)
    return pieces(subjects.family, subjects.kernels.values(), os.getcwd())


def _check(task: Task, file: LedgerFile) -> None:
    """Check a target: by all properties, explaining what fails; or by some of them, without."""
    from gradoracle.check.plan import plan, require_memory
    from gradoracle.check.run import running
    from gradoracle.project.request import Request
    from gradoracle.report.progress import progress

    limits: dict[str, Any] = {"shrink_tries": SHRINK_TRIES, "shrink_seconds": SHRINK_SECONDS}
    own = config.fields(task.settings)
    where: dict[str, Any] = {"places": task.places, "called_in": task.called_in, "barred": task.barred, "apart": True}
    request = Request(task.target, compilations=True, **where, **limits, **own)
    first = set(task.first)
    with running(request, progress(), file) as run:
        require_apart(task.barred)
        measured = [prop.name for prop in run.subjects.properties.values() if prop.kind is PropertyKind.ORACLE]
        is_quick = run.subjects.device == "cpu" and request.examples is None and request.seconds is None
        pace = _Pace(measured, is_quick)

        def chosen(job: Job) -> tuple[str, ...]:
            if task.properties is None:
                return pace.properties(job)
            asked = task.properties.get(name_of(job.kernel, job.case), ())
            return tuple(name for name in job.properties if (task.measures and name in measured) or name in asked)

        planned = plan(run.subjects, chosen)
        require_memory(planned, *run.executor.memory())
        run.over(
            planned,
            lambda: "the first regression" if _stopped.is_set() else "",
            lambda job: name_of(job.kernel, job.case) in first,
        )
        run.end(explains=task.properties is None)
    file.close()


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
