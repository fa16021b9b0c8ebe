"""Severities of bugs and of released kernels, and what is known of each of their derivatives.

    python benchmarks/severities.py bugs                      (every bug of tests/bugs)
    python benchmarks/severities.py adapters.py               (every kernel declared in a file)
    python benchmarks/severities.py adapters.py:kernel --examples 60 --seconds 120
    python benchmarks/severities.py --table                   (markdown, all rows added up)
    python benchmarks/severities.py --doubtful                (bugs that are not wrong, and what is undecided)

Every property judges each kernel, without shrinking, in a process of its own. A row of results/severities.csv is one
kernel in one dtype. `now`: what a run of this kernel and dtype alone says. A kernel is not run again for which the same
commit of gradoracle has rows of as many examples.
"""

from __future__ import annotations

import argparse
import ast
import csv
import importlib.metadata
import multiprocessing
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields, replace
from multiprocessing.connection import Connection
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

import torch
from scoreboard.bugs import SMALL, bugs_in

from gradoracle.check.run import check
from gradoracle.execution.device import prepare
from gradoracle.model.claims import Mark, Standing, standings
from gradoracle.model.derivative import Derivative
from gradoracle.model.dims import parse_sizes
from gradoracle.model.errors import UsageError, named
from gradoracle.model.finding import Outcome
from gradoracle.model.property import PropertyKind
from gradoracle.model.severity import Severity, gravest
from gradoracle.model.verdict import BROKEN, Report, Status, Verdict
from gradoracle.project.request import Request
from gradoracle.project.target import resolve
from gradoracle.report.summary import kept

BUGS, RELEASED = "bugs", "all released"
HALF, DTYPES = ("bfloat16", "float16"), ("bfloat16", "float16", "float32")
GREEN = "green"
WRONG_MARK = f"{Mark.FAILS.value} wrong"  # of a derivative
WRONG, UNDECIDED, ROBUSTNESS = Severity.WRONG.value, Severity.UNDECIDED.value, Severity.ROBUSTNESS.value
CRASHES, DECLARED, STATED = "crashes", "breaks its declared contract", "precision stated"
ERROR, NOT_RUN = "error", "not run"
NOW = (WRONG, CRASHES, UNDECIDED, DECLARED, STATED, ROBUSTNESS, GREEN)
ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results" / "severities.csv"
JUDGES = ("gradoracle", "properties", "kernels")  # folders whose last commit a row names
SLOWER = 3.0  # times as long as --seconds a process may take before it is ended
SHORTEST = 60.0
MOST = 6  # properties that a row names
MORE = {  # cases that a bug needs to be seen
    "aligned_at_the_first_key": 24,
    "cotangent_of_the_entropy_ignored": 24,
    "empty_splits_combined": 24,
    "keys_scaled_for_the_backward_alone": 24,
    "strides_taken_before_contiguous": 24,
    "no_tangent_without_that_of_q": 24,
    "empty_list_of_blocks": 72,
    "loss_of_the_unshifted_sum": 100,
}
OWN = ("torch", "triton", "gradoracle", "jaxtyping", "numpy")


@dataclass(frozen=True)
class Row:
    """One kernel in one dtype.

    Attributes:
        source: "bugs", or the name of the file that declares the kernel.
        package: of a released kernel, with its version; of a bug, where it was reported.
        cases: judged.
        now: one of ``NOW``, "error" or "not run"; "crashes": all that is wrong are crashes.
        forward, vjp, jvp, hvp: the standing of each derivative, as the first line of a report shows it.
        severity: the gravest.
        keeps: the preset that forward and gradients keep where precision is lost; "none" where none explains it.
        properties: those that have the gravest severity, the one of the highest rank first.
        stated: what a report says of their precision.
        reason: why it was not run or is undecided, or how it crashed.
    """

    source: str
    kernel: str
    package: str
    dtype: str
    cases: int = 0
    now: str = NOT_RUN
    forward: str = ""
    vjp: str = ""
    jvp: str = ""
    hvp: str = ""
    severity: str = ""
    keeps: str = ""
    properties: str = ""
    stated: str = ""
    reason: str = ""
    examples: int = 0
    seconds: float = 0.0
    commit: str = ""

    @property
    def key(self) -> tuple[str, str, str]:
        """What one row in a file has."""
        return self.source, self.kernel, self.dtype

    @property
    def is_run(self) -> bool:
        """Whether there is something to count."""
        return self.now in NOW

    @property
    def is_wrong_in_first_order(self) -> bool:
        """Whether the forward or the VJP is wrong, or crashes."""
        return any(each.startswith(WRONG_MARK) for each in (self.forward, self.vjp))


COLUMNS = tuple(each.name for each in fields(Row))


def read(file: Path) -> list[Row]:
    """The rows of a file; none if there is no file."""
    if not file.exists():
        return []
    with file.open(encoding="utf-8", newline="") as stream:
        cells = list(csv.DictReader(stream))
    kinds = {"cases": int, "examples": int, "seconds": float}
    return [Row(**{name: kinds.get(name, str)(value) for name, value in each.items()}) for each in cells]


def record(file: Path, rows: Sequence[Row]) -> None:
    """Write rows into a file; those of the same kernels and dtypes are replaced."""
    found = {row.key: row for row in (*read(file), *rows)}
    with file.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.DictWriter(stream, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(asdict(found[key]) for key in sorted(found))


def table(rows: Sequence[Row]) -> str:
    """Every source by dtype, in markdown, and how many released kernels are wrong."""
    shown = [name for name in NOW if name != DECLARED or any(row.now == name for row in rows)]
    lines = [
        f"| source | dtype | kernels | {' | '.join(shown)} | forward or VJP wrong |",
        "|---|---|" + "--:|" * (len(shown) + 2),
    ]
    released = [row for row in rows if row.source != BUGS]
    several = [replace(row, source=RELEASED) for row in released] if len({row.source for row in released}) > 1 else []
    for source in dict.fromkeys(row.source for row in (*rows, *several)):
        for dtype in DTYPES:
            own = [row for row in (*rows, *several) if row.is_run and (row.source, row.dtype) == (source, dtype)]
            count = Counter(row.now for row in own)
            first = sum(row.is_wrong_in_first_order for row in own)
            cells = (source, dtype, len(own), *(count[name] for name in shown), first)
            lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join([*lines, "", sentence(released)] if released else lines)


def sentence(rows: Iterable[Row]) -> str:
    """How many released kernels are wrong, lose precision or hold; each counts as its gravest dtype."""
    rows = list(rows)
    count = kernels_by_severity(rows)
    first = len({(row.source, row.kernel) for row in rows if row.is_run and row.is_wrong_in_first_order})
    others = ", ".join(f"{count[name]} {what}" for name, what in _OTHERS.items() if count[name])
    also = f"; {others}" if others else ""
    return f"Of {count.total()} released kernels {count[WRONG]} are wrong, {first} in the forward or the VJP{also}."


def kernels_by_severity(rows: Iterable[Row]) -> Counter[str]:
    """How many kernels are of each severity; each counts as its gravest dtype."""
    kernels: dict[tuple[str, str], str] = {}
    for row in rows:
        if row.is_run:
            place = row.source, row.kernel
            kernels[place] = min(row.now, kernels.get(place, row.now), key=NOW.index)
    return Counter(kernels.values())


_OTHERS = {
    CRASHES: "crash",
    UNDECIDED: "are undecided",
    DECLARED: "break the contract that they declare",
    STATED: "lose precision",
    ROBUSTNESS: "have an error in what they do not claim",
    GREEN: "hold",
}


def doubtful(rows: Iterable[Row]) -> Iterator[str]:
    """What a person should read: bugs that are not wrong, what crashes or is undecided, and what was not judged."""
    for row in rows:
        if row.now in (CRASHES, UNDECIDED, ERROR, NOT_RUN) or (row.source == BUGS and row.now != WRONG):
            what = f"{row.source} {row.kernel} {row.dtype}: {row.now}, {row.cases} cases, {row.properties}"
            yield f"{what} {row.keeps} {row.stated} {row.reason}".rstrip()


@dataclass(frozen=True)
class Job:
    """One kernel to judge."""

    source: str
    name: str
    package: str
    target: str
    family: str | None = None
    dims: Mapping[str, str] = field(default_factory=dict)
    examples: int = 0


def of_bugs(only: str = "", folder: Path = ROOT / "tests" / BUGS) -> Iterator[Job]:
    """Every bug, or the one of a name, in sizes that are quick to judge."""
    sys.path += [str(ROOT), str(ROOT / "tests")]  # where bugs find the modules that they import
    for found in bugs_in(folder):
        bug = found.bug
        if only and bug.name != only:
            continue
        dims = dict(text.split("=") for text in SMALL.get(bug.family, ())) | dict(bug.dims)
        target = f"{found.file}:{found.wrong}"
        yield Job(BUGS, bug.name, bug.cites, target, bug.family or None, dims, MORE.get(bug.name, 0))


def of_file(text: str) -> Iterator[Job]:
    """The kernels that FILE.py declares, or FILE.py:kernel."""
    place, _, only = text.partition(":")
    file = Path(place)
    for name in [only] if only else declared(file.read_text(encoding="utf-8")):
        try:
            found = package(resolve(f"{file}:{name}").kernels[0].call)
        except UsageError:  # which its row tells
            found = ""
        yield Job(file.name, name, found, f"{file}:{name}")


def declared(text: str) -> list[str]:
    """The names that a file gives to what ``kernel(...)(function)`` returns, as a decorator or in an assignment."""
    names = []
    for each in ast.parse(text).body:
        if isinstance(each, ast.FunctionDef) and any(map(_is_kernel, each.decorator_list)):
            names.append(each.name)
        elif isinstance(each, ast.Assign) and isinstance(each.value, ast.Call) and _is_kernel(each.value.func):
            names += [target.id for target in each.targets if isinstance(target, ast.Name)]
    return names


def _is_kernel(made: ast.expr) -> bool:
    """Whether it is ``kernel(...)`` or ``gradoracle.kernel(...)``."""
    return isinstance(made, ast.Call) and ast.unparse(made.func).rpartition(".")[2] == "kernel"


def package(call: Any) -> str:
    """The distributions, with versions, whose functions a callable of an adapter names, also through its helpers."""
    known = importlib.metadata.packages_distributions()
    names: dict[str, None] = {}
    for value in _values(call):
        holder = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None) or ""
        top = holder.partition(".")[0]
        if top in known and top not in OWN:
            names[known[top][0]] = None
    return " ".join(f"{name} {importlib.metadata.version(name)}" for name in names)


def called_names(call: Any) -> set[str]:
    """The names that a callable of an adapter uses, also through its helpers: ``f`` of ``package.f`` too."""
    return {name for each in _functions(call) for name in _names(each.__code__)}


def _functions(call: Any) -> list[FunctionType]:
    """A callable of an adapter and the functions of its file that it uses."""
    own = getattr(call, "__globals__", {})
    found: list[FunctionType] = []
    todo = [call]
    while todo:
        each = todo.pop()
        if not isinstance(each, FunctionType) or each in found:
            continue
        found.append(each)
        used = (own.get(name) for name in _names(each.__code__))
        todo += [value for value in used if isinstance(value, FunctionType) and value.__globals__ is own]
    return found


def _values(call: Any) -> Iterator[Any]:
    """The values that the names of a callable, and of the functions of its file that it uses, have there."""
    for each in _functions(call):
        for name in _names(each.__code__):
            value = each.__globals__.get(name)
            if not (isinstance(value, FunctionType) and value.__globals__ is each.__globals__):
                yield value


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield from _names(each)


def rows_of(job: Job, report: Report, **facts: Any) -> list[Row]:
    """The rows of a report of one kernel."""
    first_order = [each for each in report.verdicts if not _is_second(each)]
    stated = {each.dtype: each for each in kept(replace(report, verdicts=first_order))}
    rows = []
    for dtype in dict.fromkeys(verdict.dtype for verdict in report.verdicts):
        verdicts = [each for each in report.verdicts if each.dtype == dtype]
        broken = [each for each in verdicts if each.status in BROKEN or each.is_open]
        known = gravest(map(_severity, broken))
        lead = sorted((each for each in broken if _severity(each) is known), key=_rank, reverse=True)
        errors = [each for each in verdicts if each.status is Status.ERROR]
        judged = sum(report.judged.get(f"{name} in {dtype}", 0) for name in report.kernels)
        now = _now(broken)
        standing = {each.name.lower(): str(known) for each, known in of_dtype(report, verdicts).items()}
        reason = next((each.severity_note or _crash(each) for each in lead), "")
        if not broken and errors:
            now, reason = ERROR, errors[0].counterexample.message if errors[0].counterexample else ""
        elif not judged and not broken:
            now, reason = NOT_RUN, _why(report, verdicts)
        rows.append(
            Row(
                **_place(job),
                dtype=dtype,
                cases=judged,
                now=now,
                **(standing if now in NOW else {}),
                severity=known.value if known else "",
                keeps=(stated[dtype].preset or "none") if dtype in stated else "",
                properties=" ".join(each.property_name for each in lead[:MOST])
                + (f" and {more} more" if (more := len(lead) - MOST) > 0 else ""),
                stated=stated[dtype].lost if dtype in stated else "",
                reason=_plain(reason, job),
                **facts,
            )
        )
    return rows


def of_dtype(report: Report, verdicts: Sequence[Verdict]) -> Mapping[Derivative, Standing]:
    """The standing of each derivative of the report's one kernel by the verdicts of one dtype."""
    (kernel,) = report.kernels
    return standings(replace(report, verdicts=list(verdicts)), kernel)


def _crash(verdict: Verdict) -> str:
    return verdict.counterexample.message if verdict.status is Status.CRASHED and verdict.counterexample else ""


def _severity(verdict: Verdict) -> Severity:
    return verdict.severity or Severity.WRONG


def _place(job: Job) -> dict[str, str]:
    return {"source": job.source, "kernel": job.name, "package": job.package}


def _rank(verdict: Verdict) -> tuple[bool, int, int]:
    """What compares with the definition comes first: from a wrong tensor follows much else."""
    return verdict.kind is PropertyKind.ORACLE, verdict.rank, verdict.cases_violated + verdict.cases_crashed


def _is_second(verdict: Verdict) -> bool:
    """Whether it is about a second derivative, or a backward of the backward."""
    found = verdict.counterexample
    every = (*found.findings, *found.first_findings, *found.further) if found else ()
    orders = {each.derivative for each in every if each.outcome is Outcome.VIOLATED}
    return "hvp" in verdict.property_name or "double_backward" in verdict.property_name or orders == {Derivative.HVP}


def _now(broken: Sequence[Verdict]) -> str:
    """What a run says that has these failing verdicts, as ``Report.exit_code`` does."""
    known = gravest(map(_severity, broken))
    if known is None:
        return GREEN
    if known is Severity.WRONG and all(each.status is Status.CRASHED for each in broken if _severity(each) is known):
        return CRASHES
    if known in (Severity.WRONG, Severity.UNDECIDED):
        return known.value
    if any(verdict.counts(None) for verdict in broken):
        return DECLARED
    return STATED if known is Severity.PRECISION else known.value


def _why(report: Report, verdicts: Iterable[Verdict]) -> str:
    reasons: Counter[str] = Counter()
    for verdict in verdicts:
        reasons.update(verdict.reasons)
    return next((text for text, _ in reasons.most_common(1)), "; ".join(report.inconclusive()))


def _plain(text: str, job: Job) -> str:
    """One line without the folder of the kernel's file."""
    folder = str(Path(job.target.partition(":")[0]).parent)
    return " ".join(text.replace(f"{folder}/", "").split())[:300]


def judged(job: Job, examples: int, seconds: float, commit: str, device: str = "cpu") -> list[Row]:
    """The rows of a kernel. One that ends its process is judged again in a worker process.

    On a GPU its process is a new one, since a fork cannot use the context of CUDA, and its cases run in a worker
    process, which may lose the GPU.
    """
    answer: list[Row] | str = ""
    asked = max(examples, job.examples)
    facts = {"examples": asked, "commit": commit}
    start = multiprocessing.get_context("fork" if device == "cpu" else "spawn")
    for workers in (0, 1) if device == "cpu" else (1,):
        ours, theirs = multiprocessing.Pipe(duplex=False)
        child = start.Process(target=_judge, args=(job, asked, seconds, workers, device, theirs))
        child.start()
        theirs.close()
        limit = max(SLOWER * seconds, SHORTEST)
        try:
            answer = ours.recv() if ours.poll(limit) else f"still running after {limit:.0f} s"
            break
        except EOFError:
            answer = "its process died"
        finally:
            child.kill()
            child.join()
            ours.close()
    if isinstance(answer, str):
        return [Row(**_place(job), dtype=dtype, reason=_plain(answer, job), **facts) for dtype in DTYPES]
    return [Row(**{**asdict(row), **facts}) for row in answer if row.dtype in DTYPES]


def _judge(job: Job, examples: int, seconds: float, workers: int, device: str, to: Connection) -> None:
    torch.set_num_threads(1)
    prepare(device)
    dims = dict(parse_sizes(f"{dim}={sizes}") for dim, sizes in job.dims.items())
    try:
        supported = resolve(job.target, job.family).family.dtypes
        request = Request(
            job.target,
            job.family,
            device=device,
            dtypes=tuple(dtype for dtype in DTYPES if dtype in supported),
            dims=dims,
            examples=examples,
            seconds=seconds,
            workers=workers,
            shrink_seconds=0.0,
        )
        report = check(request)
        to.send(rows_of(job, report, seconds=round(report.seconds, 1)))
    except UsageError as error:
        to.send(str(error))
    except Exception as error:
        to.send(named(error))


def judging_commit() -> str:
    """The last commit that changed gradoracle, its properties or its kernels."""
    asked = ["git", "log", "-1", "--format=%h", "--", *JUDGES]
    return subprocess.run(asked, cwd=ROOT, capture_output=True, text=True).stdout.strip()


def main(words: list[str]) -> None:
    options = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    options.add_argument("sources", nargs="*", metavar="bugs[:bug]|FILE.py[:kernel]")
    options.add_argument("--examples", type=int, default=24, help="cases of each kernel, over all dtypes")
    options.add_argument("--seconds", type=float, default=60.0, help="for each kernel")
    options.add_argument("--file", type=Path, default=RESULTS)
    options.add_argument("--fresh", action="store_true", help="run again what has rows")
    options.add_argument("--table", action="store_true")
    options.add_argument("--doubtful", action="store_true")
    given = options.parse_args(words)
    torch.set_num_threads(1)
    prepare("cpu")
    commit = judging_commit()
    for source in given.sources:
        place, _, name = source.partition(":")
        for job in of_bugs(name) if place == BUGS else of_file(source):
            least = max(given.examples, job.examples)
            rows = [row for row in read(given.file) if (row.source, row.kernel) == (job.source, job.name)]
            if not given.fresh and any(row.commit == commit and row.examples >= least for row in rows):
                continue
            found = judged(job, given.examples, given.seconds, commit)
            record(given.file, found)
            for row in found:
                print(row.kernel, row.dtype, row.cases, row.now, row.keeps, row.properties, flush=True)
    if given.table:
        print(table(read(given.file)))
    if given.doubtful:
        print(*doubtful(read(given.file)), sep="\n")


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        main(sys.argv[1:])
