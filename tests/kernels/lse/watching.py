"""What the LSE kernels are launched with."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest

Launch = Callable[[str, tuple[Any, ...], dict[str, Any]], None]


def watch(monkeypatch: pytest.MonkeyPatch, modules: Iterable[Any], seen: Launch) -> None:
    """Call ``seen(kernel's name, arguments, constants)`` before each launch of a kernel of these modules."""

    class Watched:
        def __init__(self, kernel: Any) -> None:
            self.kernel, self.__name__ = kernel, kernel.__name__

        def __getitem__(self, grid: Any) -> Any:
            def run(*args: Any, **constants: Any) -> None:
                seen(self.__name__, args, constants)
                self.kernel[grid](*args, **constants)

            return run

    for module in modules:
        for name, kernel in list(vars(module).items()):
            if name.endswith("_kernel") and hasattr(kernel, "__getitem__"):
                monkeypatch.setattr(module, name, Watched(kernel))
