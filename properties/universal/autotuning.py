"""Properties of autotuned kernels: results are correct whichever configuration is chosen, and during the choice."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from gradoracle.properties.applicability import all_of, small_enough

from gradoracle.check.evidence import Evidence
from gradoracle.execution.call_errors import Refused
from gradoracle.execution.interpreter.autotuner import trials
from gradoracle.model.case import Case
from gradoracle.model.derivative import Derivative
from gradoracle.model.finding import Finding
from gradoracle.model.kernel import Kernel
from gradoracle.model.property import PropertyKind, property
from gradoracle.model.severity import Severity


def _is_autotuned(case: Case, kernel: Kernel) -> str | None:
    return None if autotuners(kernel) else "the kernel's module has no autotuned Triton kernel"


@property(
    needs=(Derivative.FORWARD, Derivative.VJP),
    applies=all_of(small_enough, _is_autotuned),
    one_in=2,
    kind=PropertyKind.ORACLE,
)
def every_autotuned_configuration_matches_the_oracle(evidence: Evidence) -> Iterator[Finding]:
    """Outputs and gradients are correct under each configuration of the kernel's autotuners, forced in turn.

    Holds because: a configuration decides the order of sums and nothing else. Which one is forced, for each autotuner
    of the module at its own place in its list, changes from case to case, so that a run meets all of them.
    Catches: a fault of a configuration that this machine's timings never choose: a mask that full tiles hide, a
    bound by the wrong block. every_block_configuration_agrees does the same for declared configurations.
    Cannot catch: autotuners in modules other than the kernel's own.
    """
    tuners, turn = autotuners(evidence.kernel), evidence.case.seed // 11
    shown = ", ".join(f"{name} {turn % len(tuner.configs)}" for name, tuner in tuners.items())
    forced = evidence.variant(f"configurations {shown}", lambda sample: sample)
    with _anew(tuners, lambda configs: [configs[turn % len(configs)]]):
        try:
            found = forced.vjp()
        except Refused as refusal:
            raise Refused(f"with configurations {shown}: {refusal}") from None
    yield from evidence.compare(Derivative.FORWARD, found)
    yield from evidence.compare(Derivative.VJP, found)


@property(
    needs=(Derivative.FORWARD, Derivative.VJP),
    applies=all_of(small_enough, _is_autotuned),
    one_in=2,
    kind=PropertyKind.MEMORY,
    severity=Severity.WRONG,
)
def trials_of_an_autotuner_leave_nothing_behind(evidence: Evidence) -> Iterator[Finding]:
    """Outputs and gradients are correct in the call in which the kernel's autotuners try their configurations.

    Holds because: a trial runs on the caller's tensors, many times, before the run that counts. So what a kernel writes
    must not depend on what was there, or be cleared (`reset_to_zero`) or put back (`restore_value`) at each trial. In
    the interpreter each configuration is tried once.
    Catches: sums of atomics that hold those of all trials, a cache or an input that each trial updates in place.
    Cannot catch: memory that is cleared in trials alone, which nothing_is_loaded_before_it_is_written sees; autotuners
    in modules other than the kernel's own.
    """
    tuners = autotuners(evidence.kernel)
    tried = evidence.variant("trials", lambda sample: sample)
    with _anew(tuners, list), trials():
        found = tried.vjp()
    yield from evidence.compare(Derivative.FORWARD, found)
    yield from evidence.compare(Derivative.VJP, found)


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
def _anew(tuners: dict[str, Any], chosen: Callable[[list[Any]], list[Any]]) -> Iterator[None]:
    """While it lasts, each autotuner has the chosen ones of its configurations, and what it had found is forgotten."""
    kept = {name: (tuner.configs, dict(tuner.cache)) for name, tuner in tuners.items()}
    try:
        for tuner in tuners.values():
            tuner.configs = chosen(tuner.configs)
            tuner.cache.clear()
        yield
    finally:
        for name, (configs, cache) in kept.items():
            tuners[name].configs = configs
            tuners[name].cache.clear()
            tuners[name].cache.update(cache)
