"""Prints the figures of the findings, with the versions of what was run."""

from __future__ import annotations

import argparse
import importlib
import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import warnings
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

import torch

from benchmarks.package_findings.by_hand import FINDINGS, place, shown

MODULES = ("liger", "fla", "pytorch", "others")
PACKAGES = (
    *("torch", "triton", "liger-kernel", "fla-core", "entmax", "accelerated-scan", "adasplash"),
    *("jvp-flash-attention", "crossentropy-triton", "sparsemax", "torch-struct"),
)
OF_ACCESSES = (
    "accelerated-scan-reads-past-states",
    "adasplash-short-sequences",
    "jvp-flash-attention-incomplete-blocks",
)
SANITIZER = "compute-sanitizer"
ACCESS = re.compile(r"Invalid __global__ (read|write) of size \d+ bytes?\n=+\s+at (\w+)")
LONGEST = 300.0  # seconds of one finding on a GPU


def version(package: str) -> str:
    """Of an installed package."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def on_gpu(name: str, module: str) -> str:
    """What a finding says in a process of its own, and what compute-sanitizer says of its accesses."""
    command = [sys.executable, "-m", "benchmarks.package_findings", module, "--device", "cuda", "--one", name]
    environment = dict(os.environ)
    sanitized = name in OF_ACCESSES and shutil.which(SANITIZER) is not None
    if sanitized:
        command = [SANITIZER, "--tool", "memcheck", "--print-limit", "100000", *command]
        environment["PYTORCH_NO_CUDA_MEMORY_CACHING"] = "1"
    try:
        ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=LONGEST)
    except subprocess.TimeoutExpired:
        return f"still running after {LONGEST:.0f} s"
    said = [line.partition(" ")[2] for line in ended.stdout.splitlines() if line.startswith("FOUND ")]
    if sanitized:
        accesses = Counter(f"{kind} in {kernel}" for kind, kernel in ACCESS.findall(ended.stdout))
        found = ", ".join(f"{count} invalid {what}" for what, count in accesses.items())
        said.append(f"compute-sanitizer: {found or ended.stdout.strip().splitlines()[-1].strip('= ')}")
    if not said:
        lines = ended.stderr.strip().splitlines() or ["nothing"]
        said.append(f"its process ended with {ended.returncode}: {lines[-1][:300]}")
    return "; ".join(said)


def main(words: list[str]) -> None:
    options = argparse.ArgumentParser(prog="package_findings", description=__doc__)
    options.add_argument("modules", nargs="*", default=MODULES, metavar="|".join(MODULES))
    options.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    options.add_argument("--one", default="", metavar="NAME", help="one finding, in this process")
    options.add_argument("--workers", type=int, default=4, help="findings at a time on a GPU")
    given = options.parse_args(words)
    warnings.simplefilter("ignore")
    place(given.device)
    module_of: dict[str, str] = {}
    for module in given.modules:
        importlib.import_module(f"benchmarks.package_findings.{module}")
        module_of |= {name: module for name in FINDINGS if name not in module_of}
    if given.one:
        print(f"FOUND {shown(given.one)}", flush=True)
        return
    where = f"  {torch.cuda.get_device_name()}" if given.device == "cuda" else ""
    print("  ".join(f"{package} {version(package)}" for package in PACKAGES) + where + "\n")
    if given.device == "cpu":
        told(map(shown, FINDINGS))
        return
    with ThreadPoolExecutor(given.workers) as pool:
        told(pool.map(on_gpu, FINDINGS, module_of.values()))


def told(every: Iterable[str]) -> None:
    """Print what each finding says as soon as it is known."""
    for name, said in zip(FINDINGS, every, strict=True):
        print(f"{name}\n    {said}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
