"""Launching a kernel: the device of its tensors, an error that names blocks that do not fit it, units of scores."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from typing import Any

import torch
from triton.runtime.errors import OutOfResources

LOG2E = 1.4426950408889634
EXACT_SCALES = 2.0**-24, 1.0  # powers of two between which a score's units cost no range: |q k| is finite where |S| is


def score_units(scale: float) -> tuple[bool, float]:
    """Return whether scores may stay dots of q and k, which `scale` changes no rounding of, and what exp2 takes.

    exp(S - m) is exp2((score - shift) rate) of `tiles.in_units` and `tiles.row_factors`.
    """
    exact = math.frexp(scale)[0] == 0.5 and EXACT_SCALES[0] <= scale <= EXACT_SCALES[1]
    return exact, scale * LOG2E if exact else LOG2E


def may_fuse(exact: bool, precision: str) -> bool:
    """Return whether products and sums may be one operation: Triton's `enable_fp_fusion`.

    Where scores are products (not `exact`), score - shift would not be 0 where S is m; and `tiles.bfloat16_parts` would
    be of other numbers.
    """
    return exact and precision != "bf16x6"


@contextlib.contextmanager
def launching(kernel: Any, device: torch.device, dtype: torch.dtype, blocks: object, sizes: str) -> Iterator[None]:
    """Make `device` the current one, for a launch in this context.

    Args:
        kernel: the kernel to be launched.
        device: the device of its tensors.
        dtype: the dtype of its inputs.
        blocks: its block configuration.
        sizes: how wide its tiles are, for the message.

    Raises:
        ValueError: where the blocks need more shared memory or registers than the GPU has.
    """
    with torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext():
        try:
            yield
        except OutOfResources as error:
            raise ValueError(
                f"blocks is {blocks} for {kernel.__name__} at {dtype} and {sizes}: expected blocks that fit this GPU "
                f"({error})"
            ) from error
