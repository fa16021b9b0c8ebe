"""Options and profiles of this repository's own pytest runs; ``gradoracle.testcase`` needs none of them."""

from __future__ import annotations

import gc
import os
import signal

os.environ.setdefault("OMP_NUM_THREADS", "1")  # xdist has a process for each core; threads on top only wait
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("GRADORACLE_STRICT", "1")  # an error of an explanation fails its test

import pytest
from hypothesis import HealthCheck, settings

from gradoracle.cli.testing import PROFILES
from gradoracle.execution import device, fork_server

for _name, _examples in PROFILES.items():
    settings.register_profile(
        _name, max_examples=_examples, deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow]
    )
settings.load_profile("dev")


def pytest_configure() -> None:
    """What the processes of a session need from the first one, which begins before its workers do.

    The same fork servers serve them all. Where a shell started this session in the background SIGINT is ignored, also
    by every process that a test starts and means to interrupt.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    fork_server.warm()
    os.environ.update(fork_server.variables())


def pytest_addoption(parser: pytest.Parser) -> None:
    """Which properties are checked on what, and how long."""
    group = parser.getgroup("gradoracle")
    group.addoption("--device", default="auto", choices=device.ASKED, help="where kernels run (default: auto)")
    group.addoption("--family", default="*", metavar="GLOB", help="only families whose name matches")
    group.addoption(
        "--brief", action="store_true", help="few and small cases, a case at least of each property: make test"
    )
    group.addoption(
        "--examples",
        type=int,
        default=0,
        metavar="N",
        help=f"cases a dtype; default from --hypothesis-profile: {', '.join(f'{n} {k}' for k, n in PROFILES.items())}",
    )


def pytest_collection_finish() -> None:
    """What is imported and collected stays: no search for garbage goes through it again."""
    gc.collect()
    gc.freeze()
