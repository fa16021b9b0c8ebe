"""Wrong answers: slips of a few parts in a million are seen, and the correct answer passes on the same inputs."""

from __future__ import annotations

import correct_kernels as ck
import pytest
import torch
from correct_kernels import NAMES, budgets_of, fused, in_sigma, normal, of_worst, slope

SLIPS = {torch.float32: 2e-6, torch.float16: 5e-5, torch.bfloat16: 4e-4}
# the flash algorithm's exponential is off by up to 1.2e-4 in 16 bit, coherently where logits are alike
FLASH_SLIPS = {torch.float32: 2e-6, torch.float16: 1e-4, torch.bfloat16: 8e-4}


def inputs_of(dtype: torch.dtype, seed: int) -> list[torch.Tensor]:
    """B 2, H 2, T = M = 128, D 64."""
    parts = [normal((128, 128, 64), dtype, seed + b) for b in range(2)]
    return [torch.cat(pair) for pair in zip(*parts, strict=True)]


@pytest.mark.parametrize("z_from", ["P", "O"])
@pytest.mark.parametrize("seed", [0, 10])
@pytest.mark.parametrize("dtype", SLIPS, ids=lambda d: str(d)[6:])
def test_slips_of_each_gradient_are_caught(dtype: torch.dtype, seed: int, z_from: str) -> None:
    inputs, slip = inputs_of(dtype, seed), (SLIPS if z_from == "P" else FLASH_SLIPS)[dtype]
    found = budgets_of(inputs, algorithm="definition" if z_from == "P" else "flash")
    right = fused(*inputs, z_from=z_from)
    for sign in (1, -1):
        wrong = fused(*inputs, z_from=z_from, slip=sign * slip)
        for name, good, bad, budget in list(zip(NAMES, right, wrong, found, strict=True))[1:]:
            (b, limit), (wrong_b, _) = slope(good, budget), slope(bad, budget)
            assert abs(b) < limit < abs(wrong_b), name
            assert wrong_b == pytest.approx(sign * slip, rel=0.5), name


@pytest.mark.parametrize("dtype", SLIPS, ids=lambda d: str(d)[6:])
@pytest.mark.parametrize("what", ["log2 e", "last key", "sign", "scale once more", "swapped rows", "z left out"])
def test_coarse_faults_are_far_out(dtype: torch.dtype, what: str) -> None:
    inputs = normal((33, 65, 32), dtype)
    q, k, v, do = inputs
    right = fused(*inputs)
    found = budgets_of(inputs, worst=True)
    if what == "last key":
        wrong = fused(q, k[..., :-1, :], v[..., :-1, :], do)[:2]
    elif what == "z left out":
        scale = q.shape[-1] ** -0.5
        p = torch.softmax(q.float() @ k.float().mT * scale, -1)
        wrong = (right[0], (p * (do.float() @ v.float().mT) @ k.float() * scale).to(dtype))
    else:
        change = {
            "log2 e": lambda x: x * 1.4427,
            "sign": lambda x: -x,
            "scale once more": lambda x: x * q.shape[-1] ** -0.5,
            "swapped rows": lambda x: x[..., torch.arange(x.shape[-2]).roll(1), :],
        }[what]
        wrong = tuple(change(x) for x in right)
    for good, budget in zip(right, found, strict=True):
        assert in_sigma(good, budget) <= 8 and of_worst(good, budget) <= 1
    assert max(in_sigma(bad, budget) for bad, budget in zip(wrong, found, strict=False)) > 30
    assert max(of_worst(bad, budget) for bad, budget in zip(wrong, found, strict=False)) > 1


def test_one_wrong_element_is_seen() -> None:
    inputs = normal((33, 65, 32), torch.bfloat16)
    dk = fused(*inputs)[2]
    budget = budgets_of(inputs)[2]
    assert in_sigma(dk, budget) <= 8
    dk[0, 1, 64, 31] += 10 * budget.sigma[0, 1, 64, 31] + dk[0, 1, 64, 31].abs() / 64
    assert in_sigma(dk, budget) > 8


def test_a_gradient_stored_through_bfloat16_is_seen_in_float32() -> None:
    inputs = normal((33, 65, 32), torch.float32)
    for got, budget in zip(ck.torch_math(*inputs), budgets_of(inputs), strict=True):
        assert in_sigma(got, budget) <= 8 < in_sigma(got.bfloat16(), budget)
