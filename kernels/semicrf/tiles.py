"""What semi-CRF kernels do with a tile: address it, and add up in the log domain, with tangents or without.

Everything is computed in float64: rows of inputs are widened as they are loaded, results rounded once as they are
stored. -inf is a weight of 0 and stays one; its tangent is 0.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def element(pointer, batch, row, label, batch_stride, row_stride, label_stride, there):
    """Load the elements [batch, row, label], which broadcast, in float64; 0 where nothing is `there`.

    `batch` and `row` are 64-bit, since a tensor may span more than 2^31 elements; `label` is made so.
    """
    place = pointer + (batch * batch_stride + row * row_stride + label.to(tl.int64) * label_stride)
    return tl.load(place, mask=there, other=0.0).to(tl.float32).to(tl.float64)


@triton.jit
def sides(
    cum, start, end, batch, position, label, reference, extent,
    cum_b, cum_t, cum_c, start_b, start_t, start_c, end_b, end_t, end_c, starts, ends, there,
):  # fmt: skip
    """Return the scores that a segment takes from where it starts and from where it ends, were it at `position`.

    left = start[t] - (cum[t] - reference), right = (cum[t] - reference) + end[t - 1], so that an edge is right + left +
    duration + transition whatever the reference. `extent` is the sequence's length: nothing starts there.
    """
    summed = element(cum, batch, position, label, cum_b, cum_t, cum_c, there) - reference
    opens = there & (position < extent) & (starts != 0)
    closes = there & (position > 0) & (ends != 0)
    opening = element(start, batch, position, label, start_b, start_t, start_c, opens)
    closing = element(end, batch, position - 1, label, end_b, end_t, end_c, closes)
    return opening - summed, summed + closing


@triton.jit
def start_of_time(origin, extent, FORWARD: tl.constexpr):
    """Return the positions [ROWS] where tau = 0: 0 forward; backward `origin`, or where that is below 0 the length."""
    if FORWARD:
        return tl.zeros(extent.shape, tl.int32)
    else:
        return tl.where(origin < 0, extent, origin)


@triton.jit
def after_move(ring, moves, segment, FORWARD: tl.constexpr):
    """Return ring + transition + segment [ROWS, SLOTS * LABELS, LABELS], with a transition for each duration.

    ring and segment are [ROWS, SLOTS, LABELS], moves [SLOTS, LABELS, LABELS] in tau. A segment has the label that comes
    later in time: in tau the second of the two forward, the first backward.
    """
    if FORWARD:
        terms = ring[:, :, :, None] + (moves[None, :, :, :] + segment[:, :, None, :])
    else:
        terms = ring[:, :, :, None] + (moves[None, :, :, :] + segment[:, :, :, None])
    return tl.reshape(terms, [ring.shape[0], ring.shape[1] * ring.shape[2], ring.shape[2]])


@triton.jit
def log_sum(v):
    """Return log sum over axis 1 of exp v, for v [rows, terms, columns]; -inf where every term is."""
    peak = tl.max(v, axis=1)
    peak = tl.where(peak == float("-inf"), 0.0, peak)
    return peak + tl.log(tl.sum(tl.exp(v - peak[:, None, :]), axis=1))


@triton.jit
def log_sum_moved(v, tv):
    """Return what `log_sum` does and its tangent, for v and its tangent tv [rows, terms, columns]."""
    peak = tl.max(v, axis=1)
    peak = tl.where(peak == float("-inf"), 0.0, peak)
    terms = tl.exp(v - peak[:, None, :])
    total = tl.sum(terms, axis=1)
    none = total == 0.0
    moved = tl.sum(terms * tv, axis=1) / tl.where(none, 1.0, total)
    return peak + tl.log(total), tl.where(none, 0.0, moved)


@triton.jit
def log_add(a, b):
    """Return log(exp a + exp b), element by element."""
    peak = tl.maximum(a, b)
    peak = tl.where(peak == float("-inf"), 0.0, peak)
    return peak + tl.log(tl.exp(a - peak) + tl.exp(b - peak))


@triton.jit
def log_add_moved(a, ta, b, tb):
    """Return what `log_add` does and its tangent."""
    peak = tl.maximum(a, b)
    peak = tl.where(peak == float("-inf"), 0.0, peak)
    one, other = tl.exp(a - peak), tl.exp(b - peak)
    total = one + other
    none = total == 0.0
    moved = (one * ta + other * tb) / tl.where(none, 1.0, total)
    return peak + tl.log(total), tl.where(none, 0.0, moved)


@triton.jit
def rounded(x, TYPE: tl.constexpr):
    """Return float64 x in another dtype; 16 bits by way of float32."""
    if TYPE == tl.float64:  # noqa: SIM300
        return x
    else:
        return x.to(tl.float32).to(TYPE)
