"""The same commands on two commits: what a user saw before and sees now, as one table.

    python -m benchmarks.before_after [--before COMMIT] [--only GLOB]

Each commit is installed from a worktree into a folder of its own; the kernels are those of this folder, written with
what both commits know. A row a command: what it is about, what is right, and what each commit said. The table is
written to docs/background/before_after.md, whose first lines stay, as do rows of other commands than those asked for.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from gradoracle.gate.repository import Repository

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
PAGE = ROOT / "docs" / "background" / "before_after.md"
BEFORE = "abcdc2f"  # the last commit before any of it
SECONDS = 240
HEADER = "| what | right | before | now |\n|---|---|---|---|\n"
MINUTES = "first_minutes.py"
LONGEST = 90  # characters of a sentence


@dataclass(frozen=True)
class Probe:
    """One command.

    Attributes:
        about: what a user does.
        right: what a correct answer is.
        command: words after ``python``; a file of this folder stands without its folder.
    """

    about: str
    right: str
    command: tuple[str, ...]


def _checked(file: str, kernel: str, *more: str) -> tuple[str, ...]:
    words = ("--examples", "12", "--workers", "1", "--format", "json", "--output", "report.json")
    return ("-m", "gradoracle", "check", f"{file}:{kernel}", *words, *more)


def _triton(about: str, right: str, kernel: str, *more: str) -> Probe:
    return Probe(about, right, _checked("triton_kernels.py", kernel, "--dtype", "float32", *more))


def _torch(about: str, right: str, kernel: str, *more: str) -> Probe:
    return Probe(about, right, _checked("torch_kernels.py", kernel, *more))


def _annotated(about: str, file: str, kernel: str) -> Probe:
    return Probe(about, "holds", _checked(file, kernel, "--dtype", "float32"))


PROBES = (
    _triton("a loop variable's `.to(tl.int64)`", "holds", "loop_variable_with_a_dtype"),
    _triton("`libdevice.rsqrt`", "holds", "libdevice_rsqrt"),
    _triton("`from triton.language import exp`", "holds", "builtin_bound_at_import"),
    _triton('`tl.dot(input_precision="bf16x3")`', "runs; keeps tf32", "dot_in_bf16x3"),
    _triton("a load that `tl.where` discards", "holds", "load_that_is_discarded"),
    _triton("a store past the end", "wrong, with its line", "store_past_the_end"),
    _torch("second derivatives silently 0", "wrong", "second_derivatives_silently_zero", "--dtype", "float32"),
    _torch("a double backward that is refused", "holds", "refuses_a_double_backward", "--dtype", "float32"),
    _torch("a sum of squares that overflows float16", "wrong, not precision", "sum_of_squares_in_float16"),
    _torch(
        "semi-CRF without norms, T from 60", "holds, less accurate",
        "recursion_without_norms", "--family", "semicrf", "--property", "*_matches_the_oracle",
    ),
    _annotated('`Float[Tensor, "T 2*D"]`', "dims_expression.py", "halves"),
    _annotated("`Bool[Tensor, ...]`", "flags.py", "flags"),
    _annotated("`Int32[Tensor, ...]`", "numbers_of_32_bits.py", "numbers"),
    Probe("`gradoracle.gradcheck`", "True", ("first_minutes.py",)),
    Probe(
        "`check --reference --like`", "holds",
        _checked("first_minutes.py", "kernel", "--reference", f"{MINUTES}:reference", "--like", f"{MINUTES}:inputs"),
    ),
    Probe(
        "`gradoracle new`", "writes a file",
        ("-m", "gradoracle", "new", f"{MINUTES}:kernel", "--like", f"{MINUTES}:inputs", "--output", "new.py"),
    ),
    Probe("`list --kind memory`", "a list", ("-m", "gradoracle", "list", "--kind", "memory")),
    _triton("`--not-property 'offsets*'`", "holds", "builtin_bound_at_import", "--not-property", "offsets*"),
)  # fmt: skip


def main(words: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="before_after", description="What a user saw before and sees now.")
    parser.add_argument("--before", default=BEFORE, metavar="COMMIT")
    parser.add_argument("--only", default="*", metavar="GLOB", help="probes whose command matches")
    given = parser.parse_args(words)
    probes = [probe for probe in PROBES if fnmatch.fnmatch(" ".join(probe.command), given.only)]
    with tempfile.TemporaryDirectory() as folder:
        sides = {
            name: _installed(commit, Path(folder) / name)
            for name, commit in (("before", given.before), ("now", "HEAD"))
        }
        head, _, table = PAGE.read_text().partition(HEADER)
        lines = {line.split(" | ")[0]: line for line in table.splitlines() if line}
        for probe in probes:
            said = {name: _said(probe, side) for name, side in sides.items()}
            own = f"| {probe.about}"
            lines[own] = f"{own} | {probe.right} | {said['before']} | {said['now']} |"
            print(lines[own], flush=True)
    shown = (lines[f"| {probe.about}"] for probe in PROBES if f"| {probe.about}" in lines)
    PAGE.write_text("\n".join([f"{head}{HEADER.rstrip()}", *shown]) + "\n")


def _installed(commit: str, folder: Path) -> Path:
    """The folder of the packages of one commit, made within another."""
    target = folder / "site"
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation", "--target", str(target)]
    with Repository(ROOT).worktree(commit) as source:
        subprocess.run([*pip, str(source)], check=True, capture_output=True, text=True)
    return target


def _said(probe: Probe, site: Path) -> str:
    """What one commit says, in a few words."""
    with tempfile.TemporaryDirectory() as scratch:
        for file in HERE.glob("*.py"):
            (Path(scratch) / file.name).write_text(file.read_text())
        env = {**os.environ, "PYTHONPATH": str(site), "TRITON_INTERPRET": "1", "GRADORACLE_CACHE": ""}
        try:
            ended = subprocess.run(
                [sys.executable, *probe.command], cwd=scratch, env=env, capture_output=True, text=True, timeout=SECONDS
            )
        except subprocess.TimeoutExpired:
            return f"no answer in {SECONDS} s"
        report = Path(scratch) / "report.json"
        if report.exists():
            return _of_report(json.loads(report.read_text()), ended.returncode)
        printed = [line for line in (ended.stderr if ended.returncode else ended.stdout).splitlines() if line.strip()]
        return _short(f"exit {ended.returncode}: {printed[-1] if printed else 'nothing printed'}")


def _of_report(report: dict, code: int) -> str:
    """The exit code, how many properties have each status, and the gravest violation."""
    verdicts = [verdict for each in report["reports"] for verdict in each["verdicts"]]
    statuses = Counter(verdict["status"] for verdict in verdicts)
    told = ", ".join(f"{count} {status}" for status, count in statuses.most_common())
    bad = [verdict for verdict in verdicts if verdict["status"] in ("violated", "crashed", "refused")]
    if not bad:
        return f"exit {code}: {told}"
    grave = ["wrong", "undecided", "precision", "robustness", None]
    first = min(bad, key=lambda verdict: grave.index(verdict.get("severity")))
    why = first.get("severity") or first.get("reason") or ""
    return f"exit {code}: {told}; `{first['law']}` {_short(why)}"


def _short(text: str) -> str:
    text = " ".join(text.split()).replace("|", "/")
    return text if len(text) <= LONGEST else text[: LONGEST - 2] + " …"


if __name__ == "__main__":
    main(sys.argv[1:])
