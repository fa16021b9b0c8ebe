"""What the derivatives need of each query: where its scores end, and what P g has instead of 1 / l."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from ..tiles import padded_places, row_factors
from .guardrails import Problem
from .launch import Tensors

ROWS = 1024


@triton.jit(
    do_not_specialize=["g_b", "g_h", "g_r", "H", "T", "padded"],
    do_not_specialize_on_alignment=["g", "m", "l", "shift", "weight"],
)
def factors_kernel(
    g, m, l, shift, weight,
    g_b, g_h, g_r, H, T, padded, scale,
    ROWS: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    """Compute shift, m in the units of scores, and weight, g / l, of ROWS queries.

    Both are 0 where a query sees nothing, and past the last one.
    """
    tiles = tl.cdiv(padded, ROWS)
    index, queries = tl.program_id(0) // tiles, tl.program_id(0) % tiles * ROWS + tl.arange(0, ROWS)
    batch, head = index // H, index % H
    existing = queries < T
    at = index.to(tl.int64) * T + queries
    row_shift, row_inverse = row_factors(m + at, l + at, existing, scale, EXACT)
    places = g + batch.to(tl.int64) * g_b + head.to(tl.int64) * g_h + queries.to(tl.int64) * g_r
    cotangent = tl.load(places, mask=existing & (row_inverse != 0.0), other=0.0)
    stored = padded_places(index, padded, queries)
    tl.store(shift + stored, row_shift, mask=queries < padded)
    tl.store(weight + stored, cotangent * row_inverse, mask=queries < padded)


def run(problem: Problem, tensors: Tensors, m: torch.Tensor, l: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return shift and weight, each contiguous [B, H, padded] in float32, of a checked problem with a cotangent.

    P g = exp2((score - shift) rate) weight, with the rate of `launching.score_units`.
    """
    assert tensors.g is not None
    shift = m.new_empty((problem.batch, problem.heads, problem.padded))
    weight = torch.empty_like(shift)
    tiles = triton.cdiv(problem.padded, ROWS)
    factors_kernel[(tiles * problem.batch * problem.heads,)](
        tensors.g, m, l, shift, weight,
        *tensors.g.stride(), problem.heads, problem.queries, problem.padded, problem.scale,
        ROWS=ROWS, EXACT=problem.units[0],
    )  # fmt: skip
    return shift, weight
