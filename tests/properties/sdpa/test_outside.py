"""Kernels from outside: the widest algorithm that is shipped decides, for tensors and for properties of them alike."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from gradoracle.properties.sdpa import FAMILY
from torch import Tensor

from gradoracle.check.evidence import Evidence
from gradoracle.check.judge_property import judge_property
from gradoracle.check.properties import properties_of
from gradoracle.model.case import parse
from gradoracle.model.finding import Outcome
from gradoracle.model.job import PropertyResult
from gradoracle.model.kernel import Kernel
from gradoracle.model.verdict import Status
from tests.properties.sdpa.attention import evidence

CASE = parse("case:1 sdpa cpu bfloat16 B=1 H=2 T=64 M=128 D=64 Dv=64 q~normal:8 seed=3")[2]
PROPERTIES = {prop.name: prop for prop in properties_of(FAMILY)}
SUM, VJP = "rows_of_ds_sum_to_zero", "vjp_matches_the_oracle"


class Gradients(torch.autograd.Function):
    """SDPA in float64 throughout, but for where z comes from: ``exact`` P, O as it was ``stored``, or ``half`` of z."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, origin: str) -> Tensor:
        ctx.save_for_backward(q, k, v)
        ctx.origin = origin
        scale = q.shape[-1] ** -0.5
        o = torch.softmax(q.double() @ k.double().mT * scale, -1) @ v.double()
        return o.to(q.dtype)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        dtype, scale = g.dtype, g.shape[-1] ** -0.5
        q, k, v, g = (t.double() for t in (*ctx.saved_tensors, g))
        p = torch.softmax(q @ k.mT * scale, -1)
        o = p @ v
        z = (g * (o.to(dtype).double() if ctx.origin == "stored" else o)).sum(-1, keepdim=True)
        ds = p * (g @ v.mT - (z / 2 if ctx.origin == "half" else z))
        return *(t.to(dtype) for t in (ds @ k * scale, ds.mT @ q * scale, p.mT @ g)), None


def judged(property_name: str, origin: str, outside: bool) -> tuple[PropertyResult, Evidence]:
    kernel = Kernel("gradients", "sdpa", lambda q, k, v: Gradients.apply(q, k, v, origin), outside=outside)
    kernel = replace(kernel, options={"causal": (), "scale": ()})
    own = evidence(CASE, kernel)
    return judge_property(PROPERTIES[property_name], own), own


@pytest.mark.parametrize("property_name", [SUM, VJP])
def test_a_z_from_the_stored_o_is_held_to_flash_and_never_to_the_definition_alone(property_name: str) -> None:
    assert judged(property_name, "stored", outside=False)[0].status is Status.VIOLATED
    found, _ = judged(property_name, "stored", outside=True)
    assert found.status is not Status.VIOLATED
    assert all(finding.outcome is not Outcome.VIOLATED for finding in found.findings)


@pytest.mark.parametrize("property_name", [SUM, VJP])
@pytest.mark.parametrize("outside", [False, True])
def test_a_wrong_z_is_caught_and_a_right_one_holds(property_name: str, outside: bool) -> None:
    assert judged(property_name, "half", outside)[0].status is Status.VIOLATED
    assert judged(property_name, "exact", outside)[0].status is Status.HOLDS


def test_what_holds_under_the_first_algorithm_of_several_is_not_pooled() -> None:
    """A pool of one algorithm's sigmas would say of another's kernel that its errors spread too far."""
    outside, own = judged(SUM, "exact", outside=True)[0], judged(SUM, "exact", outside=False)[0]
    assert own.findings[0].pool is not None and outside.findings[0].pool is None


def test_the_second_algorithm_is_read_only_where_the_first_explains_too_little() -> None:
    """A typical error is pooled under the first budget; one that is not brings the second in, for its pool too."""
    computed = {}
    for origin in ("exact", "stored"):
        found, own = judged(VJP, origin, outside=True)
        computed[origin] = "budgets vjp flash" in own._kept
        assert all(finding.pool is not None for finding in found.findings)
    assert computed == {"exact": False, "stored": True}


def test_an_algorithm_without_a_program_of_its_own_adds_no_budget() -> None:
    from gradoracle.model.derivative import Derivative

    _, own = judged(VJP, "exact", outside=True)
    assert own.algorithms(Derivative.VJP) == own.algorithms(Derivative.FORWARD) == ("definition", "flash")
    assert own.algorithms(Derivative.JVP) == own.algorithms(Derivative.HVP) == ("definition",)
