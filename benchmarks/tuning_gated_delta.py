"""Tuning of the gated delta rule: the fastest tiles of every pass on this GPU, for kernels/gated_delta/tuned.py.

    python benchmarks/tuning_gated_delta.py --workers 14 --file timings.csv   (measures; one row for each candidate)
    python benchmarks/tuning_gated_delta.py --file timings.csv                (prints the fastest)
    python benchmarks/tuning_gated_delta.py --peers [--file timings.csv]      (beside flash-linear-attention)

Candidates are compiled in processes of their own first, many at a time, and compared with the pass as it is tuned.
Times are medians. With `--peers` forward, backward and both in one are timed beside `chunk_gated_delta_rule` in one
run, where a file is named with its fastest tiles, and each result is compared with float64.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import candidates
import torch
import triton
from candidates import Candidate
from families.gated_delta import FLA, OURS, Sequences, timed
from gradoracle.kernels.blocks import tuned_for
from gradoracle.kernels.gated_delta import chunks, gradients, states
from gradoracle.kernels.gated_delta.guardrails import check
from gradoracle.kernels.gated_delta.tuned import PARTS, TUNED, Tiles

B, H, T = 4, 16, 8192
LENGTHS = (4096, 8192)
WORK = {"16 bit": (torch.bfloat16, "ieee"), "split": (torch.float32, "tf32"), "ieee": (torch.float32, "ieee")}
WIDTHS = (64, 128)
HALF: dict[str, tuple[str, ...]] = {
    "inverse": ("32/32/1/1", "32/32/2/1", "32/32/4/1"),
    "states": (
        "16/32/4/1", "16/32/4/2", "16/32/4/3", "32/32/4/1", "32/32/4/2", "32/32/4/3", "32/32/4/4", "64/32/4/1",
        "64/32/4/2", "64/32/4/3", "32/32/8/2", "64/32/8/2", "32/32/2/2", "16/32/2/2", "128/32/8/1",
    ),
    "output": ("32/32/4/1", "64/32/4/1", "128/32/4/1", "64/32/8/1", "128/32/8/1", "64/32/2/1"),
    "costates": (
        "16/32/4/1", "16/32/4/2", "16/32/4/3", "32/32/4/1", "32/32/4/2", "32/32/4/3", "64/32/4/1", "64/32/4/2",
        "32/32/8/2", "64/32/8/1", "64/32/8/2", "32/32/2/2", "16/32/2/2",
    ),
    "gradients": (
        "32/16/4/1", "32/32/4/1", "32/64/4/1", "32/32/8/1", "32/64/8/1", "32/32/4/2", "32/64/8/2", "32/128/8/1",
        "32/128/4/1",
    ),
}  # fmt: skip
HALF["local"] = HALF["output"]
FLOAT: dict[str, tuple[str, ...]] = {
    "inverse": HALF["inverse"],
    "states": ("16/32/4/1", "16/32/8/1", "32/32/4/1", "32/32/8/1", "16/32/4/2", "32/32/4/2"),
    "output": ("16/32/4/1", "32/32/4/1", "32/32/8/1", "64/32/4/1", "64/32/8/1"),
    "gradients": ("32/16/4/1", "32/16/8/1", "32/32/4/1", "32/32/8/1"),
}
FLOAT["costates"], FLOAT["local"] = FLOAT["states"], FLOAT["output"]
SPLIT = dict.fromkeys(FLOAT, ("16/16/2/1", "32/16/2/1", "16/32/2/1", "32/32/2/1", "16/16/1/1"))
CANDIDATES = {"16 bit": HALF, "split": SPLIT, "ieee": FLOAT}
"""value / feature / warps / stages"""
APART = {"16 bit": 2.0**-7, "split": 2.0**-9, "ieee": 2.0**-18}  # of the norm of a result; beyond it one is wrong


def choose(dots: str, width: int, part: str, tiles: str) -> None:
    """Make a pass have these tiles, in this process."""
    key = tuned_for(torch.cuda.get_device_capability()), dots, width
    row = list(TUNED[key])
    row[PARTS.index(part)] = Tiles(*map(int, tiles.split("/")))
    TUNED[key] = tuple(row)


def works(dots: str, width: int, batch: int = B, heads: int = H, rows: int = T) -> dict[str, Callable[[], Any]]:
    """Each pass as a call, of the same random inputs."""
    dtype, precision = WORK[dots]
    q, k, v, g, beta = Sequences(batch, heads, rows, width, dtype, "cuda")()
    do = torch.randn_like(v)
    problem = check(
        q, k, v, g, beta, scale=None, initial_state=None, return_state=False, precision=precision, blocks=None
    )
    decays, inverse = chunks.inverses(problem, k, g, beta)
    pieces = states.forward_pieces(problem, k, v, beta, None, decays, inverse)
    before = states.forward_states(problem, k, v, beta, None, decays, inverse, pieces, wanted=False)
    local = gradients.local_cotangents(problem, q, k, do, decays)
    backward = problem, q, k, beta, do, None, decays, inverse, local, pieces
    after = states.backward_states(*backward, wanted=False)
    return {
        "inverse": lambda: chunks.inverses(problem, k, g, beta),
        "states": lambda: states.forward_states(problem, k, v, beta, None, decays, inverse, pieces, wanted=False),
        "entries": lambda: states.forward_pieces(problem, k, v, beta, None, decays, inverse)[0],
        "output": lambda: chunks.output(problem, q, k, decays, *before[:2]),
        "local": lambda: gradients.local_cotangents(problem, q, k, do, decays),
        "costates": lambda: states.backward_states(*backward, wanted=False),
        "gradients": lambda: gradients.gradients(problem, (q, k, v, beta), do, decays, before[:2], after[:2]),
    }


def compiled(candidate: Candidate) -> tuple[Candidate, str]:
    """Compile a candidate into Triton's cache: why it cannot be launched or is not right, or nothing."""
    try:
        work = works(candidate.dots, candidate.width, 1, 2, 500)[candidate.part]
        expected = work()
        choose(*candidate)
        apart = candidates.apart(work(), expected)
    except Exception as error:
        return candidate, candidates.reason_of(error)
    return candidate, "" if apart < APART[candidate.dots] else f"wrong: {apart:.1e} of the norm apart"


def measure(dots: list[str], widths: list[int], workers: int, file: Path) -> None:
    timings = candidates.Timings(file)
    ready = timings.launchable(list(candidates.of(CANDIDATES, dots, widths)), compiled, workers)
    for (kind, width), own in itertools.groupby(ready, key=lambda c: (c.dots, c.width)):
        passes = works(kind, width)
        for candidate in own:
            choose(*candidate)
            found = triton.testing.do_bench(passes[candidate.part], warmup=3, rep=25, return_mode="median")
            timings.row(candidate, milliseconds=f"{found:.4f}")


def fastest(file: Path) -> dict[tuple[str, int, str], list[tuple[float, str]]]:
    """By dots, width and pass (milliseconds, tiles), the fastest first."""
    found: dict[tuple[str, int, str], list[tuple[float, str]]] = {}
    for row in candidates.timed(file):
        place = row["dots"], int(row["width"]), row["part"]
        found.setdefault(place, []).append((float(row["milliseconds"]), row["tiles"]))
    return found


def peers(widths: list[int]) -> None:
    """Print the times of forward, backward and both, ours and the peer's, and the error of each in float64."""
    for rows, width in itertools.product(LENGTHS, widths):
        for row in timed(torch.bfloat16, B, H, rows, width):
            assert row.truth is not None
            exact, times, errors = row.truth.exact(), {}, {}
            for who in (OURS, FLA):
                work = row.entries[who]()
                apart = zip(row.truth.of(who, work()), exact, strict=True)
                errors[who] = max(float((a.double() - b).norm() / b.norm()) for a, b in apart)
                times[who] = float(triton.testing.do_bench(work, warmup=25, rep=100, return_mode="median"))
            ratio = times[FLA] / times[OURS]
            shown = "; ".join(f"{who} {times[who]:.4f} ms, error {errors[who]:.1e}" for who in times)
            print(f"{row.work}: {shown}; {ratio:.2f}x", flush=True)


def main(words: list[str]) -> None:
    options = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    options.add_argument("--dots", nargs="+", default=["16 bit"], choices=list(CANDIDATES))
    options.add_argument("--widths", nargs="+", type=int, default=list(WIDTHS))
    options.add_argument("--workers", type=int, default=0, help="compilations at a time; none: measure nothing")
    options.add_argument("--file", type=Path)
    options.add_argument("--peers", action="store_true", help="beside flash-linear-attention")
    given = options.parse_args(words)
    if not given.peers and given.file is None:
        options.error("--file is missing: expected --file timings.csv, or --peers")
    if given.workers and given.file:
        measure(given.dots, given.widths, given.workers, given.file)
    for (dots, width, part), found in (fastest(given.file) if given.file else {}).items():
        print(f"{dots} {width} {part}: " + ", ".join(f"{tiles} {time:.4f}" for time, tiles in found[:4]))
        choose(dots, width, part, found[0][1])
    if given.peers:
        peers(given.widths)


if __name__ == "__main__":
    main(sys.argv[1:])
