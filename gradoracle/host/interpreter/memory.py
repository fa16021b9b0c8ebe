"""Loads, stores and atomics: the 16 bits of a bfloat16 in memory, its float32 in a block.

Every address that an interpreted kernel reads, writes or adds to passes through the functions of this file, which
report it to the current record, if any (record.py). The addresses of block pointers and tensor descriptors are made
here, too: Triton steps by the width of the dtype, which a widened tensor only names, as its elements are float64.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import triton.language as tl
from triton._C.libtriton import interpreter as access
from triton._C.libtriton import ir
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

from gradoracle.host.interpreter import intervention, launch_hooks, lockstep
from gradoracle.host.interpreter.rounding import nearest, to_bf16
from gradoracle.host.interpreter.values import BF16, Array, held_as, in_memory, is_widened, pack_bf16, unpack_bf16

Handle = Any
_BITS = {np.dtype(np.float32): np.dtype(np.uint32), np.dtype(np.float64): np.dtype(np.uint64)}
_ALIGNED = 16  # bytes, as written
_STOCK_CAS = InterpreterBuilder.create_atomic_cas
_STOCK_RMW = InterpreterBuilder.create_atomic_rmw


def create_load(self: Any, ptr: Handle, *policy: Any, **policies: Any) -> Handle:
    """The elements at `ptr`.  Cache policies mean nothing on a CPU."""
    return _load(ptr, None, None)


def create_masked_load(self: Any, ptrs: Handle, mask: Handle, other: Handle, *policy: Any, **policies: Any) -> Handle:
    """Where `mask`, the elements at `ptrs`; elsewhere `other`, or 0."""
    return _load(ptrs, np.asarray(mask.data), other)


def create_store(self: Any, ptr: Handle, val: Handle, *policy: Any, **policies: Any) -> None:
    """Writes `val` to `ptr`; of two equal addresses the later one counts."""
    _store(ptr, val, None)


def create_masked_store(self: Any, ptrs: Handle, value: Handle, mask: Handle, *policy: Any, **policies: Any) -> None:
    """Writes `value` to `ptrs` where `mask`."""
    _store(ptrs, value, np.asarray(mask.data))


def _load(ptrs: Handle, on: Array | None, other: Handle | None) -> Handle:
    addresses, dtype = ptrs.data, ptrs.get_element_ty()
    if launch_hooks.record is not None:
        addresses, on = _inside(launch_hooks.record.load, addresses, on, dtype)
    if on is None or on.all():
        return TensorHandle(_read(addresses, dtype), dtype)
    return TensorHandle(_partly(addresses, on, other, dtype), dtype)


def _store(ptrs: Handle, value: Handle, on: Array | None) -> None:
    addresses = ptrs.data
    if launch_hooks.record is not None:
        addresses, on = _inside(launch_hooks.record.store, _for_each(addresses, value.data), on, value.dtype)
    if on is None or on.all():
        _write(addresses, value)
    elif on.any():
        on, addresses, data = _alike(on, addresses, value.data)
        _write(addresses[on], TensorHandle(data[on], value.dtype))


def _inside(touch: Callable[..., Any], addresses: Array, on: Any, dtype: Any) -> tuple[Array, Any]:
    """Record an access: its plain addresses, and where it may be made, which is inside its tensor."""
    plain, outside = touch(addresses, None if on is None or on.all() else on, in_memory(dtype).itemsize)
    if outside is None:
        return plain, on
    return plain, ~outside if on is None else ~outside & on


def _partly(addresses: Array, on: Array, other: Handle, dtype: Any) -> Array:
    """The elements where `on`, elsewhere `other`, or 0."""
    if other is None:
        addresses, on = _alike(addresses, on)
        data = np.zeros(addresses.shape, held_as(dtype))
    else:
        addresses, on, kept = _alike(addresses, on, other.data)
        data = np.array(kept)
    if on.any():
        data[on] = _read(addresses[on], dtype)
    return data


def _for_each(addresses: Array, data: Array) -> Array:
    """Addresses with the axis of programs, if programs in lockstep store different values to one place."""
    return np.broadcast_to(addresses, data.shape) if addresses.ndim < data.ndim else addresses


def _alike(*arrays: Array) -> tuple[Array, ...]:
    """Arrays broadcast to one shape: some may differ among programs, and others be the same for all."""
    one = all(array.shape == arrays[0].shape for array in arrays)
    return arrays if one else tuple(np.broadcast_arrays(*arrays))


class _Memory:
    """`count` elements of this process's memory from `address` on, as numpy's array interface describes them."""

    def __init__(self, address: int, count: int, stored: np.dtype[Any]) -> None:
        self.__array_interface__ = {"data": (address, False), "shape": (count,), "typestr": stored.str, "version": 3}


def _window(addresses: Array, stored: np.dtype[Any]) -> tuple[Array, Array] | None:
    """The memory that `addresses` span and their indices in it; None if they are not whole elements apart."""
    lowest = addresses.min()
    index = addresses - lowest
    size = stored.itemsize
    if size > 1:
        if int(np.bitwise_or.reduce(index, axis=None)) & (size - 1):
            return None
        index >>= np.uint64(size.bit_length() - 1)
    return np.asarray(_Memory(int(lowest), int(index.max()) + 1, stored)), index.view(np.int64)


def _read(addresses: Array, dtype: Any) -> Array:
    stored = in_memory(dtype)
    window = _window(addresses, stored)
    if window is None:
        on = np.ones(addresses.shape, dtype=np.bool_)
        data = access.load(np.ascontiguousarray(addresses), on, np.zeros(addresses.shape, dtype=stored), stored)
    else:
        data = window[0][window[1]]
    if launch_hooks.record is not None:
        launch_hooks.record.loaded(addresses, data)
    return unpack_bf16(data) if dtype.name == BF16 else data


def _write(addresses: Array, value: Handle) -> None:
    data = pack_bf16(value.data) if value.dtype.name == BF16 else value.data
    if intervention.current is not None and data.dtype == np.float64 and data.size:
        data = intervention.current.written(int(addresses.min()), data, functools.partial(nearest, data))
    addresses = _for_each(addresses, data)  # if programs in lockstep store to one place, the last counts
    window, group = _window(addresses, data.dtype), lockstep.group()
    if group is not None:
        if window is None:
            raise lockstep.OneByOne
        group.keep(*window)
    if window is None:
        access.store(
            np.ascontiguousarray(addresses), np.ascontiguousarray(data), np.ones(addresses.shape, dtype=np.bool_)
        )
    else:
        window[0][window[1]] = data


def create_atomic_cas(self: Any, ptr: Handle, cmp: Handle, val: Handle, sem: Any, scope: Any) -> Handle:
    """Compare and swap, on bits; outside of a recorded tensor nothing, which gives 0."""
    ptr, on = _recorded_atomic(ptr, None)
    if on is not None:
        inside = on.data
        before = np.zeros(inside.shape, cmp.data.dtype)
        if inside.any():
            parts = [TensorHandle(np.broadcast_to(h.data, inside.shape)[inside], h.dtype) for h in (ptr, cmp, val)]
            before[inside] = create_atomic_cas(self, parts[0], parts[1], parts[2], sem, scope).data
        return TensorHandle(before, val.dtype)
    if val.dtype.name != BF16 or is_widened():
        return _STOCK_CAS(self, *map(_dense, (ptr, cmp, val)), sem, scope)
    cmp, val = (TensorHandle(pack_bf16(h.data), h.dtype) for h in (cmp, val))
    before = _STOCK_CAS(self, *map(_dense, (ptr, cmp, val)), sem, scope)
    return TensorHandle(unpack_bf16(before.data), val.dtype)


def create_atomic_rmw(self: Any, rmwOp: Any, ptr: Handle, val: Handle, mask: Handle, sem: Any, scope: Any) -> Handle:
    """Read, modify and write; two adds to one address in one program both count."""
    ptr, mask = _recorded_atomic(ptr, mask)
    if val.dtype.name == BF16 and not is_widened():  # a GPU only adds these; Triton checks it
        return _added_in_turn(ptr, val, mask, to_bf16)
    if (
        intervention.current is not None
        and rmwOp == ir.ATOMIC_OP.FADD
        and is_widened()
        and intervention.current.rounds_sums()
    ):
        return _added_in_turn(ptr, val, mask, lambda total: nearest(total, val.dtype.scalar.name))
    ptr, val, mask = map(_dense, (ptr, val, mask))
    if rmwOp == ir.ATOMIC_OP.XCHG and val.data.dtype in _BITS:  # Triton's interpreter exchanges integers only
        bits = TensorHandle(val.data.view(_BITS[val.data.dtype]), val.dtype)
        before = _STOCK_RMW(self, rmwOp, ptr, bits, mask, sem, scope)
        return TensorHandle(before.data.view(val.data.dtype), val.dtype)
    before = _STOCK_RMW(self, rmwOp, ptr, val, mask, sem, scope)
    if launch_hooks.record is not None and mask.data.any():
        on = np.broadcast_to(mask.data, ptr.data.shape)
        launch_hooks.record.loaded(ptr.data[on], before.data[on])
    return before


def _recorded_atomic(ptr: Handle, mask: Handle) -> tuple[Handle, Handle]:
    """An atomic's pointers and mask; if accesses are recorded, the mask is restricted to the inside of its tensor."""
    if launch_hooks.record is None:
        return ptr, mask
    on = None if mask is None else np.broadcast_to(mask.data, ptr.data.shape)
    addresses, on = _inside(launch_hooks.record.atomic, ptr.data, on, ptr.get_element_ty())
    return TensorHandle(addresses, ptr.dtype), mask if on is None else TensorHandle(on, tl.int1)


def create_barrier(self: Any) -> None:
    """Threads of a program wait for each other: there are none here, so only a record uses it."""
    if launch_hooks.record is not None:
        launch_hooks.record.barrier()


def _dense(handle: Handle) -> Handle:
    """The same values side by side: Triton's C++ walks a repeated value as if it were an array."""
    return TensorHandle(np.ascontiguousarray(handle.data), handle.dtype)


def _added_in_turn(ptr: Handle, val: Handle, mask: Handle, rounded: Callable[[Array], Array]) -> Handle:
    """One after the other, each sum rounded; what was there before."""
    before = np.zeros(ptr.data.shape, held_as(val.dtype))
    values, on = (np.broadcast_to(each.data, before.shape) for each in (val, mask))
    stored, one = in_memory(val.dtype), np.ones(1, dtype=np.bool_)
    for index in zip(*np.nonzero(on), strict=True):
        address = ptr.data[index].reshape(1)
        old = unpack_bf16(access.load(address, one, np.zeros(1, dtype=stored), stored))
        access.store(address, pack_bf16(rounded(old + values[index])), one)
        before[index] = old[0]
    return TensorHandle(before, val.dtype)


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


METHODS: dict[str, Callable[..., Any]] = {
    "create_barrier": create_barrier,
    "create_load": create_load,
    "create_store": create_store,
    "create_masked_load": create_masked_load,
    "create_masked_store": create_masked_store,
    "create_atomic_cas": create_atomic_cas,
    "create_atomic_rmw": create_atomic_rmw,
}
OF_BLOCK_POINTERS: dict[str, Callable[..., Any]] = {"materialize_pointers": block_pointers}
OF_DESCRIPTORS: dict[str, Callable[..., Any]] = {"materialize_pointers": descriptor_pointers}
