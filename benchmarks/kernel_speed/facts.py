"""Facts of a run: date, card, versions, and PyTorch's switches that change what peers compute."""

from __future__ import annotations

import datetime
import importlib.metadata
import subprocess
from contextlib import suppress

from gradoracle.execution.environment import describe

PACKAGES = ("fla-core", "jvp_flash_attention", "flash-semicrf")  # that peers are from, besides torch


def facts_of(device: str, commit: str = "") -> dict[str, str]:
    """The run's facts, as columns; ``commit`` where there is no git to ask."""
    import torch

    known = describe(device)
    cuda = device == "cuda"
    return {
        "date": datetime.date.today().isoformat(),
        "card": torch.cuda.get_device_name() if cuda else "",
        "driver": _driver() if cuda else "",
        "cuda": torch.version.cuda or "",
        "torch": known.get("torch", ""),
        "triton": known.get("triton", ""),
        "python": known["python"],
        "commit": commit or known.get("commit", ""),
        "packages": packages(),
        "switches": switches(),
    }


def packages() -> str:
    """Versions of the packages that peers are from, as far as they are installed."""
    found = []
    for name in PACKAGES:
        with suppress(importlib.metadata.PackageNotFoundError):
            found.append(f"{name} {importlib.metadata.version(name)}")
    return "; ".join(found)


def switches() -> str:
    """PyTorch's switches that change what its operators compute, as this process has them."""
    from torch.backends import cuda

    found = {
        "matmul.allow_tf32": cuda.matmul.allow_tf32,
        "allow_fp16_reduced_precision_reduction": cuda.matmul.allow_fp16_reduced_precision_reduction,
        "allow_bf16_reduced_precision_reduction": cuda.matmul.allow_bf16_reduced_precision_reduction,
        "allow_fp16_bf16_reduction_math_sdp": cuda.fp16_bf16_reduction_math_sdp_allowed(),
    }
    return "; ".join(f"{name}={'on' if value else 'off'}" for name, value in found.items())


def _driver() -> str:
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    with suppress(OSError, subprocess.TimeoutExpired):
        return subprocess.run(command, capture_output=True, text=True, timeout=10).stdout.split("\n")[0].strip()
    return ""
