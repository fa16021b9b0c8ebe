"""The recursion of forward and backward, over many chunks of the sequences at a time.

Read forward in time, alpha_t[c] = log sum over k of exp(enter_{t-k}[c] + score of a segment from t - k to t), and
enter_t[c] = log sum over c' of exp(alpha_t[c'] + transition[c', c]). Backward the same holds of what follows:
leave_t[c] = log sum over k of exp(beta_{t+k}[c] + score of a segment from t to t + k), and beta_t[c'] = log sum over c
of exp(leave_t[c] + transition[c', c]). One kernel does both: in its own time tau (t forward, the end minus t backward)
x_tau comes from the ring of y at the last positions and y_tau from x_tau, so that (x, y) is (alpha, enter) or (leave,
beta). With a transition of its own for each duration the ring holds alpha or beta itself, and x is not made.

The ring lives in registers. A program loads what an earlier launch left, takes its steps and stores; it never loads
what it stored.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .launch import UNSPECIALISED
from .tiles import after_move, element, log_add, log_add_moved, log_sum, log_sum_moved, sides, start_of_time


@triton.jit
def ring_side(
    cum, start, end, batch, after, ages, reference, extent, zero, existing, of_ring,
    cum_b, cum_t, cum_c, start_b, start_t, start_c, end_b, end_t, end_c, starts, ends, FORWARD: tl.constexpr,
):  # fmt: skip
    """Return what positions of a ring [ROWS, SLOTS, LABELS], `ages` before `after`, add to a segment from there."""
    at = after[:, None] - ages[None, :]
    if not FORWARD:
        at = zero[:, None] - at
    inside = existing[:, None] & (at >= 0) & (at <= extent[:, None])
    labels = tl.arange(0, of_ring.shape[1])
    left, right = sides(
        cum, start, end, batch[:, None, None], at.to(tl.int64)[:, :, None], labels[None, None, :],
        reference, extent[:, None, None],
        cum_b, cum_t, cum_c, start_b, start_t, start_c, end_b, end_t, end_c, starts, ends,
        inside[:, :, None] & of_ring[None, :, :],
    )  # fmt: skip
    if FORWARD:
        return left
    else:
        return right


@triton.jit(**UNSPECIALISED)
def recursion_kernel(
    cum, start, end, tcum, tstart, tend, transition, ttransition, duration, tduration, lengths,
    states, tstates, far, tfar, xs, txs, ys, tys, operators, toperators, finals, tfinals,
    cum_b, cum_t, cum_c, start_b, start_t, start_c, end_b, end_t, end_c,
    tcum_b, tcum_t, tcum_c, tstart_b, tstart_t, tstart_c, tend_b, tend_t, tend_c,
    B, C, K, sources, chunks, first, length, steps, window, origin, kept, per_k, per_in, per_out, starts, ends,
    keeps_x, keeps_y,
    ROWS: tl.constexpr, SLOTS: tl.constexpr, LABELS: tl.constexpr, PER_DURATION: tl.constexpr, FORWARD: tl.constexpr,
    OPERATORS: tl.constexpr, FAR: tl.constexpr, TANGENT: tl.constexpr,
):  # fmt: skip
    """Take `steps` steps of ROWS rows: (sequence, chunk), or with OPERATORS (sequence, chunk, start state).

    Args that are not tensors of `semicrf`, their tangents or strides:
        states: [B, chunks, K, C], y at the positions up to a chunk's start, latest first; unread with OPERATORS or FAR.
        far: [B, steps, C], with FAR: x (or y) as earlier positions than `first` alone make it; the ring starts empty.
        xs, ys: [B, kept, C], x and y of tau in row tau % kept, where keeps_x and keeps_y are not 0.
        operators: [B, chunks, K C, K C], y at the chunk's end for each start state, with OPERATORS.
        finals: [B, sources], log sum over labels of alpha at the sequence's length, relative as `states` is.
        chunks, first, length: chunk j starts at tau = first + j length. window: slots of the ring in use.
        origin: backward, the position where tau = 0; below 0 it is each sequence's length.
    """
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    state = row % sources
    chunk = row // sources % chunks
    index = row // sources // chunks
    exists = index < B
    extent = tl.load(lengths + index, mask=exists, other=0).to(tl.int32)
    batch = index.to(tl.int64)
    slots = tl.arange(0, SLOTS)
    labels = tl.arange(0, LABELS)
    of_ring = (slots < window)[:, None] & (labels < C)[None, :]
    before = first + chunk * length
    zero = start_of_time(origin, extent, FORWARD)
    sign = 1 if FORWARD else -1
    there = exists[:, None] & (labels < C)[None, :]

    # scores are relative to cum at the chunk's start, exactly: a difference of two float32 in float64
    opening = tl.minimum(tl.maximum(zero + sign * before, 0), extent).to(tl.int64)
    reference = element(cum, batch[:, None], opening[:, None], labels[None, :], cum_b, cum_t, cum_c, there)

    # the ring [ROWS, SLOTS, LABELS]: slot s holds the position of age (window - s) % window
    ages = (window - slots) % window
    given = exists[:, None, None] & of_ring[None, :, :]
    inward = ring_side(
        cum, start, end, batch, before, ages, reference[:, None, :], extent, zero, exists, of_ring,
        cum_b, cum_t, cum_c, start_b, start_t, start_c, end_b, end_t, end_c, starts, ends, FORWARD,
    )  # fmt: skip
    tinward = inward
    if FAR:
        ring = tl.full([ROWS, SLOTS, LABELS], float("-inf"), tl.float64)
    elif OPERATORS:
        own = state[:, None, None] == (ages[:, None] * C + labels[None, :])[None, :, :]
        ring = tl.where(own & of_ring[None, :, :], 0.0, float("-inf")).to(tl.float64)
    else:
        held = ((batch * chunks + chunk)[:, None, None] * K + ages[None, :, None]) * C + labels[None, None, :]
        ring = tl.load(states + held, mask=given, other=float("-inf"))
    tring = ring
    if TANGENT:
        tinward = ring_side(
            tcum, tstart, tend, batch, before, ages, 0.0, extent, zero, exists, of_ring,
            tcum_b, tcum_t, tcum_c, tstart_b, tstart_t, tstart_c, tend_b, tend_t, tend_c, starts, ends, FORWARD,
        )  # fmt: skip
        tring = tl.zeros([ROWS, SLOTS, LABELS], tl.float64)
        if not OPERATORS and not FAR:
            tring = tl.load(tstates + held, mask=given, other=0.0)
    if not PER_DURATION:
        ring += inward
        if TANGENT:
            tring += tinward
        inner, outer = tl.arange(0, LABELS), tl.arange(0, LABELS)
        pairs = (inner < C)[:, None] & (outer < C)[None, :]
        moves = tl.load(
            transition + inner[:, None] * per_in + outer[None, :] * per_out, mask=pairs, other=float("-inf")
        )
        if TANGENT:
            tmoves = tl.load(ttransition + inner[:, None] * per_in + outer[None, :] * per_out, mask=pairs, other=0.0)

    arrived = tl.full([ROWS, LABELS], float("-inf"), tl.float64)
    tarrived = tl.zeros([ROWS, LABELS], tl.float64)
    for i in range(1, steps + 1):
        tau = before + i
        at = zero + sign * tau
        inside = there & ((at >= 0) & (at <= extent))[:, None]
        left, right = sides(
            cum, start, end, batch[:, None], at.to(tl.int64)[:, None], labels[None, :], reference, extent[:, None],
            cum_b, cum_t, cum_c, start_b, start_t, start_c, end_b, end_t, end_c, starts, ends, inside,
        )  # fmt: skip
        inner_side = left if FORWARD else right
        outer_side = right if FORWARD else left
        if TANGENT:
            tleft, tright = sides(
                tcum, tstart, tend, batch[:, None], at.to(tl.int64)[:, None], labels[None, :], 0.0, extent[:, None],
                tcum_b, tcum_t, tcum_c, tstart_b, tstart_t, tstart_c, tend_b, tend_t, tend_c, starts, ends, inside,
            )  # fmt: skip
            tinner_side = tleft if FORWARD else tright
            touter_side = tright if FORWARD else tleft
        # slot s holds position i - 1 - k, so that its segment lasts k + 1
        k = (i - 1 - slots + window) % window
        lasts = tl.load(duration + k[:, None] * C + labels[None, :], mask=of_ring, other=float("-inf"))
        if TANGENT:
            tlasts = tl.load(tduration + k[:, None] * C + labels[None, :], mask=of_ring, other=0.0)
        if PER_DURATION:
            inner, outer = tl.arange(0, LABELS), tl.arange(0, LABELS)
            pairs = (slots < window)[:, None, None] & (inner < C)[None, :, None] & (outer < C)[None, None, :]
            where = k[:, None, None] * per_k + inner[None, :, None] * per_in + outer[None, None, :] * per_out
            moves = tl.load(transition + where, mask=pairs, other=float("-inf"))
            segment = inward + (lasts[None, :, :] + outer_side[:, None, :])
            terms = after_move(ring, moves, segment, FORWARD)
            if TANGENT:
                tmoves = tl.load(ttransition + where, mask=pairs, other=0.0)
                tsegment = tinward + (tlasts[None, :, :] + touter_side[:, None, :])
                tterms = after_move(tring, tmoves, tsegment, FORWARD)
                x, tx = log_sum_moved(terms, tterms)
            else:
                x = log_sum(terms)
        elif TANGENT:
            x, tx = log_sum_moved(ring + lasts[None, :, :], tring + tlasts[None, :, :])
            x += outer_side
            tx += touter_side
        else:
            x = log_sum(ring + lasts[None, :, :]) + outer_side
        if FAR:
            apart = (batch * steps + (i - 1))[:, None] * C + labels[None, :]
            if TANGENT:
                x, tx = log_add_moved(
                    x, tx, tl.load(far + apart, mask=there, other=float("-inf")),
                    tl.load(tfar + apart, mask=there, other=0.0),
                )  # fmt: skip
            else:
                x = log_add(x, tl.load(far + apart, mask=there, other=float("-inf")))
        x = tl.where(inside, x, float("-inf"))
        if TANGENT:
            tx = tl.where(inside, tx, 0.0)
        if PER_DURATION:
            y = x
            if TANGENT:
                ty = tx
        elif TANGENT:
            y, ty = log_sum_moved(x[:, :, None] + moves[None, :, :], tx[:, :, None] + tmoves[None, :, :])
            ty = tl.where(inside, ty, 0.0)
        else:
            y = log_sum(x[:, :, None] + moves[None, :, :])
        y = tl.where(inside, y, float("-inf"))
        at_end = inside & (at == extent)[:, None]
        if FORWARD:
            arrived = tl.where(at_end, x, arrived)
            if TANGENT:
                tarrived = tl.where(at_end, tx, tarrived)
        else:
            y = tl.where(at_end, 0.0, y)
            if TANGENT:
                ty = tl.where(at_end, 0.0, ty)
        place = (batch * kept + tau % kept)[:, None] * C + labels[None, :]
        tl.store(xs + place, x, mask=there & (keeps_x != 0))
        tl.store(ys + place, y, mask=there & (keeps_y != 0))
        if TANGENT:
            tl.store(txs + place, tx, mask=there & (keeps_x != 0))
            tl.store(tys + place, ty, mask=there & (keeps_y != 0))
        newest = (slots == i % window)[None, :, None]
        if PER_DURATION:
            ring = tl.where(newest, y[:, None, :], ring)
            inward = tl.where(newest, inner_side[:, None, :], inward)
            if TANGENT:
                tring = tl.where(newest, ty[:, None, :], tring)
                tinward = tl.where(newest, tinner_side[:, None, :], tinward)
        else:
            ring = tl.where(newest, (y + inner_side)[:, None, :], ring)
            if TANGENT:
                tring = tl.where(newest, (ty + tinner_side)[:, None, :], tring)

    if FORWARD:
        ends_here = exists & (before < extent) & (extent <= before + steps)
        total = tl.reshape(arrived, [ROWS, LABELS, 1])
        where_final = finals + batch[:, None] * sources + state[:, None]
        if TANGENT:
            total, ttotal = log_sum_moved(total, tl.reshape(tarrived, [ROWS, LABELS, 1]))
            tl.store(tfinals + batch[:, None] * sources + state[:, None], ttotal, mask=ends_here[:, None])
        else:
            total = log_sum(total)
        tl.store(where_final, total, mask=ends_here[:, None])
    if OPERATORS:
        last = ((steps - slots) % window + window) % window
        place = row.to(tl.int64)[:, None, None] * (K * C) + (last[:, None] * C + labels[None, :])[None, :, :]
        if not PER_DURATION:
            added = ring_side(
                cum, start, end, batch, before + steps, last, reference[:, None, :], extent, zero, exists, of_ring,
                cum_b, cum_t, cum_c, start_b, start_t, start_c, end_b, end_t, end_c, starts, ends, FORWARD,
            )  # fmt: skip
            ring -= tl.where(added == float("-inf"), 0.0, added)  # where nothing may start, y does not matter
        tl.store(operators + place, ring, mask=given)
        if TANGENT:
            if not PER_DURATION:
                tring -= ring_side(
                    tcum, tstart, tend, batch, before + steps, last, 0.0, extent, zero, exists, of_ring,
                    tcum_b, tcum_t, tcum_c, tstart_b, tstart_t, tstart_c, tend_b, tend_t, tend_c, starts, ends, FORWARD,
                )  # fmt: skip
            tl.store(toperators + place, tring, mask=given)
