"""Dask pool: an existing dask cluster instead of local worker processes; results come in the order of the jobs."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import pickle
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import CancelledError
from importlib import metadata
from importlib.util import find_spec
from typing import Any

from gradoracle.execution import dask_worker, environment
from gradoracle.execution.dask_worker import VERSIONS, Order
from gradoracle.execution.executor import Crash, Lost, Result
from gradoracle.model.errors import UsageError, first_line, named
from gradoracle.model.job import Job
from gradoracle.model.wording import counted
from gradoracle.project.provenance import public, version

CONNECT_SECONDS = 10.0
GONE_SECONDS = 60.0  # without any worker or scheduler, after which the cluster counts as lost
_TICK = 1.0  # seconds between two checks of the cluster
_OVER = 1  # cases that are queued on a dask worker in addition to those it runs


class DaskPool:
    """Runs jobs on a dask cluster, each in a protected process there.

    A job whose dask worker is lost is run by another. If its dask workers are lost again and again, it is run once more
    while no other runs; if they are lost then, too, it has crashed.

    Args:
        address: of the scheduler, such as ``tcp://host:8786``.
        order: what a dask worker needs to examine cases.

    Raises:
        UsageError: the extra is not installed, no scheduler answers, it has no workers or loses them while they are
            examined, or one of them cannot examine cases as this process would.
    """

    in_order = True
    shares_compilations = False

    def __init__(self, address: str, order: Order) -> None:
        self._address, self._order = address, pickle.dumps(order, pickle.HIGHEST_PROTOCOL)
        self._pending: dict[Any, int] = {}  # future -> place of its job among those of the run
        self._threads: dict[str, int] = {}
        self._looked, self._alive = 0.0, time.monotonic()
        self._is_lost = self._has_results = False
        self._client = _connected(address)
        try:
            self._require_versions()
            self._environment, self._memory = self._facts()
        except BaseException as error:
            self.close()
            if isinstance(error, Lost):
                raise UsageError(str(error)) from None
            if isinstance(error, (CancelledError, OSError, asyncio.TimeoutError)):
                raise UsageError(self._gone()) from None
            raise

    def run(self, jobs: Iterable[Job], until: float = math.inf) -> Iterator[Result]:
        """Run jobs, pulled as the cluster has room for them; results in the order of the jobs.

        Jobs that still run at the time ``until`` of the monotonic clock are crashes of the kind "stopped".

        Raises:
            Lost: the scheduler or all workers are lost and do not come back; or, after the first result, a new worker
                cannot examine the cases.
            UsageError: a worker cannot examine the cases, and there was no result yet.
        """
        source, exhausted = iter(jobs), False
        sent: dict[int, Job] = {}
        known: dict[int, Result] = {}
        given = yielded = 0
        try:
            while True:
                while not exhausted and len(self._pending) < self._room():
                    job = next(source, None)
                    if job is None:
                        exhausted = True
                        break
                    sent[given] = job
                    self._pending[self._send(job)] = given
                    given += 1
                if yielded in known:
                    yield known.pop(yielded)
                    yielded += 1
                elif exhausted and not sent:
                    return
                elif time.monotonic() > until:
                    exhausted = True
                    known |= {n: Result(job, crash=Crash(None, "was stopped", "stopped")) for n, job in sent.items()}
                    sent.clear()
                    self._cancel()
                failure: Lost | UsageError | None = None
                for future in self._finished():
                    place = self._pending.pop(future)
                    try:
                        known[place] = self._outcome(future, sent.pop(place))
                    except (Lost, UsageError) as error:
                        failure = failure or error
                if failure is not None:
                    raise failure if isinstance(failure, Lost) else self._unfit(failure)
        except Lost:
            yield from (known[place] for place in sorted(known))  # even if an earlier one is missing
            raise
        finally:
            self._cancel()

    def run_alone(self, job: Job, limit_factor: float = 1.0) -> Result:
        """Run one job before all others; if its time limits are stretched, while no other job of this run runs."""
        if limit_factor > 1.0:
            self._wait_for_all()
        return self._outcome(self._send(job, limit_factor, priority=1), job, limit_factor)

    def memory(self) -> tuple[int, str]:
        """Bytes that a case may use: those of the smallest dask worker."""
        return self._memory, "on the dask worker with the least memory"

    def environment(self) -> dict[str, str]:
        """What the cluster's workers run on."""
        return {**environment.describe("cpu"), **self._environment}

    def close(self) -> None:
        """Leave the cluster; its processes for this run end."""
        self._cancel()
        if not self._is_lost:
            with contextlib.suppress(Exception):
                self._client.run(dask_worker.release, self._order, on_error="ignore")
        with contextlib.suppress(Exception):
            self._client.close(timeout=2)

    def _outcome(self, future: Any, job: Job, limit_factor: float = 1.0) -> Result:
        """The result of a job; if its dask workers are lost again and again, it runs once more while no other runs."""
        from distributed import KilledWorker

        try:
            return self._result(future)
        except KilledWorker:
            self._wait_for_all()
        try:
            return self._result(self._send(job, limit_factor, priority=1))
        except KilledWorker as error:
            times = error.allowed_failures + 1
            how = f"{times} dask workers in a row were lost while they ran only this case"
            return Result(job, crash=Crash(None, how, "exit"))

    def _send(self, job: Job, limit_factor: float = 1.0, priority: int = 0) -> Any:
        return self._client.submit(dask_worker.examined, self._order, job, limit_factor, pure=False, priority=priority)

    def _result(self, future: Any) -> Result:
        """The result of a job, once it is done; raises KilledWorker as dask does."""
        try:
            while not future.done():
                self._done([future])
            return self._value(future)
        finally:
            future.release()

    def _value(self, future: Any) -> Result:
        from distributed import KilledWorker

        try:
            result: Result = future.result()
        except (KilledWorker, KeyboardInterrupt):
            raise
        except UsageError as error:
            raise self._unfit(error) from None
        except (CancelledError, OSError):  # raised by dask for its jobs when it loses the scheduler
            self._is_lost = True
            raise Lost(self._gone()) from None
        except Exception as error:
            raise self._unfit(UsageError(f"a dask worker cannot judge cases: {named(error)}")) from None
        self._has_results |= isinstance(result.job, Job)
        return result

    def _unfit(self, error: UsageError) -> Lost | UsageError:
        """A dask worker cannot examine cases: the end of a run that has results, a usage error before that."""
        return Lost(str(error)) if self._has_results else error

    def _gone(self) -> str:
        return f"the dask scheduler at {self._address} was lost"

    def _finished(self) -> list[Any]:
        """The pending jobs that are done; waits a moment for the first if any is pending."""
        return self._done(list(self._pending)) if self._pending else []

    def _done(self, futures: list[Any]) -> list[Any]:
        from distributed import wait

        with contextlib.suppress(asyncio.TimeoutError, CancelledError), self._client.as_current():
            wait(futures, timeout=_TICK, return_when="FIRST_COMPLETED")
        found = [future for future in futures if future.done()]
        if not found:
            self._look()
        return found

    def _wait_for_all(self) -> None:
        while not all(future.done() for future in self._pending):
            self._done([future for future in self._pending if not future.done()])

    def _room(self) -> int:
        """The number of jobs that may be on the cluster at a time."""
        if time.monotonic() - self._looked > _TICK:
            self._look()
        return max(1, sum(self._threads.values()) + _OVER * len(self._threads))

    def _look(self) -> None:
        """Update the list of workers; raises Lost if there has been none for too long."""
        self._looked = time.monotonic()
        try:
            self._threads = dict(self._client.nthreads())
        except Exception:  # the scheduler does not answer
            self._threads = {}
        if self._threads:
            self._alive = time.monotonic()
        elif time.monotonic() - self._alive > GONE_SECONDS:
            self._is_lost = True
            raise Lost(f"the dask cluster at {self._address} has had no worker for {GONE_SECONDS:g} s")
        else:
            time.sleep(_TICK / 10)

    def _cancel(self) -> None:
        if self._pending and not self._is_lost:
            with contextlib.suppress(Exception):
                self._client.cancel(list(self._pending), force=True)
        self._pending.clear()

    def _require_versions(self) -> None:
        """Check that there are workers, and that all have the versions of this process."""
        self._look()
        if not self._threads:
            raise UsageError(f"the dask cluster at {self._address} has no workers; expected at least one")
        for name in VERSIONS:
            ours = version(name)
            found = self._client.run(metadata.version, name, on_error="return")
            for worker, theirs in sorted(found.items()):
                there = theirs if isinstance(theirs, str) else ""
                if public(there) != public(ours):
                    has = f"has {name} {there}" if there else f"has no {name}"
                    raise UsageError(f"the dask worker {worker} {has}; expected {ours or 'none'}, as here")

    def _facts(self) -> tuple[dict[str, str], int]:
        """What the workers run on, after each has shown that it can examine cases; and the least memory of one."""
        futures = {
            self._client.submit(dask_worker.facts, self._order, worker, pure=False, workers=[worker]): worker
            for worker in self._threads
        }
        found: list[dict[str, str]] = []
        while futures:
            for future in self._done(list(futures)):
                del futures[future]
                try:
                    found.append(future.result())
                except UsageError:
                    raise
                except Exception as error:
                    raise UsageError(
                        f"the dask cluster at {self._address} cannot judge cases: {type(error).__name__}: {error}"
                    ) from None
            self._look()
            for future, worker in list(futures.items()):
                if worker not in self._threads:  # lost; its replacement is examined by its first case
                    del futures[future]
        if not found:
            raise UsageError(f"the dask cluster at {self._address} lost all its workers while they were inspected")
        together: dict[str, str] = {}
        for name in ("cpu", "gpu"):
            distinct = dict.fromkeys(facts[name] for facts in found if name in facts)
            together |= {name: "; ".join(distinct)} if distinct else {}
        threads = sum(self._threads.values())
        cluster = f"dask, {counted(len(self._threads), 'worker')}, {counted(threads, 'thread')}"
        return {**together, "cluster": cluster}, min(int(facts["memory"]) for facts in found)


def _connected(address: str) -> Any:
    """A client of a scheduler."""
    if find_spec("distributed") is None:
        raise UsageError("distributed is not installed: needed for --scheduler, by pip install 'gradoracle[cluster]'")
    from distributed import Client

    logging.getLogger("distributed").setLevel(logging.CRITICAL)  # errors are reported in one sentence
    try:
        return Client(address, timeout=CONNECT_SECONDS, set_as_default=False, name="gradoracle")
    except (OSError, ValueError, asyncio.TimeoutError) as error:
        raise UsageError(f"no dask scheduler answers at --scheduler {address}: {first_line(error)}") from None
