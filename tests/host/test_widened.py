"""A widened tensor names its dtype and computes in float64."""

from __future__ import annotations

import ctypes
import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from gradoracle.properties.universal import UNIVERSAL
from jaxtyping import Float
from torch import Tensor
from torch.utils.dlpack import to_dlpack

import gradoracle
from gradoracle.check.severity import with_severity
from gradoracle.host import interpreter
from gradoracle.host.interpreter.values import CannotWiden
from gradoracle.host.widened import Wide, narrowed, widen, widening
from gradoracle.model.case import Case
from gradoracle.model.kernel import Kernel
from gradoracle.model.reason import Reason
from gradoracle.model.severity import Severity
from gradoracle.model.verdict import Status
from tests.properties.judging import judge_on
from tests.properties.toys import evidence

if interpreter.explain_unavailable() is None:
    interpreter.activate()
PROPERTIES = {prop.name: prop for prop in UNIVERSAL}

FINE = 1 + 2.0**-40  # a float64 alone holds it
DTYPES = (torch.float16, torch.bfloat16, torch.float32)


def wide(values: list[float], dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return Wide(torch.tensor(values, dtype=torch.float64), dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_widened_tensor_keeps_its_name_layout_and_values(dtype: torch.dtype) -> None:
    given = torch.randn(4, 6).to(dtype).t()[1:5:2]
    own = widen(given)
    assert (own.dtype, own.shape, own.stride(), own.storage_offset()) == (
        dtype, given.shape, given.stride(), given.storage_offset()
    )  # fmt: skip
    assert torch.equal(narrowed(own), given.double())
    assert widen(own) is own


def test_integers_and_float64_are_left_alone() -> None:
    for given in (torch.arange(3), torch.tensor([True]), torch.ones(2, dtype=torch.float64)):
        assert widen(given) is given
        assert narrowed(given) is given


@pytest.mark.parametrize(
    ("made", "dtype"),
    [
        (lambda x: x.float(), torch.float32),
        (lambda x: x.to(torch.float16), torch.float16),
        (lambda x: x * 2, torch.bfloat16),
        (lambda x: x + torch.zeros(1), torch.float32),
        (lambda x: x.float() @ torch.eye(3), torch.float32),
        (lambda x: torch.softmax(x, -1, dtype=torch.float32), torch.float32),
        (lambda x: torch.empty_like(x).copy_(x), torch.bfloat16),
        (lambda x: torch.zeros(3, dtype=torch.float16).add_(x), torch.float16),
        (lambda x: torch.cat([x, x.float()]), torch.float32),
        (lambda x: torch.full((3,), 0.1), torch.float32),
        (lambda x: torch.where(x > 0, x, 0.0), torch.bfloat16),
        (lambda x: x[x > 0], torch.bfloat16),
        (lambda x: x.new_zeros(3).index_copy_(0, torch.arange(3), x), torch.bfloat16),
        (lambda x: torch.nn.functional.layer_norm(x.float(), (3,)), torch.float32),
        (lambda x: torch.nn.functional.gelu(x), torch.bfloat16),
        (lambda x: x.sort().values, torch.bfloat16),
        (lambda x: x.to(torch.promote_types(x.dtype, torch.float32)), torch.float32),
        (lambda x: x.to(torch.result_type(x, torch.zeros(1, dtype=torch.float16))), torch.float32),
    ],
)
def test_operations_name_the_dtype_that_pytorch_gives_and_carry_float64(
    made: Callable[[Tensor], Tensor], dtype: torch.dtype
) -> None:
    given = torch.tensor([FINE, 2.0, -3.0], dtype=torch.float64)
    with widening():
        found = made(Wide(given, torch.bfloat16))
    assert isinstance(found, Wide)
    assert found.dtype is dtype
    assert found.carried.dtype is torch.float64
    expected = made(given.clone().requires_grad_(False)) if dtype is torch.bfloat16 else None
    if expected is not None:
        assert torch.equal(found.carried, expected)


def test_values_below_the_rounding_of_the_dtype_survive_casts_and_storage() -> None:
    with widening():
        kept = torch.zeros(1, dtype=torch.bfloat16)
        kept.copy_(wide([FINE], torch.float32).to(torch.bfloat16).to(torch.float16))
        assert narrowed(kept).item() == FINE
        assert wide([FINE]).item() == FINE


def test_views_share_memory_and_in_place_operations_reach_their_base() -> None:
    base = wide([1.0, 2.0, 3.0, 4.0])
    with widening():
        base.view(2, 2)[1].mul_(FINE)
        base[0] = FINE
    assert narrowed(base).tolist() == [FINE, 2.0, 3 * FINE, 4 * FINE]
    assert base.data_ptr() == base.view(2, 2).data_ptr() == base.carried.data_ptr()


def test_autograd_saves_and_differentiates_float64() -> None:
    class Square(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            assert x.dtype is torch.bfloat16
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            return 2 * x * g.to(x.dtype)

    x = wide([FINE]).requires_grad_()
    with widening():
        (dx,) = torch.autograd.grad(Square.apply(x), x, wide([1.0]))
        (second,) = torch.autograd.grad((x.float() ** 3).sum(), x)
    assert narrowed(dx).item() == 2 * FINE
    assert narrowed(second).item() == 3 * FINE**2
    assert dx.dtype is second.dtype is torch.bfloat16


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        (lambda x: x.float() * x, 4 * FINE),
        (lambda x: x * 3, 3 * FINE),  # a number has no tangent, and no memory for it
        (lambda x: torch.where(x > 0, x, -torch.inf), FINE),
        (lambda x: torch.softmax(torch.cat([x, x]), -1)[:1], 0.0),
    ],
)
def test_forward_mode_carries_float64_tangents(made: Callable[[Tensor], Tensor], expected: float) -> None:
    with widening(), torch.autograd.forward_ad.dual_level():
        x = torch.autograd.forward_ad.make_dual(wide([2.0]), wide([FINE]))
        tangent = torch.autograd.forward_ad.unpack_dual(made(x)).tangent
    assert narrowed(tangent).item() == expected


@pytest.mark.parametrize("dtype", [torch.int16, torch.float16])
def test_bits_of_a_float_cannot_be_widened(dtype: torch.dtype) -> None:
    with widening(), pytest.raises(CannotWiden, match=r"aten.view.dtype reads the bits of a float"):
        wide([1.0]).view(dtype)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: torch.view_as_real(torch.view_as_complex(x) * 2j),
        lambda x: torch.view_as_real(torch.fft.ifft(torch.fft.fft(torch.view_as_complex(x)).conj())),
        lambda x: torch.fft.irfft(torch.fft.rfft(x, 4) * torch.tensor(1j), 4),
        lambda x: (torch.view_as_complex(x).conj() + torch.zeros(3, dtype=torch.complex64)).imag,
        lambda x: torch.view_as_real(torch.polar(x[:, 0], x[:, 1]).sgn()),
    ],
)
def test_complex_numbers_name_their_dtype_and_carry_complex128(function: Callable[[Tensor], Tensor]) -> None:
    x = torch.tensor([[1.0, 2.0], [3.0, -4.0], [FINE, 0.5]], dtype=torch.float64)
    with widening():
        found = function(Wide(x, torch.float32))
        assert torch.view_as_complex(Wide(x, torch.float32)).dtype is torch.complex64
    assert found.dtype is torch.float32
    torch.testing.assert_close(narrowed(found), function(x), rtol=1e-15, atol=1e-15)


def test_outside_the_block_pytorch_computes_as_ever() -> None:
    with widening():
        assert isinstance(torch.zeros(1), Wide)
    assert type(torch.zeros(1)) is Tensor
    with pytest.raises(KeyError), widening():
        raise KeyError
    assert type(torch.zeros(1)) is Tensor


HANDED_OUT: dict[str, Callable[[Tensor], object]] = {
    "data_ptr": lambda x: x.data_ptr(),
    "data_ptr of the class": lambda x: Tensor.data_ptr(x),
    "storage": lambda x: x.untyped_storage().data_ptr(),
    "numpy": lambda x: x.numpy(),
    "asarray": np.asarray,
    "numpy's functions": np.sin,
    "from_dlpack": torch.from_dlpack,
    "numpy's from_dlpack": np.from_dlpack,
    "to_dlpack": lambda x: torch.utils.dlpack.to_dlpack(x),
    "a name of to_dlpack": lambda x: to_dlpack(x),
    "__cuda_array_interface__": lambda x: x.__cuda_array_interface__,
}


@pytest.mark.parametrize("how", HANDED_OUT)
def test_memory_is_handed_to_nobody_who_takes_it_for_the_dtype_it_names(how: str) -> None:
    for made in (lambda: wide([1.0, 2.0]), lambda: torch.empty(2)):
        with widening(), pytest.raises((CannotWiden, RuntimeError)):
            HANDED_OUT[how](made())
    if how != "__cuda_array_interface__":
        HANDED_OUT[how](torch.ones(2))  # outside, as ever


def test_addresses_that_are_only_compared_are_as_written() -> None:
    own = widen(torch.randn(8)[2:])
    with widening():
        assert own.data_ptr() == own.data_ptr() and own.data_ptr() != torch.empty(3).data_ptr()
        assert own.data_ptr() % 16 == 8 and bool(own.data_ptr() % 8 == 0)  # of four bytes each
        if own.data_ptr():
            assert not (own.data_ptr() % 4 and own.data_ptr())
        with pytest.raises(CannotWiden, match="data_ptr"):
            int(own.data_ptr())
        with pytest.raises(CannotWiden, match="data_ptr"):
            _ = own.data_ptr() + 4 == own[1:].data_ptr()  # a distance in bytes
    assert own.tolist() == own.carried.tolist()


def test_an_operator_of_another_library_runs_widened_where_it_is_python() -> None:
    @torch.library.custom_op("gradoracle_tests::thirds", mutates_args=())
    def thirds(x: Tensor) -> Tensor:
        made = torch.empty(x.shape, dtype=torch.float32)
        return made.copy_(x / 3)

    library = torch.library.Library("gradoracle_tests", "FRAGMENT")
    library.define("raw(Tensor x) -> Tensor")
    library.impl("raw", lambda x: x + 1, "CPU")
    with widening():
        found = thirds(wide([1.0], torch.float32))
        assert found.dtype is torch.float32 and narrowed(found).item() == 1 / 3
        with pytest.raises(CannotWiden, match=r"gradoracle_tests.raw.default is an operator of another library"):
            torch.ops.gradoracle_tests.raw(wide([1.0]))


def by_ctypes(x: Tensor, factor: float) -> Tensor:
    made = torch.empty_like(x)
    read, write = ((ctypes.c_float * x.numel()).from_address(each.data_ptr()) for each in (x, made))  # here
    for place in range(x.numel()):
        write[place] = factor * read[place]
    return made


def by_numpy(x: Tensor, factor: float) -> Tensor:
    return torch.from_numpy(np.float32(factor) * x.numpy())  # here


def by_dlpack(x: Tensor, factor: float) -> Tensor:
    return torch.from_numpy(np.float32(factor) * np.from_dlpack(x))  # here


@pytest.mark.parametrize("call", [by_ctypes, by_numpy, by_dlpack])
def test_a_kernel_in_another_language_is_judged_as_written_and_not_widened(call: Callable[..., Tensor]) -> None:
    @gradoracle.family(outputs=("o",), dtypes=("float32",))
    def tripled(x: Float[Tensor, "N"]) -> Float[Tensor, "N"]:
        return 3 * x

    class Times(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, factor: float) -> Tensor:
            ctx.factor = factor
            return call(x.detach().contiguous(), factor)

        @staticmethod
        @torch.autograd.function.once_differentiable
        def backward(ctx: Any, g: Tensor) -> Any:
            return call(g.contiguous(), ctx.factor), None

    case, lines = Case("tripled", {"N": 9}), inspect.getsourcelines(call)
    line = lines[1] + next(n for n, text in enumerate(lines[0]) if "# here" in text)
    for factor, status in ((3.0, Status.HOLDS), (3.3, Status.VIOLATED)):
        own = evidence(Kernel("times", "tripled", lambda x, by=factor: Times.apply(x, by)), case, tripled)
        judged = judge_on("vjp_matches_the_oracle", own)
        assert judged.status is status
        wide_ = judge_on("definition_is_exact_when_widened", own)
        assert wide_.status is Status.NOT_CHECKED and wide_.why is Reason.NOT_WIDENED
        assert wide_.reason.startswith("cannot be widened: ") and wide_.reason.endswith(f", at test_widened.py:{line}")
        if status is Status.VIOLATED:
            assert with_severity(PROPERTIES["vjp_matches_the_oracle"], own, judged).severity is Severity.WRONG
