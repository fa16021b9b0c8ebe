"""What an H200 keeps of dots with 8-bit floats, by designed operands: the interpreter has the same bits."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from places import ROOT

RECORD = ROOT / "benchmarks" / "results" / "h200" / "fp8_accumulation.json"


@pytest.mark.skipif(torch.cuda.is_available(), reason="the script runs on the GPU")
def test_each_number_of_the_interpreter_is_that_of_the_gpu(tmp_path: Path) -> None:
    script = ROOT / "benchmarks" / "fp8_accumulation.py"
    subprocess.run([sys.executable, script], env={**os.environ, "OUT": str(tmp_path)}, check=True, capture_output=True)
    found, known = (json.loads(file.read_text()) for file in (tmp_path / RECORD.name, RECORD))
    assert len(known["kinds"]) == 20 and all(len(row["values"]) > 200 for row in known["kinds"])
    for row, own in zip(known["kinds"], found["kinds"], strict=True):
        assert own | {"instruction": row["instruction"]} == row
    assert found["special"] == known["special"]
