"""Run: the gate from two trees to one report a target."""

from __future__ import annotations

import datetime
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from gradoracle import __version__
from gradoracle.execution import fork_server
from gradoracle.gate import acknowledged
from gradoracle.gate.answer import Answer
from gradoracle.gate.baseline import Baseline, Unusable, load
from gradoracle.gate.compare import compare, proven, shared_gaps
from gradoracle.gate.gate_target import GateTarget
from gradoracle.gate.ledger_cache import LedgerCache
from gradoracle.gate.repository import repository
from gradoracle.gate.sides import Sides
from gradoracle.gate.tree import Tree, deciding, pieces, project
from gradoracle.model import cache
from gradoracle.model.comparison import REGRESSIONS, Comparison, Kind, Line, Weight
from gradoracle.model.errors import UsageError
from gradoracle.model.ledger import JudgeRecord, Ledger, Piece, Section
from gradoracle.model.verdict import Report
from gradoracle.project.config import Entry, Setting, Settings
from gradoracle.project.import_closure import differing


class GateFault(Exception):
    """gradoracle itself failed on some kernels; ``reports`` holds what is known nevertheless."""

    def __init__(self, message: str, reports: list[Report]) -> None:
        self.reports = reports
        super().__init__(message)


@dataclass(frozen=True)
class Asked:
    """What to compare, and how.

    Attributes:
        base: a ref; the base is the commit that it and HEAD have in common. "" with ``baseline``.
        targets: names in the configuration or TARGETs; none: all of the configuration.
        profile: whose settings hold, in the configurations of both sides.
        given: settings of the command line.
        every: whether unchanged kernels are checked too.
        today: decides which known failures have expired.
        baseline: a file to compare with instead of a ref.
        fail_fast: whether to stop at the first regression.
        keeps: whether ledgers of earlier gates are used, and new ones kept.
    """

    base: str = ""
    targets: tuple[str, ...] = ()
    profile: str | None = None
    given: Settings = field(default_factory=dict)
    every: bool = False
    today: datetime.date = field(default_factory=datetime.date.today)
    baseline: Path | None = None
    fail_fast: bool = False
    keeps: bool = True


def gate(asked: Asked, tell: Callable[[str], None]) -> list[Report]:
    """Compare the working tree of the current folder with its base: a report for each target of either side.

    Args:
        asked: what is compared.
        tell: prints a sentence about the progress.

    Raises:
        UsageError: no git, no such ref, no common history, or a configuration that cannot be read.
        GateFault: gradoracle itself failed.
    """
    head = _head(asked)
    if not head.is_gradoracle:  # whose sides have engines of their own
        fork_server.warm()
    if asked.baseline is not None:
        return _with_baseline(asked, tell, head, asked.baseline)
    found = repository(head.folder)
    commit = found.base(asked.base)
    name = f"{found.short(commit)} ({asked.base})"
    with found.worktree(commit) as root:
        base = project(root, Path.cwd().resolve().relative_to(found.root))
        return _Gate(asked, tell, base, head, root.parent, name).reports()


def _head(asked: Asked) -> Tree:
    """The working tree; raises UsageError if its configuration lacks the profile."""
    head = project()
    if asked.profile is not None:
        head.config.profile(asked.profile)
    return head


def _with_baseline(asked: Asked, tell: Callable[[str], None], head: Tree, file: Path) -> list[Report]:
    """Compare with a saved baseline; if it cannot be used, check the change alone; the gate is then inconclusive."""
    base: Baseline | None = None
    why = ""
    try:
        base = load(file)
        if base.gradoracle != __version__:  # whose cases and budgets may differ
            why = f"the baseline was saved by gradoracle {base.gradoracle}, and this is {__version__}; save it again"
    except Unusable as error:
        why = str(error)
    with tempfile.TemporaryDirectory(prefix="gradoracle-gate-") as stage:
        return _Gate(asked, tell, base, head, Path(stage), f"the baseline {file}", why).reports()


def judged_alone(asked: Asked, tell: Callable[[str], None]) -> tuple[Baseline, list[Report]]:
    """Check every target of the working tree by its own judge: the baseline to save, and a report of each target.

    Raises:
        UsageError: there is no kernel, or one cannot be checked.
        GateFault: gradoracle itself failed.
    """
    head = _head(asked)
    with tempfile.TemporaryDirectory(prefix="gradoracle-gate-") as stage:
        found = _Gate(replace(asked, every=True), tell, None, head, Path(stage), "")
        reports = found.reports()
    lines = [line for report in reports if report.comparison for line in report.comparison.lines]
    if wrong := [line.text for line in lines if line.kind is Kind.BASE and line.weight is not Weight.NOTE]:
        raise UsageError(f"no baseline is saved: {wrong[0]}")
    for report in reports:
        report.comparison = None
    return Baseline(found.known), reports


class _Gate:
    """One run: what changed, what judges it, the answers of both sides, and their comparison.

    ``why``: why the base cannot be compared with as it should be. ``known``: by target, the answers about the change
    for a baseline.
    """

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
        self.asked, self.tell, self.base, self.head, self.name, self.why = asked, tell, base, head, name, why
        kept = LedgerCache(cache.folder() if asked.keeps else None, tell)
        self.sides = Sides(base, head, stage, tell, kept, asked.fail_fast)
        self.acknowledged = acknowledged.read(head.folder)
        self.known: dict[str, Answer] = {}

    def reports(self) -> list[Report]:
        """A report of every target."""
        subjects = self._subjects()
        changed = [each for each in subjects if self._is_changed(each)]
        names = ", ".join(each.name for each in changed) or "none"
        base = f"base {self.name}; " if self.name else ""
        self.tell(f"{base}{len(changed)} of {len(subjects)} kernels to check: {names}")
        self._judge(changed)
        found: list[Report] = []
        worse = ""
        for each in subjects:
            found.append(self._unchanged(each) if each not in changed else self._report(each, worse))
            comparison = found[-1].comparison
            if self.asked.fail_fast and comparison is not None:
                regressions = [line for line in comparison.of(Weight.RED) if line.kind in REGRESSIONS]
                worse = worse or (each.name if regressions else "")
        if faults := [fault for each in subjects for fault in each.faults]:
            raise GateFault(faults[0], found)
        return found

    def _subjects(self) -> list[GateTarget]:
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
            lines = [Line(Kind.BASE, Weight.OPEN, self.why)] if self.why else []
            found.append(GateTarget(name, base, head, digests, settings, lines))
        return found

    def _there(self, base: Tree | Baseline) -> tuple[str, ...]:
        """The given targets that the base may have: all but those that only the change's configuration names."""
        known = base.config.kernels if isinstance(base, Tree) else base.answers
        return tuple(name for name in self.asked.targets if name in known or name not in self.head.config.kernels)

    def _settings(self, tree: Tree | Baseline | None, entry: Entry | None) -> dict[str, Setting]:
        return {} if entry is None or tree is None else tree.settings(entry, self.asked.profile, self.asked.given)

    def _is_changed(self, subject: GateTarget) -> bool:
        """Whether a target must be checked."""
        if subject.base is None or subject.head is None or self.asked.every or subject.files:
            return True
        if self._is_own(subject) and self.base is not None and self.base.engine != self.head.engine:
            return True
        if deciding(subject.settings[0]) != deciding(subject.settings[1]) or subject.base.target != subject.head.target:
            return True
        return isinstance(self.base, Tree) and self.base.known_failures != self.head.known_failures

    def _judge(self, changed: Sequence[GateTarget]) -> None:
        """Find what judges each target on both sides; a difference that nobody acknowledges is a regression."""
        both = [each for each in changed if each.head is not None and (self.base is None or each.base is not None)]
        surveyed = self.sides.survey([each for each in both if not self._is_own(each)])
        for subject in both:
            assert subject.head is not None
            there, here = surveyed.get(subject.name, (Answer(""), Answer("")))
            head = pieces(self.head, subject.head, subject.settings[1], here)
            if self.base is None:
                self.known[subject.name] = Answer(subject.head.target, judge=JudgeRecord(pieces=head))
                continue
            base = there.pieces
            if isinstance(self.base, Tree) and subject.base is not None:
                base = pieces(self.base, subject.base, subject.settings[0], there)
            self._judged(subject, base, head)

    def _is_own(self, subject: GateTarget) -> bool:
        """Whether a target is a shipped kernel in gradoracle's own tree: what judges it is compared by files."""
        entry = subject.head or subject.base
        return entry is not None and self.head.ships(entry.target)

    def _judged(self, subject: GateTarget, base: Mapping[str, Piece], head: Mapping[str, Piece]) -> None:
        """Report differences in what judges a target, and decide whether the base still judges it."""
        kernels = {piece.kernel for piece in base.values()} | {""}
        differences = [name for name in differing(base, head) if name in base or head[name].kernel in kernels]
        for name in differences:  # those of a new kernel are left out
            change = acknowledged.name_of(base.get(name), head.get(name))
            what = "added" if name not in base else "removed" if name not in head else "changed"
            if entry := self.acknowledged.get((name, change)):
                text = f"{name}: {what}, acknowledged by {entry.author}: {entry.reason}"
                subject.lines.append(Line(Kind.JUDGE, Weight.NOTE, text))
                continue
            text = (
                f"{name}: {what}. A change may not edit its own judge; the base's applies until somebody "
                f"acknowledges the change in {acknowledged.FILE}: {acknowledged.entry(name, change)}"
            )
            subject.lines.append(Line(Kind.JUDGE, Weight.RED, text))
        lines = [line for line in subject.lines if line.kind is Kind.JUDGE]
        subject.is_judged_by_base = not lines or any(line.weight is Weight.RED for line in lines)

    def _report(self, subject: GateTarget, worse: str = "") -> Report:
        """Check a target on both sides and compare; not if ``worse``, another target, already stopped the gate."""
        if worse:
            text = f"{subject.name} is not checked because {worse} is worse than the base"
            return self._empty(subject, Line(Kind.BASE, Weight.OPEN, text))
        if subject.head is None:
            text = f"{subject.name} was checked in the base and no longer exists in this tree"
            return self._empty(subject, Line(Kind.UNCHECKED, Weight.RED, text))
        if subject.is_stopped:
            return self._empty(subject)
        known = self.sides.judge(subject).known_failures
        head, base = self.sides.check(
            subject, subject.head, lambda there, here: proven(there, here, known, self.asked.today)
        )
        if head.report is None:
            return self._empty(subject)
        self._keep(subject, head)
        if self.base is not None and subject.base is None:
            text = f"{subject.name} is new: it is judged by its own definition"
            subject.lines.append(Line(Kind.BASE, Weight.NOTE, text))
        is_same = not any(line.kind is Kind.JUDGE and line.weight is Weight.NOTE for line in subject.lines)
        found = compare(base, head, known, self.asked.today, is_same)
        shared = shared_gaps(base, head)
        found += [Line(Kind.UNCHECKED, Weight.NOTE, f"in the base neither: {each}") for each in shared]
        comparison = Comparison(self.name, [*subject.lines, *found], subject.files)
        unmet = [each for each in head.report.unmet if each not in shared]
        return replace(head.report, target=subject.name, comparison=comparison, unmet=unmet)

    def _keep(self, subject: GateTarget, head: Answer) -> None:
        """Keep the answer about the change, with what judges it, for a baseline."""
        assert head.ledger is not None
        own = self.known.get(subject.name, Answer(""))
        judge = JudgeRecord(subject.name, subject.settings[1], subject.digests[1], own.pieces, self.head.engine)
        (section,) = head.ledger.sections
        kept = Section(section.header, [judge, *section.records])
        self.known[subject.name] = Answer(head.target, Ledger([kept]), judge)

    def _unchanged(self, subject: GateTarget) -> Report:
        lines = []
        if subject.head is not None and not subject.digests[1]:
            text = f"{subject.name} is in no file of this tree, so changes to it go unnoticed"
            weight = Weight.NOTE if self.head.is_shipped(subject.head.target) else Weight.OPEN
            lines.append(Line(Kind.BASE, weight, text))
        return self._empty(subject, *lines, unchanged=True)

    def _empty(self, subject: GateTarget, *more: Line, unchanged: bool = False) -> Report:
        """A report without verdicts: the subject's lines, and some more."""
        comparison = Comparison(self.name, [*subject.lines, *more], subject.files, unchanged)
        return Report(subject.name, "", [], "", 0, {}, {}, comparison=comparison)


def _digests(side: Tree | Baseline | None, entry: Entry | None, words: Settings) -> dict[str, str]:
    """The files of a target on one side; none where they no longer exist."""
    try:
        return {} if side is None or entry is None else side.files(entry, words)
    except UsageError:
        return {}
