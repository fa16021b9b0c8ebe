"""Dask worker: the code that runs inside a dask worker: cases, in protected processes that stay for the next case."""

from __future__ import annotations

import contextlib
import hashlib
import os
import pickle
import threading
import time
import uuid
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from gradoracle.execution import device, environment
from gradoracle.execution.executor import Result, StartupError
from gradoracle.execution.local_pool import LocalPool
from gradoracle.execution.process import Phase, Work, load
from gradoracle.model.errors import UsageError
from gradoracle.model.job import Job
from gradoracle.project.provenance import Provenance, ProvenanceJob

VERSIONS = ("gradoracle", "torch", "triton")  # that a cluster must share with the sender of cases
_FACTS = "facts"
_KEPT_SECONDS = 60.0  # after which an idle process ends: the sender may be gone without releasing it
_RUNS = 1000  # finished runs that are remembered


@dataclass(frozen=True)
class Order:
    """What a dask worker needs to examine the cases of a run as this process would.

    Attributes:
        entry: ``"package.module:function"``, called with the setup: examines cases, and knows its provenance.
        setup: of the run.
        target: of the run, as named in messages.
        device: of the run.
        folder: the working directory, used there if it exists.
        provenance: of kernels, definition and properties here.
        run: identifies the run; another with the same values is distinct.
    """

    entry: str
    setup: Any
    target: str
    device: str
    folder: str
    provenance: Provenance
    run: str = field(default_factory=lambda: uuid.uuid4().hex)


@dataclass
class _Pool:
    """One protected process of this dask worker; ``turn`` selects its GPU if there are several."""

    workers: LocalPool
    turn: int
    facts: dict[str, str]
    since: float = 0.0


_lock = threading.Lock()
_idle: dict[bytes, list[_Pool]] = {}  # by order
_turns: dict[bytes, set[int]] = {}  # of idle and busy processes, by order
_over: deque[bytes] = deque(maxlen=_RUNS)  # digests of orders whose run is over
_timer: threading.Timer | None = None  # until an idle process has to end


def entry(order: Order) -> Work:
    """The entry of a protected process: examines cases, and describes what it runs on.

    Raises:
        TargetError: the target cannot be resolved there.
        UsageError: there is no GPU for a run on one.
    """
    if os.path.isdir(order.folder):
        os.chdir(order.folder)
    device.prepare(order.device)
    if order.device == "cuda" and device.choose("auto") != "cuda":
        raise UsageError("PyTorch sees no CUDA device there, and --device is cuda")
    work = load(order.entry)(order.setup)

    def examine_or_describe(job: Any, phase: Phase) -> Any:
        if job != _FACTS:
            return work(job, phase)
        there: Provenance = work(ProvenanceJob(), phase)
        _require_packages(order.provenance.packages, there.packages)
        _require_files(order.provenance.files, there.files)
        return environment.describe(order.device)

    return examine_or_describe


def _require_packages(here: Mapping[str, str], there: Mapping[str, str]) -> None:
    for name, ours in here.items():
        if there.get(name) != ours:
            raise UsageError(f"it has {name} {there.get(name) or 'from elsewhere'}; expected {ours}, as here")


def _require_files(here: Mapping[str, str], there: Mapping[str, str]) -> None:
    for name in sorted({*here, *there}):
        if here.get(name) != there.get(name):
            what = "lacks" if name not in there else "has another" if name in here else "also has"
            raise UsageError(f"it {what} {name}; expected the same files as here")


def facts(order: bytes, address: str) -> dict[str, str]:
    """What a dask worker runs on and the bytes it may use, once it has shown that it can examine cases.

    Raises:
        UsageError: it cannot.
    """
    with _pool(order, address) as pool:
        return {**pool.facts, "memory": str(environment.memory())}


def examined(order: bytes, job: Job, limit_factor: float) -> Result:
    """The result of one case, whatever its kernel did to its process.

    Raises:
        UsageError: cases cannot be examined here.
    """
    from distributed import get_worker

    with _pool(order, get_worker().address) as pool:
        return pool.workers.run_alone(job, limit_factor)


def release(order: bytes) -> None:
    """End the idle processes of a finished run, without waiting; busy ones end after their case."""
    with _lock:
        _over.append(_digest(order))
        pools = _idle.pop(order, [])
        _turns.pop(order, None)
    threading.Thread(target=_end, args=(pools,)).start()


@contextlib.contextmanager
def _pool(order: bytes, address: str) -> Iterator[_Pool]:
    """A protected process for one case: an idle one, or a new one."""
    with _lock:
        kept = _digest(order) not in _over  # False for a late case of a finished run
        idle = _idle.setdefault(order, []) if kept else []
        turns = _turns.setdefault(order, set()) if kept else set()
        pool = idle.pop() if idle else None
        turn = pool.turn if pool is not None else min(set(range(len(turns) + 1)) - turns)
        turns.add(turn)
    try:
        if pool is None:
            pool = _started(order, turn)
        yield pool
    except BaseException as error:
        with _lock:
            turns.discard(turn)
        _end([pool] if pool is not None else [])
        if isinstance(error, StartupError):
            target = pickle.loads(order).target
            raise UsageError(f"the dask worker {address} cannot check {target}: {error.sentence}") from None
        raise
    with _lock:
        pool.since = time.monotonic()
        is_kept = order in _idle
        if is_kept:
            _idle[order].append(pool)
            _watch()
    _end([] if is_kept else [pool])


def _started(order: bytes, turn: int) -> _Pool:
    """A new process that has shown that it can examine cases as the sender of the order would."""
    given: Order = pickle.loads(order)
    envs = device.each(given.device)
    free = environment.memory(free=True) if given.device == "cpu" else None
    workers = LocalPool(
        "gradoracle.execution.dask_worker:entry", given, count=1, env=envs[turn % len(envs)], memory=free
    )
    answer = workers.run_alone(_FACTS)
    if answer.value is None:
        workers.close()
        sentence = answer.crash.how if answer.crash is not None else answer.sentence
        raise StartupError(answer.error or sentence, sentence)
    return _Pool(workers, turn, answer.value)


def _watch() -> None:
    """Start the timer that ends idle processes; with the lock held."""
    global _timer
    since = [pool.since for pools in _idle.values() for pool in pools]
    if since and _timer is None:
        _timer = threading.Timer(max(0.0, min(since) + _KEPT_SECONDS - time.monotonic()), _tidy)
        _timer.daemon = True
        _timer.start()


def _tidy() -> None:
    """End the processes that have been idle for too long."""
    global _timer
    found = []
    with _lock:
        for order, pools in list(_idle.items()):
            for pool in list(pools):
                if time.monotonic() - pool.since >= _KEPT_SECONDS:
                    pools.remove(pool)
                    _turns[order].discard(pool.turn)
                    found.append(pool)
            if not _turns[order]:
                del _idle[order], _turns[order]
        _timer = None
        _watch()
    _end(found)


def _digest(order: bytes) -> bytes:
    return hashlib.sha256(order).digest()


def _end(pools: list[_Pool]) -> None:
    for pool in pools:
        pool.workers.close()
