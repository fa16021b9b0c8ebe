"""Splitting: the bfloat16 parts of a float32 tensor, made once, so that no loop over its tiles splits them again.

A dot in "bf16x6" multiplies parts. Where a dot splits its tiles, each tile of keys goes from memory through registers
to shared memory once for each tile of queries. Parts that lie in memory go straight to where tensor cores read them,
but are half as large again as the tiles, and all those of a program's own tiles stay in shared memory. So passes of few
and narrow tiles take parts, and in the others each dot splits its tiles (`operands`).
"""

from __future__ import annotations

import contextlib

import torch
import triton
import triton.language as tl

from .blocks import interpreted
from .tiles import bfloat16_parts, columns_within, load_tile, offsets, output_plane, program_rows, rows_aligned

WIDEST = 64
"""Up to how many features a pass of few tiles is faster with parts than with tiles, on an H200."""
ROWS = 64
INTERPRETED_ROWS = 1024


@triton.jit(
    do_not_specialize=["t_b", "t_h", "t_r", "t_c", "H", "count", "D", "pitch"],
    do_not_specialize_on_alignment=["tensor", "parts"],
)
def parts_kernel(
    tensor, parts, t_b, t_h, t_r, t_c, H, count, D, pitch,
    ROWS: tl.constexpr, WIDTH: tl.constexpr, ALIGNED: tl.constexpr,
):  # fmt: skip
    """Write the parts of ROWS rows, beside each other, `pitch` columns apart; zeros from D to `pitch`."""
    index, batch, head, _, rows = program_rows(count, H, ROWS)
    columns = tl.arange(0, WIDTH)
    existing = (rows < count)[:, None]
    within = columns_within(columns, D, ALIGNED)
    tile = load_tile(tensor, batch, head, rows, columns, existing & within, t_b, t_h, t_r, t_c, ALIGNED)
    first, second, third = bfloat16_parts(tile)
    pitch = tl.multiple_of(pitch, 16)
    there = existing & columns_within(columns, pitch, True)
    places = output_plane(parts, index, count, 3 * pitch, True) + offsets(rows, columns, 3 * pitch, 1, True)
    tl.store(places, first, mask=there)
    tl.store(places + pitch, second, mask=there)
    tl.store(places + 2 * pitch, third, mask=there)


def parts(tensor: torch.Tensor) -> torch.Tensor:
    """Return the parts of float32 [B, H, rows, D] of any strides: bfloat16 [B, H, rows, 3 pitch], contiguous.

    Columns i pitch to i pitch + D are part i, as `tiles.bfloat16_parts` has them; `pitch` is D rounded up to 16 n, and
    columns between are 0. Batch members and heads that lie in one place, as those of an expanded tensor, are split once
    and expanded again.
    """
    shared = [dim for dim in (0, 1) if tensor.stride(dim) == 0 and tensor.shape[dim] > 1]
    if shared:
        alone = tensor[tuple(slice(0, 1) if dim in shared else slice(None) for dim in (0, 1))]
        return parts(alone).expand(*tensor.shape[:2], -1, -1)
    batch, heads, count, features = tensor.shape
    pitch = triton.cdiv(features, 16) * 16
    made = tensor.new_empty((batch, heads, count, 3 * pitch), dtype=torch.bfloat16)
    rows = INTERPRETED_ROWS if interpreted() else ROWS
    aligned = features % 16 == 0 and rows_aligned(tensor)
    with torch.cuda.device(tensor.device) if tensor.is_cuda else contextlib.nullcontext():
        parts_kernel[(triton.cdiv(count, rows) * batch * heads,)](
            tensor, made, *tensor.stride(), heads, count, features, pitch,
            ROWS=rows, WIDTH=triton.next_power_of_2(pitch), ALIGNED=aligned, enable_fp_fusion=False,
        )  # fmt: skip
    return made


def as_loaded(precision: str, dtype: torch.dtype) -> str:
    """Return PRECISION of a kernel whose dots take tensors of a dtype: "parts" where these are parts."""
    return "parts" if precision == "bf16x6" and dtype == torch.bfloat16 else precision


def operands(precision: str, *tensors: torch.Tensor, widest: int = WIDEST) -> tuple[torch.Tensor, ...]:
    """Return what a pass loads of these tensors: in "bf16x6" their parts, where none has more features than `widest`.

    A tensor that is given twice is split once.
    """
    if precision != "bf16x6" or max(tensor.shape[-1] for tensor in tensors) > widest:
        return tensors
    made = {id(tensor): parts(tensor) for tensor in {id(each): each for each in tensors}.values()}
    return tuple(made[id(tensor)] for tensor in tensors)
