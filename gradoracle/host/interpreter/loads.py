"""`tl.load` and `tl.store` in one step for types of pointer, mask and value that were seen before.

Triton reads its options, broadcasts, casts and builds the result's type at every access, which takes several times as
long as the access.  For new types Triton does it all, and raises what it raises; after that their shapes and the
result's type are known.  In both cases memory.py reads and writes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import triton.language as tl
from triton.runtime import interpreter
from triton.runtime.interpreter import TensorHandle

from gradoracle.host.interpreter.blocks import broadcast
from gradoracle.host.interpreter.expressions import Operator, Result, result_of, tensor_of
from gradoracle.host.interpreter.values import is_widened

_KINDS = 4096  # of accesses: kernels have few distinct numbers for masked elements
_UNSEEN: Any = object()


@dataclass(frozen=True)
class _Access:
    """What is known of an access: the shape of its block, if any, and of a load the result and a number for elsewhere.

    `repeated` says whether pointer, mask and third (a load's `other`, a store's value) have to be brought to the shape.
    """

    result: Result | Any
    shape: tuple[int, ...]
    repeated: tuple[bool, bool, bool]
    elsewhere: Any = None

    def brought(self, which: int, handle: Any) -> Any:
        """A handle in the shape of the block."""
        return TensorHandle(broadcast(handle.data, self.shape), handle.dtype) if self.repeated[which] else handle


def _hints(cache_modifier: Any, eviction_policy: Any) -> dict[str, Any]:
    """The hints that are given: their positions differ among versions of Triton."""
    given = {"cache_modifier": cache_modifier, "eviction_policy": eviction_policy}
    return {name: value for name, value in given.items() if value}


def load(stock: Operator) -> Operator:
    """`tl.load` through pointers to numbers, elsewhere a number or a value of the same dtype."""
    known: dict[Any, _Access | None] = {}

    def call(
        pointer: Any,
        mask: Any = None,
        other: Any = None,
        *rest: Any,
        cache_modifier: Any = "",
        eviction_policy: Any = "",
        _semantic: Any = None,
        **options: Any,
    ) -> Any:
        def stocks() -> Any:
            hints = _hints(cache_modifier, eviction_policy)
            return stock(pointer, mask, other, *rest, **hints, **options)

        if rest or any(options.values()) or not _are_plain(pointer, mask, cache_modifier, eviction_policy):
            return stocks()
        number, elsewhere = None, other
        if other is not None and type(other) is not tl.tensor:
            number = other.value if isinstance(other, tl.constexpr) else other
            if type(number) not in (int, float) or number != number or str(number) == "-0.0":
                return stocks()  # NaN is no key, and -0.0 that of 0.0
            elsewhere = None
        key = (
            pointer.type.name,
            None if mask is None else mask.type.name,
            None if elsewhere is None else elsewhere.type.name,
            type(number),
            number,
            cache_modifier,
            eviction_policy,
            is_widened(),
        )
        access = known.get(key, _UNSEEN)
        if access is _UNSEEN:
            value = stocks()
            if len(known) < _KINDS:
                known[key] = _load_of(pointer, mask, elsewhere, number, value)
            return value
        if access is None:
            return stocks()
        builder, places = interpreter.interpreter_builder, access.brought(0, pointer.handle)
        if mask is None:
            return tensor_of(builder.create_load(places, None, None, False).data, access.result)
        kept = access.elsewhere if elsewhere is None else access.brought(2, elsewhere.handle)
        loaded = builder.create_masked_load(places, access.brought(1, mask.handle), kept, None, None, False)
        return tensor_of(loaded.data, access.result)

    return call


def store(stock: Operator) -> Operator:
    """`tl.store` of values of the pointers' dtype."""
    known: dict[Any, _Access | None] = {}

    def call(
        pointer: Any,
        value: Any,
        mask: Any = None,
        *rest: Any,
        cache_modifier: Any = "",
        eviction_policy: Any = "",
        _semantic: Any = None,
        **options: Any,
    ) -> Any:
        hints = _hints(cache_modifier, eviction_policy)
        is_other = rest or any(options.values()) or type(value) is not tl.tensor
        if is_other or not _are_plain(pointer, mask, cache_modifier, eviction_policy):
            return stock(pointer, value, mask, *rest, **hints, **options)
        masked = None if mask is None else mask.type.name
        key = (pointer.type.name, value.type.name, masked, cache_modifier, eviction_policy)
        access = known.get(key, _UNSEEN)
        if access is None or access is _UNSEEN:
            done = stock(pointer, value, mask, **hints, **options)
            if access is _UNSEEN:
                known[key] = _access(pointer, mask, value, done, _shape(pointer))
            return done
        builder, places, stored = interpreter.interpreter_builder, pointer.handle, access.brought(2, value.handle)
        if mask is None:
            builder.create_store(places, stored, None, None)
        else:
            builder.create_masked_store(places, stored, access.brought(1, mask.handle), None, None)
        return access.result

    return call


def _are_plain(pointer: Any, mask: Any, *policies: Any) -> bool:
    """Whether an access is one through pointers, with a mask or none, and says its cache policies in words."""
    return (
        type(pointer) is tl.tensor
        and (mask is None or (type(mask) is tl.tensor and mask.dtype.name == "int1"))
        and all([type(policy) is str for policy in policies])
    )


def _shape(value: Any) -> tuple[int, ...]:
    return tuple(value.type.shape.values) if isinstance(value.type, tl.block_type) else ()


def _access(pointer: Any, mask: Any, third: Any, result: Any, shape: tuple[int, ...]) -> _Access | None:
    """What is known of an access; None where its pointers lead to blocks or bits, or values are cast."""
    if not pointer.dtype.is_ptr():
        return None
    element = pointer.dtype.element_ty
    if element.is_block() or element.name == "int1" or (third is not None and third.dtype.name != element.name):
        return None
    repeated = [value is not None and _shape(value) != shape for value in (pointer, mask, third)]
    return _Access(result, shape, (repeated[0], repeated[1], repeated[2]))


def _load_of(pointer: Any, mask: Any, elsewhere: Any, number: Any, value: Any) -> _Access | None:
    access = _access(pointer, mask, elsewhere, result_of(value), _shape(value))
    if access is None or number is None:
        return access
    semantic: Any = interpreter.interpreter_semantic
    made = semantic.cast(semantic.to_tensor(number), pointer.dtype.element_ty).handle
    data = broadcast(made.data, access.shape) if access.shape else made.data
    return _Access(access.result, access.shape, access.repeated, TensorHandle(data, made.dtype))
