"""Rounding of arrays against fractions: ties, subnormals, overflow, infinities, NaN."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from places import loaded

from gradoracle.host.interpreter import rounding

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy's on overflow, off during a launch


reference = loaded("host.interpreter.reference")
scenarios = loaded("host.interpreter.scenarios")


def tensor(array: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(np.array(array))


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64, torch.int32, torch.int64])
def test_to_bf16_rounds_once_to_nearest_even(dtype):
    x = scenarios.values(dtype)[:4096]
    got = tensor(rounding.to_bf16(x.numpy()))
    assert reference.same(got, reference.convert(x, torch.bfloat16).float())


def test_to_bf16_takes_unsigned_integers_and_booleans():
    x = np.array([0, 1, 257, 2**53 + 1, 2**64 - 1, (2**8 + 1) * 2**55, (2**8 + 1) * 2**55 + 1], dtype=np.uint64)
    expected = [reference.nearest(Fraction(int(v)), torch.bfloat16) for v in x]
    assert rounding.to_bf16(x).tolist() == expected
    assert rounding.to_bf16(np.array([True, False])).tolist() == [1.0, 0.0]


def test_to_bf16_of_every_nan_is_the_canonical_one():
    bits = np.array([0x7F800001, 0x7FFFFFFF, 0xFF800001, 0xFFFFFFFF, 0x7FC00000], dtype=np.uint32)
    assert (rounding.to_bf16(bits.view(np.float32)).view(np.uint32) == 0x7FFF0000).all()


def test_double_rounding_would_be_seen():
    """1 + 2^-8 is a tie, and 2^-40 more is above it: through float32 it would go down to even."""
    x = np.array([1 + 2.0**-8 + 2.0**-40])
    assert rounding.to_bf16(x)[0] == 1 + 2.0**-7
    assert rounding.to_bf16(x.astype(np.float32))[0] == 1.0


@pytest.mark.parametrize("fmt", ["bf16", "fp16", "fp32"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_toward_zero(fmt, dtype):
    target = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}[fmt]
    x = scenarios.values(dtype)
    got = tensor(rounding.toward_zero(x.numpy(), fmt)).to(target)
    assert reference.same(got, reference.convert(x, target, reference.toward_zero))


def test_tf32_truncated_and_nearest_away():
    x = scenarios.values(torch.float32)
    x = x[x.isfinite() & (x.abs() < 2.0**127)]
    assert torch.equal(tensor(rounding.to_tf32_truncated(x.numpy())).double(), reference.tf32_truncated(x))
    assert torch.equal(tensor(rounding.to_tf32_nearest_away(x.numpy())).double(), reference.tf32_nearest_away(x))


def test_tf32_nearest_away_leaves_infinities_and_nan():
    x = np.array([np.inf, -np.inf, np.nan], dtype=np.float32)
    y = rounding.to_tf32_nearest_away(x)
    assert y[0] == np.inf and y[1] == -np.inf and math.isnan(y[2])


def test_add_to_odd_then_rounding_is_one_rounding():
    generator = torch.Generator().manual_seed(1)
    a = torch.randn(2000, generator=generator).double() * torch.randn(2000, generator=generator).double()
    b = torch.randn(2000, generator=generator).double() * 2.0 ** torch.randint(-60, 60, (2000,), generator=generator)
    got = tensor(rounding.add_to_odd(a.numpy(), b.numpy()).astype(np.float32))
    expected = [
        reference.nearest(Fraction(x) + Fraction(y), torch.float32) for x, y in zip(a.tolist(), b.tolist(), strict=True)
    ]
    assert got.tolist() == expected
    assert rounding.add_to_odd(np.array([np.inf]), np.array([-1.0]))[0] == np.inf
    tie = rounding.add_to_odd(np.array([1 + 2.0**-8]), np.array([2.0**-100]))
    assert rounding.to_bf16(tie)[0] == 1 + 2.0**-7


def test_arrays_with_strides_round_like_others():
    x = scenarios.values(torch.float32)[:4096].reshape(64, 64).numpy()
    assert np.array_equal(rounding.to_bf16(x.T), rounding.to_bf16(np.ascontiguousarray(x.T)), equal_nan=True)
    assert np.array_equal(rounding.to_bf16(np.broadcast_to(x[0], (8, 64)))[3], rounding.to_bf16(x[0]), equal_nan=True)
