"""What an access reads or writes the second time is, bit for bit and in its type, what Triton's did the first time."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from itertools import product
from typing import Any

import interpreted
import numpy as np
import pytest

from gradoracle.host import interpreter

pytestmark = [pytest.mark.xdist_group("interpreter"), interpreted.NEEDED]
interpreter.activate()

import triton.language as tl  # noqa: E402  after activate: triton decides when it is imported
from triton.runtime.interpreter import TensorHandle  # noqa: E402

from gradoracle.host.interpreter import loads  # noqa: E402
from gradoracle.host.interpreter.values import held_as, in_memory, unpack_bf16  # noqa: E402
from tests.host.interpreter.triton_builtins import bound, patched  # noqa: E402, F401

DTYPES = [
    tl.float16, tl.bfloat16, tl.float32, tl.float64, tl.int32, tl.int64, tl.int1, tl.int8, tl.uint32,
]  # fmt: skip
SHAPES = [(4, 8), (4, 1), (8,), (1,), ()]
NUMBERS = [0, 0.0, -0.0, 1, -3.5, 2**31, 1e-9, float("inf"), float("nan"), True, tl.constexpr(2.0)]
_LOAD, _STORE = tl.load, tl.store


def tensor(data: Any, dtype: Any, shape: tuple[int, ...]) -> Any:
    return tl.tensor(TensorHandle(data, dtype), tl.block_type(dtype, list(shape)) if shape else dtype)


def places(memory: Any, element: Any, shape: tuple[int, ...], seed: int = 0) -> Any:
    """Pointers to elements of a buffer, each to another one, in no order."""
    order = np.random.default_rng(seed).permutation(memory.size)[: int(np.prod(shape))]
    data = (memory.ctypes.data + order * memory.itemsize).astype(np.uint64)
    return tensor(data.reshape(shape or (1,)), tl.pointer_type(element), shape)


def buffer(element: Any) -> Any:
    rng = np.random.default_rng(1)
    if element.is_floating():
        return rng.standard_normal(64).astype(np.float32).view(np.uint16)[1::2].copy() \
            if element == tl.bfloat16 else rng.standard_normal(64).astype(in_memory(element))  # fmt: skip
    return rng.integers(0, 2 if element == tl.int1 else 100, 64).astype(in_memory(element))


def numbers(dtype: Any, shape: tuple[int, ...], seed: int) -> Any:
    held = held_as(dtype)
    data = np.random.default_rng(seed).integers(0, 2 if dtype == tl.int1 else 9, shape or (1,)).astype(held)
    return tensor(data, dtype, shape)


def outcome(call: Callable[..., Any], *args: Any, **options: Any) -> Any:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = call(*args, **options)
    except Exception as error:
        return type(error)
    if found.type == tl.void:
        return "void"
    shape = tuple(found.type.shape.values) if found.type.is_block() else (1,)
    data = found.handle.data
    assert data.shape == shape
    return found.type.name, found.dtype.name, str(found.shape), str(found.numel), data.dtype, data.tobytes()


def loads_alike(*args: Any, **options: Any) -> Any:
    """What Triton's own load gives; the replaced one gives it when it meets the types first and afterwards."""
    own = outcome(bound(_LOAD), *args, **options)
    call = loads.load(bound(_LOAD))
    for _ in range(3):
        assert outcome(call, *args, **options) == own
    return own


@pytest.mark.parametrize("element", DTYPES, ids=str)
def test_a_load_of_some_elements(element: Any) -> None:
    memory, read = buffer(element), 0
    for shape, masked in product(SHAPES, [None, *SHAPES]):
        pointer = places(memory, element, shape)
        mask = None if masked is None else numbers(tl.int1, masked, 3)
        others = [None] if mask is None else [None, *NUMBERS, *(numbers(element, own, 4) for own in SHAPES)]
        for other in others:
            read += isinstance(loads_alike(pointer, mask, other), tuple)
    assert read > 100


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_elsewhere_a_value_of_another_dtype(dtype: Any) -> None:
    memory = buffer(tl.float16)
    pointer, mask = places(memory, tl.float16, (4, 8)), numbers(tl.int1, (4, 8), 3)
    assert isinstance(loads_alike(pointer, mask, numbers(dtype, (4, 8), 4)), tuple)


def test_a_number_elsewhere_is_distinguished_from_its_equals() -> None:
    for element, shape in product((tl.float32, tl.float16, tl.int32), ((4, 8), ())):
        call, pointer = loads.load(bound(_LOAD)), places(buffer(element), element, shape)
        none = tensor(np.zeros(shape or (1,), np.bool_), tl.int1, shape)
        for number in (0.0, -0.0, 0, 1, True, 1.0, 1, 0, -0.0, 0.0, 2**40, 0.1):
            own = bound(_LOAD)(pointer, none, number).handle.data
            assert own.tobytes() == call(pointer, none, number).handle.data.tobytes(), (element, number)


@pytest.mark.parametrize(
    "given",
    [
        {"mask": 1}, {"mask": tl.constexpr(True)}, {"mask": "yes"}, {"other": 0.0}, {"padding_option": "zero"},
        {"boundary_check": (0,)}, {"cache_modifier": ".ca"}, {"cache_modifier": ".nothing"},
        {"cache_modifier": tl.constexpr(".cg")}, {"eviction_policy": "evict_last"}, {"eviction_policy": "evict_none"},
        {"volatile": True},
    ],
    ids=str,
)  # fmt: skip
def test_options_are_taken_and_refused_as_tritons_are(given: dict[str, Any]) -> None:
    pointer = places(buffer(tl.float32), tl.float32, (4, 8))
    call, own = loads.load(bound(_LOAD)), outcome(bound(_LOAD), pointer, **given)
    assert outcome(call, pointer) == outcome(bound(_LOAD), pointer)
    assert [outcome(call, pointer, **given) for _ in range(3)] == [own] * 3
    assert isinstance(own, tuple) == (next(iter(given)) == "volatile" or str(next(iter(given.values()))) in (
        "1", "constexpr[True]", ".ca", "constexpr[.cg]", "evict_last"))  # fmt: skip


@pytest.mark.parametrize("mask", [tl.int32, tl.int8], ids=str)
def test_a_mask_that_is_no_bool_stays_tritons(mask: Any) -> None:
    asked: list[Any] = []
    call = loads.load(lambda *args: asked.append(args))
    for _ in range(3):
        call(places(buffer(tl.float32), tl.float32, (4, 8)), numbers(mask, (4, 8), 3))
    assert len(asked) == 3


def test_once_met_triton_is_not_asked_again() -> None:
    asked: list[Any] = []

    def own(builtin: Any) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            asked.append(args)
            return bound(builtin)(*args)

        return call

    memory = buffer(tl.float32)
    pointer, mask = places(memory, tl.float32, (4, 8)), numbers(tl.int1, (4, 1), 3)
    load, store = loads.load(own(_LOAD)), loads.store(own(_STORE))
    for _ in range(5):
        store(pointer, load(pointer, mask, 0.0), mask)
    assert len(asked) == 2


def stored(call: Callable[..., Any], times: int, element: Any, shape: tuple[int, ...], *more: Any) -> tuple[Any, bytes]:
    """What stores to pointers of a shape say, and what they leave in memory."""
    memory = buffer(element)
    pointer = places(memory, element, shape, seed=5)
    said = {outcome(call, pointer, *more) for _ in range(times)}
    assert len(said) == 1
    return said.pop(), memory.tobytes()


@pytest.mark.parametrize("element", DTYPES, ids=str)
def test_a_store(element: Any) -> None:
    written, before = 0, buffer(element).tobytes()
    for shape, masked, own in product(SHAPES, [None, *SHAPES], SHAPES):
        for given in (element, tl.float32):
            more = (numbers(given, own, 4), None if masked is None else numbers(tl.int1, masked, 3))
            expected = stored(bound(_STORE), 1, element, shape, *more)
            assert stored(loads.store(bound(_STORE)), 3, element, shape, *more) == expected, (shape, masked, own, given)
            written += expected[0] == "void" and expected[1] != before
    assert written > 20


def test_a_pointer_to_constants_is_not_stored_to() -> None:
    memory = buffer(tl.float32)
    at = places(memory, tl.float32, (4, 8)).handle
    constant = tl.pointer_type(tl.float32, const=True)
    pointer = tl.tensor(TensorHandle(at.data, constant), tl.block_type(constant, [4, 8]))
    call = loads.store(bound(_STORE))
    assert [outcome(call, pointer, numbers(tl.float32, (4, 8), 4)) for _ in range(3)] == [ValueError] * 3
    assert isinstance(loads_alike(pointer), tuple)


def test_every_bfloat16_is_read_and_written_with_its_bits() -> None:
    bits = np.arange(2**16, dtype=np.uint16)
    copied = np.zeros_like(bits)
    load, store = loads.load(bound(_LOAD)), loads.store(bound(_STORE))
    for _ in range(2):
        source = tensor(
            bits.ctypes.data + 2 * np.arange(2**16, dtype=np.uint64), tl.pointer_type(tl.bfloat16), (2**16,)
        )
        target = tensor(
            copied.ctypes.data + 2 * np.arange(2**16, dtype=np.uint64), tl.pointer_type(tl.bfloat16), (2**16,)
        )
        value = load(source)
        store(target, value)
    assert (copied == bits).all() and value.handle.data.tobytes() == unpack_bf16(bits).tobytes()
