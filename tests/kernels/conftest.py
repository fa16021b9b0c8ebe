"""Interprets the kernels where there is no GPU, and lets these tests import the references beside them."""

from __future__ import annotations

import sys
from pathlib import Path

import torch

from gradoracle.execution import interpreter

if not torch.cuda.is_available():
    interpreter.activate()
sys.path.insert(0, str(Path(__file__).parent))
