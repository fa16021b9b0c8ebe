"""How often the statement that a precision fault names is the one where precision is lost.

    python benchmarks/precision_lines.py                   (all shipped families; markdown)
    python benchmarks/precision_lines.py sdpa lse --rows   (rows of benchmarks/results/precision_lines.csv)
    python benchmarks/precision_lines.py sdpa --misses     (each plant at which another line is named, or none)

Rounds the value of one assignment of a shipped float32 kernel to bfloat16 or float16, and judges forward, VJP, JVP and
HVP on up to eight cases that run the line, until a derivative breaks the kernel's contract and holds when widened. A
hit: ``lost_at`` names a line of the statement that rounds.
"""

from __future__ import annotations

import argparse
import math
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path

import libcst as cst
import torch

from gradoracle.cases.sample import build
from gradoracle.cases.stream import stream
from gradoracle.check.evidence import Evidence
from gradoracle.check.precision_loss import lost_at
from gradoracle.check.widened import widened
from gradoracle.execution.call_errors import Crashed, Refused, Unavailable, Wrong
from gradoracle.execution.device import prepare
from gradoracle.execution.kernel_runner import Guard, KernelRunner, unguarded
from gradoracle.model.case import Case
from gradoracle.model.derivative import Derivative
from gradoracle.model.finding import Outcome
from gradoracle.model.kernel import Kernel
from gradoracle.mutation.cached_oracle import CachedOracle
from gradoracle.mutation.fork import Lost, answer
from gradoracle.mutation.install import Stillborn, install
from gradoracle.mutation.mutant import Mutant
from gradoracle.mutation.operators.operator import Fault, operator
from gradoracle.mutation.operators.place import Place
from gradoracle.mutation.operators.syntax import text
from gradoracle.mutation.plant import mutants_of
from gradoracle.mutation.sources import Lines, Source, Statements, executed, sources_of
from gradoracle.project.target import Target, resolve

FAMILIES = ("sdpa", "lse", "lightning", "semicrf")
FORMATS = {"rounded to bfloat16": "bfloat16", "rounded to float16": "float16"}
COLUMNS = ("family", "format", "every", "planted", "lost", "named", "hit", "others", "calls", "seconds")
GENERATED, TRIED = 40, 8  # cases of each kernel, cases tried for each plant
LARGEST, LONGEST = 1 << 18, 256  # product of a case's dims, and its longest
SECONDS = 120.0  # for one plant
NOT_FLOAT = ("pointer", "integer", "mask")


def rounded(node: cst.Assign | cst.AugAssign, place: Place, dtype: str) -> Iterator[Fault]:
    """The value of an assignment, rounded."""
    target = node.target if isinstance(node, cst.AugAssign) else node.targets[0].target
    if not isinstance(target, cst.Name) or place.kind(node.value) in NOT_FLOAT:
        return
    cast = f".to(tl.{dtype}).to(tl.float32)"
    if isinstance(node, cst.Assign):
        yield Fault(node.value, f"({text(node.value)}){cast}")
    elif isinstance(node.operator, cst.AddAssign):
        yield Fault(node, f"{target.value} = ({target.value} + {text(node.value)}){cast}")


@operator(wrappers=False)
def rounded_to_bfloat16(node: cst.Assign | cst.AugAssign, place: Place) -> Iterator[Fault]:
    """A value is rounded to bfloat16."""
    yield from rounded(node, place, "bfloat16")


@operator(wrappers=False)
def rounded_to_float16(node: cst.Assign | cst.AugAssign, place: Place) -> Iterator[Fault]:
    """A value is rounded to float16."""
    yield from rounded(node, place, "float16")


@dataclass(frozen=True)
class Trial:
    """What came of one plant.

    Attributes:
        lost: whether a derivative breaks the contract and holds when widened.
        named, hit: whether a line is named, and whether it is one of the statement that rounds.
        others: how many further statements break the contract alone.
        said: the line that is named, the statement and the case.
    """

    lost: bool = False
    named: bool = False
    hit: bool = False
    others: int = 0
    calls: int = 0
    seconds: float = 0.0
    said: str = ""


class Bench:
    """A family's kernels in float32, with cases and the lines that each runs."""

    def __init__(self, family: str, folder: str) -> None:
        self.target: Target = resolve(family)
        self.oracle = CachedOracle(Path(folder), self.target.family, "auto", graphs=1 << 12)
        self.sources: list[Source] = sources_of(self.target, ())
        self.ran: list[tuple[float, Kernel, Case, Lines]] = []
        for kernel in self.target.kernels:
            for case in stream(self.target.family, kernel, dtypes=["float32"], examples=GENERATED):
                if math.prod(case.dims.values()) <= LARGEST and max(case.dims.values()) <= LONGEST:
                    begun = time.perf_counter()
                    with executed([source.file for source in self.sources]) as lines:
                        list(self.losses(kernel, case))
                    seconds = time.perf_counter() - begun
                    self.ran.append((seconds, kernel, case, {file: frozenset(n) for file, n in lines.items()}))
        self.ran.sort(key=lambda each: each[0])

    def evidence(self, kernel: Kernel, case: Case, guard: Guard) -> Evidence:
        sample = build(case, self.target.family.signature, domains=self.target.family.domains)
        return Evidence(case, sample, KernelRunner(self.target.family, kernel, guard), self.oracle)

    def losses(
        self, kernel: Kernel, case: Case, guard: Guard = unguarded
    ) -> Iterator[tuple[Evidence, Derivative, list[str]]]:
        """The derivatives that break the contract and hold when widened, with their tensors."""
        evidence = self.evidence(kernel, case, guard)
        for derivative in Derivative:
            with suppress(Crashed, Refused, Unavailable, Wrong):
                broken = [each.tensor for each in evidence.compare(derivative) if each.outcome is Outcome.VIOLATED]
                wide = {each.tensor: each.outcome for each in widened(evidence).compare(derivative)}
                if broken and not any(wide[name] is Outcome.VIOLATED for name in broken):
                    yield evidence, derivative, broken

    def tried(self, mutant: Mutant, source: Source) -> Trial:
        """A plant judged in a fork; nothing came of one that dies or takes too long."""
        lines = Statements(mutant.original).lines(mutant.line)
        covering = [(kernel, case) for _, kernel, case, ran in self.ran if not ran[source.file].isdisjoint(lines)]
        if not covering:
            return Trial()
        try:
            return answer(lambda: self._judged(mutant, source, covering[:TRIED]), SECONDS)
        except TimeoutError:
            return Trial(said="took too long")
        except Lost:
            return Trial(said="died")

    def _judged(self, mutant: Mutant, source: Source, covering: Sequence[tuple[Kernel, Case]]) -> Trial:
        self.oracle.keeps = False
        try:
            install(mutant, source)
        except Stillborn:
            return Trial()
        for kernel, case in covering:
            count: Counter[str] = Counter()
            for evidence, derivative, names in self.losses(kernel, case, counting(count)):
                begun, before = time.perf_counter(), count.total()
                found = lost_at(evidence, derivative, names)
                spent, made = time.perf_counter() - begun, count.total() - before
                planted = f"{mutant.module}:{mutant.line} {mutant.after!r}; {derivative.value} of {case}"
                if found is None:
                    return Trial(lost=True, calls=made, seconds=spent, said=f"none named: {planted}")
                own = found.statement
                hit = own.file == source.file and own.line in Statements(mutant.source).lines(mutant.line)
                said = f"{Path(own.file).name}:{own.line} {found.source!r} together={found.together}: {planted}"
                return Trial(True, True, hit, len(found.others), made, spent, said)
        return Trial()


def counting(count: Counter[str]) -> Guard:
    """A guard that counts calls."""

    def guard(name: str) -> AbstractContextManager[None]:
        count[name] += 1
        return nullcontext()

    return guard


def planted(sources: Sequence[Source]) -> Iterator[tuple[Mutant, Source]]:
    """Every plant in the jitted functions of some sources."""
    for source in sources:
        for mutant in mutants_of(source, (rounded_to_bfloat16, rounded_to_float16)):
            yield mutant, source


def main(words: list[str]) -> None:
    options = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    options.add_argument("families", nargs="*", default=FAMILIES)
    options.add_argument("--rows", action="store_true", help="rows of the CSV")
    options.add_argument("--misses", action="store_true", help="each plant at which the wrong line is named, or none")
    options.add_argument("--every", type=int, default=1, metavar="N", help="every Nth plant only")
    options.add_argument("--workers", type=int, default=2)
    given = options.parse_args(words)
    torch.set_num_threads(1)
    prepare("cpu")
    found: dict[tuple[str, str], list[Trial]] = defaultdict(list)
    for family in given.families:
        with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(given.workers) as pool:
            bench = Bench(family, folder)
            plants = list(planted(bench.sources))[:: given.every]
            trials = pool.map(bench.tried, *zip(*plants, strict=True))
            for (mutant, _), trial in zip(plants, trials, strict=True):
                found[family, FORMATS[mutant.operator]].append(trial)
                if given.misses and (trial.said and not trial.hit):
                    print(family, trial.said, file=sys.stderr, flush=True)
    _print(found, given.rows, given.every)


def _print(found: dict[tuple[str, str], list[Trial]], rows: bool, every: int) -> None:
    if rows:
        print(*COLUMNS, sep=",")
        for (family, name), trials in found.items():
            print(family, name, every, *_counts(trials), sep=",")
        return
    print("| family | format | planted | lost | named | hit | rate | with others | calls | s |")
    print("|---|---|--:|--:|--:|--:|--:|--:|--:|--:|")
    total = [trial for trials in found.values() for trial in trials]
    for (family, name), trials in [*found.items(), (("all", ""), total)]:
        count, lost, named, hit, *rest = _counts(trials)
        rate = f"{hit / lost:.1%}" if lost else "-"
        print("|", " | ".join(map(str, (family, name, count, lost, named, hit, rate, *rest))), "|")


def _counts(trials: Sequence[Trial]) -> tuple[float, ...]:
    """Plants, those that lose precision, named, hit, with other statements; calls and seconds, both median."""
    own = [trial for trial in trials if trial.lost]
    sums = Counter({field: sum(getattr(t, field) for t in own) for field in ("named", "hit")})
    middle = len(own) // 2
    calls, seconds = (sorted(getattr(t, field) for t in own) or [0] for field in ("calls", "seconds"))
    others = sum(trial.others > 0 for trial in own)
    at = min(middle, len(calls) - 1)
    return len(trials), len(own), sums["named"], sums["hit"], others, calls[at], round(seconds[at], 2)


if __name__ == "__main__":
    main(sys.argv[1:])
