"""An algorithm that is one program in the place of the definition: budgets of all derivatives, and never the truth."""

from __future__ import annotations

import re

import pytest
import torch
from jaxtyping import Float
from torch import Tensor

import gradoracle
from gradoracle.cases.sample import Sample, build
from gradoracle.check.acceptance import Allowance, judge
from gradoracle.model.case import Case
from gradoracle.model.contract import default_contract
from gradoracle.model.derivative import Derivative
from gradoracle.model.finding import Outcome
from gradoracle.oracle.exact.definition import Undefined
from gradoracle.oracle.rounding.annotations import stored
from gradoracle.oracle.truth import Oracle

CONTRACT = default_contract("bfloat16")


def centred(x: Float[Tensor, "B N"]) -> Float[Tensor, "B N"]:
    return (x - x.mean(1, keepdim=True)) ** 2


def storing(x: Tensor) -> Tensor:
    """What is subtracted is stored in 16 bits first."""
    return (x - stored(x.mean(1, keepdim=True))) ** 2


def of(program: object) -> Oracle:
    own = gradoracle.family(centred, algorithms={"storing": {"definition": program}})  # type: ignore[dict-item]
    return Oracle(own)


def sample() -> Sample:
    """Of values far from 0, so that storing their mean shows."""
    found = build(Case("centred", {"B": 3, "N": 50}, "bfloat16", seed=4), of(storing).family.signature)
    return found.with_inputs(x=found.inputs["x"] + 300.0)


@pytest.mark.parametrize("derivative", list(Derivative))
def test_it_has_budgets_of_every_derivative(derivative: Derivative) -> None:
    oracle, own = of(storing), sample()
    assert oracle.has("storing", derivative) and not oracle.has("other", derivative)
    plain, found = (oracle.budgets(own, derivative, CONTRACT, algorithm=a) for a in ("definition", "storing"))
    assert set(plain) == set(found)
    for name, budget in found.items():
        assert torch.allclose(budget.value, plain[name].value, rtol=0, atol=1e-12), name
        some = plain[name].sigma > 0
        wider = (budget.sigma / plain[name].sigma)[some].median()
        assert wider > 1.02 or name == "hvp.x", (name, wider)  # of a square: the second derivative has no x


def rounding(x: Tensor, by: float = 1.0) -> Tensor:
    """A kernel of that algorithm, or with a mean that is off by a factor."""
    mean = (x.float().mean(1, keepdim=True) * by).bfloat16().float()
    return ((x.float() - mean) ** 2).bfloat16()


def test_a_right_kernel_is_within_its_budget_and_a_wrong_one_is_not() -> None:
    """The definition alone has no room for the mean's rounding."""
    oracle, own = of(storing), sample()
    for algorithm, by, expected in (
        ("storing", 1.0, Outcome.HOLDS), ("storing", 1.05, Outcome.VIOLATED), ("definition", 1.0, Outcome.VIOLATED),
    ):  # fmt: skip
        budget = oracle.budgets(own, Derivative.FORWARD, CONTRACT, algorithm=algorithm)["out"]
        truth = oracle.truth(own, Derivative.FORWARD, {"out": budget}, CONTRACT)["out"].value
        allowance = Allowance(budget.sigma, budget.errors, floor=budget.floor)
        found = judge("out", rounding(own.inputs["x"], by), truth, allowance, continuous=True)
        assert (found.outcome is Outcome.VIOLATED) == (expected is Outcome.VIOLATED), (algorithm, by, found)


def test_it_is_never_the_truth() -> None:
    """An algorithm with another formula changes no truth; and its distance from the definition is no radius."""
    oracle, own = of(lambda x: storing(x) + 1.0), sample()
    wrong = oracle.budgets(own, Derivative.FORWARD, CONTRACT, algorithm="storing")
    assert oracle.confirmed(own, Derivative.FORWARD, "storing", wrong, CONTRACT) is None
    right = oracle.budgets(own, Derivative.FORWARD, CONTRACT)
    truth = oracle.truth(own, Derivative.FORWARD, right, CONTRACT)["out"].value
    assert torch.allclose(truth, centred(own.inputs["x"].double()), rtol=0, atol=1e-12)


def test_one_that_cannot_be_run_is_a_sentence() -> None:
    def refusing(x: Tensor) -> Tensor:
        raise ValueError("not today")

    with pytest.raises(Undefined) as found:
        of(refusing).budgets(sample(), Derivative.VJP, CONTRACT, algorithm="storing")
    assert re.search("not today", str(found.value)) and "\n" not in str(found.value)
