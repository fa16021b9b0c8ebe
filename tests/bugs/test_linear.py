"""Faults of released linear attentions, semi-CRFs and autotuned kernels: the property that a bug names catches it."""

from __future__ import annotations

import dataclasses
from functools import cache
from types import ModuleType

import pytest
from places import TESTS

from gradoracle.check import minimise
from gradoracle.check.run import check
from gradoracle.execution import interpreter
from gradoracle.model.causes import CAUSES
from gradoracle.model.dims import Sizes, parse_sizes
from gradoracle.model.verdict import Report, Status
from gradoracle.mutation.bugs import Bug
from gradoracle.project import target
from gradoracle.project.request import Request

FOLDER = TESTS / "bugs"
FILES = (
    "autotune", "chunk_state", "forgetting_attention", "gated_attention", "gold_score", "lightning_chunks",
    "lightning_tiles", "normalised_attention", "packed_linear", "reverse_cumsum", "semicrf_recursion", "semicrf_ring",
    "tutorial_attention",
)  # fmt: skip
SMALL = {
    "lightning": ("B=1:2", "H=1:3", "N=1:40", "D=1:20", "Dv=1:20"),
    "sdpa": ("B=1:2", "H=1:2", "T=1:40", "M=1:40", "D=1:16", "Dv=1:16"),
    "semicrf": ("T=1:12", "K=1:5"),
    "": (),
}
"""Sizes that are quick to judge, where a bug names no others."""

CASES = (6, 24)
"""How many cases a bug has to be caught in, and how many where it is not caught in these."""

pytestmark = pytest.mark.skipif(
    interpreter.explain_unavailable() is not None, reason=str(interpreter.explain_unavailable())
)
interpreter.activate()


@cache
def module(name: str) -> ModuleType:
    return target._module(str(FOLDER / f"{name}.py"))[0]


def listed() -> list[object]:
    return [pytest.param(name, bug, id=bug.name) for name in FILES for bug in module(name).BUGS]


@pytest.fixture(autouse=True)
def unshrunk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Failures are expected, and not small."""
    monkeypatch.setattr(minimise, "SHRINK_SECONDS_IN_ALL", 0.0)


def checked(name: str, bug: Bug, side: str, examples: int) -> Report:
    subject = next(key for key, value in vars(module(name)).items() if value is getattr(bug, side))
    dims: dict[str, Sizes] = dict(parse_sizes(text) for text in SMALL[bug.family])
    dims |= dict(parse_sizes(f"{dim}={sizes}") for dim, sizes in bug.dims.items())
    place = f"{FOLDER / name}.py:{subject}"
    asked = Request(place, family=bug.family or None, device="cpu", property=bug.law, examples=examples, dims=dims)
    return check(dataclasses.replace(asked, workers=0))


def statuses(report: Report) -> set[Status]:
    return {verdict.status for verdict in report.verdicts}


@pytest.mark.parametrize(("name", "bug"), listed())
def test_the_law_catches_the_bug_and_passes_the_correct_kernel(name: str, bug: Bug) -> None:
    examples = CASES[0]
    if Status.VIOLATED not in statuses(checked(name, bug, "wrong", examples)):
        examples = CASES[1]
        assert Status.VIOLATED in statuses(checked(name, bug, "wrong", examples))
    assert statuses(checked(name, bug, "right", examples)) == {Status.HOLDS}


def test_every_bug_says_where_it_was_and_what_it_is() -> None:
    bugs = [bug for name in FILES for bug in module(name).BUGS]
    assert len({bug.name for bug in bugs}) == len(bugs) >= 22
    for bug in bugs:
        wrong = getattr(bug.wrong, "call", bug.wrong)
        assert wrong.__doc__ and wrong.__doc__ != getattr(bug.right, "call", bug.right).__doc__, bug.name
        assert bug.cites.partition("/")[2].replace("#", "@").count("@") == 1, bug.name
        assert bug.cause in {"", *CAUSES}, bug.name
