"""Ranges of float inputs: cases lie in them in every dtype and layout and shrink in them; mistakes are a sentence."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest
import torch
from jaxtyping import Float
from torch import Tensor

import gradoracle
from gradoracle.cases.sample import Sample, build
from gradoracle.cases.shrinking import shrink
from gradoracle.cases.stream import stream
from gradoracle.model.case import Case, Draw
from gradoracle.model.formats import FORMATS
from gradoracle.model.kernel import Kernel
from gradoracle.model.recipes import rounded, rounded_within

LOW, HIGH, MOST = 0.1, 0.3, 0.3  # which no narrow dtype holds


@gradoracle.family(
    dims={"T": gradoracle.sizes(1, 40), "D": gradoracle.sizes(1, 5)},
    domains={
        "rate": gradoracle.Between(LOW, HIGH),
        "gate": gradoracle.Between(),
        "log_decay": gradoracle.AtMost(MOST, spread=2.0),
        "key": gradoracle.UnitRows(),
    },
)
def gated(
    x: Float[Tensor, "T D"],
    rate: Float[Tensor, "T"],
    gate: Float[Tensor, "T"],
    log_decay: Float[Tensor, "T"],
    key: Float[Tensor, "T D"],
) -> Float[Tensor, "T D"]:
    return x * (rate * log_decay.exp() * gate)[:, None] * key


KERNEL = Kernel("gated", "gated", gated.definition)


def sampled(case: Case) -> Sample:
    return build(case, gated.signature, domains=gated.domains)


def outside(sample: Sample, dtype: str) -> list[str]:
    """The names of the inputs that have a value outside of their range."""
    own = {name: t.double() for name, t in sample.inputs.items()}
    lengths = own["key"].norm(dim=-1)
    wrong = {
        "rate": ~((own["rate"] >= LOW) & (own["rate"] <= HIGH)),
        "gate": ~((own["gate"] >= 0) & (own["gate"] <= 1)),
        "log_decay": ~((own["log_decay"] <= MOST) & own["log_decay"].isfinite()),
        "key": ~(((lengths - 1).abs() <= 2 * FORMATS[dtype].unit_roundoff) | (lengths == 0)),
    }
    return [name for name, where in wrong.items() if bool(where.any())]


def test_every_case_lies_in_its_ranges() -> None:
    cases = stream(gated, KERNEL, examples=252)
    assert {case.dtype for case in cases} == {"float32", "bfloat16", "float16"}
    for case in cases:
        assert outside(sampled(case), case.dtype) == [], case.line()


@pytest.mark.parametrize("layout", ["expanded", "broadcast", "transposed", "strided", "offset", "sliced"])
def test_rows_have_their_length_in_every_layout(layout: str) -> None:
    """An expanded layout repeats values along a row, which are then those of a row of another length."""
    case = Case("gated", {"T": 7, "D": 4}, draws={"key": Draw("normal", layout)}, seed=3)
    sample = sampled(case)
    assert outside(sample, "float32") == []
    contiguous = sampled(Case("gated", {"T": 7, "D": 4}, draws={"key": Draw("normal")}, seed=3)).inputs["key"]
    assert (0 in sample.inputs["key"].stride()) == (layout in ("expanded", "broadcast"))
    assert layout in ("expanded", "broadcast") or torch.equal(sample.inputs["key"], contiguous)


def test_values_outside_are_seen() -> None:
    sample = sampled(Case("gated", {"T": 3, "D": 2}, seed=1))
    assert outside(sample, "float32") == []
    for name, value in (("rate", 0.31), ("rate", 0.09), ("gate", -0.1), ("log_decay", 0.31), ("key", 0.0)):
        wrong = sample.inputs[name].clone()
        wrong.view(-1)[0] = value
        assert outside(sample.with_inputs(**{name: wrong}), "float32") == [name]
    assert outside(sample.with_inputs(log_decay=torch.full((3,), -math.inf)), "float32") == ["log_decay"]


def test_tangents_and_cotangents_are_not_mapped() -> None:
    sample = sampled(Case("gated", {"T": 40, "D": 5}, seed=2))
    assert float(sample.tangents["rate"].min()) < LOW and float(sample.tangents["rate"].max()) > HIGH


def test_a_case_shrinks_within_its_ranges() -> None:
    met: list[Case] = []

    def violates(case: Case) -> bool:
        sample = sampled(case)
        assert outside(sample, case.dtype) == [], case.line()
        met.append(case)
        rate, key = sample.inputs["rate"], sample.inputs["key"]
        return int((rate < 0.2).sum()) > 1 and key.shape[1] > 1 and 0 in key.stride()

    draws = {"rate": Draw("wide", "strided"), "key": Draw("normal", "expanded"), "log_decay": Draw("extreme")}
    case = Case("gated", {"T": 9, "D": 3}, "bfloat16", draws=draws, seed=8)
    assert violates(case)
    least, why = shrink(gated, KERNEL, case, violates, seconds=60)
    assert not why and len(met) > 3 and least.dims["D"] == 2 and least.dims["T"] < 9
    assert violates(least) and set(least.draws) <= {"key", "rate"}


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16", "float16"])
def test_ends_that_a_dtype_does_not_have_are_rounded_inwards(dtype: str) -> None:
    for low, high in ((LOW, HIGH), (-HIGH, -LOW), (0.0, 1.0), (-0.2501, 0.2501), (1e-7, 3.1e-7), (-math.inf, MOST)):
        ends = np.array([low if math.isfinite(low) else -1e300, (max(low, -1) + high) / 2, high])
        found = rounded_within(ends, dtype, low, high).double()
        assert bool((found >= low).all()) and bool((found <= high).all()) and bool(found.isfinite().all()), (low, high)
        plain = rounded(ends, dtype).double()
        kept = (plain >= low) & (plain <= high) & plain.isfinite()
        assert torch.equal(found[kept], plain[kept])
        unit = FORMATS[dtype].unit_roundoff
        near = torch.from_numpy(ends).clamp(-FORMATS[dtype].largest, FORMATS[dtype].largest)
        assert bool(((found - near).abs() <= 2 * unit * near.abs() + FORMATS[dtype].smallest_subnormal).all())


def test_where_a_dtype_has_no_number_in_between_it_is_the_nearest() -> None:
    assert rounded_within(np.array([1.5e-9]), "float16", 1e-9, 2e-9).item() == 0.0


@pytest.mark.parametrize(("low", "high"), [(1.0, 1.0), (2.0, 1.0), (math.nan, 1.0)])
def test_ends_in_the_wrong_order_are_one_sentence(low: float, high: float) -> None:
    with pytest.raises(ValueError, match=rf"^Between has low {low} and high {high}; expected low < high$"):
        gradoracle.Between(low, high)


def test_a_range_of_no_float_input_is_one_sentence() -> None:
    def halved(x: Float[Tensor, "N"]) -> Float[Tensor, "N"]:
        return x / 2

    words = "family halved: domains gives y AtMost(most=0.0, spread=1.0), which is of floats; expected some of x"
    with pytest.raises(ValueError, match=f"^{re.escape(words)}$"):
        gradoracle.family(halved, domains={"y": gradoracle.AtMost()})
