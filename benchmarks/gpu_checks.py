"""Default checks of the shipped families on this GPU, for benchmarks/results/checks.csv and feedback.csv.

    python benchmarks/gpu_checks.py                       (each family after the other, with nothing compiled before)
    python benchmarks/gpu_checks.py sdpa --cache FOLDER   (Triton's cache, and what is in it)
    python benchmarks/gpu_checks.py --output FOLDER       (files there, and not the committed ones)
    python benchmarks/gpu_checks.py --merge FOLDER        (what a run elsewhere has written there becomes the committed)

A row of checks.csv is one `gradoracle check FAMILY --device cuda` as a user calls it: how many of the planned cases
were judged, the verdicts, the exit code, versions, card, and the hash of the family's kernels (`kernel_speed.content`).
feedback.csv gets four figures of it: seconds to the first judged case, of the whole run, of all compilations, and of
the longest one. What each run printed is default_FAMILY.txt in FOLDER. Several may run at once with one --output.
`pytest tests/benchmarks/test_gpu_checks.py` says whose rows are of other kernels than those of the tree.
"""

from __future__ import annotations

import argparse
import csv
import fcntl
import json
import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import campaign
import campaign_rows
from feedback import FIRST, Row, add, first_moment
from kernel_speed.content import content

from gradoracle.execution.environment import cores
from gradoracle.model.verdict import Status
from gradoracle.project.shipped_names import family_names

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
ROWS, FEEDBACK = "checks.csv", "feedback.csv"
DEFAULT = "default"  # the run of a row, with the card behind it
COMMAND = "python benchmarks/gpu_checks.py"
_FACTS = ("gradoracle", "python", "commit", "torch", "triton", "cpu", "gpu")


def checked(family: str, words: Sequence[str], cache: str, folder: Path) -> tuple[dict[str, Any], float, float]:
    """The report of one check, and the seconds until its first case was judged and until it ended."""
    report = Path(cache) / f"{family}.json"
    command = ["check", family, "--device", "cuda", *words, "--format", "json", "--output", str(report)]
    environment = {**os.environ, "TRITON_CACHE_DIR": cache}
    Path(cache).mkdir(parents=True, exist_ok=True)
    begun = time.time()
    with (folder / f"default_{family}.txt").open("w", encoding="utf-8") as shown:
        done = subprocess.run(
            [sys.executable, "-c", FIRST, "any", *command],
            cwd=ROOT, env=environment, stdout=shown, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
    seconds = time.time() - begun
    first = round(first_moment(done.stderr) - begun, 1)
    if not report.is_file():
        raise SystemExit(f"{family}: exit code {done.returncode}, no report\n{done.stderr[-2000:]}")
    document = json.loads(report.read_text(encoding="utf-8"))
    return document["reports"][0] | {"exit_code": done.returncode}, first, seconds


def row_of(family: str, run: str, words: Sequence[str], report: dict[str, Any], seconds: float) -> dict[str, Any]:
    """A row of checks.csv."""
    verdicts = report["verdicts"]
    statuses = {each.value: sum(v["status"] == each.value for v in verdicts) for each in Status}
    environment = report["environment"]
    return {
        "run": run,
        "command": f"gradoracle check {shlex.join([family, '--device', 'cuda', *words])}",
        "target": family,
        "family": family,
        "device": "cuda",
        "seed": report["seed"],
        "planned": report["cases_planned"],
        "cases": report["cases_run"],
        "seconds": round(seconds, 1),
        "exit_code": report["exit_code"],
        "properties": report["properties_checked"],
        "verdicts": len(verdicts),
        "statuses": "; ".join(f"{count} {name}" for name, count in statuses.items() if count),
        **{name: environment.get(name, "") for name in _FACTS},
        "kernels": content(family),
    }


def keep(file: Path, row: dict[str, Any]) -> None:
    """Add a row; one of the same run and family is replaced."""
    known: list[dict[str, Any]] = []
    names = list(row)
    if file.exists():
        with file.open(encoding="utf-8", newline="") as opened:
            reader = csv.DictReader(opened)
            known = [each for each in reader if (each["run"], each["family"]) != (row["run"], row["family"])]
            names = list(reader.fieldnames or ())
    names += [name for name in row if name not in names]
    with file.open("w", encoding="utf-8", newline="") as opened:
        writer = csv.DictWriter(opened, names, restval="", lineterminator="\n")
        writer.writeheader()
        writer.writerows([*known, row])


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """While one process writes tables of a folder, no other does."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def merge(given: Path, into: Path) -> None:
    """Add the rows of a run's tables to the committed ones."""
    with (given / ROWS).open(encoding="utf-8", newline="") as opened:
        rows = [{name: cell for name, cell in row.items() if cell} for row in csv.DictReader(opened)]
    for row in rows:
        keep(into / ROWS, row)
    with (given / FEEDBACK).open(encoding="utf-8", newline="") as opened:
        for each in csv.DictReader(opened):
            own = Row(**{**each, "cores": int(each["cores"]), "seconds": float(each["seconds"])})  # type: ignore[arg-type]
            add(into / FEEDBACK, own)
    if (given / campaign_rows.NAME).is_file():
        for found in campaign_rows.read(given / campaign_rows.NAME, [line.name for line in campaign.LINES]):
            campaign_rows.record(into / campaign_rows.NAME, found)


def main(arguments: Sequence[str]) -> int:
    """Run the command line; returns the worst exit code."""
    parser = argparse.ArgumentParser(prog="gpu_checks", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("families", nargs="*", metavar="FAMILY", help="default: all")
    parser.add_argument("--cache", type=Path, metavar="FOLDER", help="Triton's; default: an empty one for each family")
    parser.add_argument("--label", default="after", metavar="WORD", help="of the rows of feedback.csv")
    parser.add_argument("--output", type=Path, metavar="FOLDER", help="of the files; default benchmarks/results")
    parser.add_argument("--merge", type=Path, metavar="FOLDER", help="run nothing; add what is there to the committed")
    parser.add_argument("--words", default="", metavar="'--workers 8'", help="further options of check")
    given = parser.parse_args(arguments)
    names = given.families or list(family_names())
    if unknown := [name for name in names if name not in family_names()]:
        parser.error(f"{unknown[0]!r} is unknown; expected some of {', '.join(family_names())}")
    if given.merge is not None:
        if not (given.merge / ROWS).is_file():
            parser.error(f"{given.merge} has no {ROWS}; expected the --output of a run")
        merge(given.merge, RESULTS)
        return 0
    import torch

    if not torch.cuda.is_available():
        parser.error("PyTorch sees no CUDA device here")
    card = torch.cuda.get_device_name().replace("NVIDIA ", "").split()[0].lower()
    tables = (given.output or RESULTS).resolve()
    folder = tables if given.output else tables / card
    folder.mkdir(parents=True, exist_ok=True)
    words, codes = shlex.split(given.words), []
    for family in names:
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as empty:
            cache = given.cache or Path(empty)
            state = "warm" if cache.is_dir() and any(cache.iterdir()) else "cold"
            report, first, seconds = checked(family, words, str(cache), folder)
        row = row_of(family, f"{DEFAULT}_{card}" + ("" if state == "cold" else "_warm"), words, report, seconds)
        figures = {
            "first judged case": first,
            "the whole run": seconds,
            "compiling, of all processes": report["seconds_compiling"],
            "the longest compilation": report["longest_compilation"],
        }
        with locked(tables):
            keep(tables / ROWS, row)
            for name, taken in figures.items():
                what, commit = f"{card}, {state}", row["commit"] or "unknown"
                add(tables / FEEDBACK, Row(given.label, commit, cores(), what, f"{family}: {name}", round(taken, 1)))
        print(f"{family}: {row['cases']} of {row['planned']} cases, {row['statuses']}, exit code {row['exit_code']}")
        codes.append(report["exit_code"])
    return max(codes)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
