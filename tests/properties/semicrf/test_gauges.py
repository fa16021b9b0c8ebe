"""The grid on which scores of the semi-CRF are moved along a gauge without rounding."""

from __future__ import annotations

import pytest
import torch
from gradoracle.properties.semicrf.catalogue.gauges import on_a_grid

from tests.properties.semicrf.samples import sample


@pytest.mark.parametrize(("dtype", "bits"), [("float32", 24), ("bfloat16", 8), ("float16", 11)])
def test_a_grid_holds_scores_and_moved_scores_exactly(dtype: str, bits: int) -> None:
    own = sample("transition", "B=2 T=30 C=2 K=3")
    own = own.map(lambda t: t.to(getattr(torch, dtype)) if t.is_floating_point() else t)
    reach = 2 ** (bits - 3)
    move = torch.full((2, 31, 2), float(reach), dtype=torch.float64)
    before, after, unit = on_a_grid(own, {"cum_scores": move}, dtype)
    gained = after.inputs["cum_scores"].double() - before.inputs["cum_scores"].double()
    assert bool((gained == reach * unit).all()) and reach * unit > 0.1
    assert float((before.inputs["cum_scores"].double() - own.inputs["cum_scores"].double()).abs().max()) <= unit / 2


def test_a_move_that_no_grid_holds_is_told() -> None:
    own = sample("transition", "B=1 T=300 C=2 K=3")
    own = own.map(lambda t: t.bfloat16() if t.is_floating_point() else t)
    assert on_a_grid(own, {"cum_scores": -torch.arange(301.0).double()[:, None]}, "bfloat16") is None
