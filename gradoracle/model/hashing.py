"""Hashing: random numbers that are the same on every machine, because they are integer hashes of a counter.

A stream is named by (seed, name); its i-th number depends on nothing else, so a longer tensor starts with the numbers
of a shorter one. The mixer is the finaliser of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014). Beyond integers only
float64 operations that are exact here are used: no library function whose last bit may differ.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
_Words = NDArray[np.uint64]

_MASK = (1 << 64) - 1
_STEP = 0x9E3779B97F4A7C15  # 2^64 / golden ratio, odd
_FIRST, _SECOND = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
_CHUNK = 1 << 14  # words that fit the first cache


def mix(word: int) -> int:
    """The SplitMix64 finaliser of one 64-bit word: a bijection of 0 .. 2^64 - 1."""
    word &= _MASK
    word = ((word ^ (word >> 30)) * _FIRST) & _MASK
    word = ((word ^ (word >> 27)) * _SECOND) & _MASK
    return word ^ (word >> 31)


def key(seed: int, name: str) -> int:
    """The 64-bit key of the stream (seed, name): FNV-1a of the name, mixed with the seed."""
    digest = 0xCBF29CE484222325
    for byte in name.encode():
        digest = ((digest ^ byte) * 0x100000001B3) & _MASK
    return mix(mix(seed + _STEP) ^ digest)


def uniform(seed: int, name: str, count: int) -> Floats:
    """``count`` float64 numbers uniform on [0, 1), multiples of 2^-53."""
    found = np.empty(count)
    for part, words in _chunks(key(seed, name), count):
        np.right_shift(words, np.uint64(11), out=words)
        np.multiply(words, 2.0**-53, out=found[part])
    return found


def normal(seed: int, name: str, count: int) -> Floats:
    """``count`` float64 numbers of mean 0 and variance 1, nearly normal and within (-6, 6).

    Each is a sum of twelve 16-bit uniforms, made continuous by 32 finer bits: an integer below 2^52, centred and
    scaled by 2^-48, so every bit is exact. The variance is 1 within 1e-9; the fourth moment is 2.9, not 3.
    """
    stream, found = key(seed, name), np.empty(count)
    low = np.uint64(0x0000FFFF0000FFFF)
    fine = _chunks(mix(stream + 3), count)
    coarse = zip(*(_chunks(mix(stream + word), count) for word in range(3)), strict=True)
    for (part, bits), triple in zip(fine, coarse, strict=True):
        lanes: _Words = np.zeros(len(bits), np.uint64)  # two sums of six, 32 bits apart
        for _, words in triple:
            lanes += words & low
            lanes += (words >> np.uint64(16)) & low
        sums = (lanes & np.uint64(0xFFFFFFFF)) + (lanes >> np.uint64(32))
        total = ((sums << np.uint64(32)) | (bits >> np.uint64(32))).astype(np.int64)
        np.multiply(total - (786421 << 31), 2.0**-48, out=found[part])  # 786421 / 2 is the mean of sum and fine bits
    return found


def words(seed: int, name: str, count: int) -> NDArray[np.uint64]:
    """``count`` words of 64 bits, every pattern as likely."""
    found = np.empty(count, np.uint64)
    for part, own in _chunks(key(seed, name), count):
        found[part] = own
    return found


def integers(seed: int, name: str, count: int, low: int, high: int) -> Integers:
    """``count`` int64 numbers uniform on low .. high - 1.

    Raises:
        ValueError: high <= low, or a range beyond 2^31.
    """
    if not 0 < high - low <= 1 << 31:
        raise ValueError(f"integers of {low}..{high - 1} were asked for; expected a range of 1 to 2^31 values")
    found = np.empty(count, np.int64)
    for part, words in _chunks(key(seed, name), count):
        found[part] = ((words >> np.uint64(32)) * np.uint64(high - low) >> np.uint64(32)).astype(np.int64) + low
    return found


def _chunks(stream: int, count: int) -> Iterator[tuple[slice, _Words]]:
    """(slice, fresh uint64 hashes of its counters) in turn, for counters 0 .. count - 1."""
    counters: _Words = np.arange(1, min(_CHUNK, count) + 1, dtype=np.uint64) * np.uint64(_STEP)
    for start in range(0, count, _CHUNK):
        part = slice(start, min(start + _CHUNK, count))
        words = counters[: part.stop - start] + np.uint64((stream + start * _STEP) & _MASK)
        for shift, factor in ((30, _FIRST), (27, _SECOND)):
            words ^= words >> np.uint64(shift)
            words *= np.uint64(factor)
        words ^= words >> np.uint64(31)
        yield part, words
