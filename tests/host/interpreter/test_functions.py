"""Functions of the interpreter (functions.py): accurate, and the same bits with numba and without."""

from __future__ import annotations

import math

import flint
import numpy as np
import pytest

from gradoracle.host.interpreter import functions
from gradoracle.model.machine_code import HAS_NUMBA

inf, nan = math.inf, math.nan
WORST = {"tanh": 2.5, "expm1": 2.0}  # units in the last place; the others' is 1.5
TRUTH = {
    "exp": lambda x: x.exp(), "exp2": lambda x: flint.arb(2) ** x, "expm1": lambda x: x.expm1(),
    "log": lambda x: x.log(), "log2": lambda x: x.log() / flint.arb(2).log(), "log1p": lambda x: x.log1p(),
    "tanh": lambda x: x.tanh(), "sin": lambda x: x.sin(), "cos": lambda x: x.cos(), "erf": lambda x: x.erf(),
}  # fmt: skip


def points(name: str) -> np.ndarray:
    """Small, ordinary and large numbers in the function's domain, and the neighbours of its kinks."""
    generator = np.random.default_rng(0)
    small, ordinary = generator.standard_normal(300) * 1e-6, generator.standard_normal(600)
    far = {"exp": (-745, 709), "exp2": (-1074, 1023), "expm1": (-60, 709), "sin": (-1e6, 1e6), "cos": (-1e6, 1e6)}
    wide = generator.uniform(*far.get(name, (-40, 40)), 600)
    multiples = np.arange(1, 200) * (math.pi / 2)
    found = np.concatenate([small, ordinary, wide, multiples, np.arange(-8, 9) / 4, [5e-324, 1e-310]])
    if name in ("log", "log2"):
        return np.concatenate([np.abs(found[found != 0]), np.exp(generator.uniform(-700, 700, 300)), 1 + small])
    return found[found > -1] if name == "log1p" else found


@pytest.mark.parametrize("name", functions.FUNCTIONS)
def test_errors_are_small(name):
    x = points(name)
    before = flint.ctx.prec
    flint.ctx.prec = 160
    try:
        for value, got in zip(x.tolist(), functions.evaluate(name, x).tolist(), strict=True):
            error = abs(float(TRUTH[name](flint.arb(value)) - flint.arb(got)))
            assert error <= WORST.get(name, 1.5) * math.ulp(got), value
    finally:
        flint.ctx.prec = before


@pytest.mark.skipif(not HAS_NUMBA, reason="numba is not installed")
@pytest.mark.parametrize("name", functions.FUNCTIONS)
def test_compiled_functions_have_the_bits_of_numpys_arithmetic(name, monkeypatch):
    specials = [0.0, -0.0, inf, -inf, nan, 1e300, -1e300, 5e-324, -5e-324, 1.0, -1.0, 2.0**20, 2.0**20 + 1]
    x = np.concatenate([points(name), -points(name), specials])
    compiled = functions.evaluate(name, x)
    monkeypatch.setattr(functions, "_compiled", functions.FUNCTIONS.__getitem__)
    plain = functions.evaluate(name, x)
    assert np.array_equal(compiled, plain, equal_nan=True)
    assert np.array_equal(np.signbit(compiled[~np.isnan(plain)]), np.signbit(plain[~np.isnan(plain)]))


@pytest.mark.parametrize(
    ("name", "x", "expected"),
    [
        ("exp", [-inf, inf, 710, -800, 0], [0, inf, inf, 0, 1]),
        ("exp2", [-inf, inf, 1024, -1076, 10], [0, inf, inf, 0, 1024]),
        ("expm1", [-inf, inf, -0.0], [-1, inf, -0.0]),
        ("log", [0, inf, -1, 1], [-inf, inf, nan, 0]),
        ("log2", [0, -0.0, inf, -1, 2.0**-1074, 8], [-inf, -inf, inf, nan, -1074, 3]),
        ("log1p", [-1, -2, inf, -0.0], [-inf, nan, inf, -0.0]),
        ("tanh", [-inf, inf, -0.0], [-1, 1, -0.0]),
        ("sin", [inf, -0.0], [nan, -0.0]),
        ("cos", [inf, 0], [nan, 1]),
        ("erf", [-inf, inf, -0.0], [-1, 1, -0.0]),
    ],
)
def test_special_values(name, x, expected):
    found = functions.evaluate(name, np.array([*x, nan]))
    assert np.array_equal(found, [*expected, nan], equal_nan=True)
    assert [math.copysign(1, each) for each in found[:-1] if each == 0] == [
        math.copysign(1, each) for each in expected if each == 0
    ]


@pytest.mark.parametrize("name", ["sin", "cos"])
def test_far_arguments_are_reduced_exactly(name):
    x = np.array([2.0**30 + 0.5, 1e22, -1.7e308])
    with_mpmath = {"sin": [math.sin(v) for v in x], "cos": [math.cos(v) for v in x]}[name]
    assert np.allclose(functions.evaluate(name, x), with_mpmath, rtol=1e-12, atol=0)


def test_rare_functions_are_correctly_rounded():
    given = np.array([0.3, 1.7, 25.0, inf, -0.5])
    found = functions.correctly_rounded("tgamma", np.array([9.0, 9.0, 9.0, inf, 9.0]), given)
    assert found[2] == math.factorial(24) and found[3] == inf
    assert abs(found[0] - 2.991568987687590628) <= math.ulp(2.9) and abs(found[4] + 3.544907701811032054) < 1e-15
    pole = functions.correctly_rounded("tgamma", np.array([-7.0]), np.array([-2.0]))
    assert pole[0] == -7.0  # no ball is finite there
