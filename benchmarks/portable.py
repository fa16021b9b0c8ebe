"""Whether the interpreter computes the same bits, and `check` gives the same verdicts, on other processors.

`python benchmarks/portable.py` (`make portable`) runs the golden cases of benchmarks/results/digests.csv, and 42 cases
of each shipped family, in child processes that stand in for other machines: another kernel of OpenBLAS, numpy or
PyTorch without AVX2 and AVX-512, other numbers of threads, compiled code for the plainest x86-64, no numba. It prints a
row for each setting and ends with 1 if one differs. `--write` makes the digests anew: after a change of a kernel or of
the interpreter's arithmetic, whose commit says why bits are others.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
DIGESTS = ROOT / "benchmarks/results/digests.csv"
EXAMPLES = 42
SHOWN = 8

_TORCH = {f"ATEN_CPU_CAPABILITY={name}": {"ATEN_CPU_CAPABILITY": name} for name in ("default", "avx2")}
SETTINGS: Mapping[str, Mapping[str, str]] = {
    "as it is": {},
    **{f"OPENBLAS_CORETYPE={name}": {"OPENBLAS_CORETYPE": name} for name in ("Haswell", "Zen", "SkylakeX", "Prescott")},
    "NPY_DISABLE_CPU_FEATURES=all": {"NPY_DISABLE_CPU_FEATURES": "(all that numpy dispatches on)"},
    **_TORCH,
    "MKL_CBWR=COMPATIBLE": {"MKL_CBWR": "COMPATIBLE"},
    **{f"OMP_NUM_THREADS={n}": {"OMP_NUM_THREADS": n, "OPENBLAS_NUM_THREADS": n} for n in ("1", "4")},
    "NUMBA_CPU_NAME=x86-64": {"NUMBA_CPU_NAME": "x86-64", "NUMBA_CPU_FEATURES": ""},
    "without numba": {"NUMBA_DISABLE_JIT": "1"},
}


def golden() -> dict[tuple[str, str, str], str]:
    """The committed digests by case, keywords of the kernel (``precision='tf32'``) and derivative."""
    with DIGESTS.open() as file:
        rows = csv.DictReader(file)
        return {(row["case"], row["arguments"], row["derivative"]): row["digest"] for row in rows}


def digest(tensors: Mapping[str, Any]) -> str:
    """Of the bits of named tensors, where every NaN is one and the same."""
    import torch

    found = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        value = torch.where(tensor.isnan(), torch.nan, tensor).cpu().contiguous()
        found.update(f"{name} {value.dtype} {tuple(value.shape)}\n".encode())
        found.update(value.view(torch.uint8).numpy().tobytes() if value.numel() else b"")
    return found.hexdigest()[:16]


def digests(wanted: Sequence[tuple[str, str]]) -> Iterator[tuple[tuple[str, str, str], str]]:
    """Of each derivative that a shipped kernel claims, on each (case, keywords), interpreted as written and widened."""
    from gradoracle.cases.sample import build
    from gradoracle.host import interpreter

    interpreter.activate()
    from gradoracle.check.widened import in_float64
    from gradoracle.execution.kernel_runner import KernelRunner
    from gradoracle.model.case import parse
    from gradoracle.model.derivative import Derivative
    from gradoracle.project.target import shipped

    for line, keywords in wanted:
        name, _, case = parse(line)
        target = shipped()[name]
        (kernel,) = target.kernels
        if keywords:
            option, _, value = keywords.partition("=")
            kernel = replace(kernel, arguments={option: value})
        sample = build(case, target.family.signature, domains=target.family.domains)
        for wide in (False, True):
            runner = KernelRunner(target.family, kernel, wide=case.dtype if wide else "")
            given = sample.map(in_float64) if wide else sample
            for derivative in (each.value for each in Derivative if kernel.is_claimed(each)):
                found, _ = getattr(runner, derivative)(given, case.blocks)
                yield (line, keywords, f"widened {derivative}" if wide else derivative), digest(found)


def verdicts(family: str) -> dict[str, str]:
    """What `check` says of each property and dtype of a family's kernel, and its exit code."""
    words = ["check", family, "--examples", str(EXAMPLES), "--device", "cpu", "--format", "json"]
    done = subprocess.run([sys.executable, "-m", "gradoracle", *words], capture_output=True, text=True, cwd=ROOT)
    try:
        (report,) = json.loads(done.stdout)["reports"]
    except ValueError:
        return {"exit code": f"{done.returncode}: {done.stderr.strip()[-200:]}"}
    found = {f"{each['property']} {each['dtype']}": each["status"] for each in report["verdicts"]}
    return {"exit code": str(done.returncode), **found}


def environment(setting: str) -> dict[str, str]:
    """The variables of a child process. No fork server is inherited: it would be this processor's."""
    found = {name: value for name, value in os.environ.items() if not name.startswith("GRADORACLE_FORKSERVER")}
    found |= SETTINGS[setting]
    if setting.startswith("NPY"):
        from numpy._core._multiarray_umath import __cpu_dispatch__, __cpu_features__

        found["NPY_DISABLE_CPU_FEATURES"] = " ".join(name for name in __cpu_dispatch__ if __cpu_features__[name])
    return found


def child(setting: str, task: str) -> Any:
    """What a child process under a setting makes of a task: ``digests``, or the verdicts on a family."""
    done = subprocess.run(
        [sys.executable, __file__, "--task", task], env=environment(setting), capture_output=True, text=True, cwd=ROOT
    )
    if done.returncode:
        raise SystemExit(f"portable: {task} under {setting} ended with {done.returncode}:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout)


def run(task: str) -> Any:
    """A task, in this process."""
    if task != "digests":
        return verdicts(task)
    wanted = dict.fromkeys((line, keywords) for line, keywords, _ in golden())
    return [[*key, found] for key, found in digests(list(wanted))]


def compared(setting: str, families: Sequence[str], expected: dict[str, Any]) -> tuple[list[Any], list[str]]:
    """The row of a setting, and what differs under it from what is committed or from the first setting."""
    started = time.monotonic()
    committed = golden()
    apart = [
        f"{derivative} of {line} {keywords}".rstrip() + f" is {found}, expected {committed[line, keywords, derivative]}"
        for line, keywords, derivative, found in child(setting, "digests")
        if found != committed[line, keywords, derivative]
    ]
    row = [setting, f"{len(committed) - len(apart)} of {len(committed)}"]
    for family in families:
        found = child(setting, family)
        first = expected.setdefault(family, found)
        other = [f"{family} {name}: {found.get(name)}, expected {first.get(name)}" for name in {**first, **found}
                 if found.get(name) != first.get(name)]  # fmt: skip
        apart += other
        row.append(f"{len(found) - 1 - len(other)} of {len(found) - 1}, exit code {found['exit code']}")
    return [*row, f"{time.monotonic() - started:.0f}"], apart


def main() -> None:
    from gradoracle.project.shipped_names import family_names

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("families", nargs="*", help="verdicts of these alone; default: every shipped family")
    parser.add_argument("--setting", action="append", choices=SETTINGS, help="this setting alone (repeatable)")
    parser.add_argument("--digests", action="store_true", help="digests alone, no verdicts")
    parser.add_argument("--write", action="store_true", help=f"make {DIGESTS.name} anew, of the cases that it names")
    parser.add_argument("--output", type=Path, help="write the table to this CSV too")
    parser.add_argument("--task", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.task:
        json.dump(run(given.task), sys.stdout)
        return
    if given.write:
        rows = run("digests")
        with DIGESTS.open("w", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows([("case", "arguments", "derivative", "digest"), *rows])
        return
    families = [] if given.digests else given.families or family_names()
    table, expected, wrong = [["setting", "digests", *families, "seconds"]], dict[str, Any](), list[str]()
    print(" | ".join(table[0]), flush=True)
    for setting in given.setting or SETTINGS:
        row, apart = compared(setting, families, expected)
        print(" | ".join(row), flush=True)
        for each in apart[:SHOWN]:
            print(f"    {each}", flush=True)
        table.append(row)
        wrong += apart
    if given.output:
        with given.output.open("w", newline="") as file:
            csv.writer(file, lineterminator="\n").writerows(table)
    red = [family for family, found in expected.items() if found["exit code"] != "0"]
    print(f"{len(wrong)} differ" + (f"; not green: {', '.join(red)}" if red else ""))
    raise SystemExit(1 if wrong or red else 0)


if __name__ == "__main__":
    main()
