"""gradoracle: checks gradients of GPU kernels. One definition, derived truth, budgets instead of tolerances."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gradoracle.cli.gradcheck import GradcheckError, gradcheck
    from gradoracle.cli.testing import testcase
    from gradoracle.execution.claimed_cuda import cuda_claimed
    from gradoracle.model.dims import choices, multiples, sizes
    from gradoracle.model.family import Family, IndexDomain, family
    from gradoracle.model.kernel import Kernel, kernel
    from gradoracle.model.property import Property, property

__version__ = "0.1.0"
__all__ = [
    "Family",
    "GradcheckError",
    "IndexDomain",
    "Kernel",
    "Property",
    "choices",
    "cuda_claimed",
    "family",
    "gradcheck",
    "kernel",
    "multiples",
    "property",
    "sizes",
    "testcase",
]

_HOMES = {
    "cli.gradcheck": ("GradcheckError", "gradcheck"),
    "cli.testing": ("testcase",),
    "execution.claimed_cuda": ("cuda_claimed",),
    "model.dims": ("choices", "multiples", "sizes"),
    "model.family": ("Family", "IndexDomain", "family"),
    "model.kernel": ("Kernel", "kernel"),
    "model.property": ("Property", "property"),
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
