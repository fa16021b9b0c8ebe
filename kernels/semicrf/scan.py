"""The scan over the operators of chunks: y at the start of each chunk, normalised by whole numbers."""

from __future__ import annotations

import triton
import triton.language as tl

from .launch import UNSPECIALISED
from .tiles import log_sum, log_sum_moved


@triton.jit(**UNSPECIALISED)
def scan_kernel(
    operators, toperators, states, tstates, norms, finals, tfinals, log_z, tlog_z, lengths,
    B, chunks, length, size, wants_z,
    ROWS: tl.constexpr, STATES: tl.constexpr, TANGENT: tl.constexpr,
):  # fmt: skip
    """Carry the states [B, chunks, size] of ROWS sequences from chunk 0, which is given, to the last.

    A state is kept as whole number + rest, the number in `norms` [B, chunks] and the greatest rest in [0, 1): whole
    numbers add up without rounding. log_z: [2, B], whole number and rest, where `wants_z` is not 0 and the sequence is
    not empty. Tangents have no norms.
    """
    batch = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    exists = batch < B
    extent = tl.load(lengths + batch, mask=exists, other=0).to(tl.int32)
    final = tl.maximum(extent - 1, 0) // length
    wide = batch.to(tl.int64)
    before, after = tl.arange(0, STATES), tl.arange(0, STATES)
    known = exists[:, None] & (after < size)[None, :]
    square = exists[:, None, None] & (before < size)[None, :, None] & (after < size)[None, None, :]
    ends = tl.load(finals + wide[:, None] * size + after[None, :], mask=known & (wants_z != 0), other=float("-inf"))
    place = wide[:, None] * chunks * size + after[None, :]
    state = tl.load(states + place, mask=known, other=float("-inf"))
    norm = tl.load(norms + wide * chunks, mask=exists, other=0.0)
    tstate = state
    if TANGENT:
        tstate = tl.load(tstates + place, mask=known, other=0.0)
        tends = tl.load(tfinals + wide[:, None] * size + after[None, :], mask=known & (wants_z != 0), other=0.0)
    # an operator is loaded while the one before is applied
    at = ((wide * chunks * size)[:, None, None] + before[None, :, None]) * size + after[None, None, :]
    step = tl.load(operators + at, mask=square, other=float("-inf"))
    if TANGENT:
        tstep = tl.load(toperators + at, mask=square, other=0.0)
    last, tlast, last_norm = state, tstate, norm  # at the chunk that the sequence ends in
    for chunk in range(0, chunks):
        more = chunk + 1 < chunks
        at += size * size
        coming = tl.load(operators + at, mask=square & more, other=float("-inf"))
        last = tl.where((final == chunk)[:, None], state, last)
        last_norm = tl.where(final == chunk, norm, last_norm)
        if TANGENT:
            tcoming = tl.load(toperators + at, mask=square & more, other=0.0)
            tlast = tl.where((final == chunk)[:, None], tstate, tlast)
            state, tstate = log_sum_moved(state[:, :, None] + step, tstate[:, :, None] + tstep)
        else:
            state = log_sum(state[:, :, None] + step)
        peak = tl.max(state, axis=1)
        shift = tl.where(peak == float("-inf"), 0.0, tl.floor(peak))
        state -= shift[:, None]
        norm += shift
        place = (wide * chunks + chunk + 1)[:, None] * size + after[None, :]
        tl.store(states + place, state, mask=known & more)
        tl.store(norms + wide * chunks + chunk + 1, norm, mask=exists & more)
        step = coming
        if TANGENT:
            tl.store(tstates + place, tstate, mask=known & more)
            tstep = tcoming
    here = exists & (extent > 0) & (wants_z != 0)
    if TANGENT:
        z, tz = log_sum_moved((last + ends)[:, :, None], (tlast + tends)[:, :, None])
        tl.store(tlog_z + wide[:, None], tz, mask=here[:, None])
    else:
        z = log_sum((last + ends)[:, :, None])
    tl.store(log_z + wide, last_norm, mask=here)
    tl.store(log_z + B + wide[:, None], z, mask=here[:, None])
