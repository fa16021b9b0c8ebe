"""The order in which a dot adds its products (accumulation.py): bit for bit, with numba and without, in any tile."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from places import loaded

from gradoracle.host.interpreter import accumulation
from gradoracle.host.interpreter.accumulation import TensorCore
from gradoracle.model.machine_code import HAS_NUMBA

reference = loaded("host.interpreter.reference")
CORES: dict[str, tuple[TensorCore, Callable[[np.ndarray], np.ndarray]]] = {
    "bfloat16": (TensorCore(16), lambda x: torch.from_numpy(x).bfloat16().float().numpy()),
    "float16": (TensorCore(16, (-14, -14)), lambda x: x.astype(np.float16).astype(np.float32)),
    "tf32": (TensorCore(8), lambda x: (x.view(np.uint32) & 0xFFFFE000).view(np.float32)),
    "onto float16": (
        TensorCore(16, (-14, -14), kept=10, is_nearest=True, lowest=-14, overflow=65520.0),
        lambda x: x.astype(np.float16).astype(np.float32),
    ),
}
RANGES = {"ordinary": (-2, 2), "wide": (-12, 12), "small": (-75, -60), "subnormal": (-140, -120), "large": (50, 62)}
OF_FLOAT16 = {"ordinary": (-2, 2), "wide": (-8, 4), "small": (-16, -10), "subnormal": (-24, -14), "large": (4, 8)}
SHAPES = (((5, 19), (19, 3)), ((2, 4, 16), (2, 16, 7)), ((3, 1, 2, 33), (2, 33, 2)))
IMPLEMENTATIONS = [
    pytest.param(True, marks=pytest.mark.skipif(not HAS_NUMBA, reason="numba is not installed"), id="numba"),
    pytest.param(False, id="numpy"),
]


@pytest.fixture(params=IMPLEMENTATIONS)
def compiled(request: Any, monkeypatch: pytest.MonkeyPatch) -> bool:
    monkeypatch.setattr(accumulation, "HAS_NUMBA", request.param)
    return bool(request.param)


def numbers(shape: tuple[int, ...], low: int, high: int, seed: int, dtype: Any = np.float32) -> np.ndarray:
    generator = np.random.default_rng(seed)
    found = generator.standard_normal(shape) * 2.0 ** generator.integers(low, high + 1, shape)
    found[generator.random(shape) < 0.1] = 0.0
    return found.astype(dtype)


def problem(kind: str, size: str, shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> tuple[np.ndarray, ...]:
    """left, right, onto in the formats of a kind."""
    low, high = (OF_FLOAT16 if "float16" in kind and kind != "bfloat16" else RANGES)[size]
    cut = CORES[kind][1]
    left, right = (cut(numbers(shape, low, high, seed)) for seed, shape in enumerate(shapes))
    onto = numbers((shapes[0][-2], shapes[1][-1]), min(low, 2 * low), high, 2)
    return left, right, onto.astype(np.float16) if kind == "onto float16" else onto


def element_by_element(left: np.ndarray, right: np.ndarray, onto: np.ndarray, dot: Callable[..., float]) -> np.ndarray:
    """Each element of a product by a function of a row, a column and what they are added to."""
    batch = np.broadcast_shapes(left.shape[:-2], right.shape[:-2])
    left, right = (np.broadcast_to(each, (*batch, *each.shape[-2:])) for each in (left, right))
    found = np.empty((*batch, left.shape[-2], right.shape[-1]))
    for place in np.ndindex(found.shape):
        row, column = left[place[:-1]], right[(*place[:-2], slice(None), place[-1])]
        found[place] = dot(row.tolist(), column.tolist(), float(onto[place[-2:]]))
    return found.astype(onto.dtype)


@pytest.mark.parametrize("shapes", SHAPES, ids=str)
@pytest.mark.parametrize("size", RANGES)
@pytest.mark.parametrize("kind", CORES)
def test_a_tensor_core_cuts_terms_and_sums(kind, size, shapes, compiled):
    left, right, onto = problem(kind, size, shapes)
    core = CORES[kind][0]
    into = torch.float16 if core.is_nearest else torch.float32
    expected = element_by_element(
        left, right, onto, lambda a, b, c: reference.tensor_core(a, b, c, block=core.block, least=core.least, into=into)
    )
    found = accumulation.in_blocks(left, right, onto, core)
    assert found.dtype == onto.dtype and np.array_equal(found, expected)


@pytest.mark.parametrize("shapes", SHAPES, ids=str)
@pytest.mark.parametrize("size", RANGES)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_other_dots_are_fused_multiply_adds_along_k(dtype, size, shapes, compiled):
    low, high = RANGES[size]
    left, right = (numbers(shape, low, high, seed, dtype) for seed, shape in enumerate(shapes))
    onto = numbers((shapes[0][-2], shapes[1][-1]), min(low, 2 * low), high, 2, dtype)
    name = torch.float32 if dtype == np.float32 else torch.float64
    expected = element_by_element(left, right, onto, lambda a, b, c: reference.chain(a, b, c, name))
    assert np.array_equal(accumulation.chained(left, right, onto), expected)


def test_float64_products_beyond_the_range_of_a_split_are_rounded_once(compiled):
    left, right = numbers((3, 9), 480, 500, 0, np.float64), numbers((9, 2), 480, 500, 1, np.float64)
    tiny = numbers((3, 9), -530, -500, 0, np.float64), numbers((9, 2), -560, -530, 1, np.float64)
    for a, b in ((left, right), tiny):
        onto = numbers((3, 2), -1060, -1050, 2, np.float64)
        expected = element_by_element(a, b, onto, lambda x, y, z: reference.chain(x, y, z, torch.float64))
        assert np.array_equal(accumulation.chained(a, b, onto), expected)


ADDS: dict[str, Callable[..., np.ndarray]] = {
    "chained": accumulation.chained,
    **{kind: lambda a, b, c, core=core: accumulation.in_blocks(a, b, c, core) for kind, (core, _) in CORES.items()},
}


@pytest.mark.parametrize("kind", ADDS)
def test_an_element_depends_on_its_row_and_column_alone(kind, compiled):
    left, right, onto = problem(kind if kind in CORES else "bfloat16", "wide", ((4, 6, 48), (4, 48, 40)))
    whole = ADDS[kind](left, right, onto)
    swap = lambda x: np.swapaxes(x, -1, -2)  # noqa: E731
    assert np.array_equal(swap(ADDS[kind](swap(right), swap(left), swap(onto))), whole)
    for member in range(4):
        assert np.array_equal(ADDS[kind](left[member], right[member], onto), whole[member])
    part = ADDS[kind](left[:, 2:5], np.asfortranarray(right[:, :, 7:8]), onto[2:5, 7:8])
    assert np.array_equal(part, whole[:, 2:5, 7:8])


@pytest.mark.parametrize("kind", ADDS)
def test_infinities_and_nan_are_those_of_ieee(kind, compiled):
    inf, nan = math.inf, math.nan
    left = np.array([[inf, 1, 0], [-inf, 1, 0], [inf, -inf, 1], [0, 0, nan], [1, 2, 3]], np.float32)
    right = np.array([[1], [1], [2]], np.float32)
    found = ADDS[kind](left, right, np.zeros((5, 1), np.float16 if kind == "onto float16" else np.float32))
    assert np.array_equal(found[:, 0], [inf, -inf, nan, nan, 9], equal_nan=True)
    found = ADDS[kind](left[4:], right, np.full((1, 1), -inf, found.dtype))
    assert found[0, 0] == -inf


def test_a_sum_beyond_the_largest_number_is_infinite_and_stays_so(compiled):
    left, right = np.full((1, 32), 2.0**63, np.float32), np.full((32, 1), 2.0**63, np.float32)
    left[0, 16:] *= -1
    assert accumulation.in_blocks(left, right, np.zeros((1, 1), np.float32), TensorCore(16))[0, 0] == math.inf


@pytest.mark.skipif(not HAS_NUMBA, reason="needs numba")
def test_exponents_are_the_same_compiled_and_with_numpy() -> None:
    draws = np.random.default_rng(0)
    values = draws.standard_normal(1000) * 2.0 ** draws.integers(-1060, 1000, 1000)
    edges = [0.0, -0.0, 5e-324, -5e-324, 2.0**-1022, -(2.0**-126), 1.7e308, 1.0]
    each = np.concatenate([values, edges]).reshape(2, 7, 72)
    for least in (-126, -14):
        found, expected = accumulation._compiled_exponents()(each, least), accumulation._exponents(each, least)
        assert found.dtype == expected.dtype and np.array_equal(found, expected)
