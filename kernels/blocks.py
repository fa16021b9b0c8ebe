"""Blocks: how many queries and keys a program of an attention-like kernel holds, and how many the interpreter does."""

from __future__ import annotations

import functools
from typing import NamedTuple

import torch
import triton
from triton.runtime.interpreter import InterpretedFunction


class Blocks(NamedTuple):
    """One block configuration of a kernel.

    `query` and `key` are rows of q and rows of k (and v) per tile: powers of two, at least 16, which is the least that
    a tensor-core dot takes. `num_warps` and `num_stages` are Triton's launch options; the interpreter ignores them.
    """

    query: int
    key: int
    num_warps: int = 4
    num_stages: int = 2


LARGEST_QUERIES = 128
"""Rows of q in a tile of any automatic choice on a GPU."""
INTERPRETED_TILE = 1 << 17
"""Elements of a score tile in the interpreter, where an operation costs about 0.05 ms however small its tile is."""


@triton.jit
def _decorated() -> None:
    """Do nothing: its type says whether Triton interpreted or compiled when this package was imported."""


def interpreted() -> bool:
    """Return whether these kernels run in Triton's interpreter, which TRITON_INTERPRET decides at their import."""
    return isinstance(_decorated, InterpretedFunction)


def interpreted_blocks(queries: int, keys: int) -> Blocks:
    """Return the blocks for the interpreter: as large as the problem, up to `INTERPRETED_TILE` scores."""
    rows, columns = (max(16, triton.next_power_of_2(size)) for size in (queries, keys))
    shorter = min(256, rows, columns)
    longer = min(INTERPRETED_TILE // shorter, max(rows, columns))
    return Blocks(longer, shorter) if rows > columns else Blocks(shorter, longer)


@functools.cache
def capability_of(device: torch.device) -> tuple[int, int]:
    """Return the capability of a CUDA device, such as (9, 0); of any other device (9, 0)."""
    return torch.cuda.get_device_capability(device) if device.type == "cuda" else (9, 0)


def tuned_for(capability: tuple[int, int]) -> tuple[int, int]:
    """Return whose row of a table of blocks serves a capability: on sm_9x that of sm_90, on any other that of sm_80.

    Only sm_90's rows are timed. The passes of sm_80's need at most 99 KiB of shared memory and little tensor memory.
    """
    return (9, 0) if capability[0] == 9 else (8, 0)


def dots_of(dtype: torch.dtype, precision: str) -> str:
    """Return the kind of dots by which blocks are tabled: "16 bit", "ieee", or "split" for float32 on tensor cores."""
    return "16 bit" if dtype != torch.float32 else "ieee" if precision == "ieee" else "split"


def padded_rows(queries: int, keys: int, forced: Blocks | None) -> int:
    """Return T rounded up to whole tiles of queries, whichever pass reads them; `forced` are its blocks, if any."""
    blocks = forced or (interpreted_blocks(queries, keys) if interpreted() else Blocks(LARGEST_QUERIES, 16))
    return triton.cdiv(queries, blocks.query) * blocks.query
