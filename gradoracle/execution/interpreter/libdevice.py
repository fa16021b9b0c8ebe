"""libdevice: its functions, computed in numpy by the names that CUDA's library gives them.

Triton's interpreter has no bodies for them, and `triton.language.extra.libdevice` holds stubs that return None. Here
the stubs are the functions of `triton.language.extra.cuda.libdevice`, with Triton's own dispatch on dtypes, and each
symbol that they name is computed below. Floats are computed in float64, with the same bits on every processor
(functions.py), and rounded once to the result's dtype, so that float32 results are those of an accurate library:
libdevice's own error of a few ulp, and the larger one of the `fast_` functions, is for a contract to declare. Functions
named `_rd`, `_ru`, `_rz`, `_rn` round as they say, exactly.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
import triton.language as tl
from triton.language.extra import libdevice as stubs
from triton.language.extra.cuda import libdevice as library
from triton.runtime.interpreter import TensorHandle

from gradoracle.execution.interpreter import functions
from gradoracle.execution.interpreter.elementwise import create_fma
from gradoracle.execution.interpreter.libdevice_bits import BITS, converted, directed, rounding_operation
from gradoracle.execution.interpreter.values import Array, held_as

Handle = Any
Function = Callable[..., Array]


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


def _ilogb(x: Array) -> Array:
    exponent = np.frexp(np.where(np.isfinite(x), x, 1.0))[1] - 1
    special = np.where(np.isinf(x), 2**31 - 1, -(2**31))  # INT_MAX; 0 and NaN: INT_MIN
    return np.where(np.isfinite(x) & (x != 0), exponent, special)


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
    if name in BITS:
        return TensorHandle(BITS[name](*[handle.data for handle in argList]).astype(held, copy=False), target)
    if name in ("fma", "fmaf", "fma_rn", "fmaf_rn"):
        return create_fma(self, *argList)
    rounding = rounding_operation(name)
    if rounding is not None:
        return TensorHandle(directed(*rounding, argList, held), target)
    if "_as_" in name or (name not in _FLOAT and "2" in name and "_" in name):
        return converted(self, name, argList[0], target)
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
    """Put functions in place of the stubs; kernels that import them later have them under any name."""
    for name, stub in list(vars(stubs).items()):
        if callable(stub) and getattr(stub, "__module__", "") == stubs.__name__:
            setattr(stubs, name, getattr(library, name, stub))
    if hasattr(stubs, "fast_tanhf") and not hasattr(library, "fast_tanhf"):
        stubs.fast_tanhf = tl.core.extern(_fast_tanhf)


METHODS: dict[str, Callable[..., Any]] = {"create_extern_elementwise": create_extern_elementwise}
