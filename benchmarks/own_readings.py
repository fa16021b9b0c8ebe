"""The readings of their own that semicrf and lightning have, and a scan's of the same: results/own_readings.csv.

`python benchmarks/own_readings.py` reads budgets and truths of forward and VJP, of the HVP, and of forward and VJP in
balls, in both ways, each in a process of its own with one thread, one after the other, and compares them: processor
seconds (of them those of the truth), peak memory, truths, sigma, whether an error of 8 sigma of the one is found by the
other, and how far a correct kernel is out in each. `--longest T` leaves out what is longer, `--seconds S` ends a
process after so many of the processor. Rows that there are are replaced.
"""

from __future__ import annotations

import argparse
import csv
import json
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from gradoracle.properties.lightning import FAMILY as lightning
from gradoracle.properties.semicrf import FAMILY as semicrf
from torch import Tensor

from gradoracle.cases.sample import Sample, build
from gradoracle.check.acceptance import Allowance, judge
from gradoracle.model.case import parse
from gradoracle.model.contract import default_contract
from gradoracle.model.derivative import Derivative
from gradoracle.model.finding import LOCAL_SIGMA, Outcome
from gradoracle.oracle.truth import Oracle

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
from tests.properties.lightning import chunked_attention  # noqa: E402
from tests.properties.lightning import stepwise as lightning_stepwise  # noqa: E402
from tests.properties.semicrf import single  # noqa: E402
from tests.properties.semicrf import stepwise as semicrf_stepwise  # noqa: E402

RESULTS = ROOT / "benchmarks" / "results" / "own_readings.csv"
LENGTHS = (100, 1_000, 10_000, 100_000)
WAYS = ("own", "scan")
SAMPLES = {
    "semicrf": (semicrf, "B=1 T={T} C=3 K=3 transition~normal lengths~highest"),
    "lightning": (lightning, "B=1 H=2 N={T} D=8 Dv=8"),
    "lightning wide": (lightning, "B=1 H=2 N={T} D=64 Dv=64"),
}
READINGS = ("vjp", "hvp", "balls")
ROWS = [
    *(
        (name, "float32", length, reading)
        for length in LENGTHS
        for name in ("semicrf", "lightning")
        for reading in READINGS
    ),
    *(("lightning", "bfloat16", length, "vjp") for length in LENGTHS[:3]),
    ("lightning wide", "float32", 1_000, "vjp"),
]
KEY = ("sample", "dtype", "T", "reading", "tensor")
FIELDS = (
    *KEY, "own_seconds", "own_truth_seconds", "own_peak_mib", "scan_seconds", "scan_truth_seconds", "scan_peak_mib",
    "truths_apart_1e-16_of_each", "truths_apart_1e-16_of_largest", "sigma_ratio_median", "sigma_ratio_min",
    "sigma_ratio_max", "8_sigma_of_own_found_by", "8_sigma_of_scan_found_by", "kernel_worst_own_sigma",
    "kernel_worst_scan_sigma", "outcome", "torch",
)  # fmt: skip
Read = dict[str, tuple[Tensor, Allowance]]  # truth, and what rounding explains


def sampled(name: str, dtype: str, length: int) -> Sample:
    family, words = SAMPLES[name]
    _, _, case = parse(f"case:1 {family.name} cpu {dtype} {words.format(T=length)} seed=1")
    return build(case, family.signature, domains=family.domains)


def read(way: str, name: str, dtype: str, length: int, reading: str) -> tuple[Read, dict[str, float]]:
    """Budgets and truths as a check asks for them, and what they cost."""
    family = SAMPLES[name][0]
    scans = {"semicrf": semicrf_stepwise, "lightning": lightning_stepwise}
    derivative = Derivative.HVP if reading == "hvp" else Derivative.VJP
    oracle = Oracle(family) if way == "own" else scans[family.name].ORACLE
    algorithm = "chunks of 64" if way == "own" and family is lightning else "definition"
    own, contract = sampled(name, dtype, length), default_contract(dtype)
    began = time.process_time()
    budgets = oracle.budgets(own, derivative, contract, algorithm=algorithm)
    known = time.process_time()
    oracle.reading = "certified" if reading == "balls" else "auto"
    truths = oracle.confirmed(own, derivative, algorithm, budgets, contract)
    if truths is None:
        plain = budgets if algorithm == "definition" else oracle.budgets(own, derivative, contract)
        truths = oracle.truth(own, derivative, plain, contract)
    ended = time.process_time()
    cost = {"seconds": ended - began, "truth_seconds": ended - known}
    cost["peak_mib"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    found = {n: (truths[n].value, Allowance(b.sigma, b.errors, floor=b.floor)) for n, b in budgets.items()}
    return found, cost


def right(name: str, dtype: str, length: int) -> dict[str, Tensor]:
    """Forward and VJP of a correct kernel: a CRF of alpha and beta in float32, or attention in chunks of 64 rows."""
    own = sampled(name, dtype, length)
    if name == "semicrf":
        return single.run(own.inputs, own.cotangents["log_z"])
    q, k, v = (own.inputs[each] for each in ("q", "k", "v"))
    return chunked_attention.right(chunked_attention.chunked_scan, q, k, v, None, own.cotangents["o"], None)


def planted(truth: Tensor, sigma: Tensor, place: int) -> Tensor:
    """The truth with one element that is just beyond what the local rule allows."""
    got = truth.clone(memory_format=torch.contiguous_format)
    got.view(-1)[place] += 1.001 * LOCAL_SIGMA * sigma.reshape(-1)[place]
    return got


def compared(both: Mapping[str, Read], kernel: Mapping[str, Tensor]) -> dict[str, dict[str, object]]:
    """What the table has of each tensor."""
    rows: dict[str, dict[str, object]] = {}
    for name, (truth, own) in both["own"].items():
        other, scan = both["scan"][name]
        some = own.sigma > 0
        ratios = (scan.sigma[some] / own.sigma[some]).sort().values
        apart = (other - truth).abs()
        middle = float(ratios[len(ratios) // 2])
        place = int(torch.where(some, (scan.sigma / own.sigma / middle).log().abs(), torch.inf).argmin())
        row: dict[str, object] = {
            "truths_apart_1e-16_of_each": f"{float((apart / truth.abs())[truth != 0].max()) / 1e-16:.3g}",
            "truths_apart_1e-16_of_largest": f"{float(apart.max() / truth.abs().max()) / 1e-16:.3g}",
            "sigma_ratio_median": f"{middle:.3g}",
            "sigma_ratio_min": f"{float(ratios[0]):.3g}",
            "sigma_ratio_max": f"{float(ratios[-1]):.3g}",
        }
        for way, sigma in (("own", own.sigma), ("scan", scan.sigma)):
            findings = {
                by: judge(name, planted(true, sigma, place), true, allowance, continuous=True)
                for by, true, allowance in (("own", truth, own), ("scan", other, scan))
            }
            finders = [by for by, finding in findings.items() if finding.outcome is Outcome.VIOLATED]
            row[f"8_sigma_of_{way}_found_by"] = " and ".join(finders) or "none"
            if name in kernel:
                off = (kernel[name].double() - truth).abs()[sigma > 0] / sigma[sigma > 0]
                row[f"kernel_worst_{way}_sigma"] = f"{float(off.max()):.3g}"
        rows[name] = row
    return rows


def measured(name: str, dtype: str, length: int, reading: str, limit: int) -> list[dict[str, object]]:
    """The rows of one sample and reading, in each way in a process of its own."""
    both, costs, outcome = {}, dict[str, float](), ""
    with tempfile.TemporaryDirectory() as folder:
        for way in WAYS:
            file = Path(folder) / way
            command = [sys.executable, __file__, "--one", way, name, dtype, str(length), reading, str(file)]
            done = subprocess.run([*command, "--seconds", str(limit)], capture_output=True, text=True)
            if done.returncode == 0:
                costs |= {f"{way}_{what}": x for what, x in json.loads(done.stdout.splitlines()[-1]).items()}
                both[way] = torch.load(file, weights_only=False)
            elif done.returncode == -signal.SIGXCPU:
                outcome += f"{way}: not finished in {limit} processor seconds; "
            else:
                outcome += f"{way}: {done.stderr.splitlines()[-1]}; "
    kernel = right(name, dtype, length) if reading == "vjp" else {}
    whole = {"sample": name, "dtype": dtype, "T": length, "reading": reading, "torch": torch.__version__}
    whole |= {what: f"{x:.1f}" if "seconds" in what else f"{x:.0f}" for what, x in costs.items()}
    if len(both) < len(WAYS):
        return [whole | {"outcome": outcome.removesuffix("; ")}]
    return [whole | {"tensor": tensor} | row for tensor, row in compared(both, kernel).items()]


def write(rows: Sequence[Mapping[str, object]]) -> None:
    """Add rows to the table, in the place of those of the same key."""
    table = {}
    if RESULTS.exists():
        with RESULTS.open() as file:
            table = {tuple(row[name] for name in KEY): dict(row) for row in csv.DictReader(file)}
    measured = {tuple(str(row[name]) for name in KEY[:-1]) for row in rows}
    table = {key: row for key, row in table.items() if key[:-1] not in measured}
    for row in rows:
        table[tuple(str(row.get(name, "")) for name in KEY)] = {name: str(row.get(name, "")) for name in FIELDS}
    with RESULTS.open("w", newline="") as file:
        writer = csv.DictWriter(file, FIELDS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(table.values())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--longest", type=int, default=LENGTHS[-1])
    parser.add_argument("--sample", choices=SAMPLES, action="append")
    parser.add_argument("--reading", choices=READINGS, action="append")
    parser.add_argument("--seconds", type=int, default=180)
    parser.add_argument("--one", nargs=6, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        way, name, dtype, length, reading, file = given.one
        torch.set_num_threads(1)
        resource.setrlimit(resource.RLIMIT_CPU, (given.seconds, given.seconds + 5))
        found, cost = read(way, name, dtype, int(length), reading)
        torch.save(found, file)
        print(json.dumps(cost))
        return
    for name, dtype, length, reading in ROWS:
        chosen = name in (given.sample or SAMPLES) and reading in (given.reading or READINGS)
        if chosen and length <= given.longest:
            rows = measured(name, dtype, length, reading, given.seconds)
            for row in rows:
                print(*(row.get(field, "-") for field in FIELDS[:-1]), file=sys.stderr, flush=True)
            write(rows)


if __name__ == "__main__":
    main()
