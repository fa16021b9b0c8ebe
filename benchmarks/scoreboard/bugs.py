"""Real bugs on the scoreboard: each by the property that it names and by every peer's rule, with its correct kernel."""

from __future__ import annotations

import importlib.util
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from gradoracle.cases.stream import stream
from gradoracle.check import minimise
from gradoracle.check.run import check
from gradoracle.model.dims import Sizes, parse_sizes
from gradoracle.model.errors import UsageError, named
from gradoracle.model.verdict import Report, Status
from gradoracle.mutation.bugs import Bug
from gradoracle.mutation.fork import Send
from gradoracle.mutation.sources import Source
from gradoracle.oracle.truth import Oracle
from gradoracle.project.request import Progress, Request
from gradoracle.project.target import resolve

from .correct import prepare
from .record import kept, mark
from .run import Asked, Tells, checked_by_differences, rows_of
from .styles import MOST_OF_A_BUG, OURS, PEERS, our_cases, peers_cases
from .trial import Fault, alarms, forked

STAGES = (12, 24, 100)
"""On how many cases the property may catch a bug; more if it is not caught on fewer."""

SMALL: Mapping[str, tuple[str, ...]] = {
    "lightning": ("B=1:2", "H=1:3", "N=1:40", "D=1:20", "Dv=1:20"),
    "sdpa": ("B=1:2", "H=1:2", "T=1:40", "M=1:40", "D=1:16", "Dv=1:16"),
    "semicrf": ("T=1:12", "K=1:5"),
}
"""Sizes that are quick to judge; if the property catches nothing in them, the family's own sizes follow."""

LIMIT = 900.0


@dataclass(frozen=True)
class Found:
    """A bug and the file that holds it."""

    file: Path
    wrong: str  # the names of the two kernels in the file
    right: str
    bug: Bug


def bugs_in(folder: Path) -> list[Found]:
    """Every bug that a Python file of a folder lists as ``BUGS``.

    Raises:
        UsageError: there is none.
    """
    found = []
    for file in sorted(folder.glob("*.py")):
        module = _loaded(file)
        for bug in getattr(module, "BUGS", ()):
            names = {id(value): name for name, value in vars(module).items()}
            found.append(Found(file, names[id(bug.wrong)], names[id(bug.right)], bug))
    if not found:
        raise UsageError(f"{folder} holds no bugs; expected a folder of Python files that list them as BUGS")
    return found


def _loaded(file: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"scoreboard_{file.stem}", file)
    if spec is None or spec.loader is None:
        raise UsageError(f"{file} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where dataclasses look their module up
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise UsageError(f"{file} cannot be imported: {named(error)}") from None
    return module


class _Trial:
    """One bug (an ``Attempt``), in one fork; the wrong kernel is tried by peers' rules in forks of that fork."""

    limit = LIMIT

    def __init__(self, found: Found, seed: int) -> None:
        self.found, self.seed = found, seed
        self.entry: dict[str, Any] = {"fault": found.bug.name, "failed": "no result"}

    def run(self, tell: Send) -> None:
        """Judge the bug by its property, then by the rules."""
        minimise.SHRINK_SECONDS = minimise.SHRINK_SECONDS_IN_ALL = 0.0
        bug = self.found.bug
        ours, dims, examples = self._ours()
        target = resolve(f"{self.found.file}:{self.found.right}", bug.family or None)
        wrong = resolve(f"{self.found.file}:{self.found.wrong}", bug.family or None)
        family, (kernel,) = target.family, target.kernels
        oracle = Oracle(family)
        own = our_cases(stream(family, kernel, dims=dims, examples=examples, seed=self.seed), MOST_OF_A_BUG)
        cases = [(PEERS, case) for case in peers_cases(family, kernel)] + [(OURS, case) for case in own]
        runs = list(prepare(family, kernel, oracle, cases))
        left_out = len(cases) - len(runs)
        runs += checked_by_differences(target, kernel, oracle, own)
        fault = Fault(bug.name, runs, wrong.kernels[0])
        (tried,) = forked([fault], 1)
        place = {"cites": bug.cites, "family": family.name}
        tell({**tried.entry(), **place, "alarms": alarms(runs), "ours": ours, "left_out": left_out})

    def take(self, *message: Any) -> None:
        """Keep the entry that the fork sends."""
        (self.entry,) = message

    def lost(self, how: str) -> bool:
        """Give up: another fork would fail too."""
        self.entry = {"fault": self.found.bug.name, "failed": how}
        return False

    def _ours(self) -> tuple[dict[str, Any], dict[str, Sizes], int]:
        """The property's outcome for the wrong and the correct kernel, and the sizes and number of cases."""
        small = dict(parse_sizes(text) for text in SMALL.get(self.found.bug.family, ()))
        needed = dict(parse_sizes(f"{dim}={sizes}") for dim, sizes in self.found.bug.dims.items())
        stages = [(n, small | needed) for n in STAGES[:2]] if small else []
        stages += [(n, needed) for n in STAGES]
        seconds, caught = 0.0, False
        for examples, dims in stages:
            begun = time.perf_counter()
            caught = _is_violated(self._judged(self.found.wrong, dims, examples))
            seconds += time.perf_counter() - begun
            if caught:
                break
        correct = self._judged(self.found.right, dims, examples)
        property_name = self.found.bug.property_name
        ours = {
            "caught": caught, "property": property_name, "seconds": seconds,
            "alarm": _is_violated(correct), "right_cases": correct.cases_judged,
        }  # fmt: skip
        return ours, dims, examples

    def _judged(self, subject: str, dims: Mapping[str, Sizes], examples: int) -> Report:
        bug = self.found.bug
        place = f"{self.found.file}:{subject}"
        return check(
            Request(
                place, family=bug.family or None, device="cpu", property=bug.property_name, dims=dims,
                examples=examples, seed=self.seed, workers=0,
            )
        )  # fmt: skip


def _is_violated(report: Report) -> bool:
    return any(verdict.status is Status.VIOLATED for verdict in report.verdicts)


def score_bugs(folder: Path, asked: Asked, progress: Tells = lambda noun: Progress()) -> dict[str, Any]:
    """Judge the real bugs of a folder by the property that each names and by every rule; returns as ``score_family``.

    Raises:
        UsageError: the folder holds no bugs.
    """
    found = bugs_in(folder)
    sources = [Source(file.stem, str(file), file.name, file.read_text("utf-8")) for file in {f.file for f in found}]
    lines, known = kept("bugs", mark(sorted(sources, key=lambda s: s.shown), asked.seed), asked.folder)
    left = [each for each in found if each.bug.name not in known]
    for entry in _tried(left, asked, progress("bugs by every rule")):
        known[entry["fault"]] = entry
        if "failed" not in entry:
            lines.add(entry)
    entries = [known[each.bug.name] for each in found if each.bug.name in known]
    faults = [{k: v for k, v in each.items() if k != "mark"} for each in entries if "failed" not in each]
    alarmed = [alarm for fault in faults for alarm in fault["alarms"]]
    return {
        "family": "real bugs",
        "apart": {},
        "failed": {each["fault"]: each["failed"] for each in entries if "failed" in each},
        "earlier": len(found) - len(left),
        "untried": len(found) - len(entries),
        "unrecorded": 0,
        "cases": sum(fault["ours"]["right_cases"] for fault in faults),
        "our_alarms": sum(fault["ours"]["alarm"] for fault in faults),
        "alarms": [],
        "faults": faults,
        "rows": rows_of(faults, alarmed),
    }


def _tried(left: Sequence[Found], asked: Asked, progress: Any) -> Iterator[dict[str, Any]]:
    started = time.monotonic()
    progress.plan(len(left))

    def trials() -> Iterator[_Trial]:
        for each in left:
            if asked.seconds is not None and time.monotonic() - started > asked.seconds:
                return
            yield _Trial(each, asked.seed)

    with closing(progress):
        for done, trial in enumerate(forked(trials(), asked.processes), 1):
            progress.case(done, 0, 0, "")
            yield trial.entry
