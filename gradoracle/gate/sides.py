"""Sides: the change and its base as processes: who judges in which tree, on which cases."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from gradoracle.execution import device
from gradoracle.gate import speed
from gradoracle.gate.affected import affected
from gradoracle.gate.base_side import Base
from gradoracle.gate.baseline import Baseline
from gradoracle.gate.compare import asked_of_base
from gradoracle.gate.kept import Kept, may_use_gpu, own_files
from gradoracle.gate.process import Answer, Side, search_path
from gradoracle.gate.side import Task
from gradoracle.gate.snapshot import Snapshot
from gradoracle.gate.subject import BASE, CHANGE, Subject
from gradoracle.gate.tree import Tree
from gradoracle.model.comparison import Kind, Line, Weight
from gradoracle.project import settings
from gradoracle.project.config import Entry


@dataclass(frozen=True)
class Sides:
    """Both sides of a gate.

    Attributes:
        base: a tree, a saved baseline, or nothing.
        head: the working tree.
        stage: a folder for what processes write.
        tell: is told what goes on.
        kept: how trees stood in earlier gates.
        stops: whether the change is checked no further once it is known to be worse.
    """

    base: Tree | Baseline | None
    head: Tree
    stage: Path
    tell: Callable[[str], None]
    kept: Kept
    stops: bool = False

    def survey(self, subjects: Sequence[Subject]) -> dict[str, tuple[Snapshot, Snapshot]]:
        """What judges some targets in their own projects, both at once; where one cannot be read, a line says so."""
        if not subjects:
            return {}
        orders = [(self.head, {s.name: Task(s.head.target, s.settings[1]) for s in subjects if s.head is not None})]
        if isinstance(self.base, Tree):
            there = [s for s in subjects if s.base is not None]
            orders.append(
                (
                    self.base,
                    {s.name: Task(s.base.target, s.settings[0], barred=str(self.head.root)) for s in there if s.base},
                )
            )
        head, *others = _answers(
            [
                Side(tree.folder, search_path(tree, tree, self.head, self.stage), False, tasks, self.stage)
                for tree, tasks in orders
            ]
        )
        found = {}
        for subject in subjects:
            own, there_ = _of(head, subject.name), self._surveyed(others, subject)
            subject.cannot(BASE, there_)
            subject.cannot(CHANGE, own)
            if not own.error and not there_.error:
                found[subject.name] = (there_, own)
        return found

    def _surveyed(self, answers: Sequence[Answer], subject: Subject) -> Snapshot:
        if subject.base is None or self.base is None:
            return Snapshot("")
        return self.base.snapshots[subject.name] if isinstance(self.base, Baseline) else _of(answers[0], subject.name)

    def judge(self, subject: Subject) -> Tree:
        """Whose judge holds: the base's where there is one and nobody answers for another, else the change's own."""
        if isinstance(self.base, Tree) and subject.base is not None and subject.has_base and subject.is_judged_by_base:
            return self.base
        return self.head

    def check(
        self, subject: Subject, entry: Entry, proven: Callable[[Snapshot | None, Snapshot], bool]
    ) -> tuple[Snapshot, Snapshot | None]:
        """How the change stands, by whoever judges it, and the base on the same cases; None: no base.

        The base is asked for its errors on all cases, at once where both run on the CPU, and for whatever the change
        does not keep: as soon as that is known, while cases on which the change fails are made smaller. What is kept
        of it is not asked again.

        Args:
            subject: the target.
            entry: as the change has it.
            proven: whether what fails shows the change to be worse than the base, as far as they are known.
        """
        by_base = self.judge(subject) is not self.head
        self.tell(f"{subject.name}: the change, judged by {'the base' if by_base else 'itself'}")
        with contextlib.ExitStack() as stack:
            name = self._name_of_base(subject)
            base = self._base(stack, subject, name)
            folder, path, task = self._of_change(subject, entry)
            first = [] if base is None else self._first(subject, base.kept)
            change = self._side(stack, subject, (folder, path, replace(task, first=first, tells=self.stops)))
            if base is not None and not may_use_gpu(task.settings):
                base.measure()
            is_stopped = self._follow(subject, change, base, proven)
            head = _of(change.answer(), subject.name)
            subject.cannot(CHANGE, head)
            if head.report is None:
                return head, None
            own = self.kept.name(entry, task.settings, self.judge(subject), self.head)
            self.kept.keep(own, head, own_files(self.head, entry, subject.digests[1]))
            if isinstance(self.base, Baseline) and subject.base is not None and subject.has_base:
                return head, self.base.snapshots[subject.name]
            if base is None:
                return head, None
            base.ask(asked_of_base(head), head.measured, soon=is_stopped)
            if base.is_asked:
                self.tell(f"{subject.name}: the base")
            there = (base.answers() if is_stopped else None) or base.snapshot()
            if not there.error and not is_stopped:
                base.ask(asked_of_base(head, there), head.measured)
                there = base.snapshot()
            subject.cannot(BASE, there)
            if there is not base.kept and base.is_measured and subject.base is not None and isinstance(self.base, Tree):
                self.kept.keep(name, there, own_files(self.base, subject.base, subject.digests[0]))
            return head, there if not there.error else None

    def _follow(
        self, subject: Subject, change: Side, base: Base | None, proven: Callable[[Snapshot | None, Snapshot], bool]
    ) -> bool:
        """Ask the base for what fails in the change, as soon as it does; whether that is enough, and it was stopped."""
        while (news := change.news()) is not None:
            failing = _of(news, subject.name)
            if failing.error:
                return False
            if base is not None:
                base.ask(asked_of_base(failing), failing.measured, soon=self.stops)
            if not self.stops:
                return False
            there = None if base is None else base.answers()
            if (there is None or not there.error) and proven(there, failing):
                self.tell(f"{subject.name}: worse than the base, so that no further case is judged")
                change.stop()
                return True
        return False

    def _name_of_base(self, subject: Subject) -> str:
        """What the base's snapshot is kept under; "" where there is none."""
        if not isinstance(self.base, Tree) or subject.base is None:
            return ""
        return self.kept.name(subject.base, subject.settings[0], self.base, self.base)

    def _first(self, subject: Subject, known: Snapshot | None) -> list[str]:
        """The cases that come first, where some ran what the change touches and some did not."""
        if known is None or not isinstance(self.base, Tree):
            return []
        found = affected(known, subject.files, self.base.root, self.head.root)
        return found if len(found) < len(known.cases) else []

    def _base(self, stack: contextlib.ExitStack, subject: Subject, name: str) -> Base | None:
        """The base, where it can be checked; ``name``: what its snapshot is kept under."""
        tree, entry = self.base, subject.base
        if not isinstance(tree, Tree) or entry is None or not subject.has_base:
            return None
        known = self.kept.find(name)
        if known is not None:
            self.tell(f"{subject.name}: how the base stands is known from an earlier gate")
        folder, path, task = self._of_base(subject, entry, tree)

        def begin(laws: dict[str, list[str]] | None) -> Side:
            own = replace(task, laws=laws or {}, measures=laws is None)
            return self._side(stack, subject, (folder, path, own), shows=False)

        return Base(begin, lambda side: _of(side.answer(), subject.name), known)

    def timed(self, subject: Subject) -> list[Line]:
        """What a target takes beside its base, and what of it cannot be timed, as notes."""
        assert isinstance(self.base, Tree) and subject.base is not None and subject.head is not None
        asked = settings.fields({name: word for name, word in subject.settings[1].items() if name == "device"})
        if device.choose(asked.get("device", "auto")) not in speed.DEVICES:
            return [_untimed(subject, "what the interpreter takes says nothing of a kernel")]
        self.tell(f"{subject.name}: times of both, in turns")
        there, here = self._of_base(subject, subject.base, self.base), self._of_change(subject, subject.head)
        try:
            with contextlib.ExitStack() as stack:
                base, twin, head = (
                    stack.enter_context(contextlib.closing(speed.Timer(folder, path, _at(task, subject), self.stage)))
                    for folder, path, task in (there, there, here)
                )
                lines = [each.line() for each in speed.measure(base, twin, head)]
                return lines + [_untimed(subject, why) for why in speed.untimed(base, head)]
        except speed.Untimed as error:
            return [_untimed(subject, str(error))]

    def _of_change(self, subject: Subject, entry: Entry) -> tuple[Path, list[str], Task]:
        """Folder, search path and task of the change, as whoever judges it has them."""
        judge = self.judge(subject)
        by_base = judge is not self.head
        task = Task(entry.target, subject.settings[0 if by_base else 1], called_in=self._called_in(self.head))
        if by_base and not (judge.is_gradoracle and judge.is_shipped(entry.target)):
            task = replace(task, judge=str(judge.folder), kernels=str(self.head.folder))
        return self.head.folder, search_path(judge, self.head, self.head, self.stage), task

    def _of_base(self, subject: Subject, entry: Entry, base: Tree) -> tuple[Path, list[str], Task]:
        """Folder, search path and task of the base."""
        barred = str(self.head.root)
        task = Task(entry.target, subject.settings[0], called_in=self._called_in(base), barred=barred)
        return base.folder, search_path(base, base, self.head, self.stage), task

    def _called_in(self, tree: Tree) -> str:
        """Where what a case calls is noted: only what is kept is ever asked for it."""
        return str(tree.root) if self.kept.is_on else ""

    def _side(
        self, stack: contextlib.ExitStack, subject: Subject, of: tuple[Path, list[str], Task], shows: bool = True
    ) -> Side:
        """A process that checks, which ends with the stack."""
        folder, path, task = of
        side = Side(folder, path, True, {subject.name: task}, self.stage, shows)
        stack.callback(side.end)
        return side


def _untimed(subject: Subject, why: str) -> Line:
    return Line(Kind.SPEED, Weight.NOTE, f"{subject.name} is not timed: {why}")


def _at(task: Task, subject: Subject) -> Task:
    """A task with the problems that the change wants timed: they decide no verdict, and both sides need the same."""
    own = {name: word for name, word in task.settings.items() if name != "timed"}
    timed = subject.settings[1].get("timed")
    return replace(task, settings=own if timed is None else {**own, "timed": timed})


def _answers(sides: Sequence[Side]) -> list[Answer]:
    with contextlib.ExitStack() as stack:
        for side in sides:
            stack.callback(side.end)
        return [side.answer() for side in sides]


def _of(answer: Answer, name: str) -> Snapshot:
    """What a side said of one target."""
    said = answer.error or "its process said nothing of it"
    return answer.snapshots.get(name) or Snapshot(name, error=said, is_lost=answer.is_lost)
