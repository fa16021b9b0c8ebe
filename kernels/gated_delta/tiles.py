"""What gated delta kernels share: which chunk a program has, decays, tiles that are kept between kernels.

A tensor that one kernel writes for another is contiguous and padded: T to whole chunks, D and Dv to the width of tiles.
It is written whole, zeros where a row or column does not exist, and read without a mask.
"""

from __future__ import annotations

import triton
import triton.language as tl

LN2 = tl.constexpr(0.6931471805599453)


@triton.jit
def program_chunk(number, H, chunks):
    """Return the plane (batch * H + head), batch, head and chunk of a number that counts all chunks of all heads."""
    chunk, index = number % chunks, number // chunks
    return index, index // H, index % H, chunk


@triton.jit
def program_piece(columns, H, pieces):
    """Return what this program computes: plane, batch, head, piece, block of columns.

    There is a program for each of `columns` blocks of columns of each of `pieces` pieces of each head.
    """
    column, piece = tl.program_id(0) % columns, tl.program_id(0) // columns % pieces
    index = tl.program_id(0) // columns // pieces
    return index, index // H, index % H, piece, column


@triton.jit
def kept(tensor, number, rows, columns, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Return pointers to a tile of the matrix of a number, 64-bit, of a contiguous tensor [..., ROWS, COLUMNS]."""
    return tensor + number * (ROWS * COLUMNS) + (rows[:, None] * COLUMNS + columns[None, :])


@triton.jit
def keep(pointers, tile):
    """Store a tile, rounded to the dtype of its tensor."""
    tl.store(pointers, tile.to(pointers.dtype.element_ty))


@triton.jit
def load_row(tensor, batch, head, rows, there, batch_stride, head_stride, row_stride):
    """Load [rows] of a tensor [B, H, T]; 0 where `there` is false."""
    place = tensor + (batch.to(tl.int64) * batch_stride + head.to(tl.int64) * head_stride)
    return tl.load(place + rows.to(tl.int64) * row_stride, mask=there, other=0.0)


@triton.jit
def decay_places(decays, index, chunks, rows, CHUNK: tl.constexpr):
    """Return the pointers [rows] to the sums of a plane of decays [B H, 2, padded T], and to what they leave."""
    place = decays + index.to(tl.int64) * (2 * chunks * CHUNK)
    return place + rows, place + chunks * CHUNK + rows


@triton.jit
def parts(total):
    """Return float64 numbers as float32: multiples of 1/128, whose differences are exact up to 2^17, and the rest."""
    high = tl.floor(total * 128.0 + 0.5) / 128.0
    return high.to(tl.float32), (total - high).to(tl.float32)


@triton.jit
def power(high, low):
    """Return 2^(high + low), as precise as exp2 whatever `high` is, for |low| up to 1/256."""
    small = low * LN2
    whole = tl.exp2(high)
    return whole + whole * (small + small * small * (0.5 + small * (1.0 / 6.0)))


@triton.jit
def load_log2(decays, index, chunks, chunk, CHUNK: tl.constexpr):
    """Load the log2 of the decay since the start of a chunk up to each of its rows, in two `parts` [rows]."""
    place, rest = decay_places(decays, index, chunks, chunk * CHUNK + tl.arange(0, CHUNK), CHUNK)
    return tl.load(place), tl.load(rest)


@triton.jit
def factors(decays, index, chunks, chunk, high, low, CHUNK: tl.constexpr):
    """Return decays of a chunk: since its start up to each row [rows], from there to its end [rows], and all of it.

    `high` and `low` are what `load_log2` returned.
    """
    place, rest = decay_places(decays, index, chunks, chunk * CHUNK + CHUNK - 1, CHUNK)
    end, end_low = tl.load(place), tl.load(rest)
    return power(high, low), power(end - high, end_low - low), power(end, end_low)


@triton.jit
def decayed(products, high, low, other_high, other_low, seen):
    """Return products [rows, keys] times the decay from key to row where the row has `seen` the key, 0 elsewhere.

    Only there is an exponential taken: elsewhere the difference may be positive and the product infinite.
    """
    between, rest = high[:, None] - other_high[None, :], low[:, None] - other_low[None, :]
    return tl.where(seen, products * power(tl.where(seen, between, 0.0), rest), 0.0)


@triton.jit
def state_places(tensor, features, values, strides):
    """Return pointers [features, values] into a state; `strides` are its last two."""
    return tensor + (features.to(tl.int64)[:, None] * strides[0] + values.to(tl.int64)[None, :] * strides[1])


@triton.jit
def load_state(tensor, batch, head, piece, features, values, D, E, given, strides):
    """Load a state [features, values] of a tensor [B, H, pieces, D, Dv] in float32; zeros where none is `given`."""
    there = (features < D)[:, None] & (values < E)[None, :]
    place = tensor + (batch.to(tl.int64) * strides[0] + head.to(tl.int64) * strides[1] + piece * strides[2])
    pointers = state_places(place, features, values, (strides[3], strides[4]))
    return tl.load(pointers, mask=there & (given != 0), other=0.0)


@triton.jit
def store_state(tensor, index, state, features, values, D, E, wanted):
    """Store a state [features, values] as that of a plane of a contiguous tensor [B, H, D, Dv], where wanted.

    `wanted` is a mask and no branch, so that programs stay together.
    """
    there = (features < D)[:, None] & (values < E)[None, :]
    place = tensor + index.to(tl.int64) * D * E
    tl.store(place + (features[:, None] * E + values[None, :]), state, mask=there & (wanted != 0))
