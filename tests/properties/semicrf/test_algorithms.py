"""The plain recursion, in the log domain without norms: its own order of roundings explains it, and no fault."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from gradoracle.properties.semicrf import FAMILY
from gradoracle.properties.semicrf.readings.scalable import PLAIN

from gradoracle.check.judge_property import judge_property
from gradoracle.model.derivative import Derivative
from gradoracle.model.kernel import Kernel
from gradoracle.model.verdict import Status
from gradoracle.oracle.truth import Oracle
from tests.properties.judging import evidence, property_of
from tests.properties.semicrf import plain

CASE = "case:1 semicrf cpu float32 B=4 T={T} C=2 K=2 transition~normal lengths~highest seed={seed}"
ORACLE = Oracle(FAMILY, "float64")
PROPERTIES = ("forward_matches_the_oracle", "vjp_matches_the_oracle")


def recursion(change: Any = lambda x: x, outside: bool = True) -> Kernel:
    own = plain.called(norms=False)
    return Kernel("plain", "semicrf", lambda cum, table, *rest: own(cum, change(table), *rest), outside=outside)


def judged(kernel: Kernel, line: str) -> dict[str, Any]:
    own = evidence(line, kernel, ORACLE)
    return {property_name: judge_property(property_of(FAMILY, property_name), own) for property_name in PROPERTIES}


@pytest.mark.parametrize("T", [19, 75, 120])
def test_it_holds_and_is_said_to_give_accuracy_away(T: int) -> None:
    for seed in (0, 1, 2):
        found = judged(recursion(), CASE.format(T=T, seed=seed))
        assert {property_name: each.status for property_name, each in found.items()} == dict.fromkeys(
            PROPERTIES, Status.HOLDS
        )
        notes = [f.message for each in found.values() for f in each.findings if f.gives_away]
        assert (T == 19 or notes) and all(note.endswith(f"judged by '{PLAIN}'") for note in notes)


@pytest.mark.parametrize(
    "change",
    [
        lambda x: x * (1 + 2e-3),
        lambda x: x.bfloat16().float(),
        lambda x: torch.cat([x[:1], x[1:] + 1e-3]),
    ],
    ids=["transition 2e-3 large", "transition in bfloat16", "a row of transition 1e-3 off"],
)
def test_its_faults_are_found(change: Any) -> None:
    found = judged(recursion(change), CASE.format(T=75, seed=1))
    assert {property_name: each.status for property_name, each in found.items()} == dict.fromkeys(
        PROPERTIES, Status.VIOLATED
    )


def test_a_kernel_with_norms_is_not_judged_by_it() -> None:
    line = CASE.format(T=120, seed=0)
    assert Status.VIOLATED in {each.status for each in judged(recursion(outside=False), line).values()}
    declares = replace(recursion(outside=False), algorithm=PLAIN)
    assert {each.status for each in judged(declares, line).values()} == {Status.HOLDS}


def test_its_budget_grows_with_log_z_and_the_definition_s_with_its_last_rounding() -> None:
    """Each alpha_t is rounded by u / sqrt 3 of t / T log Z: u log Z sqrt(T) / 3 in all; norms leave u log Z."""
    ratios = []
    for T in (19, 75, 120):
        own = evidence(CASE.format(T=T, seed=0), recursion(), ORACLE)
        one, other = (own.budgets(Derivative.VJP, name)["log_z"] for name in (PLAIN, "definition"))
        expected = 2.0**-24 * one.value.abs() * T**0.5 / 3
        assert ((one.sigma > expected) & (one.sigma < 6 * expected)).all()
        ratios.append(float((one.sigma / other.sigma).median()))
    assert ratios == sorted(ratios) and ratios[-1] > 4
