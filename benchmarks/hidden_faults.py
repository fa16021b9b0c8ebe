"""Hidden faults: mutants scaled down until bfloat16 hides them, judged by the property of the widened kernel.

    python -m benchmarks.hidden_faults [FAMILY...] [--mutants N] [--workers N] [--seconds S] [--resume]
    python -m benchmarks.hidden_faults --table [FILE...]

A mutant with a magnitude (``scaled``) is planted as value + t (mutated value - value). t is the largest power of
1/4, from 1 down to 4^-16, at which no property of the kernel as written is violated on the bfloat16 cases of a default
check; it is found by bisection with the properties that compare with the oracle, and confirmed with all others. At this
t the property of the widened kernel judges those of these cases that it falls on. A row a mutant is written into
benchmarks/results/hidden_faults.csv, and replaces earlier ones of the family.

Not hidden, and in no share, is a mutant that is seen as written at 4^-16 too (what must be exactly 0 is not any more),
one whose scaled form cannot run, and one that is seen neither as written nor widened where t is 1: it is equivalent, or
other dtypes show it. Mutants that no bfloat16 case executes are not chosen.
"""

from __future__ import annotations

import argparse
import ast
import csv
import functools
import pickle
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from gradoracle.check.plan import resolved
from gradoracle.execution import environment
from gradoracle.model.errors import UsageError
from gradoracle.model.job import Phase
from gradoracle.mutation.mutant import Mutant
from gradoracle.mutation.outcome import Fate, MutantResult
from gradoracle.mutation.plant import choose, mutants_of
from gradoracle.mutation.proofs import proofs_beside, read_proofs
from gradoracle.mutation.run import WrongKernel, cases_of, pool, rehearsed
from gradoracle.mutation.sources import Source, Statements, sources_of
from gradoracle.mutation.trial import Rehearsal, Stage, Trial, Unmutated
from gradoracle.mutation.trial import entry as trial_entry
from gradoracle.project import values
from gradoracle.project.request import Progress, Request
from gradoracle.project.shipped_names import family_names
from gradoracle.project.target import resolve

ROWS = Path(__file__).resolve().parent / "results" / "hidden_faults.csv"
CAUGHT, MISSED, UNSEEN = "caught", "missed", "unseen unscaled"
SEEN, UNSCALED = "never hidden", "cannot be scaled"


@dataclass(frozen=True)
class Row:
    """One mutant.

    Attributes:
        t: the largest at which it is hidden; "" where it is at none.
        result: CAUGHT; MISSED; UNSEEN: seen neither as written nor widened where t is 1; SEEN, UNSCALED: not hidden.
        seen_by: the property as written that is violated at 4 t, or at the smallest t; of UNSCALED what it raised.
        caught_by: the property that is violated at t when widened.
        widened_from: where missed, the smallest t at which it is seen widened; "" for none.
    """

    family: str
    mutant: str
    operator: str
    where: str
    before: str
    after: str
    result: str
    t: str = ""
    seen_by: str = ""
    caught_by: str = ""
    case: str = ""
    widened_from: str = ""
    seconds: float = 0.0


def table(rows: Sequence[Row]) -> str:
    """The shares caught, by family and by operator, and every miss."""
    lines = ["| mutants | hidden | caught | share | not hidden |", "|---|--:|--:|--:|---|"]
    for name in dict.fromkeys(row.family for row in rows):
        lines.append(_share(name, [row for row in rows if row.family == name]))
    for name in sorted({row.operator for row in rows}):
        lines.append(_share(name, [row for row in rows if row.operator == name]))
    lines += [_share("all", rows), ""]
    for row in rows:
        if row.result in (MISSED, UNSEEN):
            seen = f"seen widened from t = {row.widened_from}" if row.widened_from else "not seen widened where t is 1"
            by = f"; as written by {row.seen_by} at 4 t" if row.seen_by else ""
            code = f"`{row.before}` becomes `{row.after}`"
            lines.append(f"- {row.family} `{row.mutant}` {row.operator}, {row.where}: {code}; t = {row.t}, {seen}{by}")
    return "\n".join(lines) + "\n"


def _share(name: str, rows: Sequence[Row]) -> str:
    counts = Counter(row.result for row in rows)
    hidden = counts[CAUGHT] + counts[MISSED]
    others = ", ".join(f"{counts[each]} {each}" for each in (UNSEEN, SEEN, UNSCALED) if counts[each])
    share = f"{counts[CAUGHT] / hidden:.1%}" if hidden else ""
    return f"| {name} | {hidden} | {counts[CAUGHT]} | {share} | {others} |"


def read(file: Path) -> list[Row]:
    """The rows of a file; none where there is no file."""
    if not file.exists():
        return []
    with file.open(encoding="utf-8", newline="") as stream:
        return [_row(cells) for cells in csv.DictReader(stream)]


def _row(cells: Mapping[str, Any]) -> Row:
    return Row(**{**cells, "seconds": float(cells["seconds"])})


def write(file: Path, rows: Sequence[Row]) -> None:
    """Write rows; those of the same families are replaced."""
    families = {row.family for row in rows}
    kept = [row for row in read(file) if row.family not in families]
    with file.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.DictWriter(stream, [field.name for field in fields(Row)], lineterminator="\n")
        writer.writeheader()
        writer.writerows(asdict(row) for row in [*kept, *rows])


# operators that change floats alone, and those that do where the operators' own reading of the code says float
FLOATS = frozenset(
    {
        "function replaced",
        "shift dropped",
        "accumulation lost",
        "result negated",
        "result doubled",
        "factors of a dot swapped",
    }
)
OTHERS = frozenset(
    {
        "sign",
        "term dropped",
        "factor dropped",
        "factor twice",
        "operands swapped",
        "constant",
        "clamp dropped",
        "initial value",
        "other value",
        "branches swapped",
        "selection dropped",
    }
)
_Statement = ast.Assign | ast.AugAssign
_SYMBOLS = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/"}


def scaled(mutant: Mutant, t: float) -> Mutant | None:
    """The mutant with its mistake scaled by t: value + t (mutated value - value); None where it has no magnitude.

    The difference of two sources is looked up as the smallest expression that differs, or as a statement that assigns
    to one target; what differs otherwise (a mask, a missing store, a swapped argument) has no magnitude. What is not
    plainly a float has none either: (1 - t) n for a bound n is the bound n - 1 for every t. The ``key`` is that of no
    other t.
    """
    if mutant.operator not in FLOATS | OTHERS:
        return None
    old, new = _differing(ast.parse(mutant.original), ast.parse(mutant.source))
    if isinstance(old, ast.expr) and isinstance(new, ast.expr):
        before, after = _text(mutant.original, old), _text(mutant.source, new)
        valued: ast.expr = old
        code = _between(before, after, t)
    elif isinstance(old, _Statement) and isinstance(new, _Statement) and _target(old) == _target(new):
        valued = old.value
        code = f"{_target(old)} = {_between(_value(mutant.original, old), _value(mutant.source, new), t)}"
    else:
        return None
    if (
        mutant.operator in OTHERS
        and _kinds(mutant.original, mutant.module).get(_span(mutant.original, valued)) != "float"
    ):
        return None
    source = _replaced(mutant.original, old, code)
    try:
        compile(source, "<scaled>", "exec", dont_inherit=True)
    except SyntaxError:
        return None
    return replace(mutant, source=source, after=" ".join(code.split()))


def _between(before: str, after: str, t: float) -> str:
    return f"(({before}) + {t!r} * (({after}) - ({before})))"


def _differing(old: ast.AST, new: ast.AST) -> tuple[ast.AST, ast.AST]:
    """The smallest pair of statements or expressions outside which two trees are equal."""
    if type(old) is not type(new):
        return old, new
    pairs: list[tuple[ast.AST, ast.AST]] = []
    for field in old._fields:
        mine, theirs = getattr(old, field, None), getattr(new, field, None)
        if isinstance(mine, list) and isinstance(theirs, list) and len(mine) == len(theirs):
            both = list(zip(mine, theirs, strict=True))
        else:
            both = [(mine, theirs)]
        for one, other in both:
            if _shown(one) == _shown(other):
                continue
            if not isinstance(one, ast.AST) or not isinstance(other, ast.AST):
                return old, new
            pairs.append((one, other))
    if len(pairs) != 1:
        return old, new
    inner = _differing(*pairs[0])
    is_whole = all(isinstance(each, (ast.expr, ast.stmt, ast.mod)) for each in inner)
    is_called = isinstance(old, ast.Call) and pairs[0][0] is old.func  # a function is no value to scale
    is_call = isinstance(old, ast.Expr)  # a statement that only calls: nothing takes its value
    return (old, new) if not is_whole or is_called or (is_call and inner == pairs[0]) else inner


def _shown(node: object) -> str:
    return ast.dump(node) if isinstance(node, ast.AST) else repr(node)


@lru_cache(maxsize=64)
def _kinds(text: str, module: str) -> dict[tuple[int, int], str]:
    """What the expressions of a source's functions are, by their bytes: float, integer, pointer, mask or not known."""
    import libcst as cst

    from gradoracle.mutation.operators import Source

    source = Source(text, module)
    nodes = ((place, node) for place in source.places for node in place.nodes)
    return {source.span(node): place.kind(node) for place, node in nodes if isinstance(node, cst.BaseExpression)}


def _target(node: _Statement) -> str:
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    return ast.unparse(targets[0]) if len(targets) == 1 else ""


def _value(source: str, node: _Statement) -> str:
    value = _text(source, node.value)
    if isinstance(node, ast.Assign):
        return value
    return f"{_target(node)} {_SYMBOLS.get(type(node.op), '@')} ({value})"


def _text(source: str, node: ast.expr) -> str:
    return ast.get_source_segment(source, node) or ast.unparse(node)


def _replaced(source: str, node: ast.expr | ast.stmt, code: str) -> str:
    """The source with other code at the place of a node."""
    start, end = _span(source, node)
    whole = source.encode()
    return (whole[:start] + code.encode() + whole[end:]).decode()


def _span(source: str, node: ast.expr | ast.stmt) -> tuple[int, int]:
    """The bytes of a node."""
    lines = [0]
    for line in source.encode().splitlines(keepends=True):
        lines.append(lines[-1] + len(line))
    end = lines[(node.end_lineno or node.lineno) - 1] + (node.end_col_offset or 0)
    return lines[node.lineno - 1] + node.col_offset, end


SMALLEST = 16  # t is at least 4^-16, 2e-10: below the rounding of float32, which some outputs in bfloat16 have


@dataclass(frozen=True)
class Search:
    """Job: find the t of a mutant.

    Attributes:
        mutant: unscaled.
        source: that it is planted in.
        order: of the cases that execute its line.
        known: by stage, what ``Trial`` needs.
    """

    family: str
    mutant: Mutant
    source: Source
    order: tuple[int, ...]
    known: dict[Stage, str]


def entry(given: Any) -> Callable[[Rehearsal | Search, Phase], Unmutated | Row]:
    """Make the worker's function, as ``gradoracle.mutation.trial.entry``."""
    work = trial_entry(given)

    def found(job: Rehearsal | Search, phase: Phase) -> Unmutated | Row:
        if isinstance(job, Rehearsal):
            seen = work(job, phase)
            assert isinstance(seen, Unmutated)
            return seen

        def judged(exponent: int, stage: Stage) -> MutantResult:
            planted = scaled(job.mutant, 4.0**-exponent)
            assert planted is not None
            outcome = work(Trial(planted, job.source, job.order, job.known[stage]), phase)
            assert isinstance(outcome, MutantResult)
            return outcome

        return searched(job, judged)

    return found


def searched(job: Search, judged: Callable[[int, Stage], MutantResult]) -> Row:
    """The row of a mutant; ``judged`` says what the properties of a stage find where t is 4 to the minus n."""
    begun = time.monotonic()
    own = job.mutant
    row = Row(job.family, own.key, own.operator, f"{own.module}:{own.line} {own.function}", own.before, own.after, "")

    def ended(result: str, **more: str) -> Row:
        return replace(row, result=result, seconds=round(time.monotonic() - begun, 1), **more)

    last = judged(SMALLEST, Stage.DECISIVE)
    if last.fate is not Fate.SURVIVED:
        return ended(SEEN if last.fate is Fate.KILLED else UNSCALED, seen_by=last.property_name or last.reason)
    seen, hidden, by = -1, SMALLEST, ""
    while hidden - seen > 1:
        middle = (seen + hidden) // 2
        outcome = judged(middle, Stage.DECISIVE)
        if outcome.fate is Fate.SURVIVED:
            hidden = middle
        else:
            seen, by = middle, outcome.property_name or outcome.reason
    while (outcome := judged(hidden, Stage.OTHERS)).fate is not Fate.SURVIVED:
        hidden, by = hidden + 1, outcome.property_name or outcome.reason
        if hidden > SMALLEST:
            return ended(SEEN if outcome.fate is Fate.KILLED else UNSCALED, seen_by=by)
    widened = judged(hidden, Stage.WIDENED)
    shown = {"t": f"{4.0**-hidden:.2g}", "seen_by": by}
    if widened.fate is not Fate.SURVIVED:
        return ended(CAUGHT, **shown, caught_by=widened.property_name or widened.reason, case=widened.case)
    for larger in range(hidden - 1, -1, -1):
        if judged(larger, Stage.WIDENED).fate is Fate.KILLED:
            return ended(MISSED, **shown, widened_from=f"{4.0**-larger:.2g}")
    return ended(UNSEEN if hidden == 0 else MISSED, **shown)


DTYPE = "bfloat16"


def run(
    family: str, count: int, workers: int, seconds: float | None, say: Callable[[str], None], had: Sequence[Row] = ()
) -> Iterator[list[Row]]:
    """The rows of some mutants of a family, after each search; as many searches as can begin in the time.

    Args:
        had: rows of the family from before: their mutants are not searched again.
    """
    begun = time.monotonic()
    subjects = resolved(Request(family, device="cpu", workers=0))
    jobs = [job for job in cases_of(subjects) if job.case.dtype == DTYPE]
    sources = sources_of(resolve(family))
    proven = read_proofs(proofs_beside(family))
    planted = {m: s for s in sources for m in mutants_of(s) if m.key not in proven and scaled(m, 0.5)}
    with (
        tempfile.TemporaryDirectory() as folder,
        pool(f"{__name__}:entry", subjects.setup, (), folder, workers) as processes,
    ):
        seen = rehearsed(jobs, processes, Progress())
        orders = _orders(planted, seen)
        chosen = choose(orders, count, 0)
        took = f"{time.monotonic() - begun:.0f} s"
        say(f"{family}: {len(chosen)} of the {len(orders)} mutants that {len(jobs)} cases execute, {took}")
        known = {}
        for stage in Stage:
            names = {name for name, prop in subjects.properties.items() if Stage.of(prop) is stage}
            known[stage] = str(Path(folder) / f"known{stage.value}")
            Path(known[stage]).write_bytes(pickle.dumps(_only(jobs, seen, names), pickle.HIGHEST_PROTOCOL))
        rows, done = list(had), {row.mutant for row in had}
        begun = time.monotonic()

        def searches() -> Iterator[Search]:
            for mutant in chosen:
                if mutant.key in done:
                    continue
                if seconds is not None and time.monotonic() - begun > seconds:
                    return
                yield Search(family, mutant, planted[mutant], orders[mutant], known)

        for result in processes.run(searches()):
            if result.value is None:
                say(f"{family}: a search failed: {result.error.strip().splitlines()[-1:] or result.crash}")
                continue
            rows.append(result.value)
            say(f"{family}: {len(rows)} of {len(chosen)}: {_told(result.value)}")
            yield sorted(rows, key=lambda row: (row.operator, row.where, row.mutant))


def _told(row: Row) -> str:
    hidden = f" at t = {row.t}" if row.t else ""
    return f"{row.mutant} {row.operator}, {row.where}: {row.result}{hidden}, {row.seconds:.0f} s"


def _only(jobs: Sequence[Any], seen: Sequence[Unmutated], names: set[str]) -> tuple[list[Any], list[Unmutated]]:
    """Cases and what the unmutated kernel did on them, by some properties alone."""
    own = [replace(job, properties=tuple(name for name in job.properties if name in names)) for job in jobs]
    results = [tuple(each for each in one.result.results if each.property_name in names) for one in seen]
    pairs = zip(seen, results, strict=True)
    return own, [replace(one, result=replace(one.result, results=result)) for one, result in pairs]


def _orders(planted: dict[Mutant, Source], seen: Sequence[Unmutated]) -> dict[Mutant, tuple[int, ...]]:
    """The cases that execute a mutant's line, the shortest first; mutants that no case executes are left out."""
    statements = {source.shown: Statements(source.text) for source in planted.values()}
    found = {}
    for mutant, source in planted.items():
        lines = statements[mutant.module].lines(mutant.line)
        order = [n for n, each in enumerate(seen) if each.runs(source, lines)]
        if order:
            found[mutant] = tuple(sorted(order, key=lambda n: seen[n].seconds))
    return found


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="hidden_faults", description="Mutants that bfloat16 hides, widened.")
    parser.add_argument("families", nargs="*", metavar="FAMILY", help="default: all")
    parser.add_argument("--mutants", default=100, type=int, metavar="N", help="of each family, spread over operators")
    parser.add_argument("--workers", default="auto", metavar="N|auto")
    parser.add_argument("--seconds", type=float, metavar="S", help="of searching, after which none of a family begins")
    parser.add_argument("--resume", action="store_true", help="search only mutants that FILE has no row of")
    parser.add_argument("--output", default=str(ROWS), metavar="FILE", help="rows")
    parser.add_argument("--table", nargs="*", metavar="FILE", help="only print what rows add up to")
    given = parser.parse_args(arguments)
    if given.table is None:
        for family in given.families or family_names():
            values.one_of("FAMILY", family, family_names())
            workers = values.workers(given.workers) or environment.cores()
            had = [row for row in read(Path(given.output)) if row.family == family] if given.resume else []
            say = functools.partial(print, flush=True)
            for rows in run(family, given.mutants, workers, given.seconds, say, had):
                write(Path(given.output), rows)
    files = [Path(file) for file in given.table or [given.output]]
    print(table([row for file in files for row in read(file)]))


if __name__ == "__main__":
    from benchmarks import hidden_faults  # under a name by which its jobs can be pickled

    try:
        hidden_faults.main(sys.argv[1:])
    except (UsageError, WrongKernel) as error:
        print(f"hidden_faults: {error}", file=sys.stderr)
        sys.exit(2)
