"""libdevice: its functions, computed in numpy by the names that CUDA's library gives them.

Triton's interpreter has no bodies for them, and `triton.language.extra.libdevice` holds stubs that return None. Here
the stubs are the functions of `triton.language.extra.cuda.libdevice`, with Triton's own dispatch on dtypes, and each
symbol that they name is computed below. Floats are computed in float64, with the same bits on every processor
(functions.py), and rounded once to the result's dtype, so that float32 results are those of an accurate library:
libdevice's own error of a few ulp, and the larger one of the `fast_` functions, is for a contract to declare. Functions
named `_rd`, `_ru`, `_rz`, `_rn` round as they say, exactly; those of integers and bits are exact.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np
import torch
import triton.language as tl
from triton.language.extra import libdevice as stubs
from triton.language.extra.cuda import libdevice as library
from triton.runtime.interpreter import TensorHandle

from gradoracle.host.interpreter import functions
from gradoracle.host.interpreter.casts import create_bitcast, saturated
from gradoracle.host.interpreter.elementwise import create_fma
from gradoracle.host.interpreter.values import Array, held_as

Handle = Any
Function = Callable[..., Array]
_WHOLE: dict[str, Callable[[Array], Array]] = {"rd": np.floor, "ru": np.ceil, "rz": np.trunc, "rn": np.rint}


def _by_torch(function: Callable[..., torch.Tensor]) -> Function:
    """A special function of PyTorch on float64 arrays."""

    def compute(*given: Array) -> Array:
        arrays = np.broadcast_arrays(*[np.asarray(each, np.float64) for each in given])
        return function(*[torch.from_numpy(np.ascontiguousarray(each)) for each in arrays]).numpy()

    return compute


def _by_element(function: Callable[..., float]) -> Function:
    return np.vectorize(function, otypes=[np.float64])


def _round(x: Array) -> Array:
    """Halves away from zero."""
    whole = np.trunc(x)
    return whole + np.where(np.abs(x - whole) >= 0.5, np.copysign(1.0, x), 0.0)


def _undefined(x: Array) -> Array:
    return np.full_like(x, np.nan)


def _bessel(name: str) -> Function:
    """A Bessel function of integer order n: (n, x)."""

    def at(n: float, x: float) -> float:
        import mpmath

        if math.isnan(x) or (name == "bessely" and x < 0):
            return math.nan
        if math.isinf(x):
            return 0.0
        if name == "bessely" and x == 0:
            return -math.inf
        return float(getattr(mpmath, name)(int(n), x))

    return _by_element(at)


def _of_order(n: int, name: str) -> Function:
    of_any = _bessel(name)
    return lambda x: of_any(n, x)


def _logb(x: Array) -> Array:
    exponent = np.frexp(x)[1].astype(np.float64) - 1
    return np.where(x == 0, -np.inf, np.where(np.isinf(x), np.inf, np.where(np.isnan(x), np.nan, exponent)))


def _remainder(x: float, y: float) -> float:
    try:
        return math.remainder(x, y)
    except ValueError:
        return math.nan


def _tgamma(x: float) -> float:
    try:
        return math.gamma(x)
    except OverflowError:
        return math.inf
    except ValueError:  # a pole
        return math.copysign(math.inf, x) if x == 0 else math.nan


def _saturate(x: Array) -> Array:
    return np.where(np.isnan(x), 0.0, np.clip(x, 0.0, 1.0))


def _norm(*given: Array) -> Array:
    found = given[0]
    for each in given[1:]:
        found = np.hypot(found, each)
    return np.abs(found)


def _in_balls(name: str, special: Function) -> Function:
    """Correctly rounded where balls are finite, and else what ``special`` gives."""

    def compute(*given: Array) -> Array:
        with np.errstate(all="ignore"):
            found = special(*given)
        arrays = np.broadcast_arrays(*[np.asarray(each, np.float64) for each in given])
        return functions.correctly_rounded(name, np.broadcast_to(found, arrays[0].shape), *arrays)

    return compute


# Where no ball is finite, at poles and of infinities and NaN, the functions of numpy and PyTorch say what is.
_WHERE_NO_BALL: dict[str, Function] = {
    "acos": np.arccos, "acosh": np.arccosh, "asin": np.arcsin, "asinh": np.arcsinh, "atan": np.arctan,
    "atan2": np.arctan2, "atanh": np.arctanh, "cbrt": np.cbrt, "cosh": np.cosh, "cospi": _undefined,
    "cyl_bessel_i0": _by_torch(torch.special.i0), "cyl_bessel_i1": _by_torch(torch.special.i1),
    "erfc": _by_torch(torch.special.erfc), "erfcinv": lambda x: _by_torch(torch.special.erfinv)(1.0 - x),
    "erfcx": _by_torch(torch.special.erfcx), "erfinv": _by_torch(torch.special.erfinv),
    "exp10": lambda x: np.power(10.0, x), "hypot": np.hypot, "lgamma": _by_torch(torch.lgamma), "log10": np.log10,
    "norm3d": _norm, "norm4d": _norm, "normcdf": _by_torch(torch.special.ndtr),
    "normcdfinv": _by_torch(torch.special.ndtri), "pow": np.power, "rcbrt": lambda x: 1.0 / np.cbrt(x),
    "rhypot": lambda *x: 1.0 / _norm(*x), "rnorm3d": lambda *x: 1.0 / _norm(*x), "rnorm4d": lambda *x: 1.0 / _norm(*x),
    "sinh": np.sinh, "sinpi": _undefined, "tan": _undefined, "tgamma": _by_element(_tgamma),
}  # fmt: skip
_FLOAT: dict[str, Function] = {
    "ceil": np.ceil, "copysign": np.copysign, "fabs": np.abs, "fdim": lambda x, y: np.where(x <= y, 0.0, x - y),
    "fdivide": np.divide, "floor": np.floor, "fmod": np.fmod, "j0": _of_order(0, "besselj"),
    "j1": _of_order(1, "besselj"), "jn": _bessel("besselj"), "ldexp": np.ldexp, "logb": _logb, "nearbyint": np.rint,
    "remainder": _by_element(_remainder), "rint": np.rint, "round": _round, "rsqrt": lambda x: 1.0 / np.sqrt(x),
    "saturate": _saturate, "scalbn": np.ldexp, "sqrt": np.sqrt, "trunc": np.trunc, "y0": _of_order(0, "bessely"),
    "y1": _of_order(1, "bessely"), "yn": _bessel("bessely"),
    **{name: partial(functions.evaluate, name) for name in functions.FUNCTIONS},
    **{name: _in_balls(name, special) for name, special in _WHERE_NO_BALL.items()},
    "powi": _in_balls("pow", np.power),
}  # fmt: skip


def _fast_pow(x: Array, y: Array) -> Array:
    """As CUDA's __powf: NaN for negative x."""
    return functions.evaluate("exp2", y * functions.evaluate("log2", x))


_FAST: dict[str, Function] = {"pow": _fast_pow}
_SUFFIXES = ("", "f", "d")  # of a symbol, by precision


def _function(symbol: str) -> Function | None:
    """What computes a symbol in float64; None if libdevice has no such function here."""
    name = symbol.removeprefix("__nv_")
    fast, name = name.startswith("fast_"), name.removeprefix("fast_")
    for suffix in _SUFFIXES:
        plain = name.removesuffix(suffix)
        if fast and plain in _FAST:
            return _FAST[plain]
        if plain in _FLOAT and name.endswith(suffix):
            return _FLOAT[plain]
    return None


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
    bits = _unsigned(x)
    return _bit_length(bits & -bits)


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


_INT64 = np.dtype(np.int64)
_BITS: dict[str, Callable[..., Array]] = {
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
    "llround": lambda x: saturated(_round(x), _INT64), "llroundf": lambda x: saturated(_round(x), _INT64),
    "ilogb": lambda x: _exponent(x), "ilogbf": lambda x: _exponent(x),
}  # fmt: skip


def _exponent(x: Array) -> Array:
    """floor(log2 |x|); INT_MAX for an infinity, INT_MIN for 0 and NaN."""
    finite = np.isfinite(x) & (x != 0)
    return np.where(finite, np.frexp(np.where(finite, x, 1.0))[1] - 1, np.where(np.isinf(x), 2**31 - 1, -(2**31)))


def _converted(builder: Any, name: str, arg: Handle, target: Any) -> Handle:
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


def _rounding_operation(name: str) -> tuple[str, str] | None:
    """Operation and direction of `fadd_rd`, `dsqrt_ru`, `fmaf_rz` and their kin; None for another name."""
    body, _, mode = name.rpartition("_")
    operation = "fma" if body in ("fma", "fmaf") else body[1:]
    return (operation, mode) if mode in _WHOLE and operation in _EXACT else None


def _directed(operation: str, mode: str, given: list[Array], held: np.dtype[Any]) -> Array:
    """The result of an operation rounded down, up, toward zero or to nearest, in a dtype."""
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


def _wide(handle: Handle) -> Array:
    """An operand: a float in float64, an integer as it is."""
    data: Array = handle.data
    return data.astype(np.float64) if data.dtype.kind == "f" else data


def create_extern_elementwise(
    self: Any, libName: str, libPath: str, symbol: str, argList: list[Handle], retType: Any, isPure: bool
) -> Handle:
    """A function of libdevice, element by element, on operands that broadcast.

    Raises:
        NotImplementedError: a symbol of another library.
    """
    target = retType.scalar
    held = held_as(target)
    name = symbol.removeprefix("__nv_")
    if name in _BITS:
        return TensorHandle(_BITS[name](*[handle.data for handle in argList]).astype(held, copy=False), target)
    if name in ("fma", "fmaf", "fma_rn", "fmaf_rn"):
        return create_fma(self, *argList)
    rounding = _rounding_operation(name)
    if rounding is not None:
        return TensorHandle(_directed(*rounding, [handle.data for handle in argList], held), target)
    if "_as_" in name or (name not in _FLOAT and "2" in name and "_" in name):
        return _converted(self, name, argList[0], target)
    function = _function(symbol)
    if function is None:
        raise NotImplementedError(f"{symbol} of {libName or 'libdevice'} was called, which the interpreter lacks")
    data = function(*[_wide(handle) for handle in argList])
    return TensorHandle(np.asarray(data).astype(held, copy=False), target)


def _fast_tanhf(arg0: Any, _semantic: Any = None) -> Any:
    """tanh in float32; only AMD's library has it."""
    symbols = {(tl.float32,): ("__nv_fast_tanhf", tl.float32)}
    return tl.core.extern_elementwise("", "", [arg0], symbols, is_pure=True, _semantic=_semantic)


def fill_in() -> None:
    """Replace the stubs by functions; kernels that import them later have them under any name."""
    for name, stub in list(vars(stubs).items()):
        if callable(stub) and getattr(stub, "__module__", "") == stubs.__name__:
            setattr(stubs, name, getattr(library, name, stub))
    if hasattr(stubs, "fast_tanhf") and not hasattr(library, "fast_tanhf"):
        stubs.fast_tanhf = tl.core.extern(_fast_tanhf)


METHODS: dict[str, Callable[..., Any]] = {"create_extern_elementwise": create_extern_elementwise}
