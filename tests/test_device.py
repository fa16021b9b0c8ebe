"""What a process for kernels on a device is given."""

from __future__ import annotations

import os
import subprocess
import sys

from gradoracle import device


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
