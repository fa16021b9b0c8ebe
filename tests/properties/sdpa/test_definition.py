"""The definition of SDPA: right against PyTorch's own, and quiet in rows that see no key, in every derivative."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from gradoracle.cases.sample import build
from gradoracle.model.case import parse
from gradoracle.model.derivative import Derivative
from gradoracle.oracle.truth import arguments, names
from tests.properties.sdpa.attention import FAMILY, ORACLE


@pytest.mark.parametrize("derivative", list(Derivative))
@pytest.mark.parametrize("sizes", ["T=7 M=3", "T=5 M=1", "T=4 M=4", "T=2 M=9", "T=1 M=1"])
def test_rows_that_see_no_key_are_zero_in_the_traced_graph(derivative: Derivative, sizes: str) -> None:
    _, _, case = parse(f"case:1 sdpa cpu float32 B=1 H=2 {sizes} D=4 Dv=3 --causal=true seed=1")
    sample = build(case, FAMILY.signature)
    found = ORACLE.graph(sample, derivative)(*arguments(FAMILY, sample, derivative))
    own = names(FAMILY, derivative, sample)
    by_name = dict(zip(own, found[-len(own) :], strict=True))
    assert all(tensor.isfinite().all() for tensor in found)
    blind = max(0, case.dims["T"] - case.dims["M"])
    for name in ("o", "dq", "jvp.o", "hvp.q"):
        if name in by_name and blind:
            assert not by_name[name][:, :, :blind].any()
        if name in by_name and case.dims["M"] > 1:
            assert by_name[name][:, :, -1].any()


@pytest.mark.parametrize("causal", [False, True])
def test_the_definition_is_that_of_pytorch(causal: bool) -> None:
    q, k, v = (torch.randn(2, 2, 6, 4, dtype=torch.float64) for _ in range(3))
    expected = scaled_dot_product_attention(q, k, v, is_causal=causal)
    assert torch.allclose(FAMILY.definition(q, k, v, causal=causal), expected, rtol=0, atol=1e-14)


def test_causal_is_aligned_bottom_right() -> None:
    q, k, v = torch.zeros(1, 1, 2, 1), torch.zeros(1, 1, 4, 1), torch.arange(4.0).reshape(1, 1, 4, 1)
    assert FAMILY.definition(q, k, v, causal=True).flatten().tolist() == [1.0, 1.5]  # means of keys 0..2 and 0..3
