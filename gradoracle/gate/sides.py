"""Sides: the change and its base as processes: who judges in which tree, on which cases, and what a process answers."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from gradoracle.execution import fork_server
from gradoracle.gate import side
from gradoracle.gate.affected import affected
from gradoracle.gate.answer import Answer
from gradoracle.gate.baseline import Baseline
from gradoracle.gate.compare import asked_of_base
from gradoracle.gate.gate_target import GateTarget
from gradoracle.gate.ledger_cache import LedgerCache, may_use_gpu, own_files
from gradoracle.gate.side import PROTOCOL, Assignment, Task, Told
from gradoracle.gate.tree import Tree
from gradoracle.model import serialize
from gradoracle.model.ledger import CaseRecord, JudgeRecord, Ledger, Section
from gradoracle.model.ledger_file import LedgerTail
from gradoracle.model.location import is_source
from gradoracle.model.serialize import Unreadable
from gradoracle.model.verdict import BROKEN
from gradoracle.project.base_overlay import Places, import_folders
from gradoracle.project.config import Entry

_PAUSE = 0.05  # seconds
_PROGRAM = f"""
import sys
try:
    from {side.__name__} import main
except ModuleNotFoundError as error:
    sys.exit(f"its gradoracle has no gate: {{error}}")
main(sys.argv[1:])
"""

Properties = dict[str, list[str]]  # by case
Wait = Callable[[], Answer]  # waits for a process, and returns what it found
Proven = Callable[[Answer | None, Answer], bool]  # whether a base and a change, as far as known, show a regression
Start = tuple[Path, list[str], Task]  # current folder, search path, task


class SideProcess:
    """A process that looks at targets in one tree.

    Args:
        folder: of the project, the process's current folder.
        path: its search path of modules, from ``search_path``.
        checks: whether it checks, or only takes fingerprints of what judges.
        tasks: by the names of the targets.
        stage: a folder for the files that are exchanged.
        shows: whether a terminal shows the progress of a check.
    """

    def __init__(
        self,
        folder: Path,
        path: Sequence[str],
        checks: bool,
        tasks: Mapping[str, Task],
        stage: Path,
        shows: bool = True,
    ):
        self._tasks = tasks
        order, self._errors = _write_order(stage, Assignment(PROTOCOL, dict(tasks), checks))
        self._answer = order.with_name("answer.json")
        self._tail = LedgerTail(order.with_name("ledger.jsonl"))
        self._fails = self._is_told = False
        with self._errors.open("wb") as errors:
            self._process = fork_server.run(
                _PROGRAM,
                [str(order), str(self._answer), str(order.with_name("ledger.jsonl"))],
                has_engine=fork_server.is_of(path),
                path=path,
                folder=str(folder),
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=None if shows and checks and sys.stderr.isatty() else errors,
                name="gradoracle-side",
            )

    def news(self, soon: bool) -> Answer | None:
        """Wait until every case is judged and some fail; None: the process ended first.

        Args:
            soon: whether to come back before that with the cases that fail, as they do.
        """
        ((_, task),) = self._tasks.items()
        while True:
            has_ended = self._process.poll() is not None
            failing = [each for each in self._more() if any(own.status in BROKEN for own in each.results)]
            self._fails |= bool(failing)
            for ledger in self._tail.ledgers if self._fails and not self._is_told else ():
                if ledger.is_whole:
                    self._is_told = True
                    return Answer(task.target, ledger)
                if soon and failing:
                    return Answer(task.target, Ledger([Section(ledger.header, [*failing])]))
            if has_ended:
                return None
            time.sleep(_PAUSE)

    def _more(self) -> list[CaseRecord]:
        """The cases that were judged since."""
        with contextlib.suppress(FileNotFoundError, Unreadable, ValueError):  # ``answer`` says what is wrong
            return [each for each in self._tail.more() if isinstance(each, CaseRecord)]
        return []

    def stop(self) -> None:
        """Stop it after the current case; it answers with its results so far."""
        if self._process.stdin is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.write(b"s")
                self._process.stdin.flush()

    def answer(self) -> dict[str, Answer]:
        """Wait for its end; the answer about each target, with an error where there is no other."""
        try:
            code = self._process.wait()
            if code == -signal.SIGINT:
                raise KeyboardInterrupt
            if self._answer.is_file():
                return self._read()
            if code < 0:
                is_lost = code in (-signal.SIGKILL, -signal.SIGTERM)
                return self._failed(f"its process was killed by signal {-code} ({signal.Signals(-code).name})", is_lost)
            return self._failed(_last_line(self._errors) or f"its process ended with exit code {code}")
        finally:
            self.close()

    def close(self) -> None:
        """Kill it if it still runs; its workers end with it."""
        if self._process.stdin is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.close()
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()

    def _read(self) -> dict[str, Answer]:
        """What it answered, and the ledger of what it checked."""
        document = json.loads(self._answer.read_text(encoding="utf-8"))
        if document.get("protocol") != PROTOCOL:
            return self._failed(f"its gradoracle speaks protocol {document.get('protocol')!r}; expected {PROTOCOL!r}")
        try:
            told = serialize.from_plain(dict[str, Told], document["answers"], "answers")
            with contextlib.suppress(FileNotFoundError):
                self._tail.more()
        except (KeyError, ValueError) as error:
            return self._failed(f"the answer of its gradoracle cannot be read: {error}")
        if self._tail.lines.damage:
            return self._failed(f"the ledger of its gradoracle cannot be read: {self._tail.lines.damage[0]}")
        ledger = self._tail.ledgers[0] if self._tail.ledgers else None
        return {name: self._answered(name, each, ledger) for name, each in told.items()}

    def _answered(self, name: str, told: Told, ledger: Ledger | None) -> Answer:
        own = None if told.error else ledger
        judge = JudgeRecord(pieces=told.pieces)
        return Answer(self._tasks[name].target, own, judge, told.error, told.is_fault, told.is_lost)

    def _failed(self, error: str, is_lost: bool = True) -> dict[str, Answer]:
        return {name: Answer(task.target, error=error, is_lost=is_lost) for name, task in self._tasks.items()}


def _write_order(stage: Path, order: Assignment) -> tuple[Path, Path]:
    """Write an order into a folder of its own: its file, and another for the standard error of the process."""
    file = Path(tempfile.mkdtemp(dir=stage)) / "order.json"
    file.write_text(json.dumps(serialize.to_plain(order)), encoding="utf-8")
    return file, file.with_name("stderr.txt")


def _last_line(file: Path) -> str:
    """The last line of a text that is not blank; "" where there is none."""
    lines = [line.strip() for line in file.read_text("utf-8", "replace").splitlines() if line.strip()]
    return lines[-1] if lines else ""


def search_path(judge: Tree, kernels: Tree, here: Tree, stage: Path) -> list[str]:
    """The search path of a side: the engine and properties of one tree, the kernels of another, and what is installed.

    Where a tree is gradoracle's own, a folder of links puts its packages together as setup.py does.

    Args:
        judge: whose engine, properties and declarations judge.
        kernels: whose kernels are judged.
        here: the working tree that the gate runs in; its entries of the search path are replaced by the judge's.
        stage: a folder for the links.
    """
    own = []
    if judge.is_gradoracle:
        view = Path(tempfile.mkdtemp(prefix="view-", dir=stage))
        package = view / "gradoracle"
        package.mkdir()
        for entry in (judge.root / "gradoracle").iterdir():
            if entry.name not in ("kernels", "properties", "__pycache__"):
                (package / entry.name).symlink_to(entry)
        (package / "properties").symlink_to(judge.root / "properties")
        (package / "kernels").symlink_to(kernels.root / "kernels")
        own.append(str(view))
    inherited = [_moved(os.path.abspath(entry), here.root, judge.root) for entry in sys.path if entry]
    return list(dict.fromkeys([*own, *import_folders(judge.folder), *inherited]))


def _moved(entry: str, here: Path, there: Path) -> str:
    """An entry of the search path; a folder of sources in one tree is that of the other tree, an environment stays."""
    return str(there / Path(entry).relative_to(here)) if is_source(entry, str(here)) else entry


class Base:
    """What is known of one target's base: kept from an earlier gate, or asked of processes.

    Args:
        begin: starts a process that judges some properties on some cases; None: that measures errors on all of them.
        kept: the answer of an earlier gate; None: there is none.

    Attributes:
        kept: as given.
        is_measured: whether its errors are known on all cases.
    """

    def __init__(self, begin: Callable[[Properties | None], Wait], kept: Answer | None) -> None:
        self._begin, self.kept, self._known = begin, kept, kept
        self.is_measured = kept is not None
        self._measuring: Wait | None = None
        self._asking: list[Wait] = []
        self._asked: set[tuple[str, str]] = set()

    @property
    def is_asked(self) -> bool:
        """Whether an answer is pending."""
        return bool(self._asking) or not self.is_measured

    def measure(self) -> None:
        """Start measuring its errors on all cases, unless they are known or being measured."""
        if not self.is_measured and self._measuring is None:
            self._measuring = self._begin(None)

    def ask(self, properties: Mapping[str, Sequence[str]], measured: Collection[str], soon: bool = False) -> None:
        """Start judging what is not known yet.

        Args:
            properties: by case.
            measured: those that the measuring judges anyway.
            soon: whether to judge these too, since the measuring takes longer.
        """
        known = {} if self._known is None else self._known.cases
        new: Properties = {}
        for line, names in properties.items():
            own = known[line].by_property if line in known else {}
            left = [name for name in names if (line, name) not in self._asked and name not in own]
            if left := [name for name in left if soon or name not in measured]:
                new[line] = left
        self._asked |= {(line, name) for line, names in new.items() for name in names}
        if new:
            self._asking.append(self._begin(new))

    def answers(self) -> Answer | None:
        """Wait for what was asked: all that is known by then, or an error; None: nothing was asked or known."""
        while self._asking:
            found = self._asking.pop(0)()
            if found.error:
                return found
            self._known = found if self._known is None else self._known | found
        return self._known

    def whole(self) -> Answer:
        """Wait for everything: all that is known, or an error."""
        self.measure()
        found = self.answers()
        if found is not None and found.error:
            return found
        if self._measuring is not None:
            measured, self._measuring = self._measuring(), None
            if measured.error:
                return measured
            self._known, self.is_measured = measured if found is None else measured | found, True
        assert self._known is not None
        return self._known


@dataclass(frozen=True)
class Sides:
    """Both sides of a gate.

    Attributes:
        base: a tree, a saved baseline, or nothing.
        head: the working tree.
        stage: a folder for the files that processes exchange.
        tell: prints a sentence about the progress.
        kept: ledgers of earlier gates.
        stops: whether the change is checked no further once it shows a regression.
    """

    base: Tree | Baseline | None
    head: Tree
    stage: Path
    tell: Callable[[str], None]
    kept: LedgerCache
    stops: bool = False

    def survey(self, subjects: Sequence[GateTarget]) -> dict[str, tuple[Answer, Answer]]:
        """Answers of base and change with what judges targets in their own projects; both trees at once.

        Targets that cannot be imported are left out, and have a line with the reason.
        """
        if not subjects:
            return {}
        tasks = [(self.head, {s.name: Task(s.head.target, s.settings[1]) for s in subjects if s.head is not None})]
        if isinstance(self.base, Tree):
            barred = str(self.head.root)
            theirs = {s.name: Task(s.base.target, s.settings[0], barred=barred) for s in subjects if s.base is not None}
            tasks.append((self.base, theirs))
        with contextlib.ExitStack() as stack:
            sides = [
                stack.enter_context(contextlib.closing(SideProcess(tree.folder, path, False, own, self.stage)))
                for tree, own in tasks
                for path in [search_path(tree, tree, self.head, self.stage)]
            ]
            head, *others = [side.answer() for side in sides]
        base = self.base.answers if isinstance(self.base, Baseline) else others[0] if others else {}
        found = {}
        for subject in subjects:
            there = Answer("") if subject.base is None else base.get(subject.name, Answer(""))
            subject.base_failed(there)
            subject.change_failed(head[subject.name])
            if not head[subject.name].error and not there.error:
                found[subject.name] = (there, head[subject.name])
        return found

    def judge(self, subject: GateTarget) -> Tree:
        """Who judges: the base where there is one and no other judge is acknowledged, else the change itself."""
        if isinstance(self.base, Tree) and subject.base is not None and subject.has_base and subject.is_judged_by_base:
            return self.base
        return self.head

    def check(self, subject: GateTarget, entry: Entry, proven: Proven) -> tuple[Answer, Answer | None]:
        """Check the change, and the base on the same cases; None: there is no base.

        The base's errors are measured on all cases, while the change runs if both are on the CPU. It is
        judged by the properties that fail in the change as soon as these are known, while counterexamples are shrunk.
        What an earlier gate kept is not judged again.

        Args:
            subject: the target.
            entry: the change's entry.
            proven: decides whether what fails is a regression.
        """
        by_base = self.judge(subject) is not self.head
        self.tell(f"{subject.name}: checking the change, judged by {'the base' if by_base else 'itself'}")
        with contextlib.ExitStack() as stack:
            name = ""
            if isinstance(self.base, Tree) and subject.base is not None:
                name = self.kept.name(subject.base, subject.settings[0], self.base, self.base)
            base = self._base(stack, subject, name)
            folder, path, task = self._of_change(subject, entry)
            task = replace(task, first=self._first(subject, base))
            change = self._side(stack, subject, (folder, path, task))
            if base is not None and not may_use_gpu(task.settings):
                base.measure()
            is_stopped = self._follow(subject, change, base, proven)
            head = change.answer()[subject.name]
            subject.change_failed(head)
            if head.report is None:
                return head, None
            own = self.kept.name(entry, task.settings, self.judge(subject), self.head)
            self.kept.keep(own, head, own_files(self.head, entry, subject.digests[1]))
            if isinstance(self.base, Baseline) and subject.base is not None and subject.has_base:
                return head, self.base.answers[subject.name]
            if base is None:
                return head, None
            base.ask(asked_of_base(head), head.measured, soon=is_stopped)
            if base.is_asked:
                self.tell(f"{subject.name}: checking the base")
            there = (base.answers() if is_stopped else None) or base.whole()
            if not there.error and not is_stopped:
                base.ask(asked_of_base(head, there), head.measured)
                there = base.whole()
            subject.base_failed(there)
            if there is not base.kept and base.is_measured and subject.base is not None and isinstance(self.base, Tree):
                self.kept.keep(name, there, own_files(self.base, subject.base, subject.digests[0]))
            return head, there if not there.error else None

    def _follow(self, subject: GateTarget, change: SideProcess, base: Base | None, proven: Proven) -> bool:
        """Have the base judge what fails in the change as it fails; whether a regression stopped the change."""
        while (failing := change.news(self.stops)) is not None:
            if base is not None:
                base.ask(asked_of_base(failing), failing.measured, soon=self.stops)
            if not self.stops:
                return False
            there = None if base is None else base.answers()
            if (there is None or not there.error) and proven(there, failing):
                self.tell(f"{subject.name}: worse than the base, so no further case is judged")
                change.stop()
                return True
        return False

    def _first(self, subject: GateTarget, base: Base | None) -> list[str]:
        """The cases to judge first: those that run what the change touches, where it is known that not all do."""
        if base is None or base.kept is None or not isinstance(self.base, Tree):
            return []
        found = affected(base.kept, subject.files, self.base.root, self.head.root)
        return found if len(found) < len(base.kept.cases) else []

    def _base(self, stack: contextlib.ExitStack, subject: GateTarget, name: str) -> Base | None:
        """The base, where it is a tree that can be checked; ``name``: under which its ledger is kept."""
        tree, entry = self.base, subject.base
        if not isinstance(tree, Tree) or entry is None or not subject.has_base:
            return None
        known = self.kept.find(name)
        if known is not None:
            self.tell(f"{subject.name}: reusing the base's results from an earlier gate")
        folder, path, task = self._of_base(subject, entry, tree)

        def begin(properties: Properties | None) -> Wait:
            own = replace(task, properties=properties or {}, measures=properties is None)
            side = self._side(stack, subject, (folder, path, own), shows=False)
            return lambda: side.answer()[subject.name]

        return Base(begin, known)

    def _of_change(self, subject: GateTarget, entry: Entry) -> Start:
        judge = self.judge(subject)
        by_base = judge is not self.head
        task = Task(entry.target, subject.settings[0 if by_base else 1], called_in=self._called_in(self.head))
        if by_base and not judge.ships(entry.target):
            task = replace(task, places=Places(str(judge.folder), str(self.head.folder)))
        return self.head.folder, search_path(judge, self.head, self.head, self.stage), task

    def _of_base(self, subject: GateTarget, entry: Entry, base: Tree) -> Start:
        barred = str(self.head.root)
        task = Task(entry.target, subject.settings[0], called_in=self._called_in(base), barred=barred)
        return base.folder, search_path(base, base, self.head, self.stage), task

    def _called_in(self, tree: Tree) -> str:
        """Where the functions that run are recorded: only kept ledgers use them."""
        return str(tree.root) if self.kept.is_on else ""

    def _side(self, stack: contextlib.ExitStack, subject: GateTarget, start: Start, shows: bool = True) -> SideProcess:
        """A process that checks a target, and ends with the stack."""
        folder, path, task = start
        return stack.enter_context(
            contextlib.closing(SideProcess(folder, path, True, {subject.name: task}, self.stage, shows))
        )
