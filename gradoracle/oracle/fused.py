"""The errors of many roundings in one pass over memory, compiled by numba where it is installed (extra ``fast``).

The same operations in the same order as in ``probes.rounding_errors``, so the same bits, in a quarter of the time.
"""

from __future__ import annotations

import functools
import importlib.util
from typing import Any

import torch
from torch import Tensor


@functools.cache
def compiled() -> Any:
    """The compiled loop, or None where numba is not installed."""
    if importlib.util.find_spec("numba") is None:
        return None
    import numba

    return numba.njit(cache=True, error_model="numpy")(_loop)


def _loop(keys, factors, units, splitter, onto, shared, out):  # type: ignore[no-untyped-def]
    """One row of ``out`` for each factor; ``onto`` has one row for all where ``shared``, and none where it is empty."""
    for run in range(out.shape[0]):
        row = 0 if shared else run
        for i in range(keys.shape[0]):
            scaled = keys[i] * factors[run]
            split = scaled * splitter
            error = ((split - (split - scaled)) - scaled) / scaled * units[i]
            out[run, i] = error + onto[row, i] if onto.shape[0] else error


def errors(keys: Tensor, factors: Tensor, units: Tensor, splitter: float, onto: Tensor | None) -> Tensor | None:
    """[R, n] errors as ``probes.rounding_errors`` has them; None where that is to compute them.

    Args:
        keys: [n], none of them 0, all finite.
        factors: [R].
        units: [n].
        splitter: of Veltkamp's split.
        onto: what they are added to, [n] or [R, n], or None.
    """
    loop = compiled()
    if loop is None:
        return None
    out = torch.empty((len(factors), keys.numel()), dtype=keys.dtype)
    total = keys[:0].view(0, 0) if onto is None else onto.reshape(-1, keys.numel())
    arrays = (tensor.contiguous().numpy() for tensor in (keys, factors, units))
    loop(*arrays, splitter, total.contiguous().numpy(), len(total) == 1, out.numpy())
    return out
