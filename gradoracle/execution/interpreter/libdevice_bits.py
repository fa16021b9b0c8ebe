"""libdevice's functions of integers and bits, its conversions, and arithmetic that rounds in a given direction."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
from triton.runtime.interpreter import TensorHandle

from gradoracle.execution.interpreter.casts import create_bitcast, saturated
from gradoracle.execution.interpreter.values import Array, held_as

Handle = Any
_WHOLE: dict[str, Callable[[Array], Array]] = {"rd": np.floor, "ru": np.ceil, "rz": np.trunc, "rn": np.rint}


def _unsigned(x: Array) -> Array:
    return np.ascontiguousarray(x).view(f"u{x.dtype.itemsize}")


def _bit_length(x: Array) -> Array:
    return np.vectorize(lambda value: int(value).bit_length(), otypes=[np.int32])(_unsigned(x))


def _reversed(x: Array) -> Array:
    width = x.dtype.itemsize * 8
    flip = np.vectorize(lambda value: int(f"{int(value):0{width}b}"[::-1], 2), otypes=[f"u{x.dtype.itemsize}"])
    return np.asarray(flip(_unsigned(x))).view(x.dtype)


def _on_python_integers(function: Callable[..., int]) -> Callable[..., Array]:
    """Exact on Python's integers, its low bits kept in the dtype of the first operand."""

    def compute(*given: Array) -> Array:
        arrays = np.broadcast_arrays(*given)
        size = given[0].dtype.itemsize
        mask = (1 << (8 * size)) - 1
        exact = np.vectorize(lambda *values: function(*map(int, values)) & mask, otypes=[f"u{size}"])
        return np.asarray(exact(*arrays)).view(given[0].dtype)

    return compute


def _high(bits: int) -> Callable[..., Array]:
    return _on_python_integers(lambda x, y: (x * y) >> bits)


def _low24(value: int, signed: bool) -> int:
    value &= 0xFFFFFF
    return value - 0x1000000 if signed and value & 0x800000 else value


def _chosen_bytes(x: int, y: int, selector: int) -> int:
    """Four of the eight bytes of y:x, by four numbers of three bits."""
    source = (y & 0xFFFFFFFF) << 32 | (x & 0xFFFFFFFF)
    return sum((source >> (8 * ((selector >> (4 * i)) & 7)) & 0xFF) << (8 * i) for i in range(4))


def _first_set(x: Array) -> Array:
    lowest = np.vectorize(lambda value: (int(value) & -int(value)).bit_length(), otypes=[np.int32])
    return np.asarray(lowest(_unsigned(x)))


def _doubles(high: Array, low: Array) -> Array:
    high, low = np.broadcast_arrays(high, low)
    return ((_unsigned(high).astype(np.uint64) << np.uint64(32)) | _unsigned(low).astype(np.uint64)).view(np.float64)


def _half(shift: int) -> Callable[[Array], Array]:
    def compute(x: Array) -> Array:
        return (np.ascontiguousarray(x).view(np.uint64) >> np.uint64(shift)).astype(np.uint32).view(np.int32)

    return compute


def _high_reciprocal(x: Array) -> Array:
    """1 / x without the low 32 bits."""
    return (np.asarray(1.0 / x).view(np.uint64) & np.uint64(0xFFFFFFFF00000000)).view(np.float64)


def _away(x: Array) -> Array:
    whole = np.trunc(x)
    return whole + np.where(np.abs(x - whole) >= 0.5, np.copysign(1.0, x), 0.0)


_INT64 = np.dtype(np.int64)
BITS: dict[str, Callable[..., Array]] = {
    "abs": np.abs, "llabs": np.abs, "brev": _reversed, "brevll": _reversed,
    "byte_perm": _on_python_integers(_chosen_bytes),
    "clz": lambda x: 32 - _bit_length(x), "clzll": lambda x: 64 - _bit_length(x),
    "double2hiint": _half(32), "double2loint": _half(0), "hiloint2double": _doubles,
    "ffs": _first_set, "ffsll": _first_set, "popc": lambda x: np.bitwise_count(_unsigned(x)),
    "popcll": lambda x: np.bitwise_count(_unsigned(x)),
    "hadd": _on_python_integers(lambda x, y: (x + y) >> 1), "uhadd": _on_python_integers(lambda x, y: (x + y) >> 1),
    "rhadd": _on_python_integers(lambda x, y: (x + y + 1) >> 1),
    "urhadd": _on_python_integers(lambda x, y: (x + y + 1) >> 1),
    "mul24": _on_python_integers(lambda x, y: _low24(x, True) * _low24(y, True)),
    "umul24": _on_python_integers(lambda x, y: _low24(x, False) * _low24(y, False)),
    "mulhi": _high(32), "umulhi": _high(32), "mul64hi": _high(64), "umul64hi": _high(64),
    "sad": _on_python_integers(lambda x, y, z: abs(x - y) + z),
    "usad": _on_python_integers(lambda x, y, z: abs(x - y) + z),
    "finitef": np.isfinite, "isfinited": np.isfinite, "isinff": np.isinf, "isinfd": np.isinf, "isnanf": np.isnan,
    "isnand": np.isnan, "signbitf": np.signbit, "signbitd": np.signbit, "nextafter": np.nextafter,
    "nextafterf": np.nextafter, "rcp64h": _high_reciprocal,
    "llrint": lambda x: saturated(np.rint(x), _INT64), "llrintf": lambda x: saturated(np.rint(x), _INT64),
    "llround": lambda x: saturated(_away(x), _INT64), "llroundf": lambda x: saturated(_away(x), _INT64),
    "ilogb": lambda x: _exponent(x), "ilogbf": lambda x: _exponent(x),
}  # fmt: skip


def _exponent(x: Array) -> Array:
    """floor(log2 |x|); INT_MAX for an infinity, INT_MIN for 0 and NaN."""
    finite = np.isfinite(x) & (x != 0)
    return np.where(finite, np.frexp(np.where(finite, x, 1.0))[1] - 1, np.where(np.isinf(x), 2**31 - 1, -(2**31)))


def converted(builder: Any, name: str, arg: Handle, target: Any) -> Handle:
    """`float2int_rd`, `ll2float_rn`, `double2float_rz`, `float_as_int` and their kin."""
    if "_as_" in name:
        return create_bitcast(builder, arg, target)
    mode = name.rpartition("_")[2]
    held = held_as(target)
    if target.is_int():
        return TensorHandle(saturated(_WHOLE[mode](arg.data), held), target)
    if mode == "rn" or arg.data.dtype == held:
        return TensorHandle(arg.data.astype(held), target)
    return TensorHandle(_directed("itself", mode, [arg.data], held), target)


def _sign(value: Fraction) -> int:
    return (value > 0) - (value < 0)


_EXACT: dict[str, tuple[Callable[..., Any], Callable[..., int]]] = {
    "add": (np.add, lambda c, x, y: _sign(c - (x + y))),
    "sub": (np.subtract, lambda c, x, y: _sign(c - (x - y))),
    "mul": (np.multiply, lambda c, x, y: _sign(c - x * y)),
    "div": (np.divide, lambda c, x, y: _sign(c - x / y) if y else 0),
    "rcp": (lambda x: 1.0 / x, lambda c, x: _sign(c - 1 / x) if x else 0),
    "sqrt": (np.sqrt, lambda c, x: _sign(c * c - x)),
    "rsqrt": (lambda x: 1.0 / np.sqrt(x), lambda c, x: _sign(c * c * x - 1) if x else 0),
    "fma": (lambda x, y, z: x * y + z, lambda c, x, y, z: _sign(c - (x * y + z))),
    "itself": (lambda x: x, lambda c, x: _sign(c - x)),
}  # numpy's, and the sign of a candidate minus the exact result


def rounding_operation(name: str) -> tuple[str, str] | None:
    """Operation and direction of `fadd_rd`, `dsqrt_ru`, `fmaf_rz` and their kin; None for another name."""
    body, _, mode = name.rpartition("_")
    operation = "fma" if body in ("fma", "fmaf") else body[1:]
    return (operation, mode) if mode in _WHOLE and operation in _EXACT else None


def directed(operation: str, mode: str, args: list[Handle], held: np.dtype[Any]) -> Array:
    """The result of an operation rounded down, up, toward zero or to nearest, in a dtype."""
    return _directed(operation, mode, [arg.data for arg in args], held)


def _directed(operation: str, mode: str, given: list[Array], held: np.dtype[Any]) -> Array:
    compute, compare = _EXACT[operation]
    with np.errstate(all="ignore"):
        near = np.asarray(compute(*[each.astype(np.float64) for each in given])).astype(held)
    if mode == "rn" and operation != "rsqrt":
        return np.asarray(compute(*[each.astype(held) for each in given]), held)
    found = near.reshape(-1).copy()
    flat = [each.reshape(-1) for each in np.broadcast_arrays(*given)]
    for i in range(found.size):
        values = [each[i].item() for each in flat]
        if any(isinstance(v, float) and not math.isfinite(v) for v in values) or np.isnan(found[i]):
            continue
        if np.isinf(found[i]):
            if operation in ("div", "rcp", "rsqrt") and values[-1] == 0:
                continue
            sign = 1 if found[i] > 0 else -1
        else:
            sign = compare(Fraction(found[i].item()), *map(Fraction, values))
        down = mode == "rd" or (mode == "rz" and found[i] > 0)
        up = mode == "ru" or (mode == "rz" and found[i] < 0)
        if (sign > 0 and down) or (sign < 0 and up):
            found[i] = np.nextafter(found[i], held.type(-np.inf if down else np.inf))
    return found.reshape(near.shape)
