"""Interpreted while widened, kernels compute in float64 on 16-bit and float32 tensors alike."""

from __future__ import annotations

from typing import Any

import interpreted
import pytest
import torch
from places import loaded
from torch import Tensor

from gradoracle.host import interpreter

pytestmark = interpreted.NEEDED
interpreter.activate()

import triton.language as tl  # noqa: E402
from triton.runtime import interpreter as stock  # noqa: E402
from triton.tools.tensor_descriptor import TensorDescriptor  # noqa: E402

from gradoracle.host.guard_memory import inside_tensors  # noqa: E402
from gradoracle.host.interpreter.values import CannotWiden, is_widened, widened  # noqa: E402
from gradoracle.host.widened import Wide, narrowed, widen, widening  # noqa: E402

kernels = loaded("host.interpreter.kernels")
DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16, "float32": torch.float32}
BLOCK_POINTERS = pytest.mark.skipif(
    not hasattr(stock, "BlockPointerHandle"), reason="this Triton has no block pointers: 3.9 took them out"
)
N = 16


def numbers(dtype: torch.dtype, *shape: int, seed: int = 0) -> Wide:
    """Numbers that need the precision of a float64."""
    return Wide(torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)), dtype)


def launched(kernel: Any, *arguments: Any) -> None:
    with widening():
        kernel[(1,)](*arguments)


@pytest.fixture(params=DTYPES)
def dtype(request: pytest.FixtureRequest) -> torch.dtype:
    return DTYPES[request.param]


@pytest.mark.parametrize(
    ("operation", "expected"),
    [
        ("add", lambda x, y: x + y),
        ("div", lambda x, y: x / y),
        ("maximum", torch.maximum),
        ("clamp", lambda x, y: x.clamp(-1.0, 2.0)),
        ("scaled", lambda x, y: x * 0.1),
        ("plus_full", lambda x, y: x + 0.1),
        ("fma", lambda x, y: x * y + x),
        ("exp", lambda x, y: x.exp()),
    ],
)
def test_arithmetic_is_that_of_float64(operation: str, expected: Any, dtype: torch.dtype) -> None:
    x, y, z = numbers(dtype, N), numbers(dtype, N, seed=1), numbers(dtype, N)
    launched(kernels.arithmetic, x, y, z, N, operation)
    torch.testing.assert_close(narrowed(z), expected(x.carried, y.carried), rtol=1e-15, atol=0)


@pytest.mark.parametrize("to", [tl.bfloat16, tl.float16, tl.float32, tl.float8e5])
def test_casts_of_floats_keep_the_value(to: Any, dtype: torch.dtype) -> None:
    x, z = numbers(dtype, N), numbers(dtype, N)
    launched(kernels.cast, x, z, N, to)
    assert torch.equal(narrowed(z), x.carried)


@pytest.mark.parametrize("to", [tl.bfloat16, tl.float16])
def test_casts_toward_zero_keep_the_value(to: Any) -> None:
    x, z = numbers(torch.float32, N), numbers(torch.float32, N)
    launched(kernels.cast_toward_zero, x, z, N, to)
    assert torch.equal(narrowed(z), x.carried)


def test_a_cast_to_an_integer_truncates_and_back_gives_that_integer(dtype: torch.dtype) -> None:
    x, z = numbers(dtype, N), numbers(dtype, N)
    launched(kernels.cast, x, z, N, tl.int32)
    assert torch.equal(narrowed(z), x.carried.trunc())


@pytest.mark.parametrize("precision", ["ieee", "tf32", "tf32x3"])
def test_dots_are_exact_at_any_input_precision(precision: str) -> None:
    a, b, c = (numbers(torch.float32, 16, 16, seed=seed) for seed in range(3))
    z = numbers(torch.float32, 16, 16)
    launched(kernels.dot, a, b, c, z, 16, 16, 16, precision, tl.float32)
    torch.testing.assert_close(narrowed(z), a.carried @ b.carried + c.carried, rtol=1e-13, atol=1e-14)


@pytest.mark.parametrize("operation", ["sum", "max", "min", "cumsum"])
def test_reductions_and_scans(operation: str, dtype: torch.dtype) -> None:
    x = numbers(dtype, 4, 8)
    z = numbers(dtype, 4, 8) if operation == "cumsum" else numbers(dtype, 4)
    launched(kernels.reduce, x, z, 4, 8, operation)
    expected = {
        "sum": x.carried.sum(1),
        "max": x.carried.amax(1),
        "min": x.carried.amin(1),
        "cumsum": x.carried.cumsum(1),
    }
    torch.testing.assert_close(narrowed(z), expected[operation], rtol=1e-13, atol=1e-15)


def test_atomics_add_float64(dtype: torch.dtype) -> None:
    x, z = numbers(dtype, N), numbers(dtype, N, seed=1)
    before = z.carried.clone()
    launched(kernels.atomic_add, x, z, N)
    added = x.carried[4:].reshape(3, 4).sum(0)
    torch.testing.assert_close(narrowed(z)[:4], before[:4] + added, rtol=1e-14, atol=1e-15)
    assert torch.equal(narrowed(z)[4:], before[4:])


def test_masks_and_addresses_are_as_written(dtype: torch.dtype) -> None:
    x, z = numbers(dtype, N), numbers(dtype, N)
    launched(kernels.masked_copy, x, z, 5, N)
    assert torch.equal(narrowed(z), torch.cat([x.carried[:5], torch.full((N - 5,), -1.5, dtype=torch.float64)]))


def test_a_store_outside_of_a_tensor_is_not_made(dtype: torch.dtype) -> None:
    whole = Wide(torch.zeros(2 * N, dtype=torch.float64), dtype)
    x, z = numbers(dtype, 2 * N), whole[:N]
    with inside_tensors():
        launched(kernels.arithmetic, x, x, z, 2 * N, "add")
    assert torch.equal(whole.carried[:N], 2 * x.carried[:N]) and not whole.carried[N:].count_nonzero()


def test_an_argument_that_is_a_number_stays_a_float64() -> None:
    x, z = numbers(torch.float32, 8), numbers(torch.float32, 24)
    launched(kernels.float_argument, x, z, 0.1, 8)
    torch.testing.assert_close(narrowed(z).view(3, 8), (x.carried * 0.1).expand(3, 8), rtol=1e-15, atol=0)


def test_bits_of_a_float_are_those_of_the_dtype_that_it_names() -> None:
    x, z = widen(torch.tensor([1.0, -2.5] * 8)), torch.zeros(N, dtype=torch.int32)
    launched(kernels.bitcast, x, z, N, tl.int32)
    assert torch.equal(z, narrowed(x).float().view(torch.int32))


def test_a_power_of_two_is_made_of_bits_and_any_other_float_is_not() -> None:
    z = numbers(torch.float32, N)
    launched(kernels.bitcast, torch.full((N,), (127 + 3) << 23, dtype=torch.int32), z, N, tl.float32)
    assert narrowed(z).tolist() == [8.0] * N
    with pytest.raises(CannotWiden, match="bits of int32 are read as fp32"):
        launched(kernels.bitcast, torch.full((N,), 0x3FC00000, dtype=torch.int32), z, N, tl.float32)


def test_a_tensor_that_is_not_widened_is_refused_and_nothing_stays_widened_after_an_error() -> None:
    x: Tensor = torch.zeros(N, dtype=torch.bfloat16)
    with pytest.raises(CannotWiden, match=r"a launch on a tensor of torch\.bfloat16"), widened():
        kernels.masked_copy[(1,)](x, x, 5, N)
    assert not is_widened()
    z = torch.zeros(N, dtype=torch.bfloat16)
    kernels.masked_copy[(1,)](x, z, 5, N)
    assert z.tolist() == [0.0] * 5 + [-1.5] * (N - 5)


def described(x: Tensor) -> TensorDescriptor:
    return TensorDescriptor(x, list(x.shape), list(x.stride()), [16, N])


@pytest.mark.filterwarnings("ignore:tl.make_block_ptr is deprecated")
@pytest.mark.parametrize(
    "kernel", [pytest.param(kernels.doubled_by_block_pointers, marks=BLOCK_POINTERS), kernels.doubled_by_descriptors]
)
def test_blocks_of_pointers_and_descriptors_step_by_float64(kernel: Any, dtype: torch.dtype) -> None:
    x, z = numbers(dtype, 20, N), numbers(dtype, 20, N, seed=1)  # whose last block of 16 rows has a tail
    launched(kernel, x, z, 20, N, 16)
    assert torch.equal(narrowed(z), 2 * narrowed(x))
    written, out = narrowed(x).to(dtype), torch.zeros(20, N, dtype=dtype)
    kernel[(1,)](written, out, 20, N, 16)
    assert torch.equal(out, 2 * written)


def test_descriptors_that_the_wrapper_makes_hold_float64(dtype: torch.dtype) -> None:
    x, z = numbers(dtype, 20, N), numbers(dtype, 20, N, seed=1)
    launched(kernels.doubled_by_given_descriptors, described(x), described(z), 20, 16)
    assert torch.equal(narrowed(z), 2 * narrowed(x))
    written, out = narrowed(x).to(dtype), torch.zeros(20, N, dtype=dtype)
    kernels.doubled_by_given_descriptors[(1,)](described(written), described(out), 20, 16)
    assert torch.equal(out, 2 * written)
    with pytest.raises(CannotWiden, match="that was made before"), widened():
        kernels.doubled_by_given_descriptors[(1,)](described(written), described(z), 20, 16)


def test_an_unaligned_descriptor_is_refused_by_its_width_as_written() -> None:
    x, z = numbers(torch.bfloat16, 2, N), numbers(torch.bfloat16, 1, N, seed=1)
    launched(kernels.read_by_a_descriptor_at, x, z, 8, N)
    assert torch.equal(narrowed(z)[0, :8], narrowed(x)[0, 8:])
    with pytest.raises(Exception, match="must be 16-byte aligned"):
        launched(kernels.read_by_a_descriptor_at, x, z, 4, N)
