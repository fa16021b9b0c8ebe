"""What an operator between two values gives the second time is, bit for bit and in its type, what Triton gave first."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable
from typing import Any

import interpreted
import numpy as np
import pytest

from gradoracle.host import interpreter

pytestmark = [pytest.mark.xdist_group("interpreter"), interpreted.NEEDED]
interpreter.activate()

import triton.language as tl  # noqa: E402  after activate: triton decides when it is imported
from triton.runtime.interpreter import TensorHandle  # noqa: E402

from gradoracle.host.interpreter import expressions, loops  # noqa: E402
from gradoracle.host.interpreter.blocks import Scalar  # noqa: E402
from gradoracle.host.interpreter.rounding import to_bf16  # noqa: E402
from gradoracle.host.interpreter.values import held_as  # noqa: E402
from tests.host.interpreter.triton_builtins import bound, patched  # noqa: E402, F401

_BUILTINS = {name: vars(tl.tensor)[name] for name in expressions.OPERATORS}
_WHERE = tl.where
FLOATS = [tl.float16, tl.bfloat16, tl.float32, tl.float64]
INTEGERS = [tl.int32, tl.int64]
DTYPES = [*FLOATS, *INTEGERS, tl.int1, tl.int8, tl.uint32]
SHAPES = [((4, 8), (4, 8)), ((4, 8), (1, 8)), ((4, 1), (1, 8)), ((4, 8), ()), ((), (4, 8)), ((8,), (4, 8)), ((), ())]
BINARY = [name for name in expressions.OPERATORS if name not in ("__getitem__", "to")]
BITS = ("and", "or", "xor")


def value(dtype: Any, shape: tuple[int, ...], seed: int) -> Any:
    rng = np.random.default_rng(seed)
    held = held_as(dtype)
    numbers = rng.integers(0 if dtype == tl.uint32 else -9, 9, shape or (1,))
    if dtype.is_floating():
        numbers = np.where(numbers == 7, np.nan, np.where(numbers == 8, np.inf, numbers / 7.0))
    data = numbers.astype(held)
    data = to_bf16(data) if dtype == tl.bfloat16 else data
    return tl.tensor(TensorHandle(data, dtype), tl.block_type(dtype, list(shape)) if shape else dtype)


def outcome(call: Callable[..., Any], *args: Any) -> Any:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = call(*args)
    except Exception as error:
        return type(error)
    shape = np.broadcast_shapes(tuple(found.type.shape.values)) if found.type.is_block() else (1,)
    data = np.broadcast_to(found.handle.data, shape)
    return found.type.name, found.dtype.name, str(found.shape), str(found.numel), data.dtype, data.tobytes()


def same_twice(replace: Callable[..., Any], builtin: Any, *args: Any) -> bool:
    """Whether the replaced operator gives what Triton's own gives, when it meets the types first and afterwards."""
    own = outcome(bound(builtin), *args)
    call = replace(bound(builtin))
    return all(outcome(call, *args) == own for _ in range(3))


@pytest.mark.parametrize("name", BINARY)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_an_operator_between_two_values(name: str, dtype: Any) -> None:
    for other in DTYPES:
        for left, right in SHAPES:
            x, y = value(dtype, left, 1), value(other, right, 2)
            assert same_twice(expressions.OPERATORS[name], _BUILTINS[name], x, y), (other, left, right)


@pytest.mark.parametrize("name", BINARY)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_an_operator_between_a_value_and_a_number(name: str, dtype: Any) -> None:
    x = value(dtype, (4, 8), 3)
    for number in (0, 1, -3, 2**31, 0.0, -0.0, 0.1, float("inf"), float("nan"), 1e-40, True, tl.constexpr(2)):
        assert same_twice(expressions.OPERATORS[name], _BUILTINS[name], x, number), number


def test_a_written_zero_has_no_sign() -> None:
    """Triton's frontend makes 0.0 of -0.0: `x * -0.0` is `arith.mulf x, 0.000000e+00` in TTIR."""
    multiply = expressions.OPERATORS["__mul__"](bound(_BUILTINS["__mul__"]))
    x = value(tl.float32, (4, 8), 4)
    finite = np.isfinite(x.handle.data)
    assert np.signbit(x.handle.data[finite]).any() and not np.signbit(x.handle.data[finite]).all()
    for zero in (0.0, -0.0, 0, -0.0, 0.0, tl.constexpr(-0.0)):
        for call in (multiply, bound(_BUILTINS["__mul__"])):
            found = call(x, zero).handle.data
            assert (np.signbit(found) == np.signbit(x.handle.data))[finite].all()


@pytest.mark.parametrize("offset", INTEGERS, ids=str)
@pytest.mark.parametrize("element", [tl.int1, tl.bfloat16, tl.float64], ids=str)
def test_a_pointer_is_advanced_by_elements(offset: Any, element: Any) -> None:
    for left, right in SHAPES:
        pointer = tl.pointer_type(element)
        at = TensorHandle(np.full(left or (1,), 4096, np.uint64), pointer)
        base = tl.tensor(at, tl.block_type(pointer, list(left)) if left else pointer)
        lowest = tl.tensor(TensorHandle(np.array([np.iinfo(held_as(offset)).min], held_as(offset)), offset), offset)
        for name in ("__add__", "__sub__"):
            for by in (value(offset, right, 5), lowest):
                assert same_twice(expressions.OPERATORS[name], _BUILTINS[name], base, by), name


@pytest.mark.parametrize("name", ["__add__", "__sub__"])
def test_a_pointer_is_advanced_by_numbers(name: str) -> None:
    pointer, steps = tl.pointer_type(tl.float32), loops.counted(3, 2**40, 2**31)
    numbers = (
        0,
        5,
        -7,
        2**31,
        -(2**31),
        2**62,
        -(2**63),
        2**63,
        2**64,
        True,
        0.5,
        tl.constexpr(4),
        *itertools.islice(steps, 3),
    )
    for shape in ((), (4, 8)):
        at = TensorHandle(np.full(shape or (1,), 1 << 40, np.uint64), pointer)
        base = tl.tensor(at, tl.block_type(pointer, list(shape)) if shape else pointer)
        for number in numbers:
            assert same_twice(expressions.OPERATORS[name], _BUILTINS[name], base, number), (shape, number)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_an_argument_of_a_kernel_is_a_number(dtype: Any) -> None:
    for name in BINARY:
        for number in (0.1, -0.0, 1e-40, float("nan"), float("-inf")):
            x = value(dtype, (4, 8), 3)
            call = expressions.OPERATORS[name](bound(_BUILTINS[name]))
            assert [outcome(call, x, Scalar(number)) for _ in range(3)] == [
                outcome(bound(_BUILTINS[name]), x, number)
            ] * 3


def test_where_of_two_numbers() -> None:
    for shape in ((4, 8), ()):
        condition = value(tl.int1, shape, 6)
        for x, y in (
            (1.0, 0.0),
            (-0.0, float("-inf")),
            (1e-40, 1.0),
            (1e300, 0.0),
            (1.0, 0),
            (True, False),
            (float("nan"), 2.0),
        ):
            assert same_twice(expressions.where, _WHERE, condition, x, y), (shape, x, y)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_where(dtype: Any) -> None:
    for left, right in SHAPES:
        for shape in ((4, 8), (4, 1), ()):
            condition, x, y = value(tl.int1, shape, 6), value(dtype, left, 7), value(dtype, right, 8)
            assert same_twice(expressions.where, _WHERE, condition, x, y), (left, right, shape)
            assert same_twice(expressions.where, _WHERE, condition, x, value(tl.float32, right, 8))
            for number in (0, -0.0, float("-inf")):
                assert same_twice(expressions.where, _WHERE, condition, x, number), (left, shape, number)
                assert same_twice(expressions.where, _WHERE, condition, number, y), (right, shape, number)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_cast(dtype: Any) -> None:
    for target in DTYPES:
        for shape in ((4, 8), ()):
            x = value(dtype, shape, 9)
            assert same_twice(expressions.OPERATORS["to"], _BUILTINS["to"], x, target), (target, shape)
            assert same_twice(expressions.OPERATORS["to"], _BUILTINS["to"], x, tl.constexpr(target)), (target, shape)


def test_new_axes() -> None:
    full = slice(None)
    for shape, items in [
        ((8,), (full, None)),
        ((8,), (None, full)),
        ((4, 8), (None, full, None, full)),
        ((4, 8), (full, full)),
        ((4, 8), (full, None)),
        ((), (None,)),
        ((8,), (full, slice(1, 2))),
        ((8,), (3,)),
    ]:
        x = value(tl.int32, shape, 1)
        assert same_twice(expressions.OPERATORS["__getitem__"], _BUILTINS["__getitem__"], x, items), (shape, items)
