"""Casts among the 8-bit floats and wider ones, as Triton compiles them for sm_90: cvt.rn.satfinite."""

from __future__ import annotations

import interpreted
import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from awkward_numbers import awkward
from triton.runtime.errors import InterpreterError

from gradoracle.host import interpreter
from gradoracle.host.interpreter.values import CannotInterpret
from gradoracle.model.formats import FORMATS, OF_TRITON

pytestmark = [pytest.mark.xdist_group("interpreter"), interpreted.NEEDED]
interpreter.activate()

EIGHT_BITS = {"fp8e4nv": torch.float8_e4m3fn, "fp8e5": torch.float8_e5m2}
WIDE = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}


@triton.jit
def _cast(X, Y, N, TO: tl.constexpr, ROUNDING: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(X + at, at < N)
    tl.store(Y + at, x.to(TO, fp_downcast_rounding=ROUNDING), at < N)


@triton.jit
def _bits(X, Y, N, TO: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(Y + at, tl.load(X + at, at < N).to(TO).to(tl.uint8, bitcast=True), at < N)


def cast(x: torch.Tensor, to: str, rounding: str | None = None) -> torch.Tensor:
    out = torch.empty(len(x), dtype=OF_TRITON[to].dtype)
    _cast[(triton.cdiv(len(x), 1024),)](x, out, len(x), tl.dtype(to), rounding, 1024)
    return out


def as_compiled(x: torch.Tensor, to: str) -> torch.Tensor:
    """What torch's cast gives, with the largest number for those beyond it and 0x7F for NaN."""
    largest = OF_TRITON[to].largest
    bits = x.double().clamp(-largest, largest).to(EIGHT_BITS[to]).view(torch.uint8)
    return torch.where(x.isnan(), 0x7F, bits)


@pytest.mark.parametrize("to", EIGHT_BITS)
@pytest.mark.parametrize("wide", WIDE)
def test_a_narrowing_cast_rounds_once_to_nearest_even_and_saturates(wide: str, to: str) -> None:
    x = torch.from_numpy(awkward(OF_TRITON[to])).to(WIDE[wide])
    assert torch.equal(cast(x, to).view(torch.uint8), as_compiled(x, to))
    out = torch.empty(len(x), dtype=torch.uint8)
    _bits[(triton.cdiv(len(x), 1024),)](x, out, len(x), tl.dtype(to), 1024)
    assert torch.equal(out, as_compiled(x, to))


@pytest.mark.parametrize("narrow", EIGHT_BITS)
@pytest.mark.parametrize("to", WIDE)
def test_all_256_numbers_widen_exactly(narrow: str, to: str) -> None:
    every = torch.arange(256, dtype=torch.uint8).view(EIGHT_BITS[narrow])
    expected = every.to(WIDE[to])
    got = cast(every, to)
    assert torch.equal(got.isnan(), expected.isnan())
    assert torch.equal(got[~got.isnan()], expected[~got.isnan()])
    assert torch.equal(got.signbit()[~got.isnan()], expected.signbit()[~got.isnan()])


@pytest.mark.parametrize(("narrow", "to"), [("fp8e4nv", "fp8e5"), ("fp8e5", "fp8e4nv")])
def test_all_256_numbers_from_one_format_to_the_other(narrow: str, to: str) -> None:
    every = torch.arange(256, dtype=torch.uint8).view(EIGHT_BITS[narrow])
    assert torch.equal(cast(every, to).view(torch.uint8), as_compiled(every.float(), to))


@pytest.mark.parametrize("to", EIGHT_BITS)
def test_toward_zero_cuts(to: str) -> None:
    x = torch.from_numpy(awkward(OF_TRITON[to], seed=1))
    x = x[x.abs() <= OF_TRITON[to].largest]
    got = cast(x, to, "rtz").double()
    numbers = np.unique(OF_TRITON[to].decoded()[np.isfinite(OF_TRITON[to].decoded())])
    below = numbers[np.searchsorted(numbers, x.double().abs().numpy(), side="right") - 1]
    assert torch.equal(got.abs(), torch.from_numpy(below))


def test_the_formats_of_these_tests_are_all_that_cases_have() -> None:
    assert {each.triton for each in FORMATS.values() if each.preset and each.width == 8} == {*EIGHT_BITS}


@triton.jit
def _computing(X, Y, HOW: tl.constexpr):
    at = tl.arange(0, 16)
    x = tl.load(X + at)
    if HOW == "sum":
        y = x + x
    elif HOW == "product":
        y = x * 2.0
    elif HOW == "negative":
        y = -x
    elif HOW == "larger":
        y = tl.maximum(x, x)
    elif HOW == "compared":
        y = tl.where(x < x, x, x)
    elif HOW == "largest":
        y = tl.max(x, 0) + tl.zeros((16,), tl.float32)
    elif HOW == "summed":
        y = tl.sum(x, 0) + tl.zeros((16,), tl.float32)
    tl.store(Y + at, y.to(tl.float32))


@pytest.mark.parametrize("how", ["sum", "product", "negative", "summed"])
def test_arithmetic_on_bits_fails_as_it_does_where_triton_compiles_it(how: str) -> None:
    x = torch.arange(-8, 8).float().to(torch.float8_e5m2)
    with pytest.raises(InterpreterError, match="arithmetic on fp8e5; expected a cast to float32"):
        _computing[(1,)](x, torch.empty(16), how)


@pytest.mark.parametrize("how", ["larger", "compared"])
def test_a_comparison_of_bits_is_not_interpreted(how: str) -> None:
    x = torch.arange(-8, 8).float().to(torch.float8_e5m2)
    with pytest.raises(CannotInterpret, match="a comparison of fp8e5; expected a cast to float32"):
        _computing[(1,)](x, torch.empty(16), how)


def test_the_largest_of_a_block_is_found_in_float32() -> None:
    out = torch.empty(16)
    _computing[(1,)]((-torch.arange(1, 17).float()).to(torch.float8_e5m2), out, "largest")
    assert torch.equal(out, torch.full((16,), -1.0))
