"""Tuning of lightning: the fastest tiles of every pass on tensor cores on this GPU, for kernels/lightning/tuned.py.

    python benchmarks/tuning_lightning.py --workers 14 --file timings.csv   (measures; one row for each candidate)
    python benchmarks/tuning_lightning.py --file timings.csv                (prints the fastest)

Candidates are compiled in processes of their own first, many at a time. A pass is timed with the sums that it needs
before it, since they leave in the cache what it reads first: "scan" is a forward, "gradients" a backward, "tangent" a
JVP without its forward, "hessian" an HVP without forward and backward. Times are medians. One piece is a row of the
table for as many programs as processors, two and four are one for more.
"""

from __future__ import annotations

import argparse
import copy
import itertools
import sys
from collections.abc import Callable
from pathlib import Path

import candidates
import torch
import triton
from candidates import Candidate
from gradoracle.kernels.lightning import gradients, hessian, scan, tangents
from gradoracle.kernels.lightning.guardrails import Problem, check
from gradoracle.kernels.lightning.tuned import PARTS, TUNED, Tiles

B, H, N = 4, 16, 8192
WORK = {"16 bit": (torch.bfloat16, "ieee"), "split": (torch.float32, "bf16x6")}  # dtype, precision
WIDTHS = (64, 128)
PIECES = (1, 2, 4, 8)
SUMS = ("64/64/4/3", "64/64/4/2", "64/64/4/4", "64/32/4/3")
HALF: dict[str, tuple[str, ...]] = {
    "sums": SUMS,
    "scan": (
        "64/64/4/1", "64/64/4/2", "64/64/4/3", "64/64/4/4", "64/32/4/2", "64/32/4/3", "64/32/4/4", "32/64/4/2",
        "32/64/4/3", "32/32/4/2", "64/128/4/2", "128:64/64/8/2",
    ),
    "gradients": (
        "64/64/4/1", "64/64/4/2", "64/64/4/3", "64/64/4/4", "64/32/4/2", "64/32/4/3", "32/64/4/2", "32/64/4/3",
        "32/32/4/2", "64/128/4/2", "128:64/64/8/2",
    ),
    "tangent sums": ("64/64/4/1", "64/64/4/2", "64/64/4/3", "64/32/4/2"),
    "tangent": (
        "64/64/4/1", "64/64/4/2", "64/32/4/1", "64/32/4/2", "64/32/4/3", "32/32/4/1", "32/32/4/2", "32/32/4/3",
        "32/64/4/1", "32/64/4/2", "16/32/4/2", "64/16/4/2", "32/16/4/2",
    ),
}  # fmt: skip
HALF["hessian"] = HALF["tangent"]
SPLIT_SUMS = (
    "64/64/2/1", "64/32/2/1", "64/16/2/1", "64/32/2/2", "32:32/64/2/1", "32:32/32/2/1", "32:32/16/2/1", "32:32/32/2/2",
)  # fmt: skip
SPLIT_SCAN = (
    "16/32/2/1", "16/64/2/1", "16/32/2/2", "16/16/2/1", "32/32/2/1", "32/16/2/1", "32:16/32/2/1", "32:16/64/2/1",
    "32:16/32/2/2", "32:32/32/2/1", "32:16/16/2/1", "32:32/16/2/1",
)  # fmt: skip
SPLIT_TANGENT = (
    "16/32/2/1", "16/16/2/1", "32/16/2/1", "16/32/2/2", "32:16/32/2/1", "32:16/16/2/1", "32:32/16/2/1", "32:32/32/2/1",
)  # fmt: skip
SPLIT: dict[str, tuple[str, ...]] = {
    "sums": SPLIT_SUMS, "scan": SPLIT_SCAN, "gradients": SPLIT_SCAN,
    "tangent sums": SPLIT_SUMS, "tangent": SPLIT_TANGENT, "hessian": SPLIT_TANGENT,
}  # fmt: skip
CANDIDATES = {"16 bit": HALF, "split": SPLIT}
"""[chunk:] micro / value / warps / stages; the chunk is 64 but where another one is tried, which changes results."""
BEFORE = {"scan": "sums", "gradients": "sums", "tangent": "tangent sums", "hessian": "tangent sums"}

APART = {"16 bit": 2.0**-6, "split": 2.0**-16}  # of the norm of a result; beyond it a candidate is wrong
Work = Callable[[], object]


def parsed(text: str) -> tuple[int, Tiles]:
    """The chunk and the tiles of ``[chunk:]micro/value/warps/stages``."""
    chunk, _, tiles = text.rpartition(":")
    micro, value, warps, stages = map(int, tiles.split("/"))
    return int(chunk or 64), Tiles(micro, value, warps, stages)


def choose(dots: str, width: int, part: str, tiles: str) -> None:
    """Make a pass have these tiles, in this process."""
    for many in (False, True):
        row = list(TUNED[dots, width, many])
        row[PARTS.index(part)] = parsed(tiles)[1]
        TUNED[dots, width, many] = tuple(row)


class Inputs:
    """Random tensors of one kind of dots and width, and each pass as a call of a problem."""

    def __init__(self, dots: str, width: int, rows: int = N, batch: int = B, heads: int = H) -> None:
        torch.manual_seed(0)
        dtype, precision = WORK[dots]
        new = torch.randn(8, batch, heads, rows, width, device="cuda").to(dtype)
        self.q, self.k, self.v, self.g, *self.moved = new.unbind()
        self.problem = check(self.q, self.k, self.v, None, False, precision, None)

    def to(self, dtype: torch.dtype) -> Inputs:
        """The same tensors in another dtype."""
        other = copy.copy(self)
        other.q, other.k, other.v, other.g = (x.to(dtype) for x in (self.q, self.k, self.v, self.g))
        other.moved = [x.to(dtype) for x in self.moved]
        return other

    def cut(self, pieces: int, chunk: int) -> Problem:
        """The problem in so many pieces."""
        length = triton.cdiv(triton.cdiv(self.q.shape[2], pieces), chunk) * chunk
        blocks = self.problem.blocks._replace(chunk=chunk)
        return self.problem._replace(blocks=blocks, piece_rows=length, pieces=triton.cdiv(self.q.shape[2], length))

    def works(self, problem: Problem) -> dict[str, Work]:
        """What is timed of each pass."""
        q, k, v, g = self.q, self.k, self.v, self.g
        tq, tk, tv, tg = self.moved
        given, all_of_them = (q, k, v, None), (True, True, True, False)
        saved = scan.sum_pieces(problem, k, v)

        def forward() -> object:
            return scan.scan(problem, q, k, v, initial=None, sums=scan.sum_pieces(problem, k, v), ends=False)

        def backward() -> object:
            later = scan.sum_pieces(problem, q, g, -1)
            return gradients.gradients(problem, all_of_them, given, g, None, saved, later)

        def jvp() -> object:
            moved = tangents.tangent_sums(problem, k, v, tk, tv)
            return tangents.tangent(problem, given, (tq, tk, tv, None), sums=saved, tsums=moved, ends=False)

        def hvp() -> object:
            tsums = tangents.tangent_sums(problem, k, v, tk, tv)
            later = scan.sum_pieces(problem, q, g, -1), tangents.tangent_sums(problem, q, g, tq, tg, -1)
            return hessian.hessian(
                problem, all_of_them, given, (tq, tk, tv, None), (g, None), (tg, None), sums=(saved, tsums), later=later
            )

        return {
            "sums": lambda: scan.sum_pieces(problem, k, v),
            "scan": forward,
            "gradients": backward,
            "tangent sums": lambda: tangents.tangent_sums(problem, k, v, tk, tv),
            "tangent": jvp,
            "hessian": hvp,
        }


def compiled(candidate: Candidate) -> tuple[Candidate, str]:
    """Compile a candidate into Triton's cache: why it cannot be launched or is not right, or nothing."""
    try:
        choose(*candidate)
        if candidate.part in BEFORE:
            before = BEFORE[candidate.part]
            choose(candidate.dots, candidate.width, before, CANDIDATES[candidate.dots][before][0])
        inputs = Inputs(candidate.dots, candidate.width, 1024, 1, 4)
        problem = inputs.cut(2, parsed(candidate.tiles)[0])
        found = inputs.works(problem)[candidate.part]()
        ieee = check(*(x.float() for x in (inputs.q, inputs.k, inputs.v)), None, False, "ieee", None)
        exact = ieee._replace(piece_rows=problem.piece_rows, pieces=problem.pieces)
        expected = inputs.to(torch.float32).works(exact)[candidate.part]()
        apart = candidates.apart(found, expected)
    except Exception as error:
        return candidate, candidates.reason_of(error)
    return candidate, "" if apart < APART[candidate.dots] else f"wrong: {apart:.1e} of the norm from IEEE float32"


def measure(dots: list[str], widths: list[int], workers: int, file: Path) -> None:
    timings = candidates.Timings(file, ("pieces",))
    ready = timings.launchable(list(candidates.of(CANDIDATES, dots, widths)), compiled, workers)
    for (kind, width), own in itertools.groupby(ready, key=lambda c: (c.dots, c.width)):
        inputs, of_width = Inputs(kind, width), list(own)
        for pieces in PIECES:
            for part, those in itertools.groupby(of_width, key=lambda c: c.part):
                found = {c: timed(inputs, c, pieces) for c in those if pieces > 1 or "sums" not in part}
                for candidate, milliseconds in found.items():
                    timings.row(candidate, pieces=pieces, milliseconds=f"{milliseconds:.4f}")
                if found and "sums" in part:
                    choose(*min(found, key=lambda c: found[c]))


def timed(inputs: Inputs, candidate: Candidate, pieces: int) -> float:
    """The milliseconds of a pass; the sums before it have the tiles that are chosen."""
    choose(*candidate)
    work = inputs.works(inputs.cut(pieces, parsed(candidate.tiles)[0]))[candidate.part]
    return float(triton.testing.do_bench(work, warmup=3, rep=25, return_mode="median"))


def show(file: Path) -> None:
    """Print the three fastest of each pass for each width and number of pieces."""
    rows = candidates.timed(file)
    for dots, width in sorted({(row["dots"], row["width"]) for row in rows}):
        for part in PARTS:
            for pieces in sorted({row["pieces"] for row in rows}, key=int):
                place = (dots, width, part, pieces)
                own = [r for r in rows if (r["dots"], r["width"], r["part"], r["pieces"]) == place]
                best = ", ".join(f"{r['tiles']} {r['milliseconds']}" for r in own[:4])
                print(f"{dots} {width} {part}, {pieces} pieces: {best}")


def main(words: list[str]) -> None:
    options = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    options.add_argument("--dots", nargs="+", default=list(CANDIDATES), choices=list(CANDIDATES))
    options.add_argument("--widths", nargs="+", type=int, default=list(WIDTHS))
    options.add_argument("--workers", type=int, default=0, help="compilations at a time; none: print what is there")
    options.add_argument("--file", type=Path, required=True)
    given = options.parse_args(words)
    if given.workers:
        measure(given.dots, given.widths, given.workers, given.file)
    show(given.file)


if __name__ == "__main__":
    main(sys.argv[1:])
