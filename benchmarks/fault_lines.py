"""How often the line that a report could name for a wrong kernel is the mutated one, by what names it.

    python benchmarks/fault_lines.py                       (all shipped families; markdown)
    python benchmarks/fault_lines.py sdpa lse --rows       (rows of benchmarks/results/fault_lines.csv)
    python benchmarks/fault_lines.py sdpa --misses         (each mutant at which another line is named)

Judges forward, VJP, JVP and HVP of mutants that a property killed (benchmarks/results/mutation/*.json) on up to eight
float32 cases that run the line, until one shows something wrong. What names a line: an access that the interpreter
records as wrong (outside the tensor, a race, two accesses without a barrier, a load of what nobody wrote), and, where
numbers are wrong, the statement of the kernel that stored the worst element. A hit: the line, or that of a call which
led to it, is one of the mutated statement.

Reports name the statement that loses precision (precision_lines.py: 219 of 219); facts of memory say where the access
is; and no report names the statement that stored a wrong element, as it is rarely the wrong one.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from fault_blocks import killed
from precision_lines import FAMILIES, TRIED, Bench

from gradoracle.check.evidence import Evidence
from gradoracle.execution.call_errors import Crashed, Refused, Unavailable, Wrong
from gradoracle.execution.device import prepare
from gradoracle.execution.interpreter import record as record_module
from gradoracle.execution.interpreter.record import Record
from gradoracle.execution.interpreter.wrong_accesses import Kind, Place, called_from
from gradoracle.execution.kernel_runner import unguarded
from gradoracle.model.case import Case
from gradoracle.model.derivative import Derivative
from gradoracle.model.finding import Outcome
from gradoracle.model.kernel import Kernel
from gradoracle.mutation.install import Stillborn, install
from gradoracle.mutation.mutant import Mutant
from gradoracle.mutation.sources import Source, Statements

STORE = "store of the worst element"
NAMES = {
    Kind.READ_OUTSIDE: "access outside its tensor",
    Kind.WRITTEN_OUTSIDE: "access outside its tensor",
    Kind.RACE: "race",
    Kind.UNWRITTEN: "load of unwritten memory",
}  # other kinds are accesses without a barrier
COLUMNS = ("family", "by", "named", "hit")


@dataclass(frozen=True)
class Named:
    """The lines that one mutant's wrong results name: (what names it, file, line)."""

    lines: tuple[tuple[str, str, int], ...] = ()
    said: str = ""


@dataclass
class Stores:
    """Which line stored each element of the launches of a call, last."""

    launches: list[tuple[Record, Any]] = field(default_factory=list)

    def watch(self) -> None:
        """Keep the footprints of launches that end from now on, in this process."""
        end, launches = Record.end, self.launches

        def kept(record: Record) -> None:
            launches.extend((record, view) for view in record._views if view.footprint.written)
            end(record)

        def of_the_kernel(record: Record) -> int:
            place = (called_from(record_module._OWN) or (record._where[innermost(record)],))[-1]
            return record._number(place, place)

        innermost = Record._place
        Record.end, Record._place = kept, of_the_kernel  # type: ignore[method-assign]

    def of(self, tensor: torch.Tensor, index: Sequence[int]) -> Place | None:
        """The line that stored an element; None where no launch did, as PyTorch made the tensor."""
        at = sum(i * step for i, step in zip(index, tensor.stride(), strict=True))
        address = tensor.data_ptr() + at * tensor.element_size()
        for record, view in reversed(self.launches):
            if view.base <= address < view.base + view.extent:
                element = view.footprint.elements(view, np.array([address - view.base]))
                if view.footprint.writer[element][0]:
                    return record._where[view.footprint.where_written[element][0]]
        return None


class Lines(Bench):
    """A family's kernels, and what names lines of their mutants."""

    def _judged(self, mutant: Mutant, source: Source, covering: Sequence[tuple[Kernel, Case]]) -> Any:
        self.oracle.keeps = False
        try:
            install(mutant, source.module, source.file)
        except Stillborn:
            return Named()
        stores = Stores()
        stores.watch()
        for kernel, case in covering[:TRIED]:
            evidence = self.evidence(kernel, case, unguarded)
            for derivative in Derivative:
                stores.launches.clear()
                with suppress(Crashed, Refused, Unavailable, Wrong):
                    lines = tuple(dict.fromkeys(self._named(evidence, derivative, stores)))
                    if lines:
                        return Named(
                            lines, f"{mutant.module}:{mutant.line} {mutant.after!r}; {derivative.value} of {case}"
                        )
        return Named()

    def _named(self, evidence: Evidence, derivative: Derivative, stores: Stores) -> Iterator[tuple[str, str, int]]:
        tensors = evidence.tensors(derivative)
        for fault in evidence.calls()[derivative.value].faults:
            for place in (fault.place, *fault.called):
                yield NAMES.get(fault.kind, "accesses without a barrier"), place.file, place.line
        for finding in evidence.compare(derivative):
            if finding.outcome is Outcome.VIOLATED and finding.worst is not None and finding.tensor in tensors:
                place = stores.of(tensors[finding.tensor], finding.worst.index)
                if place is not None:
                    yield STORE, place.file, place.line
                return


def main(words: list[str]) -> None:
    options = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    options.add_argument("families", nargs="*", default=FAMILIES)
    options.add_argument("--rows", action="store_true", help="rows of the CSV")
    options.add_argument("--misses", action="store_true", help="each mutant at which another line is named")
    options.add_argument("--every", type=int, default=1, metavar="N", help="every Nth mutant only")
    options.add_argument("--workers", type=int, default=2)
    given = options.parse_args(words)
    torch.set_num_threads(1)
    prepare("cpu")
    named: Counter[tuple[str, str]] = Counter()
    hits: Counter[tuple[str, str]] = Counter()
    for family in given.families:
        with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(given.workers) as pool:
            bench = Lines(family, folder)
            plants = killed(family, bench.sources)[:: given.every]
            for (mutant, source), found in zip(plants, pool.map(bench.tried, *zip(*plants, strict=True)), strict=True):
                if not isinstance(found, Named):  # it died, or took too long
                    print(family, mutant.key, found.said, file=sys.stderr, flush=True)
                    found = Named(said=found.said)
                first, last = Statements(mutant.source).span(mutant.line)
                by = {name: [line for n, file, line in found.lines if n == name] for name, *_ in found.lines}
                for name, lines in by.items():
                    hit = any(n == name and f == source.file and first <= line <= last for n, f, line in found.lines)
                    named[family, name] += 1
                    hits[family, name] += hit
                    if given.misses and not hit:
                        print(family, name, lines, found.said, file=sys.stderr, flush=True)
    if given.rows:
        print(*COLUMNS, sep=",")
        for (family, name), count in sorted(named.items()):
            print(family, name, count, hits[family, name], sep=",")
        return
    print("| what names a line | mutants | of these the mutated statement | rate |")
    print("|---|--:|--:|--:|")
    for name in sorted({name for _, name in named}):
        count, hit = (sum(n for (_, own), n in each.items() if own == name) for each in (named, hits))
        print(f"| {name} | {count} | {hit} | {hit / count:.0%} |")


if __name__ == "__main__":
    main(sys.argv[1:])
