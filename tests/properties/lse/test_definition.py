"""The definition of LSE: right row by row, quiet in rows without a term, alike in every reading."""

from __future__ import annotations

import math

import pytest
import torch

from gradoracle.cases.sample import Sample, build
from gradoracle.model.case import parse
from gradoracle.model.contract import PRESETS
from gradoracle.model.derivative import Derivative
from gradoracle.oracle.truth import Oracle, arguments, names
from tests.properties.lse.logsumexp import FAMILY, ORACLE

INPUTS = [
    "",
    "sinks~normal",
    "q_segments~index kv_segments~index",
    "sinks~normal q_segments~index kv_segments~index",
]
OPTIONS = ["", "--causal=true", "--softcap=2.0", "--causal=true --softcap=2.0 --scale=1.0"]


def sample(words: str, sizes: str = "T=7 M=5") -> Sample:
    _, _, case = parse(f"case:1 lse cpu float32 B=2 H=4 G=2 {sizes} D=4 {words} seed=1")
    return build(case, FAMILY.signature, domains=FAMILY.domains)


def seen_by(own: Sample, b: int, i: int) -> list[int]:
    """The keys that query i of batch member b sees, one comparison after the other."""
    queries, keys = own.inputs["q"].shape[2], own.inputs["k"].shape[2]
    found = [j for j in range(keys) if not own.options["causal"] or j <= i + keys - queries]
    if "q_segments" not in own.inputs:
        return found
    return [j for j in found if own.inputs["q_segments"][b, i] == own.inputs["kv_segments"][b, j]]


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("inputs", INPUTS)
def test_the_definition_is_the_sum_row_by_row(inputs: str, options: str) -> None:
    own = sample(f"{inputs} {options}")
    doubles = {n: t.double() if t.is_floating_point() else t for n, t in own.inputs.items()}
    q, k = doubles.pop("q"), doubles.pop("k")
    got = FAMILY.definition(q, k, **doubles, **own.options)
    scale, cap = own.options["scale"] or 1 / math.sqrt(q.shape[-1]), own.options["softcap"]
    for b, h, i in torch.cartesian_prod(*(torch.arange(n) for n in q.shape[:3])).tolist():
        terms = []
        for j in seen_by(own, b, i):
            score = float(q[b, h, i] @ k[b, h // 2, j]) * scale
            terms.append(math.exp(score if cap is None else cap * math.tanh(score / cap)))
        if "sinks" in doubles:
            terms.append(math.exp(float(doubles["sinks"][h])))
        expected = math.log(sum(terms)) if terms else -math.inf
        assert float(got[b, h, i]) == pytest.approx(expected, rel=0, abs=1e-13)


@pytest.mark.parametrize("derivative", list(Derivative))
@pytest.mark.parametrize("inputs", ["--causal=true", "--causal=true --softcap=2.0 q_segments~index kv_segments~index"])
@pytest.mark.parametrize("sizes", ["T=7 M=3", "T=5 M=1", "T=4 M=4", "T=2 M=9", "T=1 M=1"])
def test_rows_that_see_no_key_are_quiet_in_the_traced_graph(derivative: Derivative, inputs: str, sizes: str) -> None:
    own = sample(inputs, sizes)
    found = ORACLE.graph(own, derivative)(*arguments(FAMILY, own, derivative))
    known = names(FAMILY, derivative, own)
    by_name = dict(zip(known, found[-len(known) :], strict=True))
    batch, _, queries, _ = own.inputs["q"].shape
    blind = torch.tensor([[not seen_by(own, b, i) for i in range(queries)] for b in range(batch)])
    for name, tensor in by_name.items():
        if name == "lse":
            assert torch.equal(tensor == -torch.inf, blind[:, None, :].expand_as(tensor))
            continue
        assert tensor.isfinite().all(), name
        if name in ("dq", "jvp.lse", "hvp.q"):
            assert not tensor.transpose(1, 2)[blind].any(), name
    assert not any(tensor.isnan().any() for tensor in found)


@pytest.mark.parametrize("reading", ["certified", "mpmath"])
@pytest.mark.parametrize("derivative", list(Derivative))
@pytest.mark.parametrize("inputs", [INPUTS[0], f"{INPUTS[2]} --causal=true", f"{INPUTS[3]} {OPTIONS[-1]}"])
def test_the_readings_agree(inputs: str, derivative: Derivative, reading: str) -> None:
    own, contract = sample(inputs), PRESETS["ieee32"]
    budgets = ORACLE.budgets(own, derivative, contract, algorithm="definition", worst=False, probes=4)
    one, other = (o.truth(own, derivative, budgets, contract) for o in (ORACLE, Oracle(FAMILY, reading)))
    for name, truth in one.items():
        assert not truth.value.isnan().any()
        assert torch.allclose(truth.value, other[name].value, rtol=1e-13, atol=1e-13), name


def test_a_gradient_of_a_sink_is_finite_where_no_key_is_seen() -> None:
    q, k = torch.zeros(1, 1, 2, 1, dtype=torch.float64), torch.zeros(1, 1, 1, 1, dtype=torch.float64)
    sinks = torch.tensor([0.0], dtype=torch.float64, requires_grad=True)
    found = FAMILY.definition(q, k, sinks=sinks, causal=True)
    assert found.flatten().tolist() == [0.0, pytest.approx(math.log(2.0))]
    found.sum().backward()
    assert sinks.grad is not None and sinks.grad.tolist() == [1.5]  # all of the first row, half of the second


def test_causal_is_aligned_bottom_right_and_heads_read_their_group() -> None:
    q, k = torch.ones(1, 4, 2, 1, dtype=torch.float64), torch.tensor([[[[0.0]] * 4, [[1.0]] * 4]]).double()
    found = FAMILY.definition(q, k, causal=True, scale=1.0)
    expected = [[math.log(n) + level for n in (3, 4)] for level in (0, 0, 1, 1)]  # queries see keys 0..2 and 0..3
    assert torch.allclose(found[0], torch.tensor(expected, dtype=torch.float64), rtol=0, atol=1e-15)
