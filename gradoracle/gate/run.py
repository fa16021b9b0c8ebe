"""Run: the gate from two trees to one report a target."""

from __future__ import annotations

import datetime
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from gradoracle.execution import fork_server
from gradoracle.gate import acknowledged
from gradoracle.gate.acknowledged import Acknowledgement
from gradoracle.gate.baseline import SCHEMA, Baseline, Unusable, load
from gradoracle.gate.compare import compare, proven
from gradoracle.gate.kept import Kept
from gradoracle.gate.repository import repository
from gradoracle.gate.sides import Sides
from gradoracle.gate.snapshot import Snapshot
from gradoracle.gate.subject import Subject
from gradoracle.gate.tree import Tree, deciding, known_failures, pieces, project
from gradoracle.model.comparison import Comparison, Kind, Line, Weight
from gradoracle.model.errors import UsageError
from gradoracle.model.verdict import Report
from gradoracle.project import cache
from gradoracle.project.config import Entry
from gradoracle.project.import_closure import differing, together
from gradoracle.project.settings import Setting, Settings


class GateFault(Exception):
    """gradoracle itself failed on some kernels; ``reports`` holds what is known all the same."""

    def __init__(self, told: str, reports: list[Report]) -> None:
        self.reports = reports
        super().__init__(told)


@dataclass(frozen=True)
class Asked:
    """What a gate is asked for.

    Attributes:
        base: a ref; the tree is compared with the commit that it and HEAD have in common. "" where ``baseline`` is.
        targets: names of the config or TARGETs; none: all of the config.
        profile: whose settings hold, of both configs.
        given: settings of the command line.
        every: whether kernels are checked that have not changed.
        today: which known failures have expired.
        baseline: a file to compare with instead.
        speed: whether both sides are timed too.
        fail_fast: whether to stop where a kernel is known to be worse.
        keeps: whether what earlier gates kept of trees is used, and added to.
    """

    base: str = ""
    targets: tuple[str, ...] = ()
    profile: str | None = None
    given: Settings = field(default_factory=dict)
    every: bool = False
    today: datetime.date = field(default_factory=datetime.date.today)
    baseline: Path | None = None
    speed: bool = False
    fail_fast: bool = False
    keeps: bool = True


def gate(asked: Asked, tell: Callable[[str], None]) -> list[Report]:
    """Compare the working tree of the current folder with its base: one report for each target of either.

    Args:
        asked: what is compared.
        tell: is told what goes on, a sentence at a time.

    Raises:
        UsageError: no git, no such ref, no common history, or a config that cannot be read.
        GateFault: gradoracle itself failed.
    """
    head = project()
    if not head.is_gradoracle:  # whose sides have engines of their own
        fork_server.warm()
    if asked.profile is not None:
        head.config.profile(asked.profile)
    if asked.baseline is not None:
        return _beside_baseline(asked, tell, head, asked.baseline)
    found = repository(head.folder)
    commit = found.base(asked.base)
    name = f"{found.short(commit)} ({asked.base})"
    with found.worktree(commit) as root:
        base = project(root, Path.cwd().resolve().relative_to(found.root))
        return _Gate(asked, tell, base, head, root.parent, name).reports()


def _beside_baseline(asked: Asked, tell: Callable[[str], None], head: Tree, file: Path) -> list[Report]:
    """Compare with a saved baseline; where that is of no use, check all alone, and say so."""
    with tempfile.TemporaryDirectory(prefix="gradoracle-gate-") as stage:
        base: Baseline | None = None
        try:
            base = load(file)
            why = _other_engine(base)
        except Unusable as error:
            why = str(error)
        return _Gate(asked, tell, base, head, Path(stage), f"the baseline {file}", why).reports()


def _other_engine(base: Baseline) -> str:
    """Why a baseline's cases and budgets may be others; "" where they are the same."""
    from gradoracle import __version__

    if base.gradoracle != __version__:
        return f"the baseline was saved by gradoracle {base.gradoracle}, and this is {__version__}; save it anew"
    return ""


def snapshots(asked: Asked, tell: Callable[[str], None]) -> tuple[Baseline, list[Report]]:
    """Check every target of the working tree by its own judge: what a baseline holds, and a report of each.

    Raises:
        UsageError: there is no kernel, or one cannot be checked.
        GateFault: gradoracle itself failed.
    """
    from gradoracle import __version__

    head = project()
    if asked.profile is not None:
        head.config.profile(asked.profile)
    with tempfile.TemporaryDirectory(prefix="gradoracle-gate-") as stage:
        found = _Gate(replace(asked, every=True), tell, None, head, Path(stage), "")
        reports = found.reports()
    lines = [line for report in reports if report.comparison for line in report.comparison.lines]
    if wrong := [line.text for line in lines if line.kind is Kind.BASE and line.weight is not Weight.NOTE]:
        raise UsageError(f"no baseline is saved: {wrong[0]}")
    made = {"targets": ", ".join(found.known), **reports[0].environment}
    engine = together(head.engine) if head.is_gradoracle else ""
    for report in reports:
        report.comparison = None
    return Baseline(SCHEMA, __version__, engine, made, found.known), reports


class _Gate:
    """One run: what changed, what judges it, how both sides stand, and what that says."""

    def __init__(
        self,
        asked: Asked,
        tell: Callable[[str], None],
        base: Tree | Baseline | None,
        head: Tree,
        stage: Path,
        name: str,
        why: str = "",
    ):
        self.asked, self.tell, self.base, self.head, self.name = asked, tell, base, head, name
        kept = Kept(cache.folder() if asked.keeps else None, tell)
        self.sides = Sides(base, head, stage, tell, kept, asked.fail_fast)
        self.why = why  # the base cannot be compared with as it should be
        self.acknowledged = acknowledged.read(head.folder)
        self.known: dict[str, Snapshot] = {}  # how the change stands, by target, for a baseline

    def reports(self) -> list[Report]:
        """Of every target."""
        subjects = self._subjects()
        changed = [each for each in subjects if self._is_changed(each)]
        names = ", ".join(each.name for each in changed) or "none"
        beside = f"base {self.name}; " if self.name else ""
        self.tell(f"{beside}{len(changed)} of {len(subjects)} kernels to check: {names}")
        self._judge(changed)
        found: list[Report] = []
        worse = ""
        for each in subjects:
            found.append(self._unchanged(each) if each not in changed else self._report(each, worse))
            comparison = found[-1].comparison
            if self.asked.fail_fast and comparison is not None and any(map(_is_worse, comparison.lines)):
                worse = worse or each.name
        if faults := [fault for each in subjects for fault in each.faults]:
            raise GateFault(faults[0], found)
        return found

    def _subjects(self) -> list[Subject]:
        """Every target of either side."""
        here = self.head.entries(self.asked.targets)
        there = {} if self.base is None else self.base.entries(self._there(self.base))
        if not there and not here:
            raise UsageError(
                "there is no kernel to compare: neither side has any in [tool.gradoracle] of pyproject.toml, and no "
                "TARGET is given"
            )
        found = []
        for name in dict.fromkeys((*here, *there)):
            base, head = there.get(name), here.get(name)
            settings = self._settings(self.base, base), self._settings(self.head, head)
            digests = _digests(self.base, base, settings[0]), _digests(self.head, head, settings[1])
            subject = Subject(name, base, head, digests, settings)
            if self.why:
                subject.lines.append(Line(Kind.BASE, Weight.OPEN, self.why))
            found.append(subject)
        return found

    def _there(self, base: Tree | Baseline) -> tuple[str, ...]:
        """The targets asked for that the base may have: all of them, where they are names of no config alone."""
        known = base.config.kernels if isinstance(base, Tree) else base.snapshots
        return tuple(name for name in self.asked.targets if name in known or name not in self.head.config.kernels)

    def _settings(self, tree: Tree | Baseline | None, entry: Entry | None) -> dict[str, Setting]:
        return {} if entry is None or tree is None else tree.settings(entry, self.asked.profile, self.asked.given)

    def _is_changed(self, subject: Subject) -> bool:
        """Whether a target is to be checked; ``compare`` says what it found only then."""
        if subject.base is None or subject.head is None or self.asked.every or subject.files:
            return True
        if self._is_own(subject) and self._engine_differs():
            return True
        here, there = deciding(subject.settings[0]), deciding(subject.settings[1])
        return here != there or subject.base.target != subject.head.target or self._known_differ()

    def _engine_differs(self) -> bool:
        """Whether the engine or the laws, where they are of the tree, are others."""
        if isinstance(self.base, Tree):
            return self.base.engine != self.head.engine
        return self.base is not None and self.base.engine != together(self.head.engine)

    def _known_differ(self) -> bool:
        return isinstance(self.base, Tree) and known_failures(self.base) != known_failures(self.head)

    def _judge(self, changed: Sequence[Subject]) -> None:
        """See what judges each target on both sides; each difference is red until somebody answers for it."""
        both = [each for each in changed if each.base is not None and each.head is not None]
        if self.base is None:
            both = [each for each in changed if each.head is not None]
        told = self.sides.survey([each for each in both if not self._is_own(each)])
        for subject in both:
            assert subject.head is not None
            surveyed = told.get(subject.name, (Snapshot(""), Snapshot("")))
            head = pieces(self.head, subject.head, subject.settings[1], surveyed[1])
            if self.base is None:
                self.known[subject.name] = Snapshot(subject.head.target, pieces=head)
                continue
            if isinstance(self.base, Tree) and subject.base is not None:
                base = pieces(self.base, subject.base, subject.settings[0], surveyed[0])
            else:
                base = surveyed[0].pieces
            self._judged(subject, base, head)

    def _is_own(self, subject: Subject) -> bool:
        """Whether a target is a shipped kernel of a tree that is gradoracle's own: judged by files, not by pieces."""
        entry = subject.head or subject.base
        return self.head.is_gradoracle and entry is not None and self.head.is_shipped(entry.target)

    def _judged(self, subject: Subject, base: Mapping[str, str], head: Mapping[str, str]) -> None:
        """The lines on what judges a target, and whether the base still does."""
        there = {piece.rpartition(" of kernel ")[2] for piece in base}
        for piece in differing(base, head):
            if " of kernel " in piece and piece not in base and piece.rpartition(" of kernel ")[2] not in there:
                continue  # of a kernel that is new
            change = acknowledged.name_of(base.get(piece), head.get(piece))
            entry = self.acknowledged.get((piece, change))
            what = "added" if piece not in base else "removed" if piece not in head else "changed"
            subject.lines.append(_judge_line(subject.name, piece, what, change, entry))
        lines = [line for line in subject.lines if line.kind is Kind.JUDGE]
        subject.is_judged_by_base = not lines or any(line.weight is Weight.RED for line in lines)

    def _report(self, subject: Subject, worse: str = "") -> Report:
        """Check a target on both sides, and compare; not where another is ``worse`` and that is enough."""
        if worse:
            text = f"{subject.name} is not checked, since {worse} is worse than the base"
            return self._empty(subject, [*subject.lines, Line(Kind.BASE, Weight.OPEN, text)])
        if subject.head is None:
            text = f"{subject.name} was checked in the base and is no kernel of this tree any more"
            return self._empty(subject, [*subject.lines, Line(Kind.UNCHECKED, Weight.RED, text)])
        if subject.is_stopped:
            return self._empty(subject, subject.lines)
        known = self.sides.judge(subject).known_failures
        head, base = self.sides.check(
            subject, subject.head, lambda there, here: proven(there, here, known, self.asked.today)
        )
        if head.report is None:
            return self._empty(subject, subject.lines)
        self._keep(subject, subject.head, head)
        if self.base is not None and subject.base is None:
            text = f"{subject.name} is new: it is judged alone, by its own definition"
            subject.lines.append(Line(Kind.BASE, Weight.NOTE, text))
        is_same = not any(line.kind is Kind.JUDGE and line.weight is Weight.NOTE for line in subject.lines)
        found = compare(base, head, known, self.asked.today, is_same)
        times = self.sides.timed(subject) if self.asked.speed and base is not None else []
        lines = [*subject.lines, *found, *times]
        return replace(head.report, target=subject.name, comparison=Comparison(self.name, lines, subject.files))

    def _keep(self, subject: Subject, entry: Entry, head: Snapshot) -> None:
        """Keep how the change stands, as a baseline has it."""
        known = self.known.get(subject.name, Snapshot(entry.target))
        words = subject.settings[1]
        self.known[subject.name] = replace(
            head, settings=words, files=subject.digests[1], pieces=known.pieces, report=None
        )

    def _unchanged(self, subject: Subject) -> Report:
        if subject.head is not None and not subject.digests[1]:
            text = f"{subject.name} is of no file of this tree, so that no change of it is seen here"
            weight = Weight.NOTE if self.head.is_shipped(subject.head.target) else Weight.OPEN
            subject.lines.append(Line(Kind.BASE, weight, text))
        return self._empty(subject, subject.lines, unchanged=True)

    def _empty(self, subject: Subject, lines: list[Line], unchanged: bool = False) -> Report:
        """A report without verdicts."""
        comparison = Comparison(self.name, lines, subject.files, unchanged)
        return Report(subject.name, "", [], "", 0, {}, {}, comparison=comparison)


def _is_worse(line: Line) -> bool:
    return line.weight is Weight.RED and line.kind in (Kind.VIOLATED, Kind.UNCHECKED, Kind.ACCURACY)


def _digests(side: Tree | Baseline | None, entry: Entry | None, words: Settings) -> dict[str, str]:
    """The files that a target is made of on one side; none where they are gone."""
    try:
        return {} if side is None or entry is None else side.files(entry, words)
    except UsageError:
        return {}


def _judge_line(kernel: str, piece: str, what: str, change: str, entry: Acknowledgement | None) -> Line:
    """A change of what judges, as a line."""
    if entry is not None:
        text = f"{piece}: {what}, acknowledged by {entry.author}: {entry.reason}"
        return Line(Kind.JUDGE, Weight.NOTE, text)
    text = (
        f"{piece}: {what}. A change may not edit its own judge; the base's holds until somebody answers for it in "
        f"{acknowledged.FILE}: {acknowledged.entry(piece, change)}"
    )
    return Line(Kind.JUDGE, Weight.RED, text)
