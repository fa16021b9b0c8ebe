"""Autotuned: the Triton autotuners of a kernel's modules, and calls in which their configurations are forced."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from gradoracle.model.kernel import Kernel


def autotuners(kernel: Kernel) -> dict[str, Any]:
    """The Triton autotuners with several configurations in the modules that a kernel's functions come from, by name."""
    found: dict[str, Any] = {}
    for function in (kernel.call, kernel.vjp):
        while isinstance(function, functools.partial):
            function = function.func
        if function is None:
            continue
        module = sys.modules.get(getattr(inspect.unwrap(function), "__module__", None) or "")
        for name, value in vars(module).items() if module is not None else ():
            if type(value).__name__ == "Autotuner" and len(getattr(value, "configs", ())) > 1:
                found[name] = value
    return found


@contextmanager
def anew(kernel: Kernel, chosen: Mapping[str, int]) -> Iterator[None]:
    """While it lasts, what autotuners had found is forgotten, and those named have one of their configurations."""
    tuners = autotuners(kernel)
    kept = {name: (tuner.configs, dict(tuner.cache)) for name, tuner in tuners.items()}
    try:
        for name, tuner in tuners.items():
            if name in chosen:
                tuner.configs = [tuner.configs[chosen[name]]]
            tuner.cache.clear()
        yield
    finally:
        for name, (configs, cache) in kept.items():
            tuners[name].configs = configs
            tuners[name].cache.clear()
            tuners[name].cache.update(cache)
