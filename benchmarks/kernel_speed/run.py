"""Run: compile the entries of the rows in many processes, then time them in one, a row of the CSV for each, and
compare their results with the truth in another, which writes these rows again.

The process is replaced when an entry kills it, hangs or leaves the device unusable; the entry's row says so.
"""

from __future__ import annotations

import importlib
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from gradoracle.execution import device as devices
from gradoracle.model.errors import named
from gradoracle.project.shipped_names import family_names
from gradoracle.project.values import one_of

from . import errors
from .chips import chip_of, floor
from .content import content
from .facts import facts_of
from .rows import Line, append, keep, read, written
from .stopwatch import Cpu, Cuda, Measured, Stopwatch, measured

Place = tuple[str, str]  # work and entry
UNUSABLE = 75  # exit code of a process that ends because its device is lost, after the row that says so
BARREN = 4  # processes in a row that die before they have written anything: it is not the entries
_POLL = 0.2  # seconds


@dataclass(frozen=True)
class Asked:
    """What a run is asked for.

    Attributes:
        families: in the order in which they are timed; none: all.
        only: works that contain this text.
        file: the CSV.
        device: cuda or cpu.
        seconds: after which no entry begins; None: no limit.
        patience: seconds after which an entry that has not ended is stopped, the start of its process counted in.
        workers: processes that compile; 0: nothing is compiled before.
        compile_seconds: after which what is not compiled is left to the process that times.
        commit: of the code, where there is no git to ask.
        scans: whether works of the scans are timed, too.
        missing: whether entries are left alone that the file has a row of, of these kernels; with errors where these
            are asked for.
        errors: whether nothing is timed, and only the errors of rows that the file has are taken.
    """

    families: tuple[str, ...]
    file: Path
    only: str = ""
    device: str = "cuda"
    seconds: float | None = None
    patience: float = 120.0
    workers: int = 0
    compile_seconds: float = 120.0
    commit: str = ""
    scans: bool = True
    missing: bool = False
    errors: bool = False
    begun: float = field(default_factory=time.time)

    @property
    def left(self) -> float:
        """Seconds until its end; infinite where it has no limit."""
        return float("inf") if self.seconds is None else self.begun + self.seconds - time.time()


def module_of(family: str) -> Any:
    """The module in ``benchmarks/families`` that has a shipped family's rows.

    Raises:
        UsageError: no shipped family has this name.
    """
    return importlib.import_module(f"families.{one_of('FAMILY', family, family_names())}")


def rows_of(asked: Asked) -> Iterator[Any]:
    """The rows of the families, those of scans behind those of all tables, each work once; tensors are made later."""
    modules = [module_of(family) for family in asked.families or family_names()]
    scanned = {row.work for module in modules for row in module.scans()}
    found: set[str] = set()
    for make in ("rows", "scans") if asked.scans else ("rows",):
        for module in modules:
            for row in getattr(module, make)():
                if asked.only in row.work and row.work not in found:
                    found.add(row.work)
                    both = "both" if row.work in scanned else ""
                    yield replace(row, scan="only" if make == "scans" else both)


def places(asked: Asked) -> list[Place]:
    """What is timed, in order."""
    known = {line.place for line in read(asked.file) if line.kernels == _content(line.family)} if asked.missing else ()
    return [place for row in rows_of(asked) for who in row.entries if (place := (row.work, who)) not in known]


def uncompared(asked: Asked) -> list[Place]:
    """What is compared with the truth, in order: rows of tables that have a time, of these kernels."""
    anew = asked.errors and not asked.missing
    known = {
        line.place
        for line in read(asked.file)
        if not line.missing and line.kernels == _content(line.family) and (anew or not line.is_compared)
    }
    rows = (row for row in rows_of(asked) if row.truth is not None and row.scan != "only")
    return [place for row in rows for who in row.entries if (place := (row.work, who)) in known]


def run(asked: Asked, context: str = "spawn") -> None:
    """Compile, time and compare what is asked for, and write the rows.

    Args:
        asked: see there.
        context: how processes are started; in those that are spawned CUDA works.
    """
    devices.prepare(devices.choose(asked.device))
    todo = uncompared(asked) if asked.errors else places(asked)
    keep(asked.file, () if asked.errors else set(todo))
    if asked.workers:
        _compile(asked, todo, context)
    if not asked.errors:
        _each(asked, todo, "timed", _time, _missing, context)
        todo = uncompared(asked)
    _each(asked, todo, "compared", _compare, _lost, context)
    keep(asked.file, ())


def _each(
    asked: Asked,
    todo: list[Place],
    verb: str,
    how: Callable[[Asked, frozenset[Place]], None],
    lacking: Callable[[Asked, Place, str], Line],
    context: str,
) -> None:
    """Time or compare entries in a process of its own, and in another one from where that was lost.

    ``lacking`` makes the row of an entry with which a process was lost, and why.
    """
    kept = len(written(asked.file))
    processes: Any = multiprocessing.get_context(context)
    barren = 0
    while asked.left > 0:
        done = {line.place for line in written(asked.file)[kept:]}
        waiting = [place for place in todo if place not in done]
        if not waiting:
            break
        process = processes.Process(target=how, args=(asked, frozenset(waiting)))
        process.start()
        hung = _watched(process, asked)
        if process.exitcode in (0, UNUSABLE):
            if process.exitcode == 0:
                break
            continue
        done = {line.place for line in written(asked.file)[kept:]}
        barren = 0 if done.intersection(waiting) or hung else barren + 1
        if barren == BARREN:
            raise RuntimeError(f"{BARREN} processes in a row ended before the end of their first entry")
        lost = next((place for place in waiting if place not in done), None)
        if lost is not None and asked.left > 0:
            why = f"no end after {asked.patience:g} s" if hung else f"its process ended with code {process.exitcode}"
            append(asked.file, [lacking(asked, lost, why)])
    count = len(written(asked.file)) - kept
    print(f"{verb} {count} of {len(todo)} rows after {time.time() - asked.begun:.0f} s: {asked.file}", flush=True)


def _watched(process: Any, asked: Asked) -> bool:
    """Wait for the end of a process; stop it, and answer True, where it writes no row for too long."""
    size, since = -1, time.monotonic()
    while process.is_alive():
        process.join(_POLL)
        now = asked.file.stat().st_size
        if now != size:
            size, since = now, time.monotonic()
        waited = time.monotonic() - since
        if waited > asked.patience or (asked.left < 0 and waited > min(10.0, asked.patience)):
            process.kill()
            process.join()
            return True
    return False


def _time(asked: Asked, waiting: frozenset[Place]) -> None:
    """In a process of its own: time entries, one after the other."""
    devices.prepare(asked.device)
    watch: Stopwatch = Cuda() if asked.device == "cuda" else Cpu()
    facts = facts_of(asked.device, asked.commit)
    for row in rows_of(asked):
        for who in row.entries:
            if (row.work, who) not in waiting:
                continue
            if asked.left <= 0:
                return
            line = timed(row, who, watch, facts)
            append(asked.file, [line])
            print(said(line), flush=True)
            watch.release()
            if (line.missing or line.no_graph) and not _usable(asked.device):
                sys.stdout.flush()
                os._exit(UNUSABLE)


def _compare(asked: Asked, waiting: frozenset[Place]) -> None:
    """In a process of its own: compare results with the truth, one after the other."""
    devices.prepare(asked.device)
    watch: Stopwatch = Cuda() if asked.device == "cuda" else Cpu()
    facts = facts_of(asked.device, asked.commit)
    known = {line.place: line for line in read(asked.file)}
    for row in rows_of(asked):
        truths: errors.Truths = {}
        for who in row.entries:
            if (row.work, who) not in waiting:
                continue
            if asked.left <= 0:
                return
            line = errors.compared(row, who, known[row.work, who], truths, watch, facts)
            append(asked.file, [line])
            print(errors.said(line), flush=True)
            if line.errors_missing and not _usable(asked.device):
                sys.stdout.flush()
                os._exit(UNUSABLE)


def timed(row: Any, who: str, watch: Stopwatch, facts: Mapping[str, Any]) -> Line:
    """The row of the CSV of one entry."""
    try:
        found: Measured | None = measured(row.entries[who], watch)
        missing = ""
    except Exception as error:
        found, missing = None, named(error)
    line = described(row, who, facts)
    if found is None:
        return replace(line, missing=missing)
    line = replace(
        line,
        milliseconds=found.times.median,
        lower=found.times.lower,
        upper=found.times.upper,
        count=found.times.count,
        no_graph=found.no_graph,
        peak_bytes=found.peak,
    )
    graph = found.graph
    if graph is None:
        return line
    return replace(
        line,
        graph_milliseconds=graph.median,
        graph_lower=graph.lower,
        graph_upper=graph.upper,
        graph_count=graph.count,
    )


def described(row: Any, who: str, facts: Mapping[str, Any]) -> Line:
    """A row of the CSV without its times."""
    arithmetic = row.arithmetic.get(who, row.dtype)
    least = floor(chip_of(facts.get("card", "")), arithmetic, row.operations, row.moved)
    return Line(
        family=row.family,
        work=row.work,
        derivative=row.derivative,
        dtype=row.dtype,
        dims=" ".join(f"{dim}={size}" for dim, size in row.dims.items()),
        entry=who,
        ours="yes" if who in row.ours else "",
        scan=row.scan,
        operations=row.operations,
        moved=row.moved,
        arithmetic=arithmetic,
        floor_milliseconds=least.milliseconds if least else None,
        floor_by=least.by if least else "",
        kernels=_content(row.family),
        **facts,
    )


def said(line: Line) -> str:
    """A row as a line of the terminal."""
    if line.milliseconds is None:
        return f"{line.work} | {line.entry}: {line.missing[:120]}"
    graph = "" if line.graph_milliseconds is None else f", as a graph {line.graph_milliseconds:.4g}"
    return f"{line.work} | {line.entry}: {line.milliseconds:.4g} ms of {line.count}{graph}"


_content = cache(content)


def _missing(asked: Asked, place: Place, why: str) -> Line:
    row = next(row for row in rows_of(asked) if row.work == place[0])
    print(f"{place[0]} | {place[1]}: {why}", flush=True)
    return replace(described(row, place[1], facts_of(asked.device, asked.commit)), missing=why)


def _lost(asked: Asked, place: Place, why: str) -> Line:
    """The row of an entry that had a time, and did not come to the end of its errors."""
    line = next(line for line in read(asked.file) if line.place == place)
    print(f"{place[0]} | {place[1]}: {why}", flush=True)
    return errors.lined(line, {}, why, facts_of(asked.device, asked.commit))


def _usable(device: str) -> bool:
    """Whether a device still works after an entry failed: a kernel's illegal access is the end of its process."""
    if device != "cuda":
        return True
    import torch

    try:
        torch.cuda.synchronize()
        return bool((torch.ones(1, device="cuda") + 1).item() == 2)
    except Exception:
        return False


def _compile(asked: Asked, todo: list[Place], context: str) -> None:
    """Call each entry that compiles once, in many processes at a time, ours first.

    What fails or is not reached fails, or compiles, where it is timed.
    """
    begun, waiting = time.time(), frozenset(todo)
    found = [
        (who in row.ours, row.work, who)
        for row in rows_of(asked)
        for who in row.entries
        if who not in row.ready and (row.work, who) in waiting
    ]
    tasks = [(asked, work, who) for _, work, who in sorted(found, key=lambda each: not each[0])]
    limit = min(asked.compile_seconds, asked.left)
    with multiprocessing.get_context(context).Pool(asked.workers, maxtasksperchild=None) as pool:
        ended = pool.imap_unordered(_compiled, tasks)
        number = 0
        with suppress(multiprocessing.TimeoutError):
            for _ in tasks:
                ended.next(max(0.1, begun + limit - time.time()))
                number += 1
        pool.terminate()
    print(f"{number} of {len(tasks)} entries compiled in {time.time() - begun:.0f} s", flush=True)


def _compiled(task: tuple[Asked, str, str]) -> None:
    """In a process of its own: one call. What an autotuner finds while other processes run is not kept."""
    asked, work, who = task
    os.environ |= {"FLA_CACHE_RESULTS": "0", "TORCHINDUCTOR_COMPILE_THREADS": "1"}  # read when they are imported
    devices.prepare(asked.device)
    with suppress(Exception):
        row = next(row for row in rows_of(asked) if row.work == work)
        row.entries[who]()()
        if asked.device == "cuda":
            import torch

            torch.cuda.synchronize()
            torch.cuda.empty_cache()
