"""Environment: what a run runs on, and which facilities are installed. No path and no name of a machine."""

from __future__ import annotations

import contextlib
import os
import platform
import resource
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from gradoracle.execution.other_python import probed
from gradoracle.model import machine_code
from gradoracle.model.versions import version

_CGROUP_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
_CGROUP_QUOTAS = (  # microseconds of processor time, and the period: version 2 in one file, version 1 in two
    ("/sys/fs/cgroup/cpu.max",),
    ("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "/sys/fs/cgroup/cpu/cpu.cfs_period_us"),
)
_RECORDED = ("torch", "triton", "numpy", "hypothesis", "python-flint", "gmpy2", "mpmath")


@dataclass(frozen=True)
class Facility:
    """A package or device that gradoracle needs or can use.

    Attributes:
        name: the package or device.
        found: its version or description; empty if it is missing.
        purpose: its use.
        remedy: the way to install or repair it.
        required: whether gradoracle cannot work without it.
    """

    name: str
    found: str
    purpose: str
    remedy: str = ""
    required: bool = True


def describe(device: str = "auto", gpus: int = 1) -> dict[str, str]:
    """Versions, processor and GPUs, as a report records them.

    Args:
        device: with "cpu" no GPU is queried.
        gpus: the number that a run uses.
    """
    facts = {"gradoracle": version("gradoracle"), "python": platform.python_version()}
    commit = _commit()
    if commit:
        facts["commit"] = commit
    facts |= {name: found for name in _RECORDED if (found := version(name))}
    facts["system"] = f"{platform.system()} {platform.machine()}"
    facts["cpu"] = f"{_processor()}, {cores()} cores"
    gpu = "" if device == "cpu" else accelerator(gpus)
    if gpu:
        facts["gpu"] = gpu
    return facts


def facilities() -> list[Facility]:
    """Everything that ``gradoracle doctor`` checks, required facilities first."""
    from gradoracle.host.interpreter import explain_unavailable

    unavailable = explain_unavailable()
    python = platform.python_version() if (3, 10) <= sys.version_info[:2] < (3, 14) else ""
    interpreter = Facility(
        "Triton on the CPU",
        "" if unavailable else f"Triton {version('triton')} with numpy {version('numpy')}",
        "runs Triton kernels without a GPU, with correct bf16 and tf32",
        unavailable or "",
        required=not accelerator(),
    )
    return [
        Facility("python", python, "3.10 to 3.13", f"Python {platform.python_version()} is not supported"),
        _package("torch", "definitions, derivatives, tensors"),
        _package("triton", "the shipped kernels"),
        _package("numpy", "tensors of the interpreter"),
        _package("hypothesis", "shrinks cases"),
        _package("jaxtyping", "shapes in signatures"),
        _package("mpmath", "the multiprecision reading"),
        _package("typer", "this command line"),
        _package("rich", "tables and progress"),
        interpreter,
        Facility("processor", _processor(), "a verdict is the same on each", required=False),
        Facility("vector units", _vector_units(), "of numpy, PyTorch and compiled code", required=False),
        Facility(
            "CUDA device",
            accelerator(),
            "--device cuda",
            "PyTorch sees no CUDA device; --device cpu works",
            required=False,
        ),
        _package("python-flint", "the certified reading (balls with a proven radius)", required=False),
        _package("gmpy2", "a faster multiprecision reading", required=False, extra="fast"),
        _package(
            "numba",
            "a faster interpreter, with the same bits",
            required=False,
            extra="fast",
        ),
        _package("libcst", "gradoracle mutate", required=False, extra="mutate"),
        _package("jinja2", "--format html", required=False, extra="report"),
        _package("matplotlib", "the pictures of --format html", required=False, extra="report"),
        _package("pytest-xdist", "pytest -n auto properties/", required=False),
        _package("distributed", "check --scheduler: cases on a dask cluster", required=False, extra="cluster"),
    ]


def facilities_of(python: str) -> list[Facility]:
    """What ``gradoracle doctor --python`` checks: what hosts of kernels need in another Python.

    Raises:
        UsageError: it cannot be run.
    """
    from gradoracle.host.interpreter.activation import lacking

    own = probed(python)
    if "torch" in own.versions:
        own = probed(python, has_gpus=True)
    known, install = own.versions, f"{python} -m pip install"
    unavailable = lacking(known.get("triton", ""), known.get("numpy", ""))
    version_of_triton = f"Triton {known.get('triton', '')} with numpy {known.get('numpy', '')}"

    def package(name: str, purpose: str, required: bool = True) -> Facility:
        return Facility(name, known.get(name, ""), purpose, f"{install} {name}", required)

    return [
        Facility(
            "python", "" if own.is_too_old else known["python"], "3.10 or later", f"it is Python {known['python']}"
        ),
        package("torch", "tensors, and derivatives by autograd"),
        package("numpy", "tensors of the interpreter"),
        package("triton", "Triton's kernels", required=False),
        Facility(
            "Triton on the CPU", "" if unavailable else version_of_triton, "runs Triton's kernels without a GPU",
            unavailable or "", required=False,
        ),
        package("numba", "a faster interpreter, with the same bits", required=False),
        Facility("CUDA device", ", ".join(own.gpus), "--device cuda", "its PyTorch sees none", required=False),
    ]  # fmt: skip


def accelerator(used: int = 1) -> str:
    """The names of the CUDA devices in use, which are the first ones, and their total; empty without any."""
    try:
        import torch
    except ImportError:
        return ""
    if not torch.cuda.is_available():
        return ""
    count = torch.cuda.device_count()
    names = Counter(torch.cuda.get_device_name(each) for each in range(min(used, count)))
    shown = ", ".join(f"{many} x {name}" if many > 1 else name for name, many in names.items())
    more = f" ({used} of {count})" if count > used else ""
    return f"{shown}{more}, CUDA {torch.version.cuda}"


def _vector_units() -> str:
    """What numpy and PyTorch use of the processor, and what numba compiles for."""
    found = []
    with contextlib.suppress(ImportError):  # a numpy that names them elsewhere
        from numpy._core._multiarray_umath import __cpu_dispatch__, __cpu_features__

        found.append("numpy " + ([name for name in __cpu_dispatch__ if __cpu_features__[name]] or ["plain"])[-1])
    with contextlib.suppress(ImportError, AttributeError):
        import torch

        found.append(f"torch {torch.backends.cpu.get_cpu_capability()}")
    return ", ".join([*found, f"numba {machine_code.target()}" if machine_code.HAS_NUMBA else "no numba"])


def _package(name: str, purpose: str, required: bool = True, extra: str = "") -> Facility:
    expected = f"gradoracle[{extra}]" if extra else name
    return Facility(name, version(name), purpose, f'pip install "{expected}"', required)


def _processor(cpuinfo: Callable[[], str] = lambda: Path("/proc/cpuinfo").read_text()) -> str:
    try:
        for line in cpuinfo().splitlines():
            if line.startswith("model name"):
                return " ".join(line.partition(":")[2].split())
    except OSError:
        pass
    return platform.processor() or platform.machine()


def cores() -> int:
    """Cores that this process may use: those it may run on, or fewer if its container has less processor time."""
    affinity = getattr(os, "sched_getaffinity", None)
    found = len(affinity(0)) if affinity is not None else os.cpu_count() or 1
    for files in _CGROUP_QUOTAS:
        words = " ".join(Path(file).read_text() for file in files if os.path.isfile(file)).split()
        if len(words) == 2 and all(word.isdigit() for word in words):  # "max" or -1: there is none
            quota, period = map(int, words)
            found = min(found, -(-quota // period))
    return max(found, 1)


def memory(*, free: bool = False) -> int:
    """Bytes that this process may use: the machine's memory and swap (or the ``free`` part of them), or its limit."""
    system = _meminfo()
    names = ("MemAvailable", "SwapFree") if free else ("MemTotal", "SwapTotal")
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    found = [sum(system.get(name, 0) for name in names) or total]
    for file in map(Path, _CGROUP_LIMITS):
        text = file.read_text().strip() if file.is_file() else ""
        found += [int(text)] if text.isdigit() else []
    for limit in (resource.RLIMIT_AS, resource.RLIMIT_DATA):
        soft, _ = resource.getrlimit(limit)
        found += [soft] if soft != resource.RLIM_INFINITY else []
    return min(found)


def _meminfo() -> dict[str, int]:
    """The system's figures on its memory, in bytes."""
    file = Path("/proc/meminfo")
    lines = [line.split() for line in file.read_text().splitlines()] if file.is_file() else []
    return {words[0].rstrip(":"): int(words[1]) * 1024 for words in lines if words[-1] == "kB"}


def _commit() -> str:
    """The commit of gradoracle's own checkout; empty if it is installed, even inside another repository."""
    root = Path(__file__).resolve().parents[2]
    if not (root / ".git").exists() or not (root / "properties").is_dir():
        return ""
    command = ["git", "-C", str(root), "rev-parse", "--short=12", "HEAD"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=5)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
