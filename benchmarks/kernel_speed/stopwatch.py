"""Stopwatch: times, peak memory and CUDA graph of one entry of a row."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from gradoracle.execution.bench import TIMED, Work, device_times, wall_milliseconds
from gradoracle.model.errors import named

LEAST, MOST = 50, 200  # timed calls
LONG = 0.1  # seconds; of a longer call fewer are timed
LONG_TIMED = 3.0  # seconds in all, then, and three calls at least
SHORT = 0.5  # milliseconds; a shorter call is timed as a CUDA graph too
Factory = Callable[[], Work]


@dataclass(frozen=True)
class Times:
    """Milliseconds of repeated calls: their median, the quartiles around it, and how many there were."""

    median: float
    lower: float
    upper: float
    count: int


@dataclass(frozen=True)
class Measured:
    """What one entry of a row took.

    Attributes:
        times: of calls as Python makes them.
        graph: of replays of one call as a CUDA graph; None where a call is not short, or cannot be captured.
        no_graph: why a short call has no graph.
        peak: bytes allocated at most, beyond the inputs, from the set-up to the end of a call; None: not known.
    """

    times: Times
    graph: Times | None = None
    no_graph: str = ""
    peak: int | None = None


class Stopwatch(Protocol):
    """How calls are timed on a device."""

    def times(self, call: Work) -> list[float]:
        """Milliseconds of repeated calls."""

    def peak(self, factory: Factory) -> int | None:
        """Bytes allocated at most, beyond what is allocated now, by a set-up and one call."""

    def graph(self, factory: Factory) -> Work | None:
        """The replay of one call; None where the device has no graphs."""

    def release(self) -> None:
        """Give back memory that nothing refers to."""


def count(once: float) -> int:
    """How many calls are timed, given the seconds of one."""
    if once > LONG:
        return max(3, min(LEAST, int(LONG_TIMED / once)))
    return max(LEAST, min(MOST, int(TIMED / once)))


def summary(milliseconds: list[float]) -> Times:
    """The median and the quartiles of at least one time."""
    if len(milliseconds) == 1:
        return Times(milliseconds[0], milliseconds[0], milliseconds[0], 1)
    lower, median, upper = statistics.quantiles(milliseconds, n=4, method="inclusive")
    return Times(median, lower, upper, len(milliseconds))


def measured(factory: Factory, watch: Stopwatch) -> Measured:
    """Time an entry, after a first call that compiles, tunes and makes the inputs.

    Raises:
        Exception: whatever the entry raises.
    """
    factory()()
    watch.release()
    peak = watch.peak(factory)
    call = factory()
    times = summary(watch.times(call))
    del call
    watch.release()
    graph, no_graph = None, ""
    if times.median < SHORT:
        try:
            replay = watch.graph(factory)
            graph = None if replay is None else summary(watch.times(replay))
        except Exception as error:
            no_graph = named(error)
    return Measured(times, graph, no_graph, peak)


class Cuda:
    """The current CUDA device: events around each call, its cache cleared before."""

    def times(self, call: Work) -> list[float]:
        return device_times(call, count)

    def peak(self, factory: Factory) -> int:
        import torch

        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        result: Any = factory()()
        torch.cuda.synchronize()
        del result
        return torch.cuda.max_memory_allocated() - before

    def graph(self, factory: Factory) -> Work:
        """Set-up and warm-up happen on the captured stream, since autograd goes back on the one that it came by."""
        import torch

        stream, before = torch.cuda.Stream(), torch.cuda.current_stream()
        stream.wait_stream(before)
        with torch.cuda.stream(stream):
            call = factory()
            for _ in range(3):
                call()
        stream.synchronize()
        whole = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(whole, stream=stream):
                result = call()
        finally:
            torch.cuda.set_stream(before)  # a capture that fails stays on its own
        torch.cuda.synchronize()

        def replay(kept: object = (call, result)) -> None:
            whole.replay()

        return replay

    def release(self) -> None:
        import torch

        gc.collect()
        torch.cuda.empty_cache()


class Cpu:
    """Wall times of calls; neither graphs nor memory."""

    def times(self, call: Work) -> list[float]:
        started = time.perf_counter()
        call()
        return [wall_milliseconds(call)[0] for _ in range(count(max(time.perf_counter() - started, 1e-6)))]

    def peak(self, factory: Factory) -> None:
        return None

    def graph(self, factory: Factory) -> None:
        return None

    def release(self) -> None:
        gc.collect()
