"""Kernels that do in a call what no kernel should, and give wrong values or none; and some that do no harm."""

from __future__ import annotations

import atexit
import builtins
import gc
import os
import pickle
import signal
import sys
import threading
import time
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

import gradoracle


@gradoracle.family
def doubled(x: Float[Tensor, "B N"]) -> Float[Tensor, "B N"]:
    return 2.0 * torch.sin(x)


def right(x: Tensor) -> Tensor:
    return 2.0 * torch.sin(x)


def wrong(x: Tensor) -> Tensor:
    return 2.5 * x


def kernel(call: Any) -> Any:
    return gradoracle.kernel(doubled, name=call.__name__)(call)


@kernel
def exits_with_0(x):
    os._exit(0)


@kernel
def exits_at_the_end(x):
    atexit.register(os._exit, 0)
    return wrong(x)


@kernel
def exits_from_a_thread(x):
    thread = threading.Thread(target=lambda: os._exit(0))
    thread.start()
    thread.join()


@kernel
def leaves(x):
    sys.exit(0)


@kernel
def interrupts(x):
    raise KeyboardInterrupt


@kernel
def ends_itself(x):
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(100)


@kernel
def hangs(x):
    while True:
        pass


@kernel
def sleeps(x):
    time.sleep(1000)


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no")


@kernel
def raises_what_cannot_be_printed(x):
    raise Unprintable


@kernel
def raises_a_megabyte(x):
    raise TypeError("a" * 1_000_000)


@kernel
def patches_torch(x):
    torch.sin = torch.allclose = torch.equal = lambda *given, **more: given[0]
    return wrong(x)


@kernel
def patches_numpy_and_builtins(x):
    np.isfinite = np.abs = builtins.abs = builtins.max = lambda *given, **more: 0
    return wrong(x)


@kernel
def patches_the_judge(x):
    import gradoracle.check.acceptance as acceptance
    import gradoracle.check.evidence as evidence
    import gradoracle.check.judge_property as judging

    for module in (acceptance, evidence, judging):
        for name in list(vars(module)):
            if name.startswith("judge"):
                setattr(module, name, lambda *given, **more: None)
    time.monotonic = time.perf_counter = lambda: 0.0
    return wrong(x)


@kernel
def patches_the_definition(x):
    object.__setattr__(doubled, "definition", wrong)
    doubled.definition.__globals__["torch"] = None
    return wrong(x)


@kernel
def looks_for_the_truth(x):
    found = [t for t in gc.get_objects() if isinstance(t, Tensor) and t.shape == x.shape and t.dtype == torch.float64]
    frame = sys._getframe()
    while frame is not None:
        found += [t for t in frame.f_locals.values() if isinstance(t, Tensor) and t.dtype == torch.float64]
        frame = frame.f_back
    return found[0].to(x.dtype) if found else wrong(x)


@kernel
def writes_to_every_descriptor(x):
    forged = pickle.dumps(("ended", None, True))
    for number in range(3, 64):
        try:
            os.write(number, forged)
        except OSError:
            continue
    return wrong(x)


@kernel
def gives_a_billion_elements(x):
    return torch.zeros(10**9, dtype=torch.int8)


@kernel
def gives_another_dtype(x):
    return right(x).double() if x.dtype != torch.float64 else right(x).float()


@kernel
def gives_a_nan_with_a_payload(x):
    return right(x).fill_(float("nan"))


@kernel
def gives_its_input(x):
    return x


@kernel
def reads_its_input(x):
    input()
    return right(x)


class Sub(Tensor):
    pass


@kernel
def gives_a_subclass(x):
    return right(x).as_subclass(Sub)


@kernel
def prints(x):
    print("{}" * 1000)
    os.write(1, b"\x1b[2J written to descriptor 1\n")
    os.write(2, b"written to descriptor 2\n")
    return right(x)


@kernel
def leaves_a_daemon(x):
    if os.fork() == 0:
        with open(os.environ["ADVERSE_PIDS"], "a") as file:
            file.write(f"{os.getpid()}\n")
        time.sleep(1000)
        os._exit(0)
    return right(x)


ANSI = gradoracle.kernel(doubled, name="re\x1b[31md\nand a line")(wrong)
"""Its name would colour a terminal, and break a line."""
