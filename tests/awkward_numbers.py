"""Numbers that are hard to round to an 8-bit format."""

from __future__ import annotations

import numpy as np

from gradoracle.model.formats import Format


def awkward(format_: Format, seed: int = 0) -> np.ndarray:
    """float32 numbers at, next to and between ties of a format, subnormal, too large, infinite and NaN."""
    numbers = np.unique(format_.decoded()[np.isfinite(format_.decoded())])
    ties = ((numbers[1:] + numbers[:-1]) / 2).astype(np.float32)
    up, down = (np.nextafter(ties, np.float32(to)) for to in (np.inf, -np.inf))
    most = format_.largest
    beyond = np.array([1 + format_.unit_roundoff, 1.0 + 2 * format_.unit_roundoff, 2.0, 1e30]) * most
    special = np.array([np.inf, 0.0, 1e-45, 1e-30, format_.smallest_subnormal / 2])
    random = np.random.default_rng(seed)
    spread = random.normal(size=20_000) * 2.0 ** random.uniform(format_.lowest - 8, np.log2(most) + 3, 20_000)
    half = np.concatenate([numbers, ties, up, down, beyond, np.nextafter(beyond, 0), special, spread]).astype(
        np.float32
    )
    return np.concatenate([half, -half, [np.float32(np.nan)]]).astype(np.float32)
