"""Verdicts of `check` on the shipped kernels and the examples, to verify that a change of the engine keeps them.

    python benchmarks/verdicts.py --save            (writes benchmarks/results/verdicts.json.xz)
    python benchmarks/verdicts.py                   (checks again and prints each difference; exit code 1 if any)
    python benchmarks/verdicts.py sdpa examples/rmsnorm.py      (these targets alone)

60 cases of each target, seed 0, on the CPU (or --device cuda --file FILE): counts, errors against budgets,
sensitivities, reasons, goals, counterexamples with their findings, and the exit code. Left out is what depends on
the clock or the machine, what has been added since, and the likely cause, of which less is said now
(docs/decisions.md).
"""

from __future__ import annotations

import argparse
import json
import lzma
import re
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from itertools import repeat
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
KEPT = ROOT / "benchmarks" / "results" / "verdicts.json.xz"
TARGETS = (
    "semicrf",
    "lightning",
    "sdpa",
    "lse",
    "examples/rmsnorm.py",
    "examples/torch_sdpa.py:fused --family sdpa",
    "examples/torch_sdpa.py:eager --family sdpa",
    "examples/torch_lse.py:logsumexp --family lse",
    "examples/torch_lse.py:upcast --family lse",
    "examples/torch_lightning.py:quadratic --family lightning",
    "examples/torch_lightning.py:chunked --family lightning",
    "examples/torch_semicrf.py:recursion --family semicrf",
)
OPTIONS = ("--seed", "0", "--examples", "60", "--workers", "1")
COUNTED = ("reasons", "refusals")  # dicts by sentences
LEFT_OUT = ("environment", "seconds", "seconds_compiling", "locations", "measurements", "schema", "shard", "diagnosis")


def checked(words: str, device: str = "cpu") -> Any:
    """The report of a check of one target, without what changes from run to run."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "report.json"
        command = [sys.executable, "-m", "gradoracle", "check", *words.split(), *OPTIONS]
        command += ["--device", device, "--format", "json", "--output", str(file)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        if not file.is_file():
            return {"exit_code": done.returncode, "stderr": done.stderr}
        return without(json.loads(file.read_text()))


def without(value: Any) -> Any:
    """A document without what changes from run to run; of a sentence only its numbers, of reasons their counts."""
    if isinstance(value, dict):
        return {
            key: _counts(each) if key in COUNTED else without(each)
            for key, each in value.items()
            if key not in LEFT_OUT
        }
    if isinstance(value, list):
        return [without(each) for each in value]
    is_sentence = isinstance(value, str) and " " in value and not value.startswith("case:")
    return " ".join(re.findall(r"\d[\d.e+-]*", value)) if is_sentence else value


def _counts(value: dict[str, Any]) -> list[str]:
    return sorted(json.dumps(each, sort_keys=True) for each in value.values())


def differences(before: Any, after: Any, place: str = "") -> list[str]:
    """One line for each place where two documents differ."""
    if isinstance(before, dict) and isinstance(after, dict):
        return [d for key in before for d in differences(before[key], after.get(key), f"{place}.{key}")]
    if isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        pairs = enumerate(zip(before, after, strict=True))
        return [d for n, (b, a) in pairs for d in differences(b, a, f"{place}[{_name(b, n)}]")]
    return [] if before == after else [f"{place}: {json.dumps(before)[:300]} -> {json.dumps(after)[:300]}"]


def _name(value: Any, place: int) -> str:
    own = [str(value[key]) for key in ("property", "dtype") if key in value] if isinstance(value, dict) else []
    return " ".join(own) or str(place)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("targets", nargs="*", help="check only targets that begin with one of these")
    parser.add_argument("--save", action="store_true", help="save the verdicts instead of comparing them")
    parser.add_argument("--file", type=Path, default=KEPT)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--processes", type=int, default=2)
    given = parser.parse_args()
    chosen = [each for each in TARGETS if not given.targets or each.startswith(tuple(given.targets))]
    with ThreadPoolExecutor(given.processes) as pool:
        now = dict(zip(chosen, pool.map(checked, chosen, repeat(given.device)), strict=True))
    if given.save:
        given.file.write_bytes(lzma.compress(json.dumps(now, indent=0, sort_keys=True).encode(), preset=9))
        print(f"{given.file}: {sum(len(r['verdicts']) for each in now.values() for r in each['reports'])} verdicts")
        return 0
    kept = json.loads(lzma.decompress(given.file.read_bytes()))
    found = [f"{name}{line}" for name in chosen for line in differences(kept.get(name), now[name])]
    print("\n".join(found) or f"{len(chosen)} targets: no difference")
    return 1 if found else 0


if __name__ == "__main__":
    raise SystemExit(main())
