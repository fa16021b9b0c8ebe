"""An oracle that a family brings along for what is too large to trace: asked first, with the same names and limits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from gradoracle.properties.universal.derivatives import forward_matches_the_oracle, vjp_matches_the_oracle
from jaxtyping import Float
from torch import Tensor

from gradoracle.cases.sample import Sample, build
from gradoracle.check import memory_estimate
from gradoracle.check.evidence import Evidence
from gradoracle.check.judge_property import judge_property
from gradoracle.execution.kernel_runner import KernelRunner
from gradoracle.model.case import Case
from gradoracle.model.contract import PRESETS, Contract
from gradoracle.model.derivative import Derivative
from gradoracle.model.dims import sizes
from gradoracle.model.family import family
from gradoracle.model.kernel import Kernel
from gradoracle.model.verdict import Status
from gradoracle.oracle.exact.enclosure import Enclosure
from gradoracle.oracle.rounding.reading import Budget
from gradoracle.oracle.truth import Oracle, Unread, dims_of

LARGEST_TRACED = 50


class Sums:
    """Of a running sum, without its square matrix."""

    algorithms = ()

    def __init__(self) -> None:
        self.asked: list[tuple[Any, ...]] = []

    def outgrown(self, dims: Mapping[str, int]) -> bool:
        return dims["N"] > LARGEST_TRACED

    def serves(self, sample: Sample) -> bool:
        return sample.inputs["x"].shape[0] - 1 > LARGEST_TRACED

    def budgeted(self, contract: Contract) -> bool:
        return False

    def values(self, sample: Sample, derivative: Derivative) -> dict[str, Tensor]:
        self.asked.append(("values", derivative))
        out = sample.inputs["x"].double().cumsum(0)
        if derivative is Derivative.FORWARD:
            return {"out": out}
        assert derivative is Derivative.VJP
        return {"out": out, "dx": sample.cotangents["out"].double().flip(0).cumsum(0).flip(0)}

    def certified(self, sample: Sample, derivative: Derivative) -> dict[str, Enclosure] | None:
        if derivative is not Derivative.FORWARD:
            return None
        out = self.values(sample, derivative)["out"]
        return {"out": Enclosure(out, torch.zeros_like(out), torch.full_like(out, 1e-12))}

    def budgets(self, sample: Sample, derivative: Derivative, contract: Any, **options: Any) -> dict[str, Budget]:
        self.asked.append(("budgets", derivative, options["stored"]))
        found = {}
        for name, value in self.values(sample, derivative).items():
            sigma = 2.0**-24 * (1 + value.abs()) * len(value) ** 0.5
            none = torch.zeros((16, *value.shape), dtype=torch.float64)
            found[name] = Budget(value, sigma, sigma, none, 100 * sigma, 0 * sigma)
        return found


SUMS = Sums()


@family(dims={"N": sizes(1, 40, large=10**6)}, dtypes=("float32",), scalable=SUMS)
def running(x: Float[Tensor, "N+1"]) -> Float[Tensor, "N+1"]:
    """Running sums, by a triangular matrix."""
    return torch.tril(torch.ones(len(x), len(x), dtype=x.dtype)) @ x


def right(x: Tensor) -> Tensor:
    return x.double().cumsum(0).float()


def evidence(size: int, kernel: Any, reading: str = "auto") -> Evidence:
    case = Case("running", {"N": size}, seed=3)
    sample = build(case, running.signature)
    return Evidence(case, sample, KernelRunner(running, Kernel("running", "running", kernel)), Oracle(running, reading))


def test_what_is_outgrown_is_never_traced_and_what_is_not_always_is() -> None:
    for size, served in ((LARGEST_TRACED, False), (100_001, True)):
        SUMS.asked.clear()
        own = evidence(size, right)
        assert dims_of(running, own.sample) == {"N": size}
        assert (own.oracle.scalable(own.sample) is SUMS) is served
        for prop in (forward_matches_the_oracle, vjp_matches_the_oracle):
            assert judge_property(prop, own).status is Status.HOLDS
        assert bool(own.oracle._graphs) is not served
        assert bool(SUMS.asked) is served
    assert ("budgets", Derivative.VJP, {"out": "float32", "dx": "float32"}) in SUMS.asked


@pytest.mark.parametrize("size", [LARGEST_TRACED, 5000])
def test_a_wrong_kernel_is_wrong_by_either(size: int) -> None:
    assert (
        judge_property(forward_matches_the_oracle, evidence(size, lambda x: right(x) * 1.001)).status is Status.VIOLATED
    )


def test_a_reading_that_there_is_not_is_not_checked_with_the_reason() -> None:
    own = evidence(5000, right, "certified")
    assert judge_property(forward_matches_the_oracle, evidence(5000, right, "certified")).status is not Status.VIOLATED
    budgets = own.oracle.budgets(own.sample, Derivative.VJP, PRESETS["ieee32"])
    with pytest.raises(Unread, match="no certified reading of the vjp"):
        own.oracle.truth(own.sample, Derivative.VJP, budgets, PRESETS["ieee32"])
    truth = own.oracle.truth(own.sample, Derivative.FORWARD, budgets, PRESETS["ieee32"])["out"]
    assert truth.reading == "certified" and truth.undecided is not None and not bool(truth.undecided.any())


def test_the_memory_of_a_definition_that_is_not_run_is_not_asked_for() -> None:
    case = Case("running", {"N": 10**6})
    assert memory_estimate.demand(case, running, 1 << 34).held < 1 << 25
