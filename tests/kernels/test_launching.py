"""A launch whose blocks do not fit the GPU is refused in words; anything else that it raises stays as it is."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from gradoracle.kernels.launching import launching
from triton.runtime.errors import OutOfResources


def scan_kernel() -> None:
    """Stand in for a kernel: its name is all that is asked for."""


def test_blocks_that_do_not_fit_are_a_value_error_in_one_sentence() -> None:
    with (
        pytest.raises(
            ValueError, match=r"^blocks is \(64, 64\) for scan_kernel at torch.float32 and D = 8: expected bl"
        ),
        launching(scan_kernel, torch.device("cpu"), torch.float32, (64, 64), "D = 8"),
    ):
        raise OutOfResources(300_000, 232_448, "shared memory")


def test_another_error_stays() -> None:
    with (
        pytest.raises(ZeroDivisionError),
        launching(scan_kernel, torch.device("cpu"), torch.float32, (64, 64), "D = 8"),
    ):
        raise ZeroDivisionError


def test_the_first_bfloat16_call_of_a_process_may_be_made_under_torch_func() -> None:
    program = (
        "import torch; from gradoracle.execution import device; device.prepare('cpu'); "
        "from gradoracle.kernels.lightning import lightning; "
        "q, k, v = torch.ones(3, 1, 1, 4, 4, dtype=torch.bfloat16); "
        "print(float(torch.func.jvp(lambda q: lightning(q, k, v), (q,), (q,))[1].sum()))"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (ran.returncode, ran.stdout.strip()) == (0, "160.0"), ran.stderr
