"""Truncation: the mean of what tensor cores cut of their sums, in one run and in the difference of two."""

from __future__ import annotations

import pytest
import torch

from gradoracle.model.contract import PRESETS
from gradoracle.model.formats import FORMATS
from gradoracle.oracle.exact.trace import trace
from gradoracle.oracle.rounding.reading import budgets


@pytest.mark.parametrize("preset", ["fp16", "bf16x6", "tf32"])
def test_what_tensor_cores_truncate_has_a_share_in_each_probe(preset: str) -> None:
    """Of one run at most all of it; of two runs it does not cancel, since their accumulators may differ."""
    generator = torch.Generator().manual_seed(0)
    x, y = (torch.randn(*shape, generator=generator).double().abs() for shape in ((8, 2048), (2048, 8)))
    graph = trace(lambda a, b: (a @ b,), x, y)
    found = budgets(graph, (x, y), PRESETS[preset], output_dtypes=["float32"])[0]
    block = PRESETS[preset].accumulate_block
    full = FORMATS["float32"].unit_roundoff / 2 * (2048 / block + 1)
    cut = -((found.errors / found.value).flatten(1).mean(1))
    if preset == "tf32":  # operands are truncated too
        full += 2 * FORMATS["tf32"].unit_roundoff
    assert float(cut.min()) > -0.05 * full and 0.9 * full < float(cut.max()) < 1.1 * full
    apart = cut - cut.roll(1, 0)
    assert 0.25 * full < float(apart.square().mean().sqrt()) < full
