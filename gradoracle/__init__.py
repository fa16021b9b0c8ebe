"""gradoracle: checks gradients of GPU kernels. One definition, derived truth, budgets instead of tolerances."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gradoracle.cases.hypothesis_strategy import strategy
    from gradoracle.check.acceptance import exactly
    from gradoracle.check.evidence import Evidence
    from gradoracle.cli.gradcheck import GradcheckError, gradcheck
    from gradoracle.cli.testing import testcase
    from gradoracle.host.claimed_cuda import cuda_claimed
    from gradoracle.model.case import Case
    from gradoracle.model.contract import PRESETS, Contract
    from gradoracle.model.derivative import Derivative
    from gradoracle.model.dims import Sizes, choices, multiples, sizes
    from gradoracle.model.domains import (
        AtMost,
        Between,
        Bits,
        BlockTable,
        Distinct,
        IndexDomain,
        Lengths,
        Mask,
        Offsets,
        Permutation,
        Positions,
        Seed,
        Segments,
        UnitRows,
    )
    from gradoracle.model.family import Family, family
    from gradoracle.model.finding import Finding
    from gradoracle.model.kernel import Kernel, kernel
    from gradoracle.model.philox import random, random_bits
    from gradoracle.model.property import Property, property
    from gradoracle.model.randomness import Randomness
    from gradoracle.model.recurrence import scan
    from gradoracle.model.severity import Severity
    from gradoracle.project.request import Request

__version__ = "0.1.0"
__all__ = [
    "PRESETS",
    "AtMost",
    "Between",
    "Bits",
    "BlockTable",
    "Case",
    "Contract",
    "Derivative",
    "Distinct",
    "Evidence",
    "Family",
    "Finding",
    "GradcheckError",
    "IndexDomain",
    "Kernel",
    "Lengths",
    "Mask",
    "Offsets",
    "Permutation",
    "Positions",
    "Property",
    "Randomness",
    "Request",
    "Seed",
    "Segments",
    "Severity",
    "Sizes",
    "UnitRows",
    "choices",
    "cuda_claimed",
    "exactly",
    "family",
    "gradcheck",
    "kernel",
    "multiples",
    "property",
    "random",
    "random_bits",
    "scan",
    "sizes",
    "strategy",
    "testcase",
]

_HOMES = {
    "cases.hypothesis_strategy": ("strategy",),
    "check.acceptance": ("exactly",),
    "check.evidence": ("Evidence",),
    "cli.gradcheck": ("GradcheckError", "gradcheck"),
    "cli.testing": ("testcase",),
    "host.claimed_cuda": ("cuda_claimed",),
    "model.case": ("Case",),
    "model.contract": ("PRESETS", "Contract"),
    "model.derivative": ("Derivative",),
    "model.dims": ("Sizes", "choices", "multiples", "sizes"),
    "model.domains": (
        "AtMost",
        "Between",
        "Bits",
        "BlockTable",
        "Distinct",
        "IndexDomain",
        "Lengths",
        "Mask",
        "Offsets",
        "Permutation",
        "Positions",
        "Seed",
        "Segments",
        "UnitRows",
    ),
    "model.family": ("Family", "family"),
    "model.finding": ("Finding",),
    "model.kernel": ("Kernel", "kernel"),
    "model.philox": ("random", "random_bits"),
    "model.property": ("Property", "property"),
    "model.randomness": ("Randomness",),
    "model.recurrence": ("scan",),
    "model.severity": ("Severity",),
    "project.request": ("Request",),
}


def __getattr__(name: str) -> Any:
    """Import public names at first use, so that ``gradoracle --help`` loads neither torch nor hypothesis."""
    home = next((module for module, names in _HOMES.items() if name in names), None)
    if home is None:
        raise AttributeError(f"module 'gradoracle' has no attribute {name!r}")
    import importlib

    value = getattr(importlib.import_module(f"gradoracle.{home}"), name)
    globals()[name] = value
    return value
