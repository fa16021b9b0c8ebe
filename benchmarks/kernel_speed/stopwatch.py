"""Stopwatch: times, peak memory and CUDA graph of one entry of a row."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from gradoracle.model.errors import named

LEAST, MOST = 50, 200  # timed calls
LONG = 0.1  # seconds; of a longer call fewer are timed
LONG_TIMED = 3.0  # seconds in all, then, and three calls at least
SHORT = 0.5  # milliseconds; a shorter call is timed as a CUDA graph too
TIMED = 0.3  # seconds in all of the calls that are timed, between LEAST and MOST
CACHE = 256 << 20  # bytes written before a call is timed on a device: more than any cache holds
CYCLES = 2e9  # largest clock rate of a device, in cycles per second
Work = Callable[[], object]
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
    """The current CUDA device: events around each call, its cache cleared before.

    Before each call the device waits for as long as the host takes to launch it, so that it never idles within one.
    """

    def times(self, call: Work) -> list[float]:
        """Of a call that was made before, so that all is compiled; three more are not timed, or one long one."""
        import torch

        times: list[float] = []
        host, once = _seconds(call)
        if once < TIMED:
            call()
            host, once = _seconds(call)
        cleared = torch.empty(CACHE // 4, dtype=torch.int32, device="cuda")
        for _ in range(count(max(once, 1e-6))):
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            cleared.zero_()
            torch.cuda._sleep(int(CYCLES * (2 * min(host, TIMED) + 1e-4)))
            begin.record()
            call()
            end.record()
            torch.cuda.synchronize()
            times.append(begin.elapsed_time(end))
        return times

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


def _seconds(call: Work) -> tuple[float, float]:
    """Seconds until the host has launched a call, and until the device has ended it."""
    import torch

    torch.cuda.synchronize()
    started = time.perf_counter()
    call()
    host = time.perf_counter() - started
    torch.cuda.synchronize()
    return host, time.perf_counter() - started


class Cpu:
    """Wall times of calls; neither graphs nor memory."""

    def times(self, call: Work) -> list[float]:
        once = _wall_milliseconds(call)
        return [_wall_milliseconds(call) for _ in range(count(max(once / 1e3, 1e-6)))]

    def peak(self, factory: Factory) -> None:
        return None

    def graph(self, factory: Factory) -> None:
        return None

    def release(self) -> None:
        gc.collect()


def _wall_milliseconds(call: Work) -> float:
    started = time.perf_counter()
    call()
    return (time.perf_counter() - started) * 1e3
