"""The errors of many roundings in one pass over memory, compiled by numba if it is installed (extra ``fast``).

The same operations in the same order as in ``probes.rounding_errors``: the same bits, in a quarter of the time.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

from gradoracle.oracle.exact.machine_code import HAS_NUMBA, jitted


@functools.cache
def compiled() -> Any:
    """The compiled loop; None if numba is not installed."""
    return jitted(_loop) if HAS_NUMBA else None


def _loop(keys, factors, units, splitter, onto, out):  # type: ignore[no-untyped-def]
    """One row of ``out`` for each factor, of ``keys`` and ``onto``, which have one row for all or one each."""
    for run in range(out.shape[0]):
        key = run if keys.shape[0] > 1 else 0
        row = run if onto.shape[0] > 1 else 0
        for i in range(keys.shape[1]):
            scaled = keys[key, i] * factors[run]
            split = scaled * splitter
            error = ((split - (split - scaled)) - scaled) / scaled * units[i]
            out[run, i] = error + onto[row, i] if onto.shape[0] else error


def errors(keys: Tensor, factors: Tensor, units: Tensor, splitter: float, onto: Tensor | None) -> Tensor | None:
    """[R, n] errors as of ``probes.rounding_errors``; None if numba is not installed.

    Args:
        keys: [1, n] or [R, n], none of them 0, all finite.
        factors: [R].
        units: [n].
        splitter: of Veltkamp's split.
        onto: a tensor that they are added to, [1, n] or [R, n], or None.
    """
    loop = compiled()
    if loop is None:
        return None
    out = torch.empty((len(factors), keys.shape[1]), dtype=keys.dtype)
    total = keys[:0] if onto is None else onto
    given, times, width, added = (tensor.contiguous().numpy() for tensor in (keys, factors, units, total))
    loop(given, times, width, splitter, added, out.numpy())
    return out
