"""How a block of each Triton dtype is held in numpy while a kernel is interpreted.

Triton holds bfloat16 as uint16 and then computes on those integers.  Here a bfloat16 block is a float32 array of
values that bfloat16 can hold: comparisons, selections, reshapes and exact products need no conversion, an upcast to
float32 is free, and arithmetic is one float32 operation and one rounding.  (One rounding too: float32 carries 24
bits, and 2 * 8 + 2 suffice for a sum or a product rounded twice to equal the one rounded once, subnormals
included.)  Memory holds the 16 bits; memory.py packs and unpacks.  Every other dtype is held as Triton does.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

BF16 = "bf16"

_POINTER = np.dtype(np.uint64)
_INTEGERS = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")
_HELD_AS = {
    "int1": np.dtype(np.bool_),
    **{name: np.dtype(name) for name in _INTEGERS},
    **dict.fromkeys(("fp8e5", "fp8e5b16", "fp8e4nv", "fp8e4b8", "fp8e4b15"), np.dtype(np.uint8)),
    "fp16": np.dtype(np.float16),
    "bf16": np.dtype(np.float32),
    "fp32": np.dtype(np.float32),
    "fp64": np.dtype(np.float64),
}
_BF16_IN_MEMORY = np.dtype(np.uint16)


def held_as(dtype: Any) -> np.dtype[Any]:
    """The numpy dtype that holds a Triton scalar, block or pointer dtype (replaces Triton's `_get_np_dtype`)."""
    scalar = dtype.scalar
    return _POINTER if scalar.is_ptr() else _HELD_AS[scalar.name]


def in_memory(dtype: Any) -> np.dtype[Any]:
    """The numpy dtype of one element of a Triton dtype in memory."""
    return _BF16_IN_MEMORY if dtype.scalar.name == BF16 else held_as(dtype)


def fits(data: Array, dtype: Any) -> bool:
    """Whether `data` is no wider than its Triton dtype is held (replaces Triton's `_validate_np_data_size`)."""
    return bool(dtype.is_ptr() or data.itemsize <= held_as(dtype).itemsize)


def pack_bf16(values: Array) -> npt.NDArray[np.uint16]:
    """The 16 bits of each bfloat16, from the float32 array that holds it."""
    return (values.view(np.uint32) >> np.uint32(16)).astype(np.uint16)


def unpack_bf16(bits: Array) -> npt.NDArray[np.float32]:
    """The float32 array that holds the bfloat16 values with these 16 bits."""
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)
