"""gradoracle: checks gradients of GPU kernels. One definition, derived truth, budgets instead of tolerances."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gradoracle.cli.gradcheck import GradcheckError, gradcheck
    from gradoracle.cli.testing import testcase
    from gradoracle.execution.claimed_cuda import cuda_claimed
    from gradoracle.model.dims import choices, multiples, sizes
    from gradoracle.model.family import Family, IndexDomain, family
    from gradoracle.model.kernel import Kernel, kernel
    from gradoracle.model.property import Property, law

_HOMES = {
    "Family": "gradoracle.model.family",
    "GradcheckError": "gradoracle.cli.gradcheck",
    "IndexDomain": "gradoracle.model.family",
    "Kernel": "gradoracle.model.kernel",
    "Property": "gradoracle.model.property",
    "choices": "gradoracle.model.dims",
    "cuda_claimed": "gradoracle.execution.claimed_cuda",
    "family": "gradoracle.model.family",
    "gradcheck": "gradoracle.cli.gradcheck",
    "kernel": "gradoracle.model.kernel",
    "law": "gradoracle.model.property",
    "multiples": "gradoracle.model.dims",
    "sizes": "gradoracle.model.dims",
    "testcase": "gradoracle.cli.testing",
}

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
    "law",
    "multiples",
    "sizes",
    "testcase",
]


def __getattr__(name: str) -> Any:
    """Import public names at first use, so that ``gradoracle --help`` loads neither torch nor hypothesis."""
    if name not in _HOMES:
        raise AttributeError(f"module 'gradoracle' has no attribute {name!r}")
    import importlib

    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


class _Package(ModuleType):
    """The package itself; keeps ``gradoracle.family`` the decorator when a submodule of that name is imported."""

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute, unless the import system would bind a submodule over a public name."""
        if not (name in _HOMES and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
