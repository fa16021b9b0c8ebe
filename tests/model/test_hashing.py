"""Hashing: the numbers are fixed for ever (golden digests), independent of chunks, and distributed as they say."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

from gradoracle.model import hashing

GOLDEN = {
    "uniform": "3067c9faf1ce9086",
    "normal": "290967a6d713389d",
    "integers": "75715ee7ad583a90",
}


def drawn(kind: str, seed: int = 7, name: str = "primal q", count: int = 40_000) -> np.ndarray:
    if kind == "integers":
        return hashing.integers(seed, name, count, -3, 1000)
    return getattr(hashing, kind)(seed, name, count)


def digest(array: np.ndarray) -> str:
    return hashlib.sha256(np.ascontiguousarray(array).astype(array.dtype.newbyteorder("<")).tobytes()).hexdigest()[:16]


@pytest.mark.parametrize("kind", GOLDEN)
def test_golden_digests(kind: str) -> None:
    assert digest(drawn(kind)) == GOLDEN[kind]


def test_the_mixer_is_splitmix64() -> None:
    # the first outputs of SplitMix64 seeded with 1234567, as its reference implementation prints them
    state, outputs = 1234567, []
    for _ in range(3):
        state = (state + 0x9E3779B97F4A7C15) % 2**64
        outputs.append(hashing.mix(state))
    assert outputs == [6457827717110365317, 3203168211198807973, 9817491932198370423]


@pytest.mark.parametrize("kind", ["uniform", "normal"])
def test_a_stream_does_not_depend_on_its_length(kind: str) -> None:
    long = drawn(kind, count=40_000)
    for count in (0, 1, 3, 16_384, 16_385, 33_000):
        assert np.array_equal(drawn(kind, count=count), long[:count])


@pytest.mark.parametrize("kind", ["uniform", "normal", "integers"])
def test_seed_and_name_make_another_stream(kind: str) -> None:
    first = drawn(kind, count=1000)
    for other in (drawn(kind, seed=8, count=1000), drawn(kind, name="primal k", count=1000)):
        assert abs(np.corrcoef(first, other)[0, 1]) < 0.15
        assert (first == other).mean() < 0.02


def test_normal_is_nearly_normal() -> None:
    numbers = drawn("normal", count=1_000_000)
    assert abs(numbers.mean()) < 4e-3 and abs(numbers.var() - 1) < 6e-3
    assert abs((numbers**4).mean() - 2.9) < 0.03
    assert abs(np.mean(np.abs(numbers) < 1) - 0.6827) < 0.004
    assert np.abs(numbers).max() < 6
    assert abs(np.corrcoef(numbers[1:], numbers[:-1])[0, 1]) < 4e-3


def test_normal_fills_the_significand_of_float32() -> None:
    numbers = drawn("normal", count=4096).astype(np.float32)
    assert len(np.unique(numbers)) == 4096
    odd = numbers.view(np.uint32) & 1
    assert 0.45 < odd.mean() < 0.55


def test_uniform_is_uniform() -> None:
    numbers = drawn("uniform", count=1_000_000)
    assert numbers.min() >= 0 and numbers.max() < 1
    counts = np.histogram(numbers, 64, (0, 1))[0]
    assert abs(counts / (1_000_000 / 64) - 1).max() < 0.04


def test_integers_cover_their_range_and_nothing_else() -> None:
    numbers = hashing.integers(1, "lengths", 20_000, 5, 9)
    assert set(numbers.tolist()) == {5, 6, 7, 8}
    assert hashing.integers(1, "lengths", 10, 5, 6).tolist() == [5] * 10
    with pytest.raises(ValueError, match="expected a range"):
        hashing.integers(1, "lengths", 10, 5, 5)
