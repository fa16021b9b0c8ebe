"""The posterior of segments from alpha and beta, with no recursion left: gradients by position and by parameter.

p(t, k, c', c) = exp(alpha_t[c'] + edge(t, k, c', c) + beta_{t+k}[c] - log Z) is the probability that a segment of label
c and length k starts at t after one of label c'. Where the transition is the same for all k, the sum over c' is
exp(enter_t[c] + ...), without a term for each c'. Log norms are whole numbers and cancel before anything is rounded.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .launch import UNSPECIALISED
from .tiles import element, rounded, sides


@triton.jit
def whole(norms, batch, tau, chunks, length, there):
    """Return the norm of the chunk that tau lies in; chunk j holds tau from j length + 1, and chunk 0 tau = 0 too."""
    chunk = tl.maximum(tau - 1, 0) // length
    return tl.load(norms + batch * chunks + chunk, mask=there, other=0.0)


@triton.jit
def segments(
    cum, start, end, tcum, tstart, tend, duration, tduration, beta, tbeta, beta_norms,
    cum_b, cum_t, cum_c, start_b, start_t, start_c, end_b, end_t, end_c,
    tcum_b, tcum_t, tcum_c, tstart_b, tstart_t, tstart_c, tend_b, tend_t, tend_c,
    batch, at, k, extent, norm, origin, C, K, chunks, length, beta_kept, starts, ends, exists,
    LABELS: tl.constexpr, TANGENT: tl.constexpr,
):  # fmt: skip
    """Return for segments [ROWS, SLOTS, LABELS] that start `at` and last `k` what follows their transition in log p.

    That is edge - transition + beta - log Z, in which `norm` [ROWS] is the norm of alpha less that of log Z; and its
    tangent, where there is one, or else nothing of use. -inf where there is no such segment.
    """
    labels = tl.arange(0, LABELS)
    known = (labels < C)[None, :]
    here = (exists & (at < extent))[:, None] & known
    stop = at[:, None] + k[None, :]
    there = ((exists & (at >= 0))[:, None] & (stop <= extent[:, None]) & (k <= K)[None, :])[:, :, None] & known[
        None, :, :
    ]
    reference = element(cum, batch[:, None], at.to(tl.int64)[:, None], labels[None, :], cum_b, cum_t, cum_c, here)
    opening, _ = sides(
        cum, start, end, batch[:, None], at.to(tl.int64)[:, None], labels[None, :], reference, extent[:, None],
        cum_b, cum_t, cum_c, start_b, start_t, start_c, end_b, end_t, end_c, starts, ends, here,
    )  # fmt: skip
    _, closing = sides(
        cum, start, end, batch[:, None, None], stop.to(tl.int64)[:, :, None], labels[None, None, :],
        reference[:, None, :], extent[:, None, None],
        cum_b, cum_t, cum_c, start_b, start_t, start_c, end_b, end_t, end_c, starts, ends, there,
    )  # fmt: skip
    tau = tl.where(origin < 0, extent, origin)[:, None] - stop
    inside = exists[:, None] & (stop <= extent[:, None])
    power = norm[:, None] + whole(beta_norms, batch[:, None], tau, chunks, length, inside)
    place = ((batch * beta_kept)[:, None] + tau % beta_kept)[:, :, None] * C + labels[None, None, :]
    after = tl.load(beta + place, mask=there, other=float("-inf"))
    of_slots = (k <= K)[:, None] & known
    shared = (k - 1)[:, None] * C + labels[None, :]
    lasts = tl.load(duration + shared, mask=of_slots, other=float("-inf"))
    result = opening[:, None, :] + closing + lasts[None, :, :] + (after + power[:, :, None])
    moved = result
    if TANGENT:
        topening, _ = sides(
            tcum, tstart, tend, batch[:, None], at.to(tl.int64)[:, None], labels[None, :], 0.0, extent[:, None],
            tcum_b, tcum_t, tcum_c, tstart_b, tstart_t, tstart_c, tend_b, tend_t, tend_c, starts, ends, here,
        )  # fmt: skip
        _, tclosing = sides(
            tcum, tstart, tend, batch[:, None, None], stop.to(tl.int64)[:, :, None], labels[None, None, :],
            0.0, extent[:, None, None],
            tcum_b, tcum_t, tcum_c, tstart_b, tstart_t, tstart_c, tend_b, tend_t, tend_c, starts, ends, there,
        )  # fmt: skip
        tafter = tl.load(tbeta + place, mask=there, other=0.0)
        tlasts = tl.load(tduration + shared, mask=of_slots, other=0.0)
        moved = topening[:, None, :] + tclosing + tlasts[None, :, :] + tafter
    return tl.where(there, result, float("-inf")), moved


@triton.jit
def tile_positions(
    number, lengths, alpha_norms, log_z, B, C, chunks, first, count, length, alpha_kept,
    ROWS: tl.constexpr, LABELS: tl.constexpr,
):  # fmt: skip
    """Return what the ROWS rows of a tile are: positions first, ..., first + count - 1 of every sequence in turn.

    `number` is that of the tile, 64-bit. Returned are, by row, the sequence and the position, whether there is one,
    the sequence's length, whether the position is inside of it, the mask [ROWS, LABELS] of the labels that it has, log
    Z less its norm (0 where that is -inf), the norm of alpha less that of log Z, and the offsets [ROWS, LABELS] of
    alpha and enter in their tables.
    """
    labels = tl.arange(0, LABELS)
    row = number * ROWS + tl.arange(0, ROWS)
    batch = row // count
    at = (first + row % count).to(tl.int32)
    exists = batch < B
    extent = tl.load(lengths + batch, mask=exists, other=0).to(tl.int32)
    inside = exists & (at <= extent)
    within = inside[:, None] & (labels < C)[None, :]
    z_norm = tl.load(log_z + batch, mask=exists, other=0.0)
    z = tl.load(log_z + B + batch, mask=exists, other=0.0)
    z = tl.where(z == float("-inf"), 0.0, z)
    norm = whole(alpha_norms, batch, at, chunks, length, inside) - z_norm
    held = (batch * alpha_kept + at % alpha_kept)[:, None] * C + labels[None, :]
    return batch, at, exists, extent, inside, within, z, norm, held


@triton.jit(**UNSPECIALISED)
def positions_kernel(
    cum, start, end, tcum, tstart, tend, transition, ttransition, duration, tduration, lengths,
    alpha, talpha, enter, tenter, beta, tbeta, alpha_norms, beta_norms, log_z, tlog_z, g, tg,
    dcum, dstart, dend, probabilities, partials,
    cum_b, cum_t, cum_c, start_b, start_t, start_c, end_b, end_t, end_c,
    tcum_b, tcum_t, tcum_c, tstart_b, tstart_t, tstart_c, tend_b, tend_t, tend_c,
    B, T, C, K, chunks, first, count, length, origin, alpha_kept, beta_kept, per_k, per_in, per_out, starts, ends,
    tiles, wants_cum, wants_start, wants_end, wants_transition,
    ROWS: tl.constexpr, SLOTS: tl.constexpr, LABELS: tl.constexpr, PER_DURATION: tl.constexpr,
    SEGMENTS: tl.constexpr, TANGENT: tl.constexpr,
):  # fmt: skip
    """Write what belongs to positions first, ..., first + count - 1: dcum [B, T+1, C], dstart and dend [B, T, C].

    With TANGENT their tangents along (inputs, g) instead, else with SEGMENTS probabilities [B, T, K, C] too, without g.
    Program i sums the gradient of a transition that is the same for all k over its tiles, into partials [i, C, C].
    """
    labels = tl.arange(0, LABELS)
    inner, outer = tl.arange(0, LABELS), tl.arange(0, LABELS)
    known = (labels < C)[None, :]
    pairs = (inner < C)[:, None] & (outer < C)[None, :]
    total = tl.zeros([LABELS, LABELS], tl.float64)
    if not PER_DURATION:
        between = inner[:, None] * per_in + outer[None, :] * per_out
        moves = tl.load(transition + between, mask=pairs, other=float("-inf"))
        if TANGENT:
            tmoves = tl.load(ttransition + between, mask=pairs, other=0.0)
    for tile in range(0, tiles):
        batch, at, exists, extent, inside, within, z, norm, held = tile_positions(
            tl.program_id(0).to(tl.int64) * tiles + tile, lengths, alpha_norms, log_z, B, C, chunks, first, count,
            length, alpha_kept, ROWS, LABELS,
        )  # fmt: skip
        weight = tl.load(g + batch, mask=exists, other=0.0)[:, None]
        tz = z
        if TANGENT:
            tz = tl.load(tlog_z + batch, mask=exists, other=0.0)
            tweight = tl.load(tg + batch, mask=exists, other=0.0)[:, None]
        before = tl.load(alpha + held, mask=within, other=float("-inf"))
        entered = before
        if not PER_DURATION:
            entered = tl.load(enter + held, mask=within, other=float("-inf"))
        if TANGENT:
            tbefore = tl.load(talpha + held, mask=within, other=0.0)
            tentered = tbefore
            if not PER_DURATION:
                tentered = tl.load(tenter + held, mask=within, other=0.0)

        leaves = tl.zeros([ROWS, LABELS], tl.float64)
        tleaves = tl.zeros([ROWS, LABELS], tl.float64)
        for shortest in range(0, K, SLOTS):
            k = shortest + 1 + tl.arange(0, SLOTS)
            follows, tfollows = segments(
                cum, start, end, tcum, tstart, tend, duration, tduration, beta, tbeta, beta_norms,
                cum_b, cum_t, cum_c, start_b, start_t, start_c, end_b, end_t, end_c,
                tcum_b, tcum_t, tcum_c, tstart_b, tstart_t, tstart_c, tend_b, tend_t, tend_c,
                batch, at, k, extent, norm, origin, C, K, chunks, length, beta_kept, starts, ends, exists,
                LABELS, TANGENT,
            )  # fmt: skip
            follows -= z[:, None, None]
            if PER_DURATION:
                of_k = (k <= K)[:, None, None] & pairs[None, :, :]
                between = (
                    (k - 1)[:, None, None] * per_k + inner[None, :, None] * per_in + outer[None, None, :] * per_out
                )
                moves = tl.load(transition + between, mask=of_k, other=float("-inf"))
                p = tl.exp(before[:, None, :, None] + moves[None, :, :, :] + follows[:, :, None, :])
                q = tl.sum(p, axis=2)
                if TANGENT:
                    tmoves = tl.load(ttransition + between, mask=of_k, other=0.0)
                    along = tbefore[:, None, :, None] + tmoves[None, :, :, :] + tfollows[:, :, None, :]
                    tq = tl.sum(p * (along - tz[:, None, None, None]), axis=2)
            else:
                q = tl.exp(entered[:, None, :] + follows)
                if TANGENT:
                    tq = q * (tentered[:, None, :] + tfollows - tz[:, None, None])
            leaves += tl.sum(q, axis=1)
            if TANGENT:
                tleaves += tl.sum(tq, axis=1)
            if SEGMENTS:
                of_slots = (k <= K)[:, None] & known
                place = ((batch * T + at)[:, None] * K + (k - 1)[None, :])[:, :, None] * C + labels[None, None, :]
                kept = rounded(tl.where((at < extent)[:, None, None], q, 0.0), probabilities.dtype.element_ty)
                tl.store(probabilities + place, kept, mask=(exists & (at < T))[:, None, None] & of_slots[None, :, :])

        # a segment that ends here has label c: alpha and beta say so together
        tau = tl.where(origin < 0, extent, origin) - at
        ended = ((batch * beta_kept) + tau % beta_kept)[:, None] * C + labels[None, :]
        arrival = within & (at > 0)[:, None]
        after = tl.load(beta + ended, mask=arrival, other=float("-inf"))
        power = norm + whole(beta_norms, batch, tau, chunks, length, inside)
        arrives = tl.exp(tl.where(arrival, before + after + (power - z)[:, None], float("-inf")))
        one, other = arrives * weight, leaves * weight
        if TANGENT:
            tafter = tl.load(tbeta + ended, mask=arrival, other=0.0)
            tarrives = arrives * (tbefore + tafter - tz[:, None])
            one = tarrives * weight + arrives * tweight
            other = tleaves * weight + leaves * tweight
        one = tl.where(arrival, one, 0.0)
        other = tl.where(within & (at < extent)[:, None], other, 0.0)
        real = exists[:, None] & known
        place = (batch * (T + 1) + at)[:, None] * C + labels[None, :]
        tl.store(dcum + place, rounded(one - other, dcum.dtype.element_ty), mask=real & (wants_cum != 0))
        place = (batch * T + at)[:, None] * C + labels[None, :]
        opens, closes = real & (at < T)[:, None], real & (at > 0)[:, None]
        tl.store(dstart + place, rounded(other, dstart.dtype.element_ty), mask=opens & (wants_start != 0))
        tl.store(dend + (place - C), rounded(one, dend.dtype.element_ty), mask=closes & (wants_end != 0))
        if not PER_DURATION:
            # which label came before, given that a segment of this label starts: sums to 1 over c'
            possible = (entered > float("-inf")) | (entered != entered)
            share = tl.exp(before[:, :, None] + moves[None, :, :] - tl.where(possible, entered, 0.0)[:, None, :])
            if TANGENT:
                along = tbefore[:, :, None] + tmoves[None, :, :] - tentered[:, None, :]
                total += tl.sum(share * (other[:, None, :] + along * (leaves * weight)[:, None, :]), axis=0)
            else:
                total += tl.sum(share * other[:, None, :], axis=0)
    if not PER_DURATION:
        place = partials + tl.program_id(0).to(tl.int64) * C * C + inner[:, None] * C + outer[None, :]
        tl.store(place, total, mask=pairs & (wants_transition != 0))


@triton.jit(**UNSPECIALISED)
def durations_kernel(
    cum, start, end, tcum, tstart, tend, transition, ttransition, duration, tduration, lengths,
    alpha, talpha, enter, tenter, beta, tbeta, alpha_norms, beta_norms, log_z, tlog_z, g, tg,
    partials, pair_partials,
    cum_b, cum_t, cum_c, start_b, start_t, start_c, end_b, end_t, end_c,
    tcum_b, tcum_t, tcum_c, tstart_b, tstart_t, tstart_c, tend_b, tend_t, tend_c,
    B, C, K, chunks, first, count, length, origin, alpha_kept, beta_kept, per_k, per_in, per_out, starts, ends,
    tiles,
    ROWS: tl.constexpr, SLOTS: tl.constexpr, LABELS: tl.constexpr, PER_DURATION: tl.constexpr, TANGENT: tl.constexpr,
):  # fmt: skip
    """Sum the gradient of SLOTS durations over the tiles of one part of the positions, with g, or its tangent.

    Into partials [parts, K, C]; with PER_DURATION that of the transition into pair_partials [parts, K, C, C], of which
    the former is the sum over c'.
    """
    labels = tl.arange(0, LABELS)
    inner, outer = tl.arange(0, LABELS), tl.arange(0, LABELS)
    known = (labels < C)[None, :]
    blocks = tl.cdiv(K, SLOTS)
    part = tl.program_id(0) // blocks
    k = tl.program_id(0) % blocks * SLOTS + 1 + tl.arange(0, SLOTS)
    if PER_DURATION:
        of_k = (k <= K)[:, None, None] & (inner < C)[None, :, None] & (outer < C)[None, None, :]
        between = (k - 1)[:, None, None] * per_k + inner[None, :, None] * per_in + outer[None, None, :] * per_out
        moves = tl.load(transition + between, mask=of_k, other=float("-inf"))
        pair_total = tl.zeros([SLOTS, LABELS, LABELS], tl.float64)
        if TANGENT:
            tmoves = tl.load(ttransition + between, mask=of_k, other=0.0)
    else:
        total = tl.zeros([SLOTS, LABELS], tl.float64)
    for tile in range(0, tiles):
        batch, at, exists, extent, inside, within, z, norm, held = tile_positions(
            part.to(tl.int64) * tiles + tile, lengths, alpha_norms, log_z, B, C, chunks, first, count,
            length, alpha_kept, ROWS, LABELS,
        )  # fmt: skip
        weight = tl.load(g + batch, mask=exists, other=0.0)
        if TANGENT:
            tz = tl.load(tlog_z + batch, mask=exists, other=0.0)
            tweight = tl.load(tg + batch, mask=exists, other=0.0)
        follows, tfollows = segments(
            cum, start, end, tcum, tstart, tend, duration, tduration, beta, tbeta, beta_norms,
            cum_b, cum_t, cum_c, start_b, start_t, start_c, end_b, end_t, end_c,
            tcum_b, tcum_t, tcum_c, tstart_b, tstart_t, tstart_c, tend_b, tend_t, tend_c,
            batch, at, k, extent, norm, origin, C, K, chunks, length, beta_kept, starts, ends, exists,
            LABELS, TANGENT,
        )  # fmt: skip
        follows -= z[:, None, None]
        if PER_DURATION:
            before = tl.load(alpha + held, mask=within, other=float("-inf"))
            p = tl.exp(before[:, None, :, None] + moves[None, :, :, :] + follows[:, :, None, :])
            scale = weight[:, None, None, None]
            if TANGENT:
                tbefore = tl.load(talpha + held, mask=within, other=0.0)
                along = tbefore[:, None, :, None] + tmoves[None, :, :, :] + tfollows[:, :, None, :]
                scale = tweight[:, None, None, None] + scale * (along - tz[:, None, None, None])
            exist = (inside & (at < extent))[:, None, None, None]
            pair_total += tl.sum(tl.where(exist, p * scale, 0.0), axis=0)
        else:
            entered = tl.load(enter + held, mask=within, other=float("-inf"))
            q = tl.exp(entered[:, None, :] + follows)
            scale = weight[:, None, None]
            if TANGENT:
                tentered = tl.load(tenter + held, mask=within, other=0.0)
                along = tentered[:, None, :] + tfollows - tz[:, None, None]
                scale = tweight[:, None, None] + scale * along
            exist = (inside & (at < extent))[:, None, None]
            total += tl.sum(tl.where(exist, q * scale, 0.0), axis=0)
    place = (part.to(tl.int64) * K + (k - 1))[:, None] * C
    if PER_DURATION:
        pair_place = (place[:, :, None] + inner[None, :, None]) * C + outer[None, None, :]
        tl.store(pair_partials + pair_place, pair_total, mask=of_k)
    else:
        tl.store(partials + place + labels[None, :], total, mask=(k <= K)[:, None] & known)
