"""Marks of an algorithm: what is stored on the way, and running sums of more terms than they have entries."""

from __future__ import annotations

import pytest
import torch
from correct_kernels import in_sigma
from forward_budget import budget_of, random

from gradoracle.oracle.rounding.annotations import running_sums, stored, stored_sum


def test_stored_marks_a_rounding_and_changes_nothing_else() -> None:
    x = random(40)
    plain = budget_of(lambda x: x.sin() * 3, x, preset="bf16", output_dtypes=["float32"])
    marked = budget_of(lambda x: stored(x.sin(), "output") * 3, x, preset="bf16", output_dtypes=["float32"])
    assert torch.equal(plain.value, marked.value)
    assert 1e3 < float((marked.sigma / plain.sigma).median()) < 1e6
    with pytest.raises(ValueError, match="'nowhere'; choose one of: operand"):
        stored(x, "nowhere")
    gradient = torch.func.grad(lambda x: stored(x.square()).sum())(x)
    assert torch.allclose(gradient, 2 * x)
    tangent = torch.func.jvp(lambda x: stored_sum(x.square()), (x,), (x,))[1]
    assert torch.allclose(tangent, 2 * x.square().sum())


def test_stored_sums_round_after_each_term() -> None:
    x = random(20, 30)
    budget = budget_of(lambda x: stored_sum(x * 1.1), x, preset="bf16", worst=True)
    got = torch.zeros(30, dtype=torch.bfloat16)
    for term in x * 1.1:
        got = (got.float() + term.float()).bfloat16()
    assert in_sigma(got, budget) <= 8
    assert float(((got.double() - budget.value) / budget.sigma).square().mean().sqrt()) > 0.3
    once = budget_of(lambda x: (x * 1.1).sum(0), x, preset="bf16")
    assert float((budget.sigma / once.sigma).median()) > 1.5


def test_running_sums_round_for_each_term_behind_an_entry() -> None:
    """Entries that are sums of 50 terms each: the partial sums are rounded 50 times from one entry to the next."""
    x = random(40, 8, 50).float().double()
    blocks = x.sum(-1).float().double()
    budget = budget_of(lambda x: running_sums(x, 1, 50), blocks)
    few = budget_of(lambda x: x.cumsum(1), blocks)
    assert torch.equal(budget.value, few.value)
    assert 3 < float((budget.sigma / few.sigma)[:, 1:].median()) < 30
    got, held = [], blocks[:, 0].float()
    for block in range(1, 8):  # one term after the other, and an exact sum at the end of each block
        for term in x[:, block].float().unbind(-1):
            held = held + term
        got.append(held.double() - (blocks[:, 0] + x[:, 1 : block + 1].sum((1, 2))))
    error = torch.stack(got, 1) / budget.sigma[:, 1:]
    assert float(error.abs().max()) <= 8 and float(error.square().mean().sqrt()) > 0.3
    gradient = torch.func.grad(lambda x: running_sums(x, 0, 50)[-1].sum())(x)
    assert torch.equal(gradient, torch.ones_like(x))
