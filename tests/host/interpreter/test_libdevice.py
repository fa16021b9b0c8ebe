"""libdevice in interpreted kernels (libdevice.py): every symbol has a body, and is accurate."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import interpreted
import mpmath
import numpy as np
import pytest
import torch

from gradoracle.host import interpreter

pytestmark = interpreted.NEEDED


interpreter.activate()
import triton  # noqa: E402
import triton.language as tl  # noqa: E402
from triton.language.extra import libdevice  # noqa: E402
from triton.language.extra.cuda import libdevice as library  # noqa: E402
from triton.language.extra.libdevice import rsqrt  # noqa: E402
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle  # noqa: E402

from gradoracle.host.interpreter.values import held_as, widened  # noqa: E402


@triton.jit
def unary(x, out, N: tl.constexpr, F: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(out + i, F(tl.load(x + i)))


@triton.jit
def binary(x, y, out, N: tl.constexpr, F: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(out + i, F(tl.load(x + i), tl.load(y + i)))


@triton.jit
def softcap(x, out, cap, n, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    value = tl.load(x + i, mask=i < n).to(tl.float32)
    tl.store(out + i, cap * libdevice.tanh(value / cap) * rsqrt(value * value + 1), mask=i < n)


def applied(f: Any, x: torch.Tensor, result: torch.dtype | None = None) -> torch.Tensor:
    out = torch.zeros(len(x), dtype=result or x.dtype)
    unary[(1,)](x, out, len(x), f)
    return out


POINTS = [0.03125, 0.25, 0.5, 0.75, 0.96875, 1.0, 1.5, 2.75, -0.5, -0.96875, -2.25, 17.0, 0.1, -0.7, 3.3, 6.0]
_PLAIN = (
    *("acos", "acosh", "asin", "asinh", "atan", "atanh", "cbrt", "ceil", "cos", "cosh", "cospi", "erf", "erfc"),
    *("erfinv", "exp", "expm1", "floor", "log", "log10", "log1p", "sin", "sinh", "sinpi", "sqrt", "tan", "tanh"),
)
REFERENCE: dict[str, Callable[[Any], Any]] = {
    **{name: getattr(mpmath, name) for name in _PLAIN},
    "cyl_bessel_i0": lambda x: mpmath.besseli(0, x), "cyl_bessel_i1": lambda x: mpmath.besseli(1, x),
    "j0": lambda x: mpmath.besselj(0, x), "j1": lambda x: mpmath.besselj(1, x),
    "y0": lambda x: mpmath.bessely(0, x), "y1": lambda x: mpmath.bessely(1, x),
    "erfcinv": lambda x: mpmath.erfinv(1 - x), "erfcx": lambda x: mpmath.exp(x * x) * mpmath.erfc(x),
    "exp10": lambda x: mpmath.mpf(10) ** x, "exp2": lambda x: mpmath.mpf(2) ** x, "log2": lambda x: mpmath.log(x, 2),
    "lgamma": lambda x: mpmath.log(abs(mpmath.gamma(x))), "tgamma": mpmath.gamma, "normcdf": mpmath.ncdf,
    "normcdfinv": lambda x: mpmath.sqrt(2) * mpmath.erfinv(2 * x - 1), "rcbrt": lambda x: 1 / mpmath.cbrt(x),
    "rsqrt": lambda x: 1 / mpmath.sqrt(x),
}  # fmt: skip
BESIDE_A_ZERO = {"j0", "j1", "y0", "y1", "lgamma"}  # accurate to absolute error there


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", sorted(REFERENCE))
def test_a_function_of_floats_is_accurate(name, dtype):
    x = torch.tensor(POINTS, dtype=dtype)
    got = applied(getattr(libdevice, name), x)
    compared = 0
    with mpmath.workdps(40):
        for value, found in zip(x.tolist(), got.tolist(), strict=True):
            try:
                exact = REFERENCE[name](mpmath.mpf(value))
            except (ValueError, ZeroDivisionError):
                continue
            if isinstance(exact, mpmath.mpc) or not mpmath.isfinite(exact) or (value < 0 and "cbrt" in name):
                continue
            scale = max(abs(exact), 1) if name in BESIDE_A_ZERO else abs(exact)
            ulps = 1 if dtype == torch.float32 else 40
            allowed = ulps * float(scale) * torch.finfo(dtype).eps + torch.finfo(dtype).tiny
            assert abs(found - exact) <= allowed, (value, found, exact)
            compared += 1
    assert compared >= 4


def test_special_values():
    inf, nan = math.inf, math.nan
    x = torch.tensor([inf, -inf, nan, 0.0])
    assert applied(libdevice.tanh, x)[:2].tolist() == [1.0, -1.0]
    assert applied(libdevice.rsqrt, x)[[0, 3]].tolist() == [0.0, inf]
    assert applied(libdevice.isinf, x, torch.int32).tolist() == [1, 1, 0, 0]
    assert applied(libdevice.isnan, x, torch.int32).tolist() == [0, 0, 1, 0]
    assert applied(libdevice.finitef, x, torch.int32).tolist() == [0, 0, 0, 1]
    assert applied(libdevice.ilogb, torch.tensor([8.0, 0.3, 0.0, inf]), torch.int32).tolist() == [
        3,
        -2,
        -(2**31),
        2**31 - 1,
    ]
    assert applied(libdevice.float2int_rd, torch.tensor([-1.5, 1.5, 3e9, nan]), torch.int32).tolist() == [
        -2,
        1,
        2**31 - 1,
        0,
    ]
    assert applied(libdevice.float2int_rn, torch.tensor([0.5, 1.5, -2.5, 7.0]), torch.int32).tolist() == [0, 2, -2, 7]
    assert applied(libdevice.round, torch.tensor([0.5, -1.5, 2.5, 0.49999997])).tolist() == [1.0, -2.0, 3.0, 0.0]
    assert applied(libdevice.float_as_int, torch.tensor([1.0, -0.0]), torch.int32).tolist() == [0x3F800000, -(2**31)]


def test_integers():
    x = torch.tensor([1, -1, 0, 12], dtype=torch.int32)
    assert applied(libdevice.popc, x).tolist() == [1, 32, 0, 2]
    assert applied(libdevice.clz, x).tolist() == [31, 0, 32, 28]
    assert applied(libdevice.ffs, x).tolist() == [1, 1, 0, 3]
    assert applied(libdevice.brev, x).tolist() == [-(2**31), -1, 0, 0x30000000]
    out = torch.zeros(2, dtype=torch.int32)
    a = torch.tensor([2**30, -7], dtype=torch.int32)
    b = torch.tensor([12, 3], dtype=torch.int32)
    for f, expected in (
        (libdevice.mulhi, [3, -1]),
        (libdevice.hadd, [2**29 + 6, -2]),
        (libdevice.rhadd, [2**29 + 6, -2]),
    ):
        binary[(1,)](a, b, out, 2, f)
        assert out.tolist() == expected


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_arithmetic_rounds_in_the_direction_that_its_name_says(dtype):
    x, y = torch.tensor([1.0, -1.0], dtype=dtype), torch.tensor([3.0, 3.0], dtype=dtype)
    third, eps, out = {}, torch.finfo(dtype).eps, torch.zeros(2, dtype=dtype)
    for mode in ("rd", "ru", "rz", "rn"):
        binary[(1,)](x, y, out, 2, getattr(libdevice, f"div_{mode}"))
        third[mode] = out.tolist()
    assert third["rd"][0] * 3 < 1 or third["rd"][0] < third["ru"][0]
    assert third["ru"][0] - third["rd"][0] == eps / 4
    assert third["rz"] == [third["rd"][0], -third["rd"][0]] == [third["rd"][0], third["ru"][1]]
    assert third["rn"][0] == (torch.ones(1, dtype=dtype) / 3).item()


def test_fast_powers_of_negative_numbers_are_nan_as_on_a_gpu():
    out = torch.zeros(2)
    x, y = torch.tensor([-2.0, 3.0]), torch.tensor([2.0, 2.0])
    binary[(1,)](x, y, out, 2, libdevice.fast_powf)
    assert math.isnan(out[0]) and abs(float(out[1]) - 9) < 1e-5
    binary[(1,)](x, y, out, 2, libdevice.pow)
    assert out.tolist() == [4.0, 9.0]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_a_kernel_with_libdevice_runs_in_lockstep_on_every_dtype(dtype):
    x = (torch.randn(100) * 30).to(dtype)
    out = torch.zeros_like(x)
    softcap[(7,)](x, out, 20.0, 100, 16)
    wide = x.double()
    expected = 20 * torch.tanh(wide / 20) / torch.sqrt(wide * wide + 1)
    assert torch.allclose(out.double(), expected, rtol=2 * torch.finfo(dtype).eps, atol=0)


def test_a_dtype_that_libdevice_lacks_is_refused():
    with pytest.raises(triton.runtime.errors.InterpreterError, match="KeyError"):
        applied(libdevice.tanh, torch.ones(4, dtype=torch.float16))


def test_widened_a_function_is_computed_in_float64():
    builder = triton.runtime.interpreter.interpreter_builder
    with widened():
        made = InterpreterBuilder.create_extern_elementwise(
            builder, "", "", "__nv_tanhf", [TensorHandle(np.array([0.3]), tl.float32)], tl.float32, True
        )
    assert made.data.dtype == np.float64
    assert abs(made.data[0] - math.tanh(0.3)) <= 3 * math.ulp(0.3)


def test_every_symbol_of_libdevice_has_a_body(monkeypatch):
    tables: dict[str, Any] = {}
    monkeypatch.setattr(tl.core, "extern_elementwise", lambda *args, **kwargs: tables.update(args[3]) or Stop())

    class Stop:
        def to(self, *args, **kwargs):
            return self

    symbols: dict[str, tuple[Any, Any]] = {}
    for value in vars(library).values():
        if tl.core.is_builtin(value):
            tables.clear()
            inner = value.__wrapped__
            inner(*[None] * (inner.__code__.co_argcount - 1), _semantic=None)
            symbols |= {symbol: (types, result) for types, (symbol, result) in tables.items()}
    assert len(symbols) > 250
    builder = triton.runtime.interpreter.interpreter_builder
    for symbol, (types, result) in symbols.items():
        handles = [TensorHandle(np.array([[1], [0]], held_as(t)), t) for t in types]
        with np.errstate(all="ignore"):
            made = builder.create_extern_elementwise("", "", symbol, handles, result, True)
        assert made.data.shape == (2, 1) and made.data.dtype == held_as(result), symbol


def test_no_stub_is_left():
    assert all(tl.core.is_builtin(f) for f in vars(libdevice).values() if callable(f))
