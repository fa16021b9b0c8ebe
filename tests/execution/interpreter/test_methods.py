"""Methods of tensors that are Triton's own device functions (``x.sum()``), where Triton was imported before."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import interpreted

pytestmark = interpreted.NEEDED
ROOT = Path(__file__).resolve().parents[3]
KERNEL = """
import torch
import triton
import triton.language as tl

from gradoracle.execution import interpreter

interpreter.activate()


@triton.jit
def kernel(x, out, N: tl.constexpr):
    loaded = tl.load(x + tl.arange(0, N))
    tl.store(out, loaded.sum() + loaded.max(0) + loaded.sigmoid().sum(axis=0) + tl.sum(loaded, 0))


x, out = torch.tensor([0.0, 0.0, 0.0, 4.0]), torch.zeros(1)
kernel[(1,)](x, out, 4)
print(float(out - torch.sigmoid(x).sum()))
"""


def test_a_method_of_a_tensor_takes_the_tensor_where_triton_was_imported_as_a_compiler(tmp_path):
    file = tmp_path / "methods.py"
    file.write_text(KERNEL)
    plain = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    found = subprocess.run(
        [sys.executable, str(file)], capture_output=True, text=True, env=plain | {"PYTHONPATH": str(ROOT)}, timeout=200
    )
    assert found.returncode == 0, found.stderr
    assert abs(float(found.stdout) - 12.0) < 1e-5
