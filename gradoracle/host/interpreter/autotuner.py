"""Autotuned kernels, interpreted: without a GPU to time them on, one configuration is chosen without timing.

It is the first that the autotuner's own pruning (`prune_configs_by`) leaves.  All else is Triton's: keys, the cache,
hooks, `reset_to_zero`.  No measuring run touches an argument, except within `trials`, where each configuration runs
once on the caller's tensors before one is chosen, as it does many times on a GPU.  Pruning that needs a GPU raises as
it did.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

_QUANTILES = 3  # timings that `_bench` returns: the median and two around it
_tries = False  # whether configurations run before one is chosen; per process, since autograd has its own threads


@contextmanager
def trials() -> Iterator[None]:
    """Within it, an interpreted kernel without a tuned configuration first runs in each of them.

    Triton's own code does that, with its hooks, `reset_to_zero` and `restore_value`, but times nothing.
    """
    global _tries
    before, _tries = _tries, True
    try:
        yield
    finally:
        _tries = before


def take_the_first() -> None:
    """Make all configurations of an interpreted kernel equally fast to Triton's Autotuner, which takes the first."""
    from triton.runtime import autotuner

    tuner = getattr(autotuner, "Autotuner", None)
    bench, cached = getattr(tuner, "_bench", None), getattr(tuner, "check_disk_cache", None)
    if tuner is None or bench is None or getattr(bench, "takes_the_first", False):
        return

    @functools.wraps(bench)
    def timings(self: Any, *args: Any, config: Any, **meta: Any) -> Any:
        if not _is_interpreted(self):
            return bench(self, *args, config=config, **meta)
        both = meta.keys() & getattr(config, "kwargs", {}).keys()
        if both:
            raise ValueError(f"{', '.join(sorted(both))} was given at launch and is set by the autotuner's configs")
        if _tries:
            with _measured_by(self, _once):
                return bench(self, *args, config=config, **meta)
        return [0.0] * _QUANTILES

    timings.takes_the_first = True  # type: ignore[attr-defined]
    tuner._bench = timings
    if cached is not None:

        @functools.wraps(cached)
        def uncached(self: Any, tuning_key: Any, configs: Any, bench_fn: Any) -> Any:
            if not _is_interpreted(self):
                return cached(self, tuning_key, configs, bench_fn)
            bench_fn()
            return False

        tuner.check_disk_cache = uncached


def _is_interpreted(tuner: Any) -> bool:
    """Whether the tuned function, below decorators such as `triton.heuristics`, is an interpreted one."""
    function = getattr(tuner, "fn", None)
    while function is not None:
        if type(function).__name__ == "InterpretedFunction":
            return True
        function = getattr(function, "fn", None)
    return False


def _once(call: Callable[[], None], quantiles: Any = None) -> list[float]:
    """In place of the GPU's benchmark: one call, no clock."""
    call()
    return [0.0] * _QUANTILES


@contextmanager
def _measured_by(tuner: Any, measure: Callable[..., Any]) -> Iterator[None]:
    """Within it, the autotuner measures by this function."""
    own = vars(tuner).get("do_bench")
    tuner.do_bench = measure
    try:
        yield
    finally:
        if own is None:
            del tuner.do_bench
        else:
            tuner.do_bench = own
