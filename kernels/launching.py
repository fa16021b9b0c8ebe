"""Launching a kernel on the device of its tensors, with an error that names blocks that do not fit the GPU."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from triton.runtime.errors import OutOfResources


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
