"""Peers' rules: each accepts a correct tensor, rejects a grossly wrong one, and lets the rest through."""

from __future__ import annotations

import math

import pytest
import torch
from scoreboard.peers import FUNCTION_RULES, RULES, Compared, Run
from torch import Tensor

BY_NAME = {rule.name: rule for rule in RULES}
DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def compared(dtype: torch.dtype, change=lambda x: x, scale: float = 1.0, gradient: bool = True) -> Compared:
    """A tensor of 1000 normal numbers; the kernel rounds the truth once, eager PyTorch is off by another."""
    truth = scale * torch.randn(1000, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    noise = torch.randn(1000, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    eager = (truth * (1 + torch.finfo(dtype).eps * noise)).to(dtype)
    return Compared(change(truth).to(dtype), truth, eager, dtype, gradient)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_tensor_rounded_once_is_accepted_and_zeros_are_not(rule, dtype):
    assert rule.accepts(compared(dtype))
    assert not rule.accepts(compared(dtype, torch.zeros_like))
    assert not rule.accepts(compared(dtype, lambda x: torch.full_like(x, math.nan)))


@pytest.mark.parametrize(
    ("name", "dtype", "change", "scale", "accepted"),
    [
        ("torch.testing.assert_close", torch.bfloat16, lambda x: x * 1.01, 1.0, True),
        ("torch.testing.assert_close", torch.float32, lambda x: x * (1 + 1e-4), 1.0, False),
        ("flash-attention 2", torch.bfloat16, lambda x: x * 1.003, 1.0, True),
        ("flash-attention 2", torch.bfloat16, lambda x: x * 1.1, 1.0, False),
        ("flash-attention 4", torch.bfloat16, lambda x: 0 * x, 1e-4, True),  # its noise of 0.3 is larger than that
        ("flash-attention 4", torch.bfloat16, lambda x: 0 * x, 1.0, False),
        ("flash-linear-attention", torch.bfloat16, lambda x: torch.cat([x[:-1], 1.1 * x[-1:]]), 1.0, True),
        ("flash-linear-attention", torch.float32, lambda x: x * 1.006, 1.0, False),
        ("flash-linear-attention in CI", torch.float32, lambda x: x * 1.006, 1.0, True),
        ("flash-linear-attention in CI", torch.float32, lambda x: -x, 1e-3, True),  # the wrong sign of a small gradient
        ("flash-linear-attention in CI", torch.float32, lambda x: -x, 1.0, False),
        ("ml-cross-entropy", torch.bfloat16, lambda x: -x, 1e-3, True),
        ("ml-cross-entropy", torch.float32, lambda x: -x, 1e-3, False),
        ("KernelBench", torch.float16, lambda x: x * 1.005, 1.0, True),
        ("KernelBench", torch.float32, lambda x: x * 1.005, 1.0, False),
        ("Triton tutorial", torch.float32, lambda x: 0 * x, 1e-3, True),
        ("Triton tutorial", torch.float16, lambda x: x * 1.1, 1.0, False),
    ],
)
def test_a_rule_accepts_what_its_statement_says(name, dtype, change, scale, accepted):
    assert BY_NAME[name].accepts(compared(dtype, change, scale)) is accepted


def test_outputs_have_a_narrower_factor_than_gradients_in_flash_attention():
    seen = {
        gradient: compared(torch.float32, lambda x: x * (1 + 4e-7), gradient=gradient) for gradient in (False, True)
    }
    assert BY_NAME["flash-attention 2"].accepts(seen[True])
    exact = Compared(seen[False].got, seen[False].truth, seen[False].reference.float(), torch.float32, False)
    assert not BY_NAME["flash-attention 2"].accepts(exact)  # a baseline that is exact leaves no room


class Cube(torch.autograd.Function):
    """x^3, whose gradient is off by a factor."""

    @staticmethod
    def forward(ctx, x: Tensor, factor: float) -> Tensor:
        ctx.save_for_backward(x)
        ctx.factor = factor
        return x**3

    @staticmethod
    def backward(ctx, g: Tensor):
        return ctx.factor * 3 * ctx.saved_tensors[0] ** 2 * g, None


def run(factor: float, dtype: torch.dtype = torch.float64) -> Run:
    x = torch.randn(40, generator=torch.Generator().manual_seed(3), dtype=torch.float64).to(dtype)
    return Run(lambda x: Cube.apply(x, factor), (x,))


@pytest.mark.parametrize("rule", FUNCTION_RULES, ids=lambda rule: rule.name)
def test_a_function_with_a_correct_gradient_is_accepted_and_one_with_a_wrong_one_is_not(rule):
    assert rule.accepts(run(1.0))
    assert not rule.accepts(run(-1.0))
    assert not rule.accepts(run(math.nan))


def test_differences_let_through_what_their_tolerances_let():
    gradcheck, check_grads = FUNCTION_RULES
    assert gradcheck.accepts(run(1.0005)) and not gradcheck.accepts(run(1.01))
    assert check_grads.accepts(run(1 + 1e-6)) and not check_grads.accepts(run(1.001))
    assert not check_grads.accepts(run(1.0, torch.bfloat16))  # x + 1e-4 t is x in 16 bits


def test_every_rule_says_where_it_stands_and_what_it_says():
    assert len({rule.name for rule in (*RULES, *FUNCTION_RULES)}) == len(RULES) + len(FUNCTION_RULES) == 10
    assert all(rule.source.endswith((".py", "=1")) and len(rule.statement) > 30 for rule in (*RULES, *FUNCTION_RULES))
