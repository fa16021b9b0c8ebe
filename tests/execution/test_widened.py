"""A widened tensor names its dtype and computes in float64."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from gradoracle.execution.interpreter.values import CannotWiden
from gradoracle.execution.widened import Wide, narrowed, widen, widening

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


def test_outside_the_block_pytorch_computes_as_ever() -> None:
    with widening():
        assert isinstance(torch.zeros(1), Wide)
    assert type(torch.zeros(1)) is Tensor
    with pytest.raises(KeyError), widening():
        raise KeyError
    assert type(torch.zeros(1)) is Tensor
