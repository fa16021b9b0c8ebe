"""What reading a recurrence costs, and how far a loop in float32 is from it: benchmarks/results/recurrences.csv.

`python benchmarks/recurrences.py` reads gated linear attention (H = 2, K = V = 8, one sequence) at each length, in a
process of its own for each row: forward and VJP with budgets, the HVP with budgets, and balls as narrow as a sixteenth
of sigma. `--longest T` leaves out what is longer, `--seconds S` ends a row. Rows that there are are replaced.
"""

from __future__ import annotations

import argparse
import csv
import json
import platform
import resource
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

import gradoracle
from gradoracle.model.contract import PRESETS
from gradoracle.model.derivative import Derivative, program
from gradoracle.oracle.exact import certified, float64
from gradoracle.oracle.exact.interpretation import TooLarge
from gradoracle.oracle.exact.trace import differentiated, recurrent
from gradoracle.oracle.rounding.reading import budgets

RESULTS = Path(__file__).resolve().parent / "results" / "recurrences.csv"
LENGTHS = (1_000, 10_000, 100_000, 262_144, 1_048_576)
READINGS = ("vjp", "hvp", "balls")
FIELDS = (
    "T",
    "reading",
    "seconds",
    "processor_seconds",
    "peak_mib",
    "rms_sigma",
    "worst_sigma",
    "outcome",
    "torch",
    "cpu",
)
H, K, V = 2, 8, 8
CHUNK = 1024  # steps of the loop in float32 whose graph autograd keeps at once


def step(state: Tensor, x: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
    q, k, v, a = x
    state = state * a[..., None] + k[..., None] * v[..., None, :]
    return state, (state * q[..., None]).sum(-2)


def attention(q: Tensor, k: Tensor, v: Tensor, g: Tensor) -> Tensor:
    return gradoracle.scan(step, q.new_zeros(H, K, V), (q, k, v, torch.exp(torch.nn.functional.logsigmoid(g) / 16)))[1]


def loop(q: Tensor, k: Tensor, v: Tensor, g: Tensor) -> Tensor:
    """The same in the dtype of the inputs, step by step; its backward computes the states of a chunk again."""
    a, state, out = torch.exp(torch.nn.functional.logsigmoid(g) / 16), q.new_zeros(H, K, V), []

    def chunk(state: Tensor, *xs: Tensor) -> tuple[Tensor, Tensor]:
        ys = []
        for x in zip(*(x.unbind(0) for x in xs), strict=True):
            state, y = step(state, x)
            ys.append(y)
        return state, torch.stack(ys)

    for xs in zip(*(x.split(CHUNK) for x in (q, k, v, a)), strict=True):
        state, ys = checkpoint(chunk, state, *xs, use_reentrant=False)
        out.append(ys)
    return torch.cat(out)


def inputs(length: int, derivative: Derivative) -> list[Tensor]:
    """Those of a derivative's program, float64 tensors of float32 numbers."""
    dice = torch.Generator().manual_seed(0)
    shapes = [(length, H, K), (length, H, K), (length, H, V), (length, H, K)]
    shapes += shapes if derivative.takes_tangents else []
    shapes += [(length, H, V)] if derivative.takes_cotangents else []
    return [torch.randn(shape, generator=dice).double() for shape in shapes]


def of_one(length: int, reading: str) -> dict[str, object]:
    """A row, measured in this process."""
    derivative = Derivative.HVP if reading == "hvp" else Derivative.VJP
    args = inputs(length, derivative)
    began, used = time.perf_counter(), time.process_time()
    forward = recurrent(lambda *x: (attention(*x),), *args[:4])
    assert forward is not None and forward.source is not None
    graph = differentiated(program(forward.source, derivative, 4), *args)
    true, known = float64.read(graph, args), budgets(graph, args, PRESETS["ieee32"])
    outcome, rms, worst = "", 0.0, 0.0
    if reading == "balls":
        began, used = time.perf_counter(), time.process_time()
        try:
            found = certified.certify(graph, args, [each.sigma / 16 for each in known])
            wide = sum(int(each.undecided.sum()) for each in found)
            outcome = f"{wide} of {sum(each.high.numel() for each in found)} elements wider than sigma / 16"
        except TooLarge as error:
            outcome = f"refused: {error}"
    seconds, used = time.perf_counter() - began, time.process_time() - used
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    if reading == "vjp":
        leaves = [x.float().requires_grad_() for x in args[:4]]
        out = loop(*leaves)
        got = [out.detach(), *torch.autograd.grad(out, leaves, args[4].float())]
        off = [((x.double() - t) / b.sigma)[b.sigma > 0] for x, t, b in zip(got, true, known, strict=True)]
        rms = float(torch.cat([x.flatten() for x in off]).square().mean().sqrt())
        worst = max(float(x.abs().max()) for x in off)
    return {
        "T": length, "reading": reading, "seconds": f"{seconds:.1f}", "processor_seconds": f"{used:.1f}",
        "peak_mib": f"{peak:.0f}",
        "rms_sigma": f"{rms:.2f}" if rms else "", "worst_sigma": f"{worst:.1f}" if worst else "", "outcome": outcome,
    }  # fmt: skip


def measured(length: int, reading: str, limit: float) -> dict[str, object]:
    """A row, measured in a process of its own."""
    command = [sys.executable, __file__, "--one", str(length), reading]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit, check=True)
    except subprocess.TimeoutExpired:
        return {"T": length, "reading": reading, "outcome": f"not finished in {limit:.0f} s"}
    found: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    return found


def write(rows: Sequence[dict[str, object]]) -> None:
    """Add rows to the table, in the place of those of the same length and reading."""
    table = {}
    if RESULTS.exists():
        with RESULTS.open() as file:
            table = {(int(row["T"]), row["reading"]): dict(row) for row in csv.DictReader(file)}
    for row in rows:
        table[int(str(row["T"])), str(row["reading"])] = {name: str(row.get(name, "")) for name in FIELDS}
    with RESULTS.open("w", newline="") as file:
        writer = csv.DictWriter(file, FIELDS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(table[key] for key in sorted(table, key=lambda key: (READINGS.index(key[1]), key[0])))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--longest", type=int, default=LENGTHS[-1])
    parser.add_argument("--reading", choices=READINGS, action="append")
    parser.add_argument("--seconds", type=float, default=3600.0)
    parser.add_argument("--one", nargs=2, metavar=("T", "READING"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        print(json.dumps(of_one(int(given.one[0]), given.one[1])))
        return
    machine = {"torch": torch.__version__, "cpu": f"{torch.get_num_threads()} threads of {platform.machine()}"}
    for reading in given.reading or READINGS:
        for length in LENGTHS:
            if length <= given.longest:
                row = measured(length, reading, given.seconds) | machine
                print(row, file=sys.stderr, flush=True)
                write([row])
                if str(row.get("outcome", "")).startswith(("refused", "not finished")):
                    break


if __name__ == "__main__":
    main()
