"""The gradient of the sinks and its tangent: one program a head sums over batch members and queries, in order."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from .guardrails import Problem
from .launch import Tensors

ROWS = 1024


@triton.jit(
    do_not_specialize=["g_b", "g_h", "g_r", "sinks_h", "tsinks_h", "B", "H", "T"],
    do_not_specialize_on_alignment=["g", "sinks", "tsinks", "m", "l", "tangent", "dsinks"],
)
def sink_kernel(
    g, sinks, tsinks, m, l, tangent, dsinks,
    g_b, g_h, g_r, sinks_h, tsinks_h, B, H, T,
    ROWS: tl.constexpr, SECOND: tl.constexpr,
):  # fmt: skip
    """Compute dsinks of one head, with SECOND its tangent, the sum of g e^(sink - L) (sink' - L').

    All is float32, rounded to the dtype of sinks at the store.
    """
    head = tl.program_id(0)
    sink = tl.load(sinks + head.to(tl.int64) * sinks_h).to(tl.float32)
    g_plane, g_step = g + head.to(tl.int64) * g_h, g_b.to(tl.int64)
    if SECOND:
        step = tl.load(tsinks + head.to(tl.int64) * tsinks_h).to(tl.float32)
    lanes = tl.zeros([ROWS], tl.float32)
    for batch in range(0, B):
        for start in range(0, T, ROWS):
            rows = start + tl.arange(0, ROWS)
            existing = rows < T
            at = (batch * H + head).to(tl.int64) * T + rows
            row_max = tl.load(m + at, mask=existing, other=0.0)
            row_sum = tl.load(l + at, mask=existing, other=1.0)
            cotangent = tl.load(
                g_plane + batch * g_step + rows.to(tl.int64) * g_r,
                mask=existing, other=0.0,
            )  # fmt: skip
            share = tl.where(sink == float("-inf"), 0.0, tl.exp(sink - row_max) / row_sum)
            if SECOND:
                share = share * (step - tl.load(tangent + at, mask=existing, other=0.0))
            lanes += tl.where(existing, cotangent * share, 0.0)
    tl.store(dsinks + head, tl.sum(lanes, axis=0).to(dsinks.dtype.element_ty))


def run(
    problem: Problem, tensors: Tensors, m: torch.Tensor, l: torch.Tensor, tangent: torch.Tensor | None = None
) -> torch.Tensor:
    """Return dsinks [H] of a checked problem that has sinks and a cotangent; with L's `tangent` the HVP's."""
    sinks, tsinks, g = tensors.sinks, tensors.tsinks, tensors.g
    assert sinks is not None and g is not None
    dsinks = torch.empty(sinks.shape, dtype=sinks.dtype, device=sinks.device)
    sink_kernel[(problem.heads,)](
        g, sinks, tsinks, m, l, tangent, dsinks,
        *g.stride(), *sinks.stride(), *(tsinks.stride() if tsinks is not None else (0,)),
        problem.batch, problem.heads, problem.queries,
        ROWS=ROWS, SECOND=tangent is not None,
    )  # fmt: skip
    return dsinks
