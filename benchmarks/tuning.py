"""Tuning: the fastest blocks of every pass of a kernel on this GPU, for the shipped table of its family.

    python -m benchmarks.tuning lse --workers 14 --file timings.csv       (measures; one row for each candidate)
    python -m benchmarks.tuning lse --file timings.csv --write            (writes the table of its family from the rows)
    python -m benchmarks.tuning lse --file timings.csv --write --compile 80   (for GPUs that are not here too)

Each candidate is compiled in a process of its own first, many at a time. A pass is launched alone, on inputs of its
work; a time is the median of repeated launches. A row of the table is the fastest candidate for each pass. For a GPU
that is not here, candidates are compiled from the fastest on the measured one down, until one fits the shared memory
and its loops spill hardly more than on the measured one; else that one of those that fit whose loops spill least.
"""

from __future__ import annotations

import argparse
import csv
import importlib.metadata
import itertools
import multiprocessing
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
import triton
from gradoracle.kernels.blocks import Blocks
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from benchmarks.passes import PASSES, Launches, Passes

ROOT = Path(__file__).resolve().parent.parent
HALF_QUERY = (
    "128x128/8/2", "128x64/8/2", "128x64/8/3", "128x64/4/2", "64x64/4/2", "64x64/4/3", "64x128/4/2", "64x32/4/2",
    "64x32/4/3", "128x32/8/2", "128x32/4/3", "32x32/8/1",
)  # fmt: skip
HALF_KEY = (
    "64x64/4/2", "64x64/4/3", "64x128/8/2", "64x128/8/3", "128x128/8/2", "128x64/4/2", "32x64/4/2", "32x64/4/3",
    "32x128/8/2", "32x128/8/3", "32x128/4/2", "32x32/8/1",
)  # fmt: skip
SPLIT_QUERY = (
    "128x64/8/1", "128x64/8/2", "128x64/8/3", "128x32/8/1", "128x32/8/2", "128x32/8/3", "64x64/4/1", "64x64/4/2",
    "64x64/4/3", "64x64/8/1", "64x32/4/1", "64x32/4/2", "64x32/4/3", "128x16/8/2", "128x128/8/2", "32x32/4/1",
    "32x32/4/2",
)  # fmt: skip
SPLIT_KEY = (
    "64x128/8/1", "64x128/8/2", "64x128/8/3", "32x128/8/1", "32x128/8/2", "32x128/8/3", "64x64/4/1", "64x64/4/2",
    "64x64/4/3", "64x64/8/1", "32x64/4/1", "32x64/4/2", "32x64/4/3", "16x128/8/2", "16x64/4/1", "128x128/8/2",
    "32x32/4/1", "32x32/4/2",
)  # fmt: skip
IEEE = (
    "32x32/8/1", "32x32/4/1", "16x64/4/1", "64x16/4/1", "16x32/4/1", "32x16/4/1", "16x16/4/1",
)  # fmt: skip
CANDIDATES = {"16 bit": (HALF_QUERY, HALF_KEY), "split": (SPLIT_QUERY, SPLIT_KEY), "ieee": (IEEE, IEEE)}
WORK = {  # dtype, precision, B, H, T = M
    "16 bit": (torch.bfloat16, "ieee", 4, 16, 4096),
    "split": (torch.float32, "bf16x6", 4, 16, 2048),
    "ieee": (torch.float32, "ieee", 2, 8, 1024),
}
FITTING = {80: 101_376}  # bytes of shared memory: those of sm_86, sm_89 and sm_120, which take these blocks
CUOBJDUMP = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
SMALLEST = ("32x32/4/1", "16x32/4/1", "16x16/4/1")  # for GPUs of little shared memory, where nothing timed fits
LARGEST_SPLIT = 2048  # scores of a tile of split dots where no wgmma takes them: larger ones compile for minutes
SPILLED = 8  # loads and stores of spilled registers in the loops of a pass that are nothing
COLUMNS = ("card", "capability", "triton", "dots", "width", "part", "blocks", "milliseconds", "reason")


Best = dict[tuple[str, str, int], dict[str, str]]  # (capability, dots, width) -> part -> blocks


class Candidate(NamedTuple):
    """Blocks for one pass of a family, one kind of dots and width."""

    family: str
    dots: str
    width: int
    part: str
    blocks: str


def parsed(text: str) -> Blocks:
    """``128x64/8/2``: queries x keys / warps / stages."""
    tile, warps, stages = text.split("/")
    query, key = tile.split("x")
    return Blocks(int(query), int(key), int(warps), int(stages))


def candidates(passes: Passes, dots: str, width: int) -> Iterator[Candidate]:
    """What is tried of each pass."""
    of_queries, of_keys = CANDIDATES[dots]
    for part in passes.parts:
        for blocks in of_keys if part in passes.over_keys else of_queries:
            yield Candidate(passes.family, dots, width, part, blocks)


def launches(passes: Passes, dots: str, width: int, small: bool) -> Launches:
    """For each pass how it is launched with some blocks; ``small``: of little work, to compile it."""
    dtype, precision, batch, heads, rows = WORK[dots]
    return passes.launches(dtype, precision, *((1, 1, 256) if small else (batch, heads, rows)), width)


def compiled(candidate: Candidate) -> tuple[Candidate, str]:
    """Compile a candidate into Triton's cache: why it cannot be launched, or nothing."""
    passes = PASSES[candidate.family]
    try:
        with passes.as_chosen():
            launches(passes, candidate.dots, candidate.width, True)[candidate.part](parsed(candidate.blocks))
        torch.cuda.synchronize()
    except Exception as error:
        return candidate, f"{type(error).__name__}: {' '.join(str(error).split())[-160:]}"
    return candidate, ""


def measure(passes: Passes, parts: list[str], dots: list[str], widths: list[int], workers: int, file: Path) -> None:
    card = torch.cuda.get_device_name()
    capability = "{}.{}".format(*torch.cuda.get_device_capability())
    version = importlib.metadata.version("triton")
    with file.open("w", encoding="utf-8", newline="") as stream:
        rows = csv.DictWriter(stream, COLUMNS)
        rows.writeheader()

        def row(candidate: Candidate, milliseconds: str, reason: str) -> None:
            facts = {"card": card, "capability": capability, "triton": version}
            own = {name: value for name, value in candidate._asdict().items() if name in COLUMNS}
            rows.writerow(facts | own | {"milliseconds": milliseconds, "reason": reason})
            stream.flush()

        with ProcessPoolExecutor(workers, multiprocessing.get_context("spawn")) as pool:
            for kind, width in itertools.product(dots, widths):
                ready = []
                tried = [each for each in candidates(passes, kind, width) if each.part in parts or not parts]
                for each in as_completed([pool.submit(compiled, candidate) for candidate in tried]):
                    candidate, reason = each.result()
                    if reason:
                        row(candidate, "", reason)
                    else:
                        ready.append(candidate)
                print(f"{kind} {width}: {len(ready)} candidates compiled", flush=True)
                run = launches(passes, kind, width, False)
                with passes.as_chosen():
                    for part in passes.first:  # so that no pass that is timed reads memory that nothing wrote
                        run[part](parsed(IEEE[-1]))
                    for candidate in ready:
                        work = partial(run[candidate.part], parsed(candidate.blocks))
                        time = triton.testing.do_bench(work, warmup=5, rep=40, return_mode="median")
                        row(candidate, f"{time:.4f}", "")


def by_time(file: Path) -> dict[tuple[str, str, int], dict[str, list[str]]]:
    """For each capability, kind of dots and width the blocks of each pass, the fastest first."""
    with file.open(encoding="utf-8", newline="") as stream:
        rows = [row for row in csv.DictReader(stream) if row["milliseconds"]]
    found: dict[tuple[str, str, int], dict[str, list[str]]] = {}
    for row in sorted(rows, key=lambda each: float(each["milliseconds"])):
        parts = found.setdefault((row["capability"], row["dots"], int(row["width"])), {})
        parts.setdefault(row["part"], []).append(row["blocks"])
    return found


def offline(passes: Passes, capability: int, found: dict[tuple[str, str, int], dict[str, list[str]]]) -> Best:
    """For a GPU that is not here, blocks that compile for it as well as for the measured one, which ranks them."""
    best: Best = {}
    for (measured, dots, width), parts in found.items():
        row = best[f"{capability // 10}.{capability % 10}", dots, width] = {}
        for part, every in parts.items():
            tried: list[tuple[int, str]] = []
            small = [b for b in every if parsed(b).query * parsed(b).key <= LARGEST_SPLIT]
            for blocks in [*(small if dots == "split" else every), *SMALLEST]:
                candidate = Candidate(passes.family, dots, width, part, blocks)
                memory, spilled = compiled_for(capability, candidate)
                if memory > FITTING[capability]:
                    continue
                tried.append((spilled, blocks))
                allowed = compiled_for(int(10 * float(measured)), candidate)[1] if blocks in every else 0
                if spilled <= allowed + SPILLED:
                    tried = tried[-1:]
                    break
            row[part] = min(tried, key=lambda each: each[0])[1]
            print(capability, dots, width, part, *tried, flush=True)
    return best


def compiled_for(capability: int, candidate: Candidate) -> tuple[int, int]:
    """The most bytes of shared memory of a pass that is compiled for a GPU, and what its loops spill (``spilled``)."""
    passes = PASSES[candidate.family]
    found = [_compiled_for(capability, candidate, kind) for kind in passes.kinds]
    return max(memory for memory, _ in found), found[0][1]


def _compiled_for(capability: int, candidate: Candidate, kind: dict[str, bool]) -> tuple[int, int]:
    dtype, precision, *_ = WORK[candidate.dots]
    _, function, signature, constants, options = PASSES[candidate.family].compilation(
        candidate.part, str(dtype)[6:], candidate.width, precision=precision, blocks=parsed(candidate.blocks), **kind
    )
    source = ASTSource(fn=function, constexprs=constants, signature=signature)
    try:
        made = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
    except Exception as error:
        print(f"{capability} {candidate}: {type(error).__name__} {' '.join(str(error).split())[:200]}", flush=True)
        return 1 << 30, 0
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(made.asm["cubin"])
        file.flush()
        said = subprocess.run([CUOBJDUMP, "-sass", file.name], capture_output=True, text=True).stdout
    return made.metadata.shared, spilled(said)


def spilled(sass: str) -> int:
    """The loads and stores of spilled registers in the innermost loops of a program, as ``cuobjdump -sass`` prints it.

    What lies outside of loops, or in a loop with others in it, runs seldom.
    """
    found = [(int(at, 16), text) for at, text in re.findall(r"^\s+/\*([0-9a-f]{4,})\*/\s+(.*?);", sass, re.MULTILINE)]
    jumps = [(int(to[1], 16), at) for at, text in found if (to := re.search(r"\bBRA\b.*?(0x[0-9a-f]+)", text))]
    loops = {(start, end) for start, end in jumps if start < end}
    inner = [
        loop
        for loop in loops
        if not any(other != loop and loop[0] <= other[0] <= other[1] <= loop[1] for other in loops)
    ]
    return sum(
        re.search(r"\b(LDL|STL)\b", text) is not None
        for at, text in found
        if any(start <= at <= end for start, end in inner)
    )


def table(passes: Passes, found: Best) -> str:
    """The rows of the table: those that it has, those of a capability and kind of dots that were measured replaced."""
    rows = dict(passes.table)
    for (capability, dots, width), parts in found.items():
        major, minor = map(int, capability.split("."))
        before = rows.get(((major, minor), dots, width)) or rows[(9, 0), dots, width]
        rows[(major, minor), dots, width] = tuple(
            parsed(parts[part]) if part in parts else own for part, own in zip(passes.parts, before, strict=True)
        )
    lines = []
    for key, every in sorted(rows.items()):
        lines.append(f"    {key}: (".replace("'", '"'))
        lines += [
            f"        Blocks({', '.join(map(str, blocks))}),  # {part}"
            for part, blocks in zip(passes.parts, every, strict=True)
        ]
        lines.append("    ),")
    return "\n".join([*lines, "}"]) + "\n"


def write(passes: Passes, found: Best) -> None:
    file = ROOT / "kernels" / passes.family / "tuned.py"
    head, opening, _ = file.read_text(encoding="utf-8").partition("] = {\n")
    file.write_text(head + opening + table(passes, found), encoding="utf-8")


def main(words: list[str]) -> None:
    options = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    options.add_argument("family", choices=sorted(PASSES))
    options.add_argument("--dots", nargs="+", default=list(CANDIDATES), choices=list(CANDIDATES))
    options.add_argument("--widths", nargs="+", type=int, default=[64, 128])
    options.add_argument("--parts", nargs="+", default=[], help="passes to measure; all by default")
    options.add_argument("--workers", type=int, default=4, help="compilations at a time")
    options.add_argument("--file", type=Path, required=True)
    options.add_argument("--write", action="store_true", help="write the table from the rows that are there")
    options.add_argument("--compile", nargs="+", type=int, default=[], choices=list(FITTING), help="for these too")
    given = options.parse_args(words)
    passes = PASSES[given.family]
    if not given.write:
        measure(passes, given.parts, given.dots, given.widths, given.workers, given.file)
    timed = by_time(given.file)
    best: Best = {key: {part: every[0] for part, every in parts.items()} for key, parts in timed.items()}
    for key, parts in best.items():
        print(*key, *(f"{part}: {parts.get(part)}" for part in passes.parts))
    for capability in given.compile:
        best |= offline(passes, capability, timed)
    if given.write:
        write(passes, best)


if __name__ == "__main__":
    main(sys.argv[1:])
