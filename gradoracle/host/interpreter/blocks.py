"""Block types, tensors and broadcasting, each worked out once per shape.

A tile of 64x64 takes numpy microseconds; Triton's Python builds a type, a tuple of constexprs and a name anew for
every value, which takes several times as long.  The replacements give equal types and views of equal values.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import triton.language as tl
from triton.runtime.interpreter import TensorHandle

from gradoracle.host.interpreter import intervention, lockstep
from gradoracle.host.interpreter.values import Array, held_as, in_memory, is_widened

Handle = Any
constexpr = tl.constexpr

_STOCK_UNWRAP = tl.core._unwrap_if_constexpr
_STOCK_BLOCK_TYPE = tl.block_type.__init__
_NEVER_PROMOTED = frozenset(("fp32", "fp64", "int32", "int64", "int1"))
_CONSTANT_ALIKE = frozenset(("fp32", "fp64", "int32", "int64"))
_PROMOTED_BY_DIVISION = frozenset(("fp16", "bf16"))
OFFSETS = frozenset(("int32", "int64"))
FLOATS = frozenset(("fp16", "bf16", "fp32", "fp64"))
NUMBERS = FLOATS | OFFSETS | {"int1", "int8", "uint8", "int16", "uint16", "uint32", "uint64"}

# shape: Triton's tuple of it, its number of elements, its text, and what a tensor of it calls shape and numel
_shapes: dict[tuple[int, ...], tuple[Any, int, str, tuple[Any, Any]]] = {}
_SCALAR = (tl.tuple([]), constexpr(1))


def init_block_type(self: Any, element_ty: Any, shape: Any) -> None:
    """`block_type(element_ty, shape)`; a known shape is not validated again."""
    key = tuple([s.value if isinstance(s, constexpr) else s for s in shape])
    known = _shapes.get(key)
    if known is None:
        _STOCK_BLOCK_TYPE(self, element_ty, shape)
        extents = (tl.tuple([constexpr(s) for s in key]), constexpr(math.prod(key)))
        known = _shapes[key] = (self.shape, self.numel, str(self.shape), extents)
    self.element_ty = element_ty
    self.shape, self.numel, text, self.extents = known
    self.name = f"<{text}, {element_ty.name}>"


def init_tensor(self: Any, handle: Handle, type: Any) -> None:
    """`tensor(handle, type)`."""
    self.handle = handle
    self.type = type
    self.dtype = type.scalar
    self.shape, self.numel = type.extents if isinstance(type, tl.block_type) else _SCALAR


def init_handle(self: Any, data: Array, dtype: Any, attr: dict[str, Any] | None = None) -> None:
    """`TensorHandle(data, dtype)`, without comparing their widths each time."""
    self.data = data
    self.dtype = dtype
    self.attr = {} if attr is None else attr
    if data.size > lockstep.largest:
        lockstep.grown(data.size)


def unwrap_if_constexpr(value: Any) -> Any:
    """The value of a constexpr, in lists and tuples too; anything else is itself."""
    kind = type(value)
    if kind is tl.tensor or value is None or kind is int:
        return value
    if isinstance(value, constexpr):
        return value.value
    if kind is list:
        return [unwrap_if_constexpr(v) for v in value]
    return _STOCK_UNWRAP(value) if isinstance(value, (list, tuple, tl.tuple)) else value


def reshaped(data: Array, shape: Any) -> Array:
    """The same elements in the same order, in another shape of a block."""
    if lockstep.differs(data):
        return lockstep.padded(data, shape)
    lockstep.require_room(shape)
    return data.reshape(shape)


def typed_alike(stock: Callable[..., Any]) -> Callable[..., Any]:
    """Triton's promotion of two operands, skipped if both have one dtype that the operation does not promote.

    The results go into one operation of numpy, which broadcasts by itself, so only types are broadcast.
    """

    def binary_op_type_checking_impl(
        self: Any,
        lhs: Any,
        rhs: Any,
        allow_lhs_ptr: bool = False,
        allow_rhs_ptr: bool = False,
        arithmetic_check: bool = True,
        div_or_mod: bool = False,
    ) -> Any:
        if isinstance(lhs, tl.tensor):
            name = lhs.dtype.name
            if isinstance(rhs, tl.tensor):
                other = rhs.dtype.name
                if (
                    name == other and (name in _NEVER_PROMOTED or (name in _PROMOTED_BY_DIVISION and not div_or_mod))
                ) or (allow_lhs_ptr and other in OFFSETS and lhs.dtype.is_ptr()):
                    return _broadcast_types(lhs, rhs)
                if name in OFFSETS and other in OFFSETS:
                    return _broadcast_types(_to(self, lhs, tl.int64), _to(self, rhs, tl.int64))
            elif is_constant_of(rhs, name):
                return _broadcast_types(lhs, written(rhs, lhs.dtype))
        elif isinstance(rhs, tl.tensor) and is_constant_of(lhs, rhs.dtype.name):
            return _broadcast_types(written(lhs, rhs.dtype), rhs)
        return stock(lhs, rhs, allow_lhs_ptr, allow_rhs_ptr, arithmetic_check, div_or_mod)

    return binary_op_type_checking_impl


def cast_directly(stock: Callable[..., Any]) -> Callable[..., Any]:
    """Triton's choice among casts, skipped if the two dtypes decide."""

    def cast(self: Any, input: Any, dst_ty: Any, fp_downcast_rounding: str | None = None) -> Any:
        source, target = input.dtype.name, dst_ty.scalar.name
        if fp_downcast_rounding is None and source in NUMBERS:
            if source == target:
                return input
            if casts_directly(source, target):
                return _to(self, input, dst_ty.scalar)
        return stock(input, dst_ty, fp_downcast_rounding)

    return cast


def casts_directly(source: str, target: str) -> bool:
    """Whether two dtypes determine the cast between them, rounding to nearest even."""
    return source in NUMBERS and (target in FLOATS or (target in OFFSETS and source not in FLOATS))


def _to(self: Any, value: Any, scalar: Any) -> Any:
    if value.dtype.name == scalar.name:
        return value
    type = tl.block_type(scalar, value.type.shape) if isinstance(value.type, tl.block_type) else scalar
    return tl.tensor(self.builder.cast_impl(value.handle, scalar), type)


def to_ir(stock: Callable[..., Any]) -> Callable[..., Any]:
    """The builder's type for a dtype; for numbers, the dtype itself."""

    def dtype_to_ir(self: Any, builder: Any) -> Any:
        return self if self.name in NUMBERS else stock(self, builder)

    return dtype_to_ir


def is_constant_of(value: Any, name: str) -> bool:
    """Whether a Python number in any operation with a tensor of dtype `name` becomes that dtype."""
    if type(value) is float:
        return name == "fp32" or name == "fp64"
    return type(value) is not bool and isinstance(value, int) and name in _CONSTANT_ALIKE and -(2**31) <= value < 2**31


def constant(value: float, dtype: Any) -> Any:
    """A scalar of a dtype that numpy has too."""
    return tl.tensor(TensorHandle(np.array([value], dtype=held_as(dtype)), dtype), dtype)


def written(value: float, dtype: Any) -> Any:
    """A literal of a kernel as a scalar: Triton turns -0.0 into 0.0."""
    return constant(value + 0, dtype)


class Scalar(float):
    """A float argument of a kernel: a Python number as in Triton's interpreter, with the cast of a compiled kernel.

    Compiled it is a float32, on which kernels call `.to`. In arithmetic it stays a Python number, so that a float64
    kernel does not get 24 bits.
    """

    def to(self, dtype: Any, *args: Any, **kwargs: Any) -> Any:
        """The float32 nearest to it, cast."""
        value = float(self) if is_widened() else float(np.float32(self))
        if intervention.current is None:
            return constant(value, tl.float32).to(dtype, *args, **kwargs)
        made = constant(intervention.current.number(value), tl.float32)
        made.handle.data = intervention.offered(made.handle.data, "fp32")
        return made.to(dtype, *args, **kwargs)


def _joined(lhs: Any, rhs: Any) -> tuple[list[int], list[int], list[int]]:
    """The shapes of two values and the one they broadcast to; a scalar's is []."""
    left = lhs.type.shape.values if isinstance(lhs.type, tl.block_type) else []
    right = rhs.type.shape.values if isinstance(rhs.type, tl.block_type) else []
    if left == right or not right:
        return left, right, left
    if not left:
        return left, right, right
    rank = max(len(left), len(right))
    shape = []
    pairs = zip([1] * (rank - len(left)) + left, [1] * (rank - len(right)) + right, strict=True)
    for i, (m, n) in enumerate(pairs):
        if m != n and m != 1 and n != 1:
            raise ValueError(f"Cannot make_shape_compatible: incompatible dimensions at index {i}: {m} and {n}")
        shape.append(n if m == 1 else m)
    return left, right, shape


def _broadcast_types(lhs: Any, rhs: Any) -> tuple[Any, Any]:
    left, right, shape = _joined(lhs, rhs)
    if left is not shape and left != shape:
        lhs = tl.tensor(lhs.handle, tl.block_type(lhs.dtype, shape))
    if right is not shape and right != shape:
        rhs = tl.tensor(rhs.handle, tl.block_type(rhs.dtype, shape))
    return lhs, rhs


def broadcast_impl_value(self: Any, lhs: Any, rhs: Any) -> tuple[Any, Any]:
    """Two values brought to one shape: scalars are splatted, missing leading axes added, axes of 1 repeated."""
    left, right, shape = _joined(lhs, rhs)
    return (lhs if left == shape else _repeat(lhs, shape)), (rhs if right == shape else _repeat(rhs, shape))


def _repeat(value: Any, shape: list[int]) -> Any:
    handle = TensorHandle(broadcast(value.handle.data, tuple(shape)), value.handle.dtype)
    return tl.tensor(handle, tl.block_type(value.dtype, shape))


def broadcast(data: Array, shape: tuple[int, ...]) -> Array:
    """`numpy.broadcast_to` without its Python."""
    if lockstep.differs(data):
        return lockstep.repeated(data, shape)
    lockstep.require_room(shape)
    if data.size == 1:
        return np.ndarray(shape, data.dtype, data, 0, (0,) * len(shape))
    if not data.flags.c_contiguous:
        return np.broadcast_to(data, shape)
    missing = len(shape) - data.ndim
    strides = tuple([0 if n == 1 else s for n, s in zip(data.shape, data.strides, strict=True)])
    return np.ndarray(shape, data.dtype, data, 0, (0,) * missing + strides)


def create_splat(self: Any, ret_ty: Any, arg: Handle) -> Handle:
    """One value, repeated."""
    return TensorHandle(broadcast(arg.data, tuple(ret_ty.shape.values)), arg.dtype.scalar)


def create_broadcast(self: Any, arg: Handle, shape: Any) -> Handle:
    """Axes of 1, repeated."""
    return TensorHandle(broadcast(arg.data, tuple(shape)), arg.dtype)


def create_get_program_id(self: Any, axis: int) -> Handle:
    """The index of the program in the grid, or of each program in lockstep."""
    group = lockstep.group()
    data = np.array([self.grid_idx[axis]], np.int32) if group is None else group.index(axis)
    return TensorHandle(data, tl.int32)


def create_unsplat(self: Any, arg: Handle) -> Handle:
    """The scalar that a block of one element holds."""
    return TensorHandle(reshaped(arg.data, () if lockstep.differs(arg.data) else (1,)), arg.dtype)


def create_addptr(self: Any, ptr: Handle, offset: Handle) -> Handle:
    """Pointers advanced by so many elements."""
    width = in_memory(ptr.get_element_ty()).itemsize
    return TensorHandle(ptr.data + np.uint64(width) * offset.data.astype(np.uint64), ptr.dtype)


def create_reshape(self: Any, arg: Handle, shape: Any, allow_reorder: bool) -> Handle:
    """The same elements in the same order, in another shape."""
    return TensorHandle(reshaped(arg.data, shape), arg.dtype)


def create_trans(self: Any, arg: Handle, perm: Any) -> Handle:
    """The axes in another order."""
    if lockstep.differs(arg.data):
        own = lockstep.PROGRAM_RANK - len(perm)
        return TensorHandle(np.transpose(arg.data, (*range(own), *(own + axis for axis in perm))), arg.dtype)
    return TensorHandle(np.transpose(arg.data, perm), arg.dtype)


def create_join(self: Any, lhs: Handle, rhs: Handle) -> Handle:
    """Two blocks side by side along a new last axis."""
    left, right = lhs.data, rhs.data
    if lockstep.differs(left) or lockstep.differs(right):
        data = np.stack(np.broadcast_arrays(left, right), axis=-1)
        if data.shape[1] != 1:
            raise lockstep.OneByOne
        return TensorHandle(data.reshape((data.shape[0], *data.shape[2:])), lhs.dtype)
    lockstep.require_room((*left.shape, 2))
    return TensorHandle(np.stack([left, right], axis=-1), lhs.dtype)


def create_split(self: Any, val: Handle) -> tuple[Handle, Handle]:
    """The two blocks of a last axis of 2."""
    halves = [val.data[..., half] for half in (0, 1)]
    if lockstep.differs(val.data):
        halves = [half[:, None] for half in halves]
    return TensorHandle(halves[0], val.dtype), TensorHandle(halves[1], val.dtype)


def expand_dims(self: Any, input: Any, axis: int) -> Any:
    """An axis of 1 inserted before `axis`."""
    shape = list(input.type.shape.values) if isinstance(input.type, tl.block_type) else []
    shape.insert(axis if axis >= 0 else axis + len(shape) + 1, 1)
    return tl.tensor(
        TensorHandle(reshaped(input.handle.data, shape), input.handle.dtype), tl.block_type(input.dtype, shape)
    )


def transpose(self: Any) -> Any:
    """`x.T`: the last two axes exchanged."""
    shape = list(self.type.shape.values)
    shape[-1], shape[-2] = shape[-2], shape[-1]
    handle = TensorHandle(np.swapaxes(self.handle.data, -1, -2), self.handle.dtype)
    return tl.tensor(handle, tl.block_type(self.dtype, shape))


def truth(self: Any) -> bool:
    """A scalar as a condition, the same for all running programs; a block counts as true, as in Triton."""
    if isinstance(self.type, tl.block_type) and math.prod(self.type.shape.values) != 1:
        return True
    return bool(lockstep.agreed(self.handle.data != 0))  # NaN is true


def index(self: Any) -> int:
    """A scalar as an index; Triton 3.6 converts a one-element array, which numpy 2.4 refuses."""
    return int(lockstep.agreed(self.handle.data))


METHODS: dict[str, Callable[..., Any]] = {
    "create_splat": create_splat,
    "create_broadcast": create_broadcast,
    "create_get_program_id": create_get_program_id,
    "create_unsplat": create_unsplat,
    "create_addptr": create_addptr,
    "create_reshape": create_reshape,
    "create_trans": create_trans,
    "create_join": create_join,
    "create_split": create_split,
}
LANGUAGE: tuple[tuple[Any, str, Callable[..., Any]], ...] = (
    (tl.block_type, "__init__", init_block_type),
    (tl.tensor, "__init__", init_tensor),
    (tl.core, "_unwrap_if_constexpr", unwrap_if_constexpr),
)
