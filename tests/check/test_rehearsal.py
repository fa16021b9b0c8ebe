"""Rehearsal: the kernel calls of the properties of a case, without comparisons; what is rehearsed cannot go wrong."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import torch

from gradoracle.cases.sample import build
from gradoracle.check.judge_case import examine
from gradoracle.check.plan import plan, resolved
from gradoracle.check.rehearsal import rehearse
from gradoracle.execution.kernel_runner import KernelRunner
from gradoracle.model.kernel import Kernel
from gradoracle.model.property import PropertyKind
from gradoracle.oracle.truth import Oracle
from gradoracle.project.request import Request

SUBJECTS = resolved(Request("sdpa", device="cpu", workers=0, examples=12))
JOBS = plan(SUBJECTS).jobs
KERNEL = SUBJECTS.kernels["sdpa"]
ORACLE = Oracle(SUBJECTS.family)


class Calls:
    """The names of guarded calls."""

    def __init__(self) -> None:
        self.names: set[str] = set()

    @contextmanager
    def guard(self, name: str) -> Iterator[None]:
        self.names.add(name)
        yield


def rehearsed(job: Any, kernel: Kernel = KERNEL) -> set[str]:
    calls, properties = Calls(), [SUBJECTS.properties[name] for name in job.properties]
    sample = build(job.case, SUBJECTS.family.signature, domains=SUBJECTS.family.domains)
    rehearse(job.case, sample, KernelRunner(SUBJECTS.family, kernel, calls.guard), ORACLE, properties)
    return calls.names


@pytest.mark.parametrize("place", [0, 4])
def test_most_calls_of_a_case_are_rehearsed_and_no_others(place: int) -> None:
    """What it misses comes behind a budget or a truth: a step of differences, a call compared at once."""
    calls, job = Calls(), JOBS[place]
    by_definition = {name for name, prop in SUBJECTS.properties.items() if prop.kind is PropertyKind.DEFINITION}
    job = replace(job, properties=tuple(name for name in job.properties if name not in by_definition))
    examine(
        job,
        KernelRunner(SUBJECTS.family, KERNEL, calls.guard),
        ORACLE,
        [SUBJECTS.properties[n] for n in job.properties],
    )
    found = rehearsed(job)
    assert found <= calls.names and len(found) > 0.85 * len(calls.names)


def test_results_that_mean_nothing_are_as_good() -> None:
    def unwritten(q: Any, k: Any, v: Any, **options: Any) -> Any:
        return q @ k.mT @ v * torch.nan

    job = JOBS[3]
    explicit = {name for name in rehearsed(job) if "vjp" not in name and "forward" not in name}
    assert rehearsed(job, replace(KERNEL, call=unwritten)) >= explicit


def test_a_kernel_that_raises_is_left_for_when_the_case_is_judged() -> None:
    def broken(q: Any, k: Any, v: Any, **options: Any) -> Any:
        raise ZeroDivisionError

    assert "forward" in rehearsed(JOBS[0], replace(KERNEL, call=broken))
