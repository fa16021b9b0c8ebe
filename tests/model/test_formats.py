"""The table of number formats: each row against torch and Triton, and the bits of their numbers."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from awkward_numbers import awkward

from gradoracle.model.contract import PRESETS, Contract, contract, default_contract
from gradoracle.model.formats import DTYPES, FORMATS, OF_DTYPES, OF_TRITON, Format, is_in_range

OF_TORCH = [each for each in FORMATS.values() if each.dtype is not None]
BYTES = [each for each in FORMATS.values() if each.width == 8]


def named(value: object) -> str:
    return value.name if isinstance(value, Format) else ""


@pytest.mark.parametrize("format_", OF_TORCH, ids=named)
def test_a_row_is_what_torch_says(format_: Format) -> None:
    info = torch.finfo(format_.dtype)
    assert str(format_.dtype) == f"torch.{format_.name}" and OF_DTYPES[format_.dtype] is format_
    assert (format_.largest, format_.smallest_normal, format_.width) == (info.max, info.smallest_normal, info.bits)
    following = torch.tensor([1.0]).to(format_.dtype)  # finfo(float8_e5m2fnuz).eps is a half of it in torch 2.13
    integer = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[format_.dtype.itemsize]
    following.view(integer).add_(1)
    assert following.double().item() - 1 == 2 * format_.unit_roundoff
    smallest = torch.ones(1, dtype=integer).view(format_.dtype).double().item()
    assert smallest == format_.smallest_subnormal
    largest = torch.tensor([info.max], dtype=torch.float64).to(format_.dtype).view(integer).item()
    assert largest == format_.largest_pattern
    infinite = torch.tensor([torch.inf], dtype=torch.float64).to(format_.dtype).double().item()
    assert (infinite == torch.inf) == format_.has_infinities


@pytest.mark.parametrize("name", OF_TRITON)
def test_a_row_is_what_triton_says(name: str) -> None:
    tl = pytest.importorskip("triton.language")
    type_, format_ = tl.dtype(name), OF_TRITON[name]
    assert type_.primitive_bitwidth == format_.width
    assert type_.fp_mantissa_width == format_.bits - 1
    assert type_.exponent_bias == 1 - format_.lowest


def test_every_dtype_of_cases_has_a_contract_of_formats_in_the_table() -> None:
    assert list(DTYPES) == ["float32", "bfloat16", "float16", "float64", "float8_e4m3fn", "float8_e5m2"]
    for name in DTYPES:
        assert default_contract(name) is contract(FORMATS[name].preset, name)
    for preset in PRESETS.values():
        held = {getattr(preset, each.name) for each in dataclasses.fields(Contract) if each.name not in ("name",)}
        assert {each for each in held if isinstance(each, str)} <= {*FORMATS, ""}
    for format_ in FORMATS.values():
        assert format_.parts in (*FORMATS, "")


def test_the_contracts_of_8_bits_round_operands_and_outputs_and_add_up_in_float32() -> None:
    for name, dtype in (("e4m3", "float8_e4m3fn"), ("e5m2", "float8_e5m2")):
        preset = PRESETS[name]
        assert (preset.operand, preset.accumulate, preset.elementwise, preset.output) == (
            dtype, "float32", "float32", dtype,
        )  # fmt: skip
        assert preset.accumulate_block and preset.rounds_to_few_bits


@pytest.mark.parametrize("format_", [each for each in BYTES if each.dtype is not None], ids=named)
def test_all_256_numbers_are_those_of_torch(format_: Format) -> None:
    expected = torch.arange(256, dtype=torch.uint8).view(format_.dtype).double().numpy()
    assert np.array_equal(format_.decoded(), expected, equal_nan=True)
    assert np.array_equal(np.signbit(format_.decoded()), np.signbit(expected))


@pytest.mark.parametrize("format_", BYTES, ids=named)
def test_every_number_of_a_format_keeps_its_bits(format_: Format) -> None:
    numbers = format_.decoded()
    finite = np.isfinite(numbers)
    assert np.array_equal(format_.encoded(numbers[finite]), np.arange(256)[finite])


@pytest.mark.parametrize("format_", [each for each in BYTES if each.dtype is not None], ids=named)
def test_rounding_gives_the_bits_of_torch(format_: Format) -> None:
    numbers = awkward(format_)
    expected = torch.from_numpy(numbers).to(format_.dtype).view(torch.uint8).numpy()
    assert np.array_equal(format_.encoded(numbers.astype(np.float64)), expected)


def test_beyond_the_range_torch_saturates_one_format_and_not_the_other() -> None:
    beyond = torch.tensor([1e6, torch.inf, -torch.inf])
    assert beyond.to(torch.float8_e4m3fn).double().tolist() == [448.0, 448.0, -448.0]
    assert beyond.to(torch.float8_e5m2).double().tolist() == [torch.inf, torch.inf, -torch.inf]
    assert FORMATS["float8_e5m2"].encoded(beyond.double().numpy(), saturates=True).tolist() == [0x7B, 0x7B, 0xFB]


def test_what_overflow_gives_is_out_of_range() -> None:
    assert is_in_range(torch.tensor([447.0, -1.0])) and not is_in_range(torch.tensor([1.0, torch.nan]))
    assert not is_in_range(torch.tensor([449.0]).to(torch.float8_e4m3fn))
    assert is_in_range(torch.tensor([400.0, 0.0]).to(torch.float8_e4m3fn))
