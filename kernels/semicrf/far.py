"""What positions before a block contribute to each of its positions, where a ring of K does not fit in registers."""

from __future__ import annotations

import triton
import triton.language as tl

from .launch import UNSPECIALISED
from .tiles import after_move, element, log_add, log_add_moved, log_sum, log_sum_moved, sides, start_of_time


@triton.jit(**UNSPECIALISED)
def far_kernel(
    cum, start, end, tcum, tstart, tend, transition, ttransition, duration, tduration, lengths,
    norms, far, tfar, ys, tys,
    cum_b, cum_t, cum_c, start_b, start_t, start_c, end_b, end_t, end_c,
    tcum_b, tcum_t, tcum_c, tstart_b, tstart_t, tstart_c, tend_b, tend_t, tend_c,
    B, C, K, chunks, first, length, steps, origin, kept, per_k, per_in, per_out, starts, ends,
    ROWS: tl.constexpr, SLOTS: tl.constexpr, LABELS: tl.constexpr, PER_DURATION: tl.constexpr, FORWARD: tl.constexpr,
    TANGENT: tl.constexpr,
):  # fmt: skip
    """Write far [B, steps, C]: the part of x (y with PER_DURATION) at first + 1 ... that comes from tau <= first.

    Reads rows tau % kept of ys [B, kept, C], which earlier launches wrote, relative to norms [B, chunks] of tau's chunk
    of `length` positions; far is relative to that of first + 1.
    """
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    index, step = row // steps, row % steps + 1
    exists = index < B
    extent = tl.load(lengths + index, mask=exists, other=0).to(tl.int32)
    batch = index.to(tl.int64)
    labels = tl.arange(0, LABELS)
    inner, outer = tl.arange(0, LABELS), tl.arange(0, LABELS)
    known = (labels < C)[None, :]
    zero = start_of_time(origin, extent, FORWARD)
    sign = 1 if FORWARD else -1
    tau = first + step
    at = zero + sign * tau
    inside = (exists & (at >= 0) & (at <= extent))[:, None] & known
    reference = element(
        cum, batch[:, None], at.to(tl.int64)[:, None], labels[None, :], cum_b, cum_t, cum_c, inside
    )  # fmt: skip
    left, right = sides(
        cum, start, end, batch[:, None], at.to(tl.int64)[:, None], labels[None, :], reference, extent[:, None],
        cum_b, cum_t, cum_c, start_b, start_t, start_c, end_b, end_t, end_c, starts, ends, inside,
    )  # fmt: skip
    outward = right if FORWARD else left
    toutward = outward
    if TANGENT:
        tleft, tright = sides(
            tcum, tstart, tend, batch[:, None], at.to(tl.int64)[:, None], labels[None, :], 0.0, extent[:, None],
            tcum_b, tcum_t, tcum_c, tstart_b, tstart_t, tstart_c, tend_b, tend_t, tend_c, starts, ends, inside,
        )  # fmt: skip
        toutward = tright if FORWARD else tleft
    norm = tl.load(norms + batch * chunks + first // length, mask=exists, other=0.0)
    total = tl.full([ROWS, LABELS], float("-inf"), tl.float64)
    moved = tl.zeros([ROWS, LABELS], tl.float64)
    for shortest in range(0, K, SLOTS):
        lasting = shortest + 1 + tl.arange(0, SLOTS)
        of_slots = (lasting <= K)[:, None] & known
        source = tau[:, None] - lasting[None, :]
        earlier = exists[:, None] & (lasting[None, :] <= K) & (source <= first) & (source >= 0)
        place = zero[:, None] + sign * source
        there = (earlier & (place >= 0) & (place <= extent[:, None]))[:, :, None] & known[None, :, :]
        left_of, right_of = sides(
            cum, start, end, batch[:, None, None], place.to(tl.int64)[:, :, None], labels[None, None, :],
            reference[:, None, :], extent[:, None, None],
            cum_b, cum_t, cum_c, start_b, start_t, start_c, end_b, end_t, end_c, starts, ends, there,
        )  # fmt: skip
        inward = left_of if FORWARD else right_of
        held = ((batch * kept)[:, None] + source % kept)[:, :, None] * C + labels[None, None, :]
        ring = tl.load(ys + held, mask=there, other=float("-inf"))
        of_chunk = tl.maximum(source - 1, 0) // length
        given = tl.load(norms + (batch * chunks)[:, None] + of_chunk, mask=earlier, other=0.0)
        ring += (given - norm[:, None])[:, :, None]
        lasts = tl.load(
            duration + (lasting - 1)[:, None] * C + labels[None, :], mask=of_slots, other=float("-inf")
        )  # fmt: skip
        segment = inward + (lasts[None, :, :] + outward[:, None, :])
        if TANGENT:
            tleft_of, tright_of = sides(
                tcum, tstart, tend, batch[:, None, None], place.to(tl.int64)[:, :, None], labels[None, None, :],
                0.0, extent[:, None, None],
                tcum_b, tcum_t, tcum_c, tstart_b, tstart_t, tstart_c, tend_b, tend_t, tend_c, starts, ends, there,
            )  # fmt: skip
            tinward = tleft_of if FORWARD else tright_of
            tring = tl.load(tys + held, mask=there, other=0.0)
            tlasts = tl.load(tduration + (lasting - 1)[:, None] * C + labels[None, :], mask=of_slots, other=0.0)
            tsegment = tinward + (tlasts[None, :, :] + toutward[:, None, :])
        if PER_DURATION:
            pairs = (lasting <= K)[:, None, None] & (inner < C)[None, :, None] & (outer < C)[None, None, :]
            where = (
                (lasting - 1)[:, None, None] * per_k + inner[None, :, None] * per_in + outer[None, None, :] * per_out
            )
            moves = tl.load(transition + where, mask=pairs, other=float("-inf"))
            terms = after_move(ring, moves, segment, FORWARD)
            if TANGENT:
                tmoves = tl.load(ttransition + where, mask=pairs, other=0.0)
                tterms = after_move(tring, tmoves, tsegment, FORWARD)
        else:
            terms = ring + segment
            if TANGENT:
                tterms = tring + tsegment
        if TANGENT:
            part, tpart = log_sum_moved(terms, tterms)
            total, moved = log_add_moved(total, moved, part, tpart)
        else:
            total = log_add(total, log_sum(terms))
    result = (batch * steps + step - 1)[:, None] * C + labels[None, :]
    tl.store(far + result, total, mask=exists[:, None] & known)
    if TANGENT:
        tl.store(tfar + result, moved, mask=exists[:, None] & known)
