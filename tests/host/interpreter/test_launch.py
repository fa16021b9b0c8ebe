"""Launches: what a kernel is given, what is put back, and that speed changed no result."""

from __future__ import annotations

import ctypes
import re
from pathlib import Path

import interpreted
import pytest
import torch
from jaxtyping import Float
from places import loaded
from torch import Tensor

import gradoracle
from gradoracle.cases.sample import build
from gradoracle.execution.kernel_runner import KernelRunner
from gradoracle.host import interpreter
from gradoracle.model.call_errors import Unavailable
from gradoracle.model.case import Case
from gradoracle.model.kernel import Kernel

pytestmark = interpreted.NEEDED


interpreter.activate()
import triton  # noqa: E402
import triton.language as tl  # noqa: E402
from triton.runtime.errors import InterpreterError  # noqa: E402

kernels = loaded("host.interpreter.kernels")


def language() -> dict[str, object]:
    holders = {"tl": tl, "core": tl.core, "math": tl.math, "tensor": tl.tensor, "dtype": tl.dtype}
    holders["block_type"] = tl.block_type
    return {f"{h}.{name}": value for h, holder in holders.items() for name, value in vars(holder).items()}


def test_language_is_what_it_was_after_a_launch():
    before = language()
    x, out = torch.randn(4, 8), torch.empty(4)
    kernels.reduce[(1,)](x, out, 4, 8, "max")
    assert language() == before


def test_language_is_what_it_was_after_a_kernel_raised():
    before = language()
    with pytest.raises(InterpreterError, match="incompatible"):
        kernels.mismatched[(1,)](torch.empty(16))
    assert language() == before


def test_what_the_interpreter_has_not_is_no_error_of_the_kernel():
    @gradoracle.family
    def doubled(x: Float[Tensor, "N"]) -> Float[Tensor, "N"]:
        return 2 * x

    def of_inline_assembly(x):
        z = torch.empty_like(x)
        kernels.of_inline_assembly[(1,)](x, z, len(x))
        return z

    case = Case("doubled", {"N": 8}, dtype="float32", seed=1)
    runner = KernelRunner(doubled, Kernel("k", "doubled", of_inline_assembly))
    with pytest.raises(Unavailable, match="Triton's interpreter has no inline_asm; a GPU runs it"):
        runner.forward(build(case, doubled.signature))


def test_numpy_multiplies_in_one_thread():
    libraries = set(re.findall(r"/\S*openblas\S*", Path("/proc/self/maps").read_text()))
    if not libraries:
        pytest.skip("not checked: numpy's BLAS is not OpenBLAS here")
    getters = ("scipy_openblas_get_num_threads64_", "openblas_get_num_threads64_", "openblas_get_num_threads")
    counts = [
        getattr(ctypes.CDLL(lib), name)() for lib in libraries for name in getters if hasattr(ctypes.CDLL(lib), name)
    ]
    assert counts and set(counts) == {1}


def test_every_program_of_a_grid_runs_with_its_number():
    out = torch.zeros(3, 5)
    kernels.program_numbers[(3, 5)](out, 0.5)
    assert torch.equal(out, torch.arange(15.0).reshape(3, 5) * 0.5)


def test_grid_may_be_a_function_of_the_arguments():
    out = torch.zeros(15)
    kernels.program_numbers[lambda values: (triton.cdiv(29, 2), 1)](out, SCALE=2.0)
    assert torch.equal(out, torch.arange(15.0) * 2)


def test_grid_of_four_dimensions_is_refused():
    with pytest.raises(ValueError, match="a grid of 4 dimensions was given; at most 3 are possible"):
        kernels.program_numbers[(1, 1, 1, 1)](torch.zeros(1), 1.0)


def test_missing_argument_is_named():
    with pytest.raises(TypeError, match="SCALE"):
        kernels.program_numbers[(1,)](torch.zeros(1))


def test_loop_bound_known_at_run_time():
    x = torch.randn(50)
    out = torch.empty(16)
    kernels.loop_of_loads[(1,)](x, out, 50, 16)
    padded = torch.cat([x, torch.zeros(14)]).reshape(4, 16)
    assert torch.equal(out, ((padded[0] + padded[1]) + padded[2]) + padded[3])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.int8])
def test_strided_tensor_is_read_and_written_where_it_is(dtype):
    x = (torch.randn(40, 24) * 50).to(dtype)
    out = torch.full((24, 80), 7).to(dtype)
    kernels.copy_block[(1,)](x.T, out[:, ::2], 24, 40, *x.T.stride(), *out[:, ::2].stride(), 32, 64)
    assert torch.equal(out[:, ::2], x.T) and (out[:, 1::2] == 7).all()


def test_masked_elements_are_not_touched():
    out = torch.full((16,), 3.0)
    kernels.store_where[(1,)](out, 5, 9, 16)
    assert out.tolist() == [3.0] * 5 + [1.0] * 4 + [3.0] * 7


def test_nothing_is_read_where_nothing_is_asked_for():
    out = torch.full((16,), 3.0)
    kernels.store_where[(1,)](out, 9, 9, 16)
    kernels.load_nothing[(1,)](torch.empty(0), out, 16)
    assert out.tolist() == [-2.0] * 16


def test_elements_that_are_not_whole_elements_apart():
    memory = torch.zeros(40, dtype=torch.uint8)
    kernels.unaligned[(1,)](memory, 8)
    assert memory.numpy()[:40].reshape(8, 5)[:, :4].copy().view("f4").reshape(-1).tolist() == list(range(8))


def test_later_of_two_stores_to_one_address_counts():
    out = torch.zeros(1)
    kernels.store_all_to_one[(1,)](out, 8)
    assert out.item() == 7


def test_broadcasting_in_every_operation():
    x, y = torch.randn(16), torch.randn(32)
    out = torch.empty(9, 16, 32)
    kernels.outer[(1,)](x, y, out, 16, 32)
    a, b = x[:, None].expand(16, 32), y[None, :].expand(16, 32)
    expected = [a + b, a - b, a * b, torch.maximum(a, b), torch.where(a < b, a, b), -a + 0 * b, (a < b).float() * 2]
    expected += [b + a * 0, torch.where(a > 0, b, 0.5)]
    for i, w in enumerate(expected):
        assert torch.equal(out[i], w), i


def test_integer_arithmetic_wraps_and_promotes():
    x = torch.tensor([2**31 - 1, -(2**31), -7, 7, 0, 1, 123456789, -1], dtype=torch.int32)
    out = torch.empty(6, 8, dtype=torch.int64)
    kernels.integers[(1,)](x, out, 8)
    assert torch.equal(out[0], (x + x).long()) and torch.equal(out[1], x.long() + x.long())
    assert torch.equal(out[2], torch.div(x, 3, rounding_mode="trunc").long())
    assert torch.equal(out[3], torch.fmod(x, 3).long())
    assert torch.equal(out[4], (x >> 2).long()) and torch.equal(out[5], (x & 12).long())


def test_a_float_argument_is_a_number_and_can_be_cast_as_a_compiled_one_is():
    x, scale = torch.ones(8, dtype=torch.float64), 0.1
    z = torch.zeros(24, dtype=torch.float64)
    kernels.float_argument[(1,)](x, z, scale, 8)
    as_float32 = torch.tensor(scale)
    assert z[:8].eq(scale).all()
    assert z[8:16].eq(as_float32.double()).all()
    assert z[16:].eq(as_float32.bfloat16().double()).all()
