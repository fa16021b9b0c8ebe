"""Prints the figures of the findings, with the versions of what was run."""

from __future__ import annotations

import importlib
import importlib.metadata
import sys
import warnings

from benchmarks.package_findings.by_hand import FINDINGS, shown

MODULES = ("liger", "fla", "pytorch", "others")
PACKAGES = (
    *("torch", "triton", "liger-kernel", "fla-core", "entmax", "accelerated-scan", "adasplash"),
    *("jvp-flash-attention", "crossentropy-triton", "sparsemax", "torch-struct"),
)


def version(package: str) -> str:
    """Of an installed package."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def main(modules: tuple[str, ...]) -> None:
    warnings.simplefilter("ignore")
    print("  ".join(f"{package} {version(package)}" for package in PACKAGES) + "\n")
    for module in modules:
        importlib.import_module(f"benchmarks.package_findings.{module}")
    for name in FINDINGS:
        print(f"{name}\n    {shown(name)}", flush=True)


if __name__ == "__main__":
    main(tuple(sys.argv[1:]) or MODULES)
