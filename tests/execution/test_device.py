"""What a process for kernels on a device is given."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

from gradoracle.execution import device


def pretend(monkeypatch: pytest.MonkeyPatch, visible: str | None, count: int) -> None:
    """As on a machine whose CUDA_VISIBLE_DEVICES is ``visible``, and where torch counts so many GPUs."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    if visible is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)


def test_a_process_for_the_cpu_interprets_triton_and_sees_no_gpu(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    own = device.variables("cpu")
    assert (own["TRITON_INTERPRET"], own["CUDA_VISIBLE_DEVICES"]) == ("1", "")
    seen = [sys.executable, "-c", "import torch; print(torch.cuda.device_count())"]
    said = subprocess.run(seen, env={**os.environ, **own}, capture_output=True, text=True, check=True)
    assert said.stdout.strip() == "0"


def test_a_process_for_a_gpu_compiles_and_sees_those_that_its_parent_does(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    own = device.variables("cuda")
    assert (own["TRITON_INTERPRET"], own["CUDA_VISIBLE_DEVICES"]) == ("0", "0,1")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    assert "CUDA_VISIBLE_DEVICES" not in device.variables("cuda")


@pytest.mark.parametrize(
    ("given", "count", "pairs"),
    [
        (None, 3, ["0,1", "1,2", "2,0"]),
        ("2,5", 2, ["2,5", "5,2"]),
        (" 3 , 1,-1,0", 2, ["3,1", "1,3"]),
        ("GPU-8f2c,GPU-11aa", 2, ["GPU-8f2c,GPU-11aa", "GPU-11aa,GPU-8f2c"]),
    ],
)
def test_of_several_gpus_each_process_has_its_own_first(monkeypatch, given, count, pairs):
    pretend(monkeypatch, given, count)
    own = device.each("cuda")
    assert [each["CUDA_VISIBLE_DEVICES"] for each in own] == pairs
    assert all(each["TRITON_INTERPRET"] == "0" for each in own)


@pytest.mark.parametrize(("given", "count"), [(None, 1), ("1", 1), ("GPU-8f2c", 1), ("0", 2)])
def test_one_gpu_is_left_as_it_is(monkeypatch, given, count):
    pretend(monkeypatch, given, count)
    assert device.each("cuda") == [device.variables("cuda")]
    assert device.each("cpu") == [device.variables("cpu")], "on the CPU no GPU is counted"
