"""Scoreboard: the acceptance rules of peers on the mutants of a family, and the rows of the tables."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from gradoracle.cases.stream import stream
from gradoracle.execution import environment
from gradoracle.model.case import Case
from gradoracle.model.errors import UsageError
from gradoracle.model.kernel import Kernel
from gradoracle.mutation.install import install
from gradoracle.mutation.mutant import Mutant
from gradoracle.mutation.outcome import Fate
from gradoracle.mutation.plant import choose, mutants_of
from gradoracle.mutation.run import MUTANTS
from gradoracle.mutation.sources import Source, Statements, sources_of
from gradoracle.oracle.truth import Oracle
from gradoracle.project.request import Progress
from gradoracle.project.target import Target, resolve

from .correct import BUDGET, NAMES, CorrectRun, prepare, prepare_gradcheck
from .record import FOLDER, Ours, kept, mark, mutations
from .styles import MOST, OURS, PEERS, STYLES, our_cases, peers_cases, tiny_cases
from .trial import Fault, alarms, covering, forked

FAMILIES = ("sdpa", "lse", "lightning", "semicrf")
CASES = 126  # of the stream, as in gradoracle check
TINY = 2  # how many of our cases gradcheck is given
_CORRECT = "the correct kernel"  # the entry that holds the false alarms

Tells = Callable[[str], Progress]


@dataclass(frozen=True)
class Asked:
    """Options of a run, as on the command line.

    Attributes:
        records: a folder of json reports of `gradoracle mutate`; None: what its runs left in this working directory.
        count: how many mutants of each family.
        seconds: after this no further mutant of a family is begun.
        workers: how many processes; None: one for each core that this process may use.
        seed: of the choice of mutants and of the stream of cases, as given to `gradoracle mutate`.
        folder: for results.
    """

    records: Path | None = None
    count: int = MUTANTS
    seconds: float | None = None
    workers: int | None = None
    seed: int = 0
    folder: Path = FOLDER

    @property
    def processes(self) -> int:
        """How many processes run at a time."""
        return self.workers or environment.cores()


def score_family(name: str, asked: Asked, progress: Tells = lambda noun: Progress()) -> dict[str, Any]:
    """Judge the mutants of a shipped family that `gradoracle mutate` scored, by every rule.

    Returns:
        Plain values: ``faults`` (one entry each, with ``ours``), ``alarms``, ``apart`` (fate -> how many are excluded),
        ``untried``, and ``rows`` (``rows_of``).

    Raises:
        UsageError: the family is unknown, or there is no record of its mutants.
    """
    if name not in FAMILIES:
        raise UsageError(f"family {name!r} is unknown; expected one of {', '.join(FAMILIES)}")
    record = mutations(name, asked.records)
    target = resolve(name, None)
    sources = sources_of(target)
    everyone = [mutant for source in sources for mutant in mutants_of(source)]
    chosen = [m for m in choose(everyone, asked.count, asked.seed) if m.key in record.faults]
    if not chosen:
        raise UsageError(
            f"the record of {name} holds none of the {asked.count} faults that seed {asked.seed} chooses of its "
            f"sources; run gradoracle mutate {name} again"
        )
    scored = [mutant for mutant in chosen if record.faults[mutant.key].scored]
    lines, known = kept(name, mark(sources, asked.seed), asked.folder)
    left = [mutant for mutant in scored if mutant.key not in known]
    earlier = len(scored) - len(left)
    if left or _CORRECT not in known:
        board = _Board(target, sources, asked, progress)
        if _CORRECT not in known:
            known[_CORRECT] = {"fault": _CORRECT, "alarms": alarms(board.runs)}
            lines.add(known[_CORRECT])
        for entry in board.tried(left, progress("mutants by every rule")):
            lines.add(entry)
            known[entry["fault"]] = entry
    faults = [_with_ours(known[m.key], record.faults[m.key], m) for m in scored if m.key in known]
    apart = Counter(record.faults[m.key].fate.value for m in chosen if m not in scored)
    found = {
        "family": name,
        "apart": dict(apart),
        "earlier": earlier,
        "untried": len(scored) - len(faults),
        "unrecorded": min(asked.count, len(everyone)) - len(chosen),
        "cases": record.cases or CASES,
        "alarms": known[_CORRECT]["alarms"],
        "faults": faults,
    }
    return {**found, "rows": rows_of(faults, known[_CORRECT]["alarms"])}


def _with_ours(entry: Mapping[str, Any], ours: Ours, mutant: Mutant) -> dict[str, Any]:
    """An entry with gradoracle's outcome and the place of the mutant."""
    own = {"caught": ours.fate is Fate.KILLED, "property": ours.property_name, "seconds": ours.seconds}
    place = {"operator": mutant.operator, "module": mutant.module, "line": mutant.line}
    return {**{key: value for key, value in entry.items() if key != "mark"}, **place, "ours": own}


class _Board:
    """The correct kernel of a target, run on all cases, against which mutants are tried."""

    def __init__(self, target: Target, sources: Sequence[Source], asked: Asked, progress: Tells) -> None:
        self.asked, self.sources = asked, {source.shown: source for source in sources}
        self.statements = {source.shown: Statements(source.text) for source in sources}
        (self.kernel,) = target.kernels
        family, files = target.family, [source.file for source in sources]
        oracle = Oracle(family, graphs=1 << 14)
        own = our_cases(stream(family, self.kernel, examples=CASES, seed=asked.seed))
        cases = [(PEERS, case) for case in peers_cases(family, self.kernel)] + [(OURS, case) for case in own]
        telling = progress("cases of the correct kernel")
        telling.plan(len(cases))
        with closing(telling):
            self.runs: list[CorrectRun] = list(
                prepare(family, self.kernel, oracle, cases, files, tell=lambda done: telling.case(done, 0, 0, ""))
            )
        self.runs += checked_by_differences(target, self.kernel, oracle, own, files)

    def tried(self, left: Sequence[Mutant], progress: Progress) -> Iterator[dict[str, Any]]:
        """An entry for each mutant, as they come, until the time is up."""
        started = time.monotonic()
        progress.plan(len(left))

        def faults() -> Iterator[Fault]:
            for mutant in left:
                if self.asked.seconds is not None and time.monotonic() - started > self.asked.seconds:
                    return
                source = self.sources[mutant.module]
                lines = self.statements[mutant.module].lines(mutant.line)
                runs = covering(self.runs, source.file, lines, {OURS: MOST})
                yield Fault(mutant.key, runs, self.kernel, partial(install, mutant, source))

        with closing(progress):
            for done, fault in enumerate(forked(faults(), self.asked.processes), 1):
                progress.case(done, 0, 0, "")
                yield fault.entry()


def checked_by_differences(
    target: Target, kernel: Kernel, oracle: Oracle, own: Sequence[Case], files: Sequence[str] = ()
) -> list[CorrectRun]:
    """The cases in float64 for gradcheck: tiny ones, as in a peer's test, and the first of ours that are small."""
    tiny = [(PEERS, case) for case in tiny_cases(target.family, kernel)]
    recast = [(OURS, replace(case, dtype="float64")) for case in own]
    found = prepare_gradcheck(target.family, kernel, oracle, tiny, files)
    if any(not correct.excuse for correct in found):
        for each in recast:
            if sum(correct.style == OURS for correct in found) >= TINY:
                break
            found += prepare_gradcheck(target.family, kernel, oracle, [each], files)
    return found


def rows_of(faults: Sequence[Mapping[str, Any]], alarms_: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """One row for each style and rule: how many faults it caught, false alarms, seconds until a verdict.

    ``within``: the faults that a forward and backward of the style executes; what is caught is among these.
    ``seconds``: over all faults until caught, or until all cases are judged; ``median``: over the caught faults.
    """
    by_rule: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for fault in faults:
        for verdict in fault["verdicts"]:
            by_rule.setdefault((verdict["style"], verdict["rule"]), []).append(verdict)
    counted: dict[tuple[str, str], dict[str, Any]] = {}
    for own in alarms_:
        total = counted.setdefault((own["style"], own["rule"]), {"cases": 0, "alarms": 0, "first": "", "excused": ""})
        total["cases"] += own["cases"]
        total["alarms"] += own["alarms"]
        total["first"] = total["first"] or own["first"]
        total["excused"] = total["excused"] or own["excused"]
    rows = []
    for style in STYLES:
        for name in NAMES:
            correct = counted.get((style, name))
            if correct is None:
                continue
            verdicts = by_rule.get((style, name), [])
            caught = [verdict["seconds"] for verdict in verdicts if verdict["caught"]]
            rows.append(
                {
                    "style": style,
                    "rule": name,
                    "caught": len(caught),
                    "faults": len(faults),
                    "within": sum(is_executed(fault, style) for fault in faults),
                    "failed": sum(1 for verdict in verdicts if verdict["failure"]),
                    "alarms": correct["alarms"],
                    "right_cases": correct["cases"],
                    "first_alarm": correct["first"],
                    "excuse": "" if correct["cases"] else correct["excused"],
                    "median": round(median(caught), 4) if caught else None,
                    "seconds": round(sum(verdict["seconds"] for verdict in verdicts), 2),
                }
            )
    return rows


def is_executed(fault: Mapping[str, Any], style: str) -> bool:
    """Whether a forward and backward on the cases of a style executes the wrong code."""
    return fault["cases"].get(style, 0) > 0


def best_peer(rows: Iterable[Mapping[str, Any]], style: str) -> Mapping[str, Any] | None:
    """The row of the peer that catches most in a style, on a tie with the fewest false alarms; None without rows."""
    own = [row for row in rows if row["style"] == style and row["rule"] != BUDGET and not row["excuse"]]
    return max(own, key=lambda row: (row["caught"], -row["alarms"] / max(row["right_cases"], 1)), default=None)
