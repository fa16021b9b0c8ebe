"""Dask pool: a map over a dask cluster. Each job runs in a protected process of a dask worker; dask does the rest."""

from __future__ import annotations

import contextlib
import functools
import logging
import math
import os
import pickle
import threading
import time
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

from distributed import CancelledError, Client, KilledWorker, TimeoutError, get_worker, wait

from gradoracle.execution import device, environment
from gradoracle.execution.executor import Crash, Lost, Result, StartupError
from gradoracle.execution.local_pool import LocalPool
from gradoracle.model.errors import UsageError, first_line, named
from gradoracle.model.job import Job
from gradoracle.model.wording import counted
from gradoracle.project.provenance import Provenance, ProvenanceJob

CONNECT_SECONDS = 10.0
KEPT_SECONDS = 60.0  # without a job on a dask worker, after which its processes end
IDLE_SECONDS = 60.0  # without a worker, after which a cluster is lost
_LOSSES = (CancelledError, OSError, TimeoutError)  # raised by dask without its scheduler
_timer = threading.Timer(0.0, lambda: None)  # in a dask worker: until its processes end


class DaskPool:
    """Runs jobs on the dask cluster of a scheduler, with the entry and setup of LocalPool.

    Raises UsageError if no scheduler answers, or if it has no workers or one that cannot run the jobs as we would here.
    """

    in_order, shares_compilations = True, False

    def __init__(self, address: str, entry: str, setup: Any, made_of: Provenance) -> None:
        self._order = pickle.dumps((entry, setup, os.getcwd(), made_of))
        self._gone, self._has_results = f"the dask scheduler at {address} was lost", False
        self._sent: list[tuple[Any, Any]] = []  # the jobs of ``run`` and their futures
        logging.getLogger("distributed").setLevel(logging.CRITICAL)  # errors are reported in one sentence
        try:
            self._client = Client(address, timeout=CONNECT_SECONDS, set_as_default=False, name="gradoracle")
        except (OSError, ValueError, TimeoutError) as error:
            raise UsageError(f"no dask scheduler answers at --scheduler {address}: {first_line(error)}") from None
        try:
            self._threads = self._client.nthreads()
            for future in [self._submit(ProvenanceJob(), workers=w, allow_other_workers=True) for w in self._threads]:
                self._result(ProvenanceJob(), future)  # raises if a worker cannot run jobs
            self._facts = self._client.run(environment.describe, setup.device, on_error="ignore").values()
            self._memory = self._client.run(environment.memory, on_error="ignore").values()
            if not self._memory:
                raise UsageError(f"the dask cluster at {address} has no workers; expected at least one")
        except BaseException as error:
            self.close()
            raise UsageError(self._gone) if isinstance(error, (Lost, *_LOSSES)) else error from None

    def run(self, jobs: Iterable[Any], until: float = math.inf) -> Iterator[Result]:
        """Run jobs, two for each thread of the cluster at a time; results in the order of the jobs.

        At the time ``until`` of the monotonic clock, the rest are crashes of the kind "stopped". Raises Lost without a
        scheduler. A worker that cannot run the jobs raises Lost too, or UsageError if there is no result yet.
        """
        source = iter(jobs)
        try:
            while True:
                room = max(1, 2 * sum(self._client.nthreads().values())) if time.monotonic() < until else 0
                self._sent += [(job, self._submit(job)) for job in islice(source, max(0, room - len(self._sent)))]
                if not self._sent:
                    return
                yield self._result(*self._sent.pop(0), until)
        except _LOSSES:
            raise Lost(self._gone) from None
        finally:
            self._sent.clear()  # dask drops a job whose future is gone

    def run_alone(self, job: Any) -> Result:
        """Run one job while no other of this pool runs."""
        with contextlib.suppress(CancelledError), self._client.as_current():
            wait([future for _, future in self._sent])
        return self._result(job, self._submit(job), is_alone=True)

    def memory(self) -> tuple[int, str]:
        """Bytes that a case may use: those of the smallest dask worker."""
        return min(self._memory), "on the dask worker with the least memory"

    def environment(self) -> dict[str, str]:
        """What the cluster's workers run on."""
        cluster = f"dask, {counted(len(self._threads), 'worker')}, {counted(sum(self._threads.values()), 'thread')}"
        several = {name: "; ".join(sorted({each.get(name, "") for each in self._facts})) for name in ("cpu", "gpu")}
        return (
            environment.describe("cpu") | {name: each for name, each in several.items() if each} | {"cluster": cluster}
        )

    def close(self) -> None:
        """Leave the cluster; its processes for this run end."""
        with contextlib.suppress(Exception):
            if self._client.status == "running":
                self._client.run(lambda: _process.cache_clear(), on_error="ignore")
            self._client.close(timeout=2)

    def _submit(self, job: Any, **where: Any) -> Any:
        return self._client.submit(judged, self._order, job, pure=False, **where)

    def _result(self, job: Any, future: Any, until: float = math.inf, is_alone: bool = False) -> Result:
        try:
            while not future.done() and (left := until - time.monotonic()) > 0:
                with contextlib.suppress(TimeoutError), self._client.as_current():
                    wait(future, timeout=min(left, IDLE_SECONDS))
                if not future.done() and left > IDLE_SECONDS and not self._client.nthreads():
                    self._gone = f"the dask cluster has had no worker for {IDLE_SECONDS:.0f} s"
                    raise TimeoutError
            result: Result = future.result(None if future.done() else 0.1)
        except KilledWorker as error:  # dask lost worker after worker, maybe because of the job's neighbours
            how = f"{error.allowed_failures + 1} dask workers in a row were lost while they ran only this case"
            return Result(job, crash=Crash(None, how, "exit")) if is_alone else self.run_alone(job)
        except _LOSSES:
            if time.monotonic() > until:
                return Result(job, crash=Crash(None, "was stopped", "stopped"))
            raise Lost(self._gone) from None
        except Exception as error:
            why = str(error) if isinstance(error, UsageError) else f"a dask worker cannot judge cases: {named(error)}"
            raise (Lost if self._has_results else UsageError)(why) from None
        self._has_results |= isinstance(job, Job)
        return result


def judged(order: bytes, job: Any) -> Result:
    """In a dask worker: the result of a job. Raises UsageError if no process here can run it as the client would."""
    global _timer
    _timer.cancel()
    result = _process(order, threading.get_ident()).run_alone(job)
    _timer = threading.Timer(KEPT_SECONDS, _process.cache_clear)
    _timer.start()
    return result


@functools.cache
def _process(order: bytes, thread: int) -> LocalPool:
    """The protected process of a run for a thread of a dask worker; it has the kernels and properties of the client."""
    entry, setup, folder, made_of = pickle.loads(order)
    free = environment.memory(free=True) if setup.device == "cpu" else None
    own = folder if os.path.isdir(folder) else None
    try:
        device.choose(setup.device, python=setup.python)
        env = device.each(setup.device, setup.python)
        pool = LocalPool(entry, setup, count=1, env=env, memory=free, folder=own)
        if (answer := pool.run_alone(ProvenanceJob())).value is None:
            raise UsageError(answer.sentence if answer.crash is None else answer.crash.how)
        made_of.require(answer.value)
    except (StartupError, UsageError) as error:
        why = getattr(error, "sentence", error)
        raise UsageError(f"the dask worker {get_worker().address} cannot check {setup.target}: {why}") from None
    return pool
