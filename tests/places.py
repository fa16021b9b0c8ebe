"""Where files of this repository lie, for tests in any folder; and modules of kernels that are loaded from there."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

TESTS = Path(__file__).resolve().parent
ROOT = TESTS.parent


def load(name: str) -> ModuleType:
    """A module of tests/ by its dotted name, loaded anew: its kernels are interpreted from then on."""
    spec = importlib.util.spec_from_file_location(name, TESTS.joinpath(*name.split(".")).with_suffix(".py"))
    assert spec is not None and spec.loader is not None
    sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]


def loaded(name: str) -> ModuleType:
    """A module of tests/ by its dotted name, loaded if no test has done so yet."""
    return sys.modules[name] if name in sys.modules else load(name)
