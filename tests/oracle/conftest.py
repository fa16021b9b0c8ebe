"""Lets the tests of the oracle import the catalogue of operators in this folder."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
