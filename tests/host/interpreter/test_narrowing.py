"""A widened kernel that rounds at some of its statements."""

from __future__ import annotations

import inspect
from collections.abc import Callable
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

from gradoracle.host.interpreter.builder_results import intervening  # noqa: E402
from gradoracle.host.interpreter.intervention import Narrowed, Noted  # noqa: E402
from gradoracle.host.widened import narrowed, widen, widening  # noqa: E402
from gradoracle.model.wrong_accesses import SourceLine  # noqa: E402

kernels = loaded("host.interpreter.kernels")
DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16, "float32": torch.float32}
N = 16


@pytest.fixture(params=DTYPES)
def dtype(request: pytest.FixtureRequest) -> torch.dtype:
    return DTYPES[request.param]


def numbers(dtype: torch.dtype, *shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def noted(call: Callable[..., Any], *given: Tensor) -> tuple[SourceLine, ...]:
    found, wide = Noted(), [widen(each) for each in given]
    with intervening(found), widening():
        call(*wide)
    return found.places


def rounding_at(places: tuple[SourceLine, ...], call: Callable[..., Any], *given: Tensor) -> list[Tensor]:
    """What a call makes of its arguments if some statements round."""
    wide = [widen(each) for each in given]
    with intervening(Narrowed(places)), widening():
        call(*wide)
    return [narrowed(each) for each in wide]


def of_wrapper(places: tuple[SourceLine, ...], call: Callable[[Tensor], Tensor], given: Tensor) -> Tensor:
    """What a call returns if some statements round."""
    wide = widen(given)
    with intervening(Narrowed(places)), widening():
        return narrowed(call(wide))


def rounding_everywhere(kernel: Any, *arguments: Any) -> None:
    """Compare a kernel that rounds at every statement with the kernel as written, bit by bit."""
    tensors = [each for each in arguments if isinstance(each, Tensor)]
    rest = arguments[len(tensors) :]

    def call(*given: Tensor) -> None:
        kernel[(1,)](*given, *rest)

    places = noted(call, *[each.clone() for each in tensors])
    found = rounding_at(places, call, *[each.clone() for each in tensors])
    call(*tensors)
    for own, each in zip(found, tensors, strict=True):
        assert torch.equal(own, each.double())
    assert {place.function for place in places} <= {kernel.fn.__name__}


@pytest.mark.parametrize("operation", ["add", "sub", "mul", "div", "scaled", "plus_full", "fma", "clamp", "maximum"])
def test_arithmetic_rounds_as_written(operation: str, dtype: torch.dtype) -> None:
    rounding_everywhere(
        kernels.arithmetic, numbers(dtype, N), numbers(dtype, N, seed=1), numbers(dtype, N), N, operation
    )


@pytest.mark.parametrize("to", [tl.bfloat16, tl.float16, tl.float32])
@pytest.mark.parametrize("kernel", ["cast", "cast_toward_zero"])
def test_casts_round_as_written(kernel: str, to: Any) -> None:
    rounding_everywhere(getattr(kernels, kernel), numbers(torch.float32, N), numbers(torch.float32, N), N, to)


@pytest.mark.parametrize("precision", ["ieee", "tf32", "tf32x3"])
def test_dots_round_their_operands_as_written(precision: str) -> None:
    a, b, c, z = (numbers(torch.float32, 16, 16, seed=seed) for seed in range(4))
    rounding_everywhere(kernels.dot, a, b, c, z, 16, 16, 16, precision, tl.float32)


@pytest.mark.parametrize("operation", ["sum", "sum_columns", "max"])
def test_sums_round_as_written(operation: str, dtype: torch.dtype) -> None:
    rounding_everywhere(kernels.reduce, numbers(dtype, 8, 8), numbers(dtype, 8), 8, 8, operation)


def test_a_scan_rounds_its_results(dtype: torch.dtype) -> None:
    x, z = numbers(dtype, 4, 8), numbers(dtype, 4, 8)
    call = lambda x, z: kernels.reduce[(1,)](x, z, 4, 8, "cumsum")  # noqa: E731
    found = rounding_at(noted(call, x, z), call, x, z)[1]
    assert torch.equal(found, found.to(dtype).double())
    torch.testing.assert_close(found, x.double().cumsum(1), rtol=torch.finfo(dtype).eps * 16, atol=0.01)
    assert not torch.equal(found, x.double().cumsum(1))


def test_atomic_additions_round_each_sum(dtype: torch.dtype) -> None:
    rounding_everywhere(kernels.atomic_add, numbers(dtype, N), numbers(dtype, N, seed=1), N)


def test_a_float_argument_rounds_where_it_is_used() -> None:
    rounding_everywhere(kernels.float_argument, numbers(torch.float32, 8), numbers(torch.float32, 24), 0.1, 8)


def line_of(kernel: Any, text: str) -> int:
    lines, first = inspect.getsourcelines(kernel.fn)
    return first + next(n for n, line in enumerate(lines) if text in line)


def test_one_statement_rounds_and_others_do_not() -> None:
    x, z = numbers(torch.float32, 8), numbers(torch.float32, 24)
    call = lambda x, z: kernels.float_argument[(1,)](x, z, 0.1, 8)  # noqa: E731
    line = line_of(kernels.float_argument, "2 * N + at")
    places = noted(call, x, z)
    assert line in [place.line for place in places]
    found = rounding_at(tuple(place for place in places if place.line == line), call, x, z)[1].view(3, 8)
    exact = x.double() * 0.1
    torch.testing.assert_close(found[:2], exact.expand(2, 8), rtol=1e-15, atol=0)
    assert torch.equal(found[2], (x * torch.tensor(0.1).bfloat16()).double())


def test_statements_that_only_move_values_are_not_noted() -> None:
    x, z = numbers(torch.float32, N), numbers(torch.float32, N)
    fine = lambda x, z: x.copy_(x + 2.0**-40)  # noqa: E731  (the one statement that rounds)

    def call(x: Tensor, z: Tensor) -> None:
        fine(x, z)
        kernels.masked_copy[(1,)](x, z, 5, N)
        z.view(4, 4).t().contiguous().clone()

    assert [place.function for place in noted(call, x, z)] == ["<lambda>"]


def half(x: Tensor) -> Tensor:
    return x.to(torch.bfloat16)


def filled(x: Tensor) -> Tensor:
    out = torch.empty_like(x, dtype=torch.bfloat16)
    out.copy_(x)
    return out


def product(x: Tensor) -> Tensor:
    return (x.bfloat16() @ x.bfloat16().t()).float()


def added(x: Tensor) -> Tensor:
    total = torch.zeros(4, dtype=torch.bfloat16)
    total += x[0]
    total[1:3] += x[1, :2]
    return total


@pytest.mark.parametrize("made", [half, filled, added])
def test_statements_of_the_wrapper_round_as_written(made: Callable[[Tensor], Tensor]) -> None:
    x = numbers(torch.float32, 4, 4)
    places = noted(made, x)
    assert {place.function for place in places} == {made.__name__}
    found = of_wrapper(places, made, x)
    assert torch.equal(found, made(x).double())


def test_a_product_of_the_wrapper_rounds_its_result() -> None:
    x = numbers(torch.float32, 4, 4)
    found = of_wrapper(noted(product, x), product, x)
    assert torch.equal(found, found.bfloat16().double())
    torch.testing.assert_close(found, product(x).double(), rtol=2**-7, atol=0)


def test_memory_rounds_what_is_written_to_it() -> None:
    x = numbers(torch.float32, N)

    def call(x: Tensor) -> Tensor:
        out = torch.empty_like(x, dtype=torch.bfloat16)
        kernels.masked_copy[(1,)](x, out, N, N)
        return out

    _, allocation = inspect.getsourcelines(call)
    memory = [place for place in noted(call, x) if place.line == allocation + 1]
    found = of_wrapper(tuple(memory), call, x)
    assert len(memory) == 1
    assert torch.equal(found, x.bfloat16().double())


def test_nothing_is_replaced_afterwards_or_twice() -> None:
    from triton.runtime.interpreter import InterpreterBuilder

    before = dict(vars(InterpreterBuilder))
    with intervening(Noted()), pytest.raises(RuntimeError, match="expected one at a time"), intervening(Noted()):
        pass
    assert dict(vars(InterpreterBuilder)) == before
