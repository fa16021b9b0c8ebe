"""Block pointers and tensor descriptors: their addresses, by the width that an element has in memory.

Triton steps by the width of the dtype, which a widened tensor only names: its elements are float64.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from triton.runtime.interpreter import TensorHandle

from gradoracle.execution.interpreter.values import Array, in_memory

_ALIGNED = 16  # bytes, as written


def block_pointers(self: Any, boundary_check: Any) -> tuple[Any, Array]:
    """The pointers of a block pointer's block, and which of them lie within the checked dims."""
    places = _places(self.block_shape, self.offsets)
    inside = np.ones(self.block_shape, dtype=bool)
    for dim in boundary_check:
        inside = inside & _within(places[dim], self.shape[dim])
    return _pointers(self, places), inside


def descriptor_pointers(self: Any, offsets: Sequence[Any]) -> tuple[Any, Array]:
    """The pointers of a descriptor's block at these offsets, and which of them lie within the tensor."""
    if len(offsets) != self.ndim:
        raise AssertionError(f"a descriptor of {self.ndim} dims was given {len(offsets)} offsets")
    written = self.base.dtype.element_ty.primitive_bitwidth // 8
    if np.any(offsets[-1].data * written % _ALIGNED):
        raise AssertionError(f"block offset start must be {_ALIGNED}-byte aligned")
    places = _places(self.block_shape, offsets)
    inside = np.ones(self.block_shape, dtype=bool)
    for place, size in zip(places, self.shape, strict=True):
        inside = inside & _within(place, size)
    return _pointers(self, places), inside


def _places(block_shape: Sequence[int], offsets: Sequence[Any]) -> list[Array]:
    """The index of each element of a block along each dim, which broadcast to the block."""
    places = []
    for dim, size in enumerate(block_shape):
        own = [1] * len(block_shape)
        own[dim] = size
        places.append((offsets[dim].data + np.arange(size)).reshape(own))
    return places


def _within(place: Array, size: Any) -> Array:
    return (place >= 0) & (place < size.data)


def _pointers(self: Any, places: Sequence[Array]) -> Any:
    width = in_memory(self.base.get_element_ty()).itemsize
    addresses = np.broadcast_to(self.base.data, self.block_shape)
    for place, stride in zip(places, self.strides, strict=True):
        addresses = addresses + (width * place * stride.data).astype(np.uint64)
    return TensorHandle(addresses, self.base.dtype.scalar)


OF_BLOCK_POINTERS: dict[str, Callable[..., Any]] = {"materialize_pointers": block_pointers}
OF_DESCRIPTORS: dict[str, Callable[..., Any]] = {"materialize_pointers": descriptor_pointers}
