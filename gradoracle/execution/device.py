"""Device: where kernels run, and what a process must do before it imports them."""

from __future__ import annotations

import contextlib
import ctypes
import os

from gradoracle.execution.fork_server import ENVIRONMENT
from gradoracle.execution.other_python import other_python
from gradoracle.model.errors import UsageError

_BLOCKING = 4  # CU_CTX_SCHED_BLOCKING_SYNC
ASKED = ("auto", "cpu", "cuda")


def choose(asked: str, elsewhere: bool = False, python: str | None = None) -> str:
    """The device, cpu or cuda, for auto, cpu or cuda.

    Args:
        asked: the requested device.
        elsewhere: True if kernels run on other machines; cuda then needs no CUDA device here.
        python: the interpreter in which kernels run; None: this one.

    Raises:
        UsageError: an unknown name, cuda where PyTorch sees no CUDA device, or an interpreter that can be no host.
    """
    if asked not in ASKED:
        raise UsageError(f"--device {asked!r} is unknown; expected one of {', '.join(ASKED)}")
    if python is not None:
        other_python(python)
    if asked == "cpu" or (asked == "cuda" and elsewhere):
        return asked
    if gpus(python):
        return "cuda"
    if asked == "cuda":
        where = "here" if python is None else f"in {python}"
        raise UsageError(
            f"--device cuda was asked for, but PyTorch sees no CUDA device {where}; use --device cpu or auto"
        )
    return "cpu"


def gpus(python: str | None = None) -> int:
    """The number of GPUs that PyTorch sees, in this interpreter or another."""
    if python is not None:
        return len(other_python(python, has_gpus=True).gpus)
    import torch

    return torch.cuda.device_count()


def prepare(device: str) -> None:
    """Make this process ready to import kernels: on the CPU Triton is interpreted, faithfully.

    If Triton cannot be interpreted so, it is not interpreted at all: kernels that need it fail when they are imported
    or called, and ``gradoracle doctor`` says why.
    """
    if device != "cpu":
        _wait_without_spinning()
        return
    from gradoracle.host import interpreter

    if interpreter.explain_unavailable() is None:
        interpreter.activate()
    else:
        os.environ.pop("TRITON_INTERPRET", None)  # Triton's own interpreter rounds otherwise than a GPU


def _wait_without_spinning() -> None:
    """Let a process that waits for the GPU yield its core: workers share one GPU, and their oracles share the cores.

    To be called before CUDA makes a context; without a driver nothing changes.
    """
    with contextlib.suppress(OSError, AttributeError):
        driver = ctypes.CDLL("libcuda.so.1")
        count = ctypes.c_int()
        if driver.cuInit(0) == 0 and driver.cuDeviceGetCount(ctypes.byref(count)) == 0:
            for each in range(count.value):
                driver.cuDevicePrimaryCtxSetFlags_v2(each, _BLOCKING)


def variables(device: str) -> dict[str, str]:
    """Environment variables of a worker process for kernels on this device.

    On the CPU no GPU is visible: PyTorch's autograd would make a context of each, which a fork of the process cannot
    use.
    """
    name = "CUDA_VISIBLE_DEVICES"
    own = {"TRITON_INTERPRET": "1" if device == "cpu" else "0", **ENVIRONMENT}
    if device == "cpu":
        return own | {name: ""}
    return own | ({name: os.environ[name]} if name in os.environ else {})


def visible(python: str | None = None) -> list[str]:
    """The GPUs that PyTorch sees, each as in CUDA_VISIBLE_DEVICES: an index, or the name of a device."""
    count = gpus(python)
    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    if given is None:
        return [str(each) for each in range(count)]
    words = [word.strip() for word in given.split(",")][:count]  # CUDA reads them up to the first invalid one
    return words if len(words) == count else []


def each(device: str, python: str | None = None) -> list[dict[str, str]]:
    """Environment variables of worker processes, in turn: with several GPUs, each process has its own.

    A process sees its own GPU first, so that kernels run there, and one other, for properties of a second device.
    """
    own, seen = variables(device), visible(python) if device == "cuda" else []
    if len(seen) < 2:
        return [own]
    pairs = zip(seen, [*seen[1:], seen[0]], strict=True)
    return [{**own, "CUDA_VISIBLE_DEVICES": f"{first},{second}"} for first, second in pairs]
