"""The gate on planted regressions.

`python benchmarks/gate_regressions.py [FAMILY...] [--repeat N] [--output FILE] [-- OPTION...]`; OPTIONs are the gate's.

In a clone of this repository at HEAD, with the gradoracle of this environment, each family in turn gets a gradient
scaled by 1 + 2^-10, a mask that loses the tail, a cast to bfloat16, and a refactoring that changes nothing. The gate
must report a regression of this kernel, and no other, for the first three, and none for the last. Each run is a row:
verdict, seconds, regressions. Repeated runs must give the same answer: the same lines, and for every verdict the same
status and numbers of cases; and the same explanation: faults, their likely cause, and the shrunk case of each.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gradoracle.execution.environment import cores

ROOT = Path(__file__).resolve().parent.parent
OFF = "1.0009765625"
BF16 = ".to(tl.bfloat16).to(tl.float32)"
PLANTS: dict[str, dict[str, tuple[str, str, str]]] = {  # file, before, after
    "sdpa": {
        "scale": ("gradients.py", "k_gradient * scale,", f"k_gradient * (scale * {OFF}),"),
        "tail": (
            "gradients.py",
            "< T\n            visible = keys[:, None]",
            "< T - 1\n            visible = keys[:, None]",
        ),
        "cast": ("gradients.py", "operand(p, g_rows,", "operand(p.to(tl.bfloat16), g_rows,"),
        "refactoring": ("gradients.py", "k_gradient", "gradient_of_keys"),
    },
    "lse": {
        "scale": ("fused.py", "(total * scale)", f"(total * (scale * {OFF}))"),
        "tail": ("fused.py", "existing = queries < T\n", "existing = queries < T - 1\n"),
        "cast": ("fused.py", "k_tile, PRECISION, tl.float32)", f"k_tile, PRECISION, tl.float32){BF16}"),
        "refactoring": ("fused.py", "total", "sum_of_tiles"),
    },
    "lightning": {
        "scale": (
            "scan.py",
            "store_rows(out_plane, out_tile,",
            f"store_rows(out_plane, out_tile * tl.where(direction < 0, {OFF}, 1.0),",
        ),
        "tail": ("scan.py", "present = (start + micro + keys < N)", "present = (start + micro + keys < N - 1)"),
        "cast": ("scan.py", "before, power = operand(state, x_tile)", f"before, power = operand(state{BF16}, x_tile)"),
        "refactoring": ("scan.py", "out_tile", "tile_of_out"),
    },
    "gated_delta": {
        "scale": ("gradients.py", "* (scale * start)[:, None]", f"* (scale * {OFF} * start)[:, None]"),
        "tail": (
            "states.py",
            "there = first + rows < T\n        k_tile",
            "there = first + rows < T - 1\n        k_tile",
        ),
        "cast": (
            "states.py",
            "update = dot(solve, step.to(k_tile.dtype), PRECISION, tl.float32)",
            f"update = dot(solve, step.to(k_tile.dtype), PRECISION, tl.float32){BF16}",
        ),
        "refactoring": ("gradients.py", "from_output", "of_output"),
    },
    "semicrf": {
        "scale": ("posteriors.py", "rounded(one - other, dcum", f"rounded((one - other) * {OFF}, dcum"),
        "tail": ("posteriors.py", "opens, closes = real & (at < T)", "opens, closes = real & (at < T - 1)"),
        "cast": (
            "posteriors.py",
            "tl.where(arrival, one, 0.0)",
            "tl.where(arrival, one, 0.0).to(tl.bfloat16).to(one.dtype)",
        ),
        "refactoring": ("posteriors.py", "closes", "ends_here"),
    },
}


@contextmanager
def planted(clone: Path, family: str, kind: str) -> Iterator[None]:
    """Change a kernel of a clone, and restore it afterwards."""
    name, before, after = PLANTS[family][kind]
    file = clone / "kernels" / family / name
    text = file.read_text(encoding="utf-8")
    if before not in text:
        raise SystemExit(f"{family} {kind}: {before!r} is not in {name}")
    file.write_text(text.replace(before, after), encoding="utf-8")
    try:
        yield
    finally:
        file.write_text(text, encoding="utf-8")


def run(
    clone: Path,
    family: str,
    kind: str,
    more: Sequence[str] = (),
    python: str = sys.executable,
    environment: Mapping[str, str] = os.environ,
) -> dict[str, Any]:
    """Run the gate, with the gradoracle of an interpreter, on one planted change."""
    out = clone.parent / "gate.json"
    words = [python, "-m", "gradoracle", "gate", "--base", "HEAD", "--format", "json", "--output", str(out)]
    words += more
    begun = time.monotonic()
    environment = {key: value for key, value in environment.items() if key != "PYTHONPATH"}
    with planted(clone, family, kind):
        done = subprocess.run(words, cwd=clone, env=environment, stdout=subprocess.DEVNULL)
    seconds = time.monotonic() - begun
    reports = json.loads(out.read_text(encoding="utf-8"))["reports"]
    red = {each["target"] for each in reports if each["exit_code"] == 1}
    lines = [line for each in reports for line in each["comparison"]["lines"] if line["weight"] == "red"]
    (own,) = [each for each in reports if each["target"] == family]
    return {
        "family": family,
        "kind": kind,
        "exit_code": done.returncode,
        "red_kernels": sorted(red),
        "lines": [f"{line['kind']} {line['property']} {line['dtype']}".strip() for line in lines],
        "tensors": sorted(_wrong(own)),
        "answer": _answer(reports),
        "explanation": _explanation(reports),
        "seconds": round(seconds, 1),
        "is_right": (done.returncode, red) == ((0, set()) if kind == "refactoring" else (1, {family})),
    }


def _wrong(report: dict[str, Any]) -> set[str]:
    """The tensors that are wrong by the properties which compare with the truth."""
    return {
        finding["tensor"]
        for verdict in report["verdicts"]
        if verdict["property"].endswith("_matches_the_oracle") and verdict["counterexample"]
        for finding in verdict["counterexample"]["findings"]
        if finding["outcome"] == "violated"
    }


def _answer(reports: list[dict[str, Any]]) -> str:
    """A digest of a gate's answer, without seconds, explanations and the size of errors.

    The size of errors is left out because a kernel that leaves memory unwritten shows what was there.
    """
    line, verdict = ("kind", "weight", "property", "dtype"), ("kernel", "property", "dtype", "status")
    said = [
        [each["target"], each["exit_code"]]
        + [[own[key] for key in line] for own in each["comparison"]["lines"]]
        + [[own[key] for key in own if key in verdict or key.startswith("cases_")] for own in each["verdicts"]]
        for each in reports
    ]
    return _digest(said)


def _explanation(reports: list[dict[str, Any]]) -> str:
    """A digest of a gate's explanation of its answer."""
    shown = ("case", "shrunk_from", "shrink_note")
    explained = [
        [[fault["verdicts"], fault["diagnosis"]["cause"]] for fault in each["faults"]]
        + [[own["counterexample"][key] for key in shown] for own in each["verdicts"] if own["counterexample"]]
        for each in reports
    ]
    return _digest(explained)


def _digest(said: Any) -> str:
    return hashlib.sha256(json.dumps(said).encode()).hexdigest()[:16]


def main(arguments: Sequence[str]) -> int:
    """Run the command line; returns 1 if the gate is wrong about a change, or its answers to one differ."""
    parser = argparse.ArgumentParser(prog="gate_regressions", description="The gate on planted regressions.")
    parser.add_argument("families", nargs="*", metavar="FAMILY", help="or FAMILY:KIND; default: all")
    parser.add_argument("--repeat", type=int, default=1, metavar="N")
    parser.add_argument("--output", metavar="FILE", help="json, written after each run")
    at = arguments.index("--") if "--" in arguments else len(arguments)
    given, more = parser.parse_args(arguments[:at]), arguments[at + 1 :]
    expected = given.families or list(PLANTS)
    pairs = [(f, k) for f in PLANTS for k in PLANTS[f] if f in expected or f"{f}:{k}" in expected]
    if not pairs or given.repeat < 1:
        parser.error(f"nothing to run; expected some of {', '.join(PLANTS)}, or FAMILY:KIND, once at least")
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        clone = Path(folder) / "clone"
        subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True)
        commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=clone, capture_output=True, text=True)
        for family, kind in pairs:
            for _ in range(given.repeat):
                rows.append(run(clone, family, kind, more))
                print(json.dumps(rows[-1]), flush=True)
                if given.output:
                    facts = {
                        "commit": commit.stdout.strip(),
                        "cores": cores(),
                        "options": " ".join(more),
                    }
                    document = {**facts, "rows": rows}
                    Path(given.output).write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    answers = {(row["family"], row["kind"], row["answer"], row["explanation"]) for row in rows}
    return 0 if all(row["is_right"] for row in rows) and len(answers) == len(pairs) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
