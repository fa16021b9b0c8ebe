"""Bench: how long a kernel takes beside its peers, and a verdict beside gradcheck. Ratios of one run, side by side.

Every entry of a row does the same work on the same tensors. On CUDA a time is the median over repeated launches between
device events; on the CPU it is the median wall time of a call. A peer that cannot do the work says why.
"""

from __future__ import annotations

import importlib
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from gradoracle import device as devices
from gradoracle.environment import describe
from gradoracle.errors import UsageError

Work = Callable[[], object]
LONG = 10_000.0  # milliseconds; a call that takes longer is timed once, cold


@dataclass(frozen=True)
class Row:
    """One piece of work: what it is, and who does it.

    Attributes:
        work: such as "sdpa forward bfloat16 B4 H16 T4096 M4096 D64".
        entries: who -> how; the first is ours, the others are peers. A factory is called first and returns the call
            that is timed, so that setting up (a forward before a backward) stays out.
        floating_point_operations: of the work, for the rate that is printed; 0 leaves it out.
    """

    work: str
    entries: dict[str, Callable[[], Work]]
    floating_point_operations: float = 0.0


@dataclass
class Timing:
    """One row as measured: milliseconds by who, or the reason why not."""

    work: str
    milliseconds: dict[str, float] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    floating_point_operations: float = 0.0

    def ratio(self, ours: str) -> dict[str, float]:
        """Our time over each peer's."""
        mine = self.milliseconds.get(ours)
        return {who: mine / t for who, t in self.milliseconds.items() if mine and who != ours}


def run(target: str, device: str = "auto", output: str | None = None, only: str = "") -> list[Timing]:
    """Measure the rows of a shipped family and print them as they come.

    Args:
        target: the family's name.
        device: auto, cpu or cuda.
        output: a json file for the table with the environment and the command.
        only: rows whose work contains this text.

    Raises:
        UsageError: no such family, no rows for it, an unwritable output.
    """
    where = devices.choose(device)
    devices.prepare(where)
    rows = [row for row in _rows(target, where) if only in row.work]
    if not rows:
        raise UsageError(f"no benchmark row of {target} on {where} contains {only!r}")
    if output is not None:
        _writable(output)
    timings = []
    for row in rows:
        timing = measure(row, where)
        timings.append(timing)
        print(line(timing, next(iter(row.entries))), flush=True)
        if output is not None:
            record = {
                "command": " ".join(["gradoracle", *sys.argv[1:]]),
                "environment": dict(describe()),
                "unit": "milliseconds, median",
                "rows": [asdict(t) for t in timings],
            }
            Path(output).write_text(json.dumps(record, indent=1) + "\n")
    return timings


def measure(row: Row, device: str) -> Timing:
    """Time every entry of a row, one after the other."""
    timing = Timing(row.work, floating_point_operations=row.floating_point_operations)
    for who, factory in row.entries.items():
        try:
            timing.milliseconds[who] = _milliseconds(factory(), device)
        except Exception as error:
            text = str(error).strip().splitlines()
            timing.missing[who] = f"{type(error).__name__}: {text[0] if text else ''}"
    return timing


def line(timing: Timing, ours: str) -> str:
    """A row as text: each time, and how it compares with ours."""
    parts = []
    for who, ms in timing.milliseconds.items():
        rate = (
            f", {timing.floating_point_operations / ms / 1e9:.0f} TFLOP/s" if timing.floating_point_operations else ""
        )
        ratio = (
            "" if who == ours or ours not in timing.milliseconds else f", {ms / timing.milliseconds[ours]:.3g}x ours"
        )
        parts.append(f"{who} {ms:.4g} ms{rate}{ratio}")
    parts += [f"{who}: {reason[:90]}" for who, reason in timing.missing.items()]
    return f"{timing.work}\n    " + "\n    ".join(parts)


def _milliseconds(call: Work, device: str) -> float:
    if device == "cuda":
        from triton.testing import do_bench

        return float(do_bench(call, warmup=50, rep=200, return_mode="median"))
    cold = _wall(call)
    if cold > LONG:
        return cold
    repeats = max(3, min(50, int(2000 / max(cold, 1e-3))))
    return statistics.median(_wall(call) for _ in range(repeats))


def _wall(call: Work) -> float:
    started = time.perf_counter()
    call()
    return (time.perf_counter() - started) * 1e3


def _rows(target: str, device: str) -> Sequence[Row]:
    name = f"gradoracle.properties.{target}_benchmarks"
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name:
            raise
        raise UsageError(
            f"there are no benchmarks for {target!r}; gradoracle list names the shipped families"
        ) from None
    found: Iterable[Row] = module.rows(device)
    return list(found)


def _writable(output: str) -> None:
    try:
        with Path(output).open("a"):
            pass
    except OSError as error:
        raise UsageError(f"--output {output!r} cannot be written: {error.strerror}") from None
