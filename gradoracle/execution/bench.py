"""Bench: the time of a kernel compared with its peers, and of a verdict compared with gradcheck, in one run.

Every entry of a row does the same work on the same tensors. On CUDA a time is the median over repeated calls between
device events, launch overhead excluded; on the CPU it is the median wall time of a call, and the time of the first call
is reported, too. A peer that cannot do the work says why; one that is stopped early (``--seconds``) says how far it
came, and nothing is extrapolated.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any, TextIO

from gradoracle.execution import device as devices
from gradoracle.execution.environment import describe
from gradoracle.model.errors import UsageError, first_line, named
from gradoracle.project.shipped_names import KERNELS, family_names

Work = Callable[[], object]
LONG = 10_000.0  # milliseconds; a call that takes longer is timed once, cold
CACHE = 256 << 20  # bytes written before a call is timed on a device: more than any cache holds
CYCLES = 2e9  # largest clock rate of a device, in cycles per second
TIMED = 0.3  # seconds of device time measured for each entry
EVERY = 10.0  # seconds between two progress lines
_FAMILIES = "gradoracle_benchmarks"  # the name under which benchmarks/families of the source tree is imported


class Stopped(Exception):
    """Work was stopped at its time limit; the message says how far it came.

    Attributes:
        milliseconds: the time until then.
    """

    milliseconds: float | None = None


@dataclass(frozen=True)
class Row:
    """One piece of work and the implementations to compare.

    Attributes:
        work: such as "sdpa forward bfloat16 B4 H16 T4096 M4096 D64".
        entries: name -> factory; ours first, then peers. A factory returns the call that is timed, so that set-up
            (a forward before a backward) is not.
        floating_point_operations: of the work, for the printed rate; 0: none is printed.
        describe: name -> a description of the result, such as the width of a radius.
        ours: the entries that are ours, if not the first only; peers are compared with each.
    """

    work: str
    entries: dict[str, Callable[[], Work]]
    floating_point_operations: float = 0.0
    describe: dict[str, Callable[[Any], str]] = field(default_factory=dict)
    ours: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.ours:
            object.__setattr__(self, "ours", (next(iter(self.entries)),))


@dataclass
class Timing:
    """One row as measured.

    Attributes:
        work: as in its Row.
        milliseconds: name -> median of the timed calls.
        first: name -> milliseconds of the first call in this process (on the CPU), imports included.
        notes: name -> a description of the result.
        stopped: name -> how far it came; ``milliseconds`` is then the time until it was stopped.
        missing: name -> why there is no time.
        floating_point_operations: as in its Row.
    """

    work: str
    milliseconds: dict[str, float] = field(default_factory=dict)
    first: dict[str, float] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)
    stopped: dict[str, str] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    floating_point_operations: float = 0.0


class Watch:
    """Counts the calls of long work: reports progress on standard error, and stops it at its time limit.

    Args:
        who: the entry's name.
        total: the approximate number of calls; 0: unknown.
        seconds: the time limit from now on; None: none.
        stream: of the progress lines; default standard error.
        now: the clock, in seconds.
    """

    def __init__(
        self,
        who: str,
        total: int = 0,
        seconds: float | None = None,
        stream: TextIO | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.who, self.total, self.seconds, self.now = who, total, seconds, now
        self.stream = sys.stderr if stream is None else stream
        self.calls = 0
        self.started = self.said = now()

    def count(self) -> None:
        """Count one more call, before it is made.

        Raises:
            Stopped: the time limit is reached.
        """
        at = self.now()
        done = f"{self.calls} of about {self.total} kernel calls" if self.total else f"{self.calls} kernel calls"
        if self.seconds is not None and at - self.started > self.seconds:
            raise Stopped(f"stopped after {self.seconds:g} s and {done}")
        if at - self.said >= EVERY:
            self.said = at
            print(f"gradoracle: {self.who}: {done}, {at - self.started:.0f} s", file=self.stream, flush=True)
        self.calls += 1


def run(
    target: str,
    device: str = "auto",
    output: str | None = None,
    only: str = "",
    seconds: float | None = None,
) -> list[Timing]:
    """Measure the rows of a shipped family and print each when it is done.

    Args:
        target: the family's name.
        device: auto, cpu or cuda.
        output: a json file for the table with the environment and the command.
        only: rows whose work contains this text.
        seconds: the time limit of a watched entry (gradcheck); None: none.

    Raises:
        UsageError: as of ``module_of``; no row contains ``only``; an unwritable output.
    """
    where = devices.choose(device)
    devices.prepare(where)
    rows = [row for row in _rows(target, where, seconds) if only in row.work]
    if not rows:
        raise UsageError(f"no benchmark row of {target} on {where} contains {only!r}")
    if output is not None:
        _writable(output)
    timings = []
    for row in rows:
        timing = measure(row, where)
        timings.append(timing)
        print(line(timing, row.ours), flush=True)
        if output is not None:
            record = {
                "command": " ".join(["gradoracle", *sys.argv[1:]]),
                "environment": dict(describe()),
                "unit": "milliseconds, median",
                "seconds": seconds,
                "rows": [asdict(t) for t in timings],
            }
            Path(output).write_text(json.dumps(record, indent=1) + "\n")
    return timings


def measure(row: Row, device: str) -> Timing:
    """Time every entry of a row, one after the other, and ours again after the peers."""
    timing = Timing(row.work, floating_point_operations=row.floating_point_operations)
    calls: dict[str, list[float]] = {}
    for who, factory in row.entries.items():
        try:
            work = factory()
            if device == "cuda":
                timing.milliseconds[who] = device_milliseconds(work)
                continue
            timing.first[who], result = wall_milliseconds(work)
            calls[who] = _repeated(work, timing.first[who])
            if who in row.describe:
                timing.notes[who] = row.describe[who](result)
        except Exception as error:
            if isinstance(error, Stopped) and error.milliseconds is not None:
                timing.stopped[who], timing.milliseconds[who] = first_line(error), error.milliseconds
            else:
                timing.missing[who] = named(error)
    for who in row.ours:  # the machine may be busier by now
        if who in calls and len(row.entries) > 1 and timing.first[who] <= LONG:
            calls[who] += _repeated(row.entries[who](), timing.first[who])
    known = timing.milliseconds | {who: statistics.median(times) for who, times in calls.items()}
    timing.milliseconds = {who: known[who] for who in row.entries if who in known}
    return timing


def line(timing: Timing, ours: Sequence[str]) -> str:
    """A row as text: each time, and its ratio to ours."""
    mine = {who: timing.milliseconds[who] for who in ours if who in timing.milliseconds}
    parts = []
    for who, ms in timing.milliseconds.items():
        at_least = "at least " if who in timing.stopped else ""
        said = [f"{at_least}{_duration(ms)}"]
        if timing.floating_point_operations:
            said.append(f"{timing.floating_point_operations / ms / 1e9:.0f} TFLOP/s")
        if who not in ours:
            said += [f"{at_least}{_times(ms / t)} {'ours' if len(ours) == 1 else our}" for our, t in mine.items()]
        elif timing.first.get(who, 0.0) > 2 * ms:
            said.append(f"first call {_duration(timing.first[who])}")
        said += [texts[who] for texts in (timing.notes, timing.stopped) if who in texts]
        parts.append(f"{who}: {', '.join(said)}")
    parts += [f"{who}: {reason[:90]}" for who, reason in timing.missing.items()]
    return f"{timing.work}\n    " + "\n    ".join(parts)


def _times(ratio: float) -> str:
    return f"{ratio:.3g}x" if ratio < 1000 else f"{ratio:.0f}x"


def _duration(milliseconds: float) -> str:
    return f"{milliseconds:.4g} ms" if milliseconds < 1000 else f"{milliseconds / 1000:.4g} s"


def device_milliseconds(call: Work) -> float:
    """Median milliseconds of a call on the device, with its cache cleared; of 5 to 100 calls, for about ``TIMED``."""
    call()
    return statistics.median(device_times(call, lambda once: max(5, min(100, int(TIMED / once)))))


def device_times(call: Work, count: Callable[[float], int]) -> list[float]:
    """Milliseconds of each of repeated calls on the device, with its cache cleared before each.

    Before each call the device waits for as long as the host takes to launch it, so that it never idles within one.

    Args:
        call: what is timed, called before, so that all is compiled; three calls more are not timed, or one long one.
        count: the number of timed calls, given the seconds of one.
    """
    import torch

    times: list[float] = []
    host, once = _seconds(call)
    if once < TIMED:
        call()
        host, once = _seconds(call)
    cleared = torch.empty(CACHE // 4, dtype=torch.int32, device="cuda")
    for _ in range(count(max(once, 1e-6))):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        cleared.zero_()
        torch.cuda._sleep(int(CYCLES * (2 * min(host, TIMED) + 1e-4)))
        begin.record()
        call()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end))
    return times


def _seconds(call: Work) -> tuple[float, float]:
    """Seconds until the host has launched a call, and until the device has ended it."""
    import torch

    torch.cuda.synchronize()
    started = time.perf_counter()
    call()
    host = time.perf_counter() - started
    torch.cuda.synchronize()
    return host, time.perf_counter() - started


def _repeated(call: Work, cold: float) -> list[float]:
    """Times of more calls, for about two seconds; only the first time if it exceeds LONG."""
    if cold > LONG:
        return [cold]
    return [wall_milliseconds(call)[0] for _ in range(max(3, min(50, int(2000 / max(cold, 1e-3)))))]


def wall_milliseconds(call: Work) -> tuple[float, object]:
    """Milliseconds of one call, and its result."""
    started = time.perf_counter()
    try:
        result = call()
    except Stopped as stopped:
        stopped.milliseconds = (time.perf_counter() - started) * 1e3
        raise
    return (time.perf_counter() - started) * 1e3, result


def module_of(target: str) -> ModuleType:
    """A shipped family's rows: ``benchmarks/families/TARGET.py`` of gradoracle's source tree, imported by its path.

    Raises:
        UsageError: no such family, no rows for it, or gradoracle is installed without its source tree.
    """
    unknown = UsageError(f"there are no benchmarks for {target!r}; gradoracle list names the shipped families")
    if target not in family_names():
        raise unknown
    folder = source_tree() / "benchmarks" / "families"
    if not folder.is_dir():
        raise UsageError(
            f"the benchmarks of {target} are in gradoracle's repository, not in the installed package; "
            "expected a clone of it, installed by `pip install --editable .`"
        )
    if not (folder / f"{target}.py").is_file():
        raise unknown
    if _FAMILIES not in sys.modules:
        spec = importlib.util.spec_from_file_location(_FAMILIES, folder / "__init__.py")
        assert spec is not None and spec.loader is not None
        package = sys.modules[_FAMILIES] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(package)
    return importlib.import_module(f"{_FAMILIES}.{target}")


def source_tree() -> Path:
    """The parent folder of the shipped kernels: in a clone, its root."""
    spec = importlib.util.find_spec(KERNELS)
    assert spec is not None and spec.submodule_search_locations
    return Path(next(iter(spec.submodule_search_locations))).resolve().parent


def _rows(target: str, device: str, seconds: float | None) -> Sequence[Row]:
    found: Iterable[Row] = module_of(target).rows(device, seconds)
    return list(found)


def _writable(output: str) -> None:
    try:
        with Path(output).open("a"):
            pass
    except OSError as error:
        raise UsageError(f"--output {output!r} cannot be written: {error.strerror}") from None
