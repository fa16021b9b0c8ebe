"""Functions in float64 by + - * /, square roots and bits alone: the same bits on every processor and with any library.

exp, log, sin and their like of numpy, of the C library and of PyTorch differ between processors, whose vector units
have code of their own. A kernel's functions are these, rounded once to the dtype of the result. Their own errors are
below 1.5 units in the last place of float64, 2.5 for tanh (tests/host/interpreter/test_functions.py measures them
with balls). Functions that kernels rarely call are evaluated in balls, element by element (`correctly_rounded`).

What `FUNCTIONS` names is written for numbers and for arrays alike. numba compiles it if it is installed (extra
``fast``), in the order in which it is written: the same bits, some times faster.
"""

from __future__ import annotations

import decimal
import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from gradoracle.host.interpreter.values import Array
from gradoracle.model import machine_code

_LN2_HIGH, _LN2_LOW = float.fromhex("0x1.62e42fefa2000p-1"), float.fromhex("0x1.9ef35793c7673p-41")  # 40 bits, the rest
_LOG2_E, _LOG2_E_LOW = float.fromhex("0x1.71547652b82fep+0"), float.fromhex("0x1.777d0ffda0d24p-56")
_LN2 = float.fromhex("0x1.62e42fefa39efp-1")
_TWO_OVER_PI = float.fromhex("0x1.45f306dc9c883p-1")
_PI_2 = float.fromhex("0x1.921fb54400000p+0")  # 33 bits, 33 bits, and the rest
_PI_2_LOW, _PI_2_LOWEST = float.fromhex("0x1.0b4611a600000p-34"), float.fromhex("0x1.3198a2e037073p-69")
_TWO_OVER_ROOT_PI = float.fromhex("0x1.20dd750429b6dp+0")
_ROUND = 6755399441055744.0
"""1.5 * 2^52: adding it leaves the nearest integer in the lowest bits."""
_HALF = np.int64(0x3FE6A09E667F3BCD)
"""The bits of sqrt(1/2)."""
_FAR = 2.0**20
"""Beyond it the parts of pi/2 do not suffice, and sine and cosine are evaluated in balls."""

# Coefficients of Taylor's series, the last first.
_EXP = tuple(1.0 / math.factorial(k) for k in range(14, 1, -1))
_LOG = tuple(2.0 / (2 * k + 1) for k in range(12, 0, -1))
_SIN = tuple((-1.0) ** k / math.factorial(2 * k + 1) for k in range(10, 0, -1))
_COS = tuple((-1.0) ** k / math.factorial(2 * k) for k in range(10, 1, -1))
_ERF = tuple((-1.0) ** k / (math.factorial(k) * (2 * k + 1)) for k in range(20, 0, -1))
_ERF_STEP, _ERF_END, _ERF_TERMS = 0.25, 6.0, 17


def _erf_table() -> Array:
    """[terms, steps]: the coefficients of Taylor's series of erf about the middle of each step from 1 to 6."""
    with decimal.localcontext(prec=50):
        pi = decimal.Decimal("3.14159265358979323846264338327950288419716939937510582")
        columns = []
        for step in range(int((_ERF_END - 1.0) / _ERF_STEP)):
            c = decimal.Decimal(1.0 + (step + 0.5) * _ERF_STEP)
            slope = 2 / pi.sqrt() * (-c * c).exp()
            value = term = 2 * c / pi.sqrt() * (-c * c).exp()
            for k in range(1, 200):  # erf c = 2 / sqrt(pi) exp(-c^2) sum of 2^k c^(2k+1) / (2k+1)!!
                term *= 2 * c * c / (2 * k + 1)
                value += term
            before, hermite, column = decimal.Decimal(0), decimal.Decimal(1), [value]
            for k in range(1, _ERF_TERMS):  # the k-th derivative is slope (-1)^(k-1) H_(k-1)(c)
                column.append(slope * (-1) ** (k - 1) * hermite / math.factorial(k))
                before, hermite = hermite, 2 * c * hermite - 2 * (k - 1) * before
            columns.append([float(each) for each in column])
    return np.array(columns).T.copy()


_ERF_TABLE = _erf_table()


def choose(condition: Any, yes: Any, no: Any) -> Any:
    """One of two values."""
    return np.where(condition, yes, no)


def horner(x: Any, coefficients: tuple[float, ...]) -> Any:
    """A polynomial, from its last coefficient on."""
    total = x * coefficients[0] + coefficients[1]
    for coefficient in coefficients[2:]:
        total = total * x + coefficient
    return total


def power_of_two(n: Any) -> Any:
    """2^n for whole n from -1022 to 1023."""
    return np.int64((np.float64(n + _ROUND).view(np.int64) << 52) + (1023 << 52)).view(np.float64)


def scaled(x: Any, n: Any) -> Any:
    """x 2^n of x near 1, for whole n from -2000 to 2000; rounded once, where it is subnormal."""
    half = np.rint(n * 0.5)
    return x * power_of_two(half) * power_of_two(n - half)


def exp(x: Any) -> Any:
    """e^x."""
    within = np.minimum(np.maximum(x, -800.0), 800.0)
    n = np.rint(within * _LOG2_E)
    r = (within - n * _LN2_HIGH) - n * _LN2_LOW
    return scaled(1.0 + (r + r * r * horner(r, _EXP)), n)


def exp2(x: Any) -> Any:
    """2^x."""
    within = np.minimum(np.maximum(x, -1100.0), 1100.0)
    n = np.rint(within)
    r = (within - n) * _LN2
    return scaled(1.0 + (r + r * r * horner(r, _EXP)), n)


def expm1(x: Any) -> Any:
    """e^x - 1."""
    within = np.minimum(np.maximum(x, -60.0), 800.0)
    n = np.rint(within * _LOG2_E)
    r = (within - n * _LN2_HIGH) - n * _LN2_LOW
    part = r + r * r * horner(r, _EXP)
    power = power_of_two(np.minimum(n, 60.0))
    return choose(x == 0.0, x, choose(n > 60.0, scaled(1.0 + part, n), power * part + (power - 1.0)))


def _reduced(x: Any) -> Any:
    """(k, f, g): x = 2^k (1 + f) and log(1 + f) = f - g, of positive finite x."""
    tiny = x < 2.0**-1022
    bits = np.float64(choose(tiny, x * 2.0**54, x)).view(np.int64)
    shift = (bits - _HALF) >> 52
    f = np.int64(bits - (shift << 52)).view(np.float64) - 1.0
    k = np.float64(shift) - choose(tiny, 54.0, 0.0)
    s = f / (2.0 + f)
    half = 0.5 * f * f
    return k, f, half - s * (half + s * s * horner(s * s, _LOG))


def _of_logarithm(x: Any, found: Any) -> Any:
    """A logarithm of any x, from what was found for positive finite ones."""
    special = choose(x == 0.0, -np.inf, choose(x == np.inf, np.inf, np.nan))
    return choose((x > 0.0) & (x < np.inf), found, special)


def log(x: Any) -> Any:
    """The natural logarithm."""
    k, f, g = _reduced(x)
    return _of_logarithm(x, k * _LN2_HIGH + (f - (g - k * _LN2_LOW)))


def log2(x: Any) -> Any:
    """The logarithm to base 2."""
    k, f, g = _reduced(x)
    high = f - g
    low = (f - high) - g
    return _of_logarithm(x, k + (high * _LOG2_E + (high * _LOG2_E_LOW + low * _LOG2_E)))


def log1p(x: Any) -> Any:
    """log(1 + x)."""
    total = 1.0 + x
    lost = choose(x < 1.0, x - (total - 1.0), 1.0 - (total - x))
    k, f, g = _reduced(total)
    found = k * _LN2_HIGH + (f - (g - (k * _LN2_LOW + lost / total)))
    return choose(x == 0.0, x, _of_logarithm(total, found))


def tanh(x: Any) -> Any:
    """The hyperbolic tangent."""
    t = expm1(2.0 * np.minimum(np.abs(x), 25.0))
    return np.copysign(t / (t + 2.0), x)


def _quadrant(x: Any) -> Any:
    """(q, sine, cosine): of x - n pi/2, and the lowest two bits of the whole n nearest to x / (pi/2); |x| <= 2^20."""
    within = choose(np.abs(x) <= _FAR, x, 0.0)
    n = np.rint(within * _TWO_OVER_PI)
    a = within - n * _PI_2
    w = n * _PI_2_LOW
    b = a - w
    rest = ((a - b) - w) - n * _PI_2_LOWEST
    y = b + rest
    low = (b - y) + rest
    z = y * y
    sine = y + (y * z * horner(z, _SIN) + low)
    cosine = 1.0 - (0.5 * z - (z * z * horner(z, _COS) - y * low))
    return np.float64(n + _ROUND).view(np.int64) & 3, sine, cosine


def sin(x: Any) -> Any:
    """The sine of |x| <= 2^20."""
    q, sine, cosine = _quadrant(x)
    size = choose((q & 1) == 0, sine, cosine)
    return choose(x == 0.0, x, choose((q & 2) == 0, size, -size))


def cos(x: Any) -> Any:
    """The cosine of |x| <= 2^20."""
    q, sine, cosine = _quadrant(x)
    size = choose((q & 1) == 0, cosine, sine)
    return choose(((q + 1) & 2) == 0, size, -size)


def erf(x: Any) -> Any:
    """The error function."""
    size = np.abs(x)
    near = np.minimum(size, 1.0)
    z = near * near
    small = near * _TWO_OVER_ROOT_PI + near * _TWO_OVER_ROOT_PI * (z * horner(z, _ERF))
    far = np.minimum(np.maximum(size, 1.0), _ERF_END - 2.0**-50)
    place = np.int64((choose(x == x, far, 1.0) - 1.0) / _ERF_STEP)
    r = far - (1.0 + (place + 0.5) * _ERF_STEP)
    large = _ERF_TABLE[_ERF_TERMS - 1][place]
    for k in range(_ERF_TERMS - 2, -1, -1):
        large = large * r + _ERF_TABLE[k][place]
    return np.copysign(choose(size < 1.0, small, choose(size < _ERF_END, large, choose(x == x, 1.0, x))), x)


FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    each.__name__: each for each in (exp, exp2, expm1, log, log2, log1p, tanh, sin, cos, erf)
}
"""By CUDA's names, of one argument."""
_CALLED = (choose, horner, power_of_two, scaled, expm1, _reduced, _of_logarithm, _quadrant)


@functools.cache
def _compiled(name: str) -> Callable[[Array], Array]:
    return machine_code.vectorized(FUNCTIONS[name], _CALLED)


def evaluate(name: str, x: Array) -> Array:
    """One of `FUNCTIONS` at each element of a float array of any dtype, in float64."""
    wide = x.astype(np.float64)
    with np.errstate(all="ignore"):
        found = np.asarray(_compiled(name)(wide))
    if name in ("sin", "cos"):
        outside = ~(np.abs(wide) <= _FAR)
        if outside.any():
            found[outside] = correctly_rounded(name, np.full(int(outside.sum()), np.nan), wide[outside])
    return found


def _root(x: Any) -> Any:
    return x.root(3) if x > 0 else -((-x).root(3))


def _length(*of: Any) -> Any:
    return sum(each * each for each in of).sqrt()


_BALLS: dict[str, Callable[..., Any]] = {
    **{
        name: (lambda x, name=name: getattr(x, name)())
        for name in (
            *("acos", "acosh", "asin", "asinh", "atan", "atanh", "cos", "cosh", "erfc", "erfcinv", "erfinv", "sin"),
            *("sinh", "tan"),
        )
    },
    "atan2": lambda y, x: type(x).atan2(y, x),
    "cbrt": _root,
    "cospi": lambda x: x.cos_pi(),
    "cyl_bessel_i0": lambda x: x.bessel_i(0),
    "cyl_bessel_i1": lambda x: x.bessel_i(1),
    "erfcx": lambda x: (x * x).exp() * x.erfc(),
    "exp10": lambda x: type(x)(10) ** x,
    "hypot": _length,
    "lgamma": lambda x: x.lgamma() if x > 0 else abs(x.gamma()).log(),
    "log10": lambda x: x.log() / type(x)(10).log(),
    "norm3d": _length,
    "norm4d": _length,
    "normcdf": lambda x: (-x / type(x)(2).sqrt()).erfc() / 2,
    "normcdfinv": lambda x: -type(x)(2).sqrt() * (2 * x).erfcinv(),
    "pow": lambda x, y: x**y,
    "rcbrt": lambda x: 1 / _root(x),
    "rhypot": lambda *of: 1 / _length(*of),
    "rnorm3d": lambda *of: 1 / _length(*of),
    "rnorm4d": lambda *of: 1 / _length(*of),
    "sinpi": lambda x: x.sin_pi(),
    "tgamma": lambda x: x.gamma(),
}


def correctly_rounded(name: str, special: Array, *arguments: Array) -> Array:
    """A function of `_BALLS` at each element: the float64 nearest to the true value.

    Args:
        name: by CUDA's name.
        special: the results, of one shape with the arguments, where no ball is finite: at poles, out of the domain, of
            infinities and NaN.
        arguments: float64.
    """
    found = np.array(special, np.float64)
    for place in np.ndindex(found.shape):
        nearest = _nearest(name, *(float(each[place]) for each in arguments))
        if nearest is not None:
            found[place] = nearest
    return found


@functools.lru_cache(maxsize=1 << 16)
def _nearest(name: str, *given: float) -> float | None:
    """The float64 nearest to a function's value; None where no precision encloses it."""
    if not all(map(math.isfinite, given)):
        return None
    import flint

    before = flint.ctx.prec
    try:
        for bits in _BITS:
            flint.ctx.prec = bits
            try:
                ball = _BALLS[name](*map(flint.arb, given))
            except (ValueError, ZeroDivisionError):
                return None
            low, high = float(ball.lower()), float(ball.upper())
            if low == high:
                return math.copysign(low, given[0]) if low == 0.0 and name in _ODD else low
    finally:
        flint.ctx.prec = before
    return None


_BITS = (80, 160, 640, 2560)
_ODD = ("asin", "asinh", "atan", "atanh", "cbrt", "erfinv", "sin", "sinh", "sinpi", "tan")
