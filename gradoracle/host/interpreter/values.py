"""How a block of each Triton dtype is held in numpy while a kernel is interpreted.

Triton holds bfloat16 as uint16 and then computes on those integers.  Here a bfloat16 block is a float32 array of
values that bfloat16 can hold: comparisons, selections, reshapes and exact products need no conversion, an upcast to
float32 is free, and arithmetic is one float32 operation and one rounding.  (One rounding too: float32 carries 24
bits, and 2 * 8 + 2 suffice for a sum or a product rounded twice to equal the one rounded once, subnormals
included.)  Memory holds the 16 bits; memory.py packs and unpacks.  Every other dtype is held as Triton does: an 8-bit
float as its bits, which nothing computes with.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt

from gradoracle.model.formats import OF_TRITON

Array = npt.NDArray[Any]

BF16 = "bf16"
EIGHT_BITS = tuple(name for name, each in OF_TRITON.items() if each.width == 8)

_POINTER = np.dtype(np.uint64)
_INTEGERS = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")
_HELD_AS = {
    "int1": np.dtype(np.bool_),
    **{name: np.dtype(name) for name in _INTEGERS},
    **dict.fromkeys(EIGHT_BITS, np.dtype(np.uint8)),
    "fp16": np.dtype(np.float16),
    "bf16": np.dtype(np.float32),
    "fp32": np.dtype(np.float32),
    "fp64": np.dtype(np.float64),
}
_BF16_IN_MEMORY = np.dtype(np.uint16)
_FLOATS = tuple(OF_TRITON)
_FLOAT64 = np.dtype(np.float64)
_NARROW = {name: _HELD_AS[name] for name in _FLOATS}
_widened = False
_thread: int | None = None  # that widens; kernels that another one launches meanwhile are interpreted as written


class CannotWiden(Exception):
    """A kernel does something that has no meaning in float64; the message names it."""


class CannotInterpret(Exception):
    """A kernel does what Triton's interpreter does not; the message names it."""


def is_widened() -> bool:
    """Whether every float is a float64 now, in blocks and in memory, whatever dtype its type names."""
    return _widened


@contextmanager
def widened() -> Iterator[None]:
    """Interpret kernels with every float in float64; types, and with them control flow, stay as written."""
    global _thread
    _thread = threading.get_ident()
    _widen(True)
    try:
        yield
    finally:
        _widen(False)
        _thread = None


@contextmanager
def as_this_thread() -> Iterator[None]:
    """Interpret as written in a thread that does not widen while another one, which waits for it, does."""
    elsewhere = _widened and threading.get_ident() != _thread
    if elsewhere:
        _widen(False)
    try:
        yield
    finally:
        if elsewhere:
            _widen(True)


def _widen(wide: bool) -> None:
    global _widened
    _HELD_AS.update(dict.fromkeys(_FLOATS, _FLOAT64) if wide else _NARROW)
    _widened = wide


def held_as(dtype: Any) -> np.dtype[Any]:
    """The numpy dtype that holds a Triton scalar, block or pointer dtype (replaces Triton's `_get_np_dtype`)."""
    scalar = dtype.scalar
    return _POINTER if scalar.is_ptr() else _HELD_AS[scalar.name]


def in_memory(dtype: Any) -> np.dtype[Any]:
    """The numpy dtype of one element of a Triton dtype in memory."""
    return _BF16_IN_MEMORY if dtype.scalar.name == BF16 and not _widened else held_as(dtype)


def fits(data: Array, dtype: Any) -> bool:
    """Whether `data` is no wider than its Triton dtype is held (replaces Triton's `_validate_np_data_size`)."""
    return bool(dtype.is_ptr() or data.itemsize <= held_as(dtype).itemsize)


def pack_bf16(values: Array) -> Array:
    """The 16 bits of each bfloat16, from the float32 array that holds it; widened, the values themselves."""
    if _widened:
        return values
    return (values.view(np.uint32) >> np.uint32(16)).astype(np.uint16)


def unpack_bf16(bits: Array) -> Array:
    """The float32 array that holds the bfloat16 values with these 16 bits; widened, the values themselves."""
    if _widened:
        return bits
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)
