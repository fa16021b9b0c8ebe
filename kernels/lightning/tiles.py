"""What lightning kernels share: which piece a program has, tiles and how they are loaded, the state between chunks."""

from __future__ import annotations

import triton
import triton.language as tl

from ..tiles import below, dot, offsets, plane


@triton.jit
def program_piece(columns, H, pieces):
    """Return what this program computes: plane (batch * H + head), batch, head, piece, block of columns.

    There is a program for each of `columns` blocks of columns of each of `pieces` pieces of each head. Those of one
    piece are neighbours: they read the same rows at the same time.
    """
    column = tl.program_id(0) % columns
    piece = tl.program_id(0) // columns % pieces
    index = tl.program_id(0) // columns // pieces
    batch, head = index // H, index % H
    return index, batch, head, piece, column


@triton.jit
def one_of(number, first, second, third):
    """Return the first, the second or the third of three scalars or pointers, by its number."""
    return tl.where(number == 0, first, tl.where(number == 1, second, third))


@triton.jit
def tensor_of(number, first, second, third):
    """Return one of three tensors, each (pointer, four strides), by its number."""
    return (
        one_of(number, first[0], second[0], third[0]),
        one_of(number, first[1], second[1], third[1]),
        one_of(number, first[2], second[2], third[2]),
        one_of(number, first[3], second[3], third[3]),
        one_of(number, first[4], second[4], third[4]),
    )


@triton.jit
def row_offsets(rows, columns, row_stride, column_stride, ALIGNED: tl.constexpr):
    """Return the offsets [rows, columns] of a tile from the pointer to its first row.

    ALIGNED promises a column stride of 1, rows and columns that are multiples of 16 elements, and rows so close that 32
    bits hold the offsets of a tile.
    """
    if ALIGNED:
        return tl.multiple_of(rows * row_stride, 16)[:, None] + columns[None, :]
    else:
        return rows.to(tl.int64)[:, None] * row_stride + columns.to(tl.int64)[None, :] * column_stride


@triton.jit
def walk(tensor, batch, head, rows, columns, ALIGNED: tl.constexpr):
    """Return what `load_step` loads the tiles of plane [batch, head] from, one after the other along the rows.

    `tensor` is (pointer, four strides). What is returned is the pointer to the plane, the offsets [rows, columns] of
    its first tile, and the row stride.
    """
    start = plane(tensor[0], batch, head, tensor[1], tensor[2], ALIGNED)
    return start, row_offsets(rows, columns, tensor[3], tensor[4], ALIGNED), tensor[3]


@triton.jit
def load_step(walked, row, there, ALIGNED: tl.constexpr):
    """Load the tile that starts at `row` of what `walk` returned; 0 where `there` is false."""
    start, tile, row_stride = walked
    return tl.load(below(start, row, row_stride.to(tl.int64), ALIGNED) + tile, mask=there, other=0.0)


@triton.jit
def store_rows(plane, tile, start, rows, columns, count, there, ALIGNED: tl.constexpr):
    """Store a tile [rows, columns] from row `start` on of a contiguous plane of `count` columns, where it is there."""
    places = plane + offsets(start + rows, columns, count, 1, ALIGNED)
    tl.store(places, tile.to(plane.dtype.element_ty), mask=there)


@triton.jit
def masked_scores(x_tile, y_tile, query_rows, key_rows, direction, PRECISION: tl.constexpr):
    """Return x y^T [queries, keys] where the key is no later than the query in the direction of time, 0 elsewhere."""
    scores = dot(x_tile, tl.trans(y_tile), PRECISION, tl.float32)
    return earlier(scores, query_rows, key_rows, direction)


@triton.jit
def earlier(scores, query_rows, key_rows, direction):
    """Return scores [queries, keys] where the key is no later than the query in the direction of time, 0 elsewhere."""
    return tl.where((query_rows * direction)[:, None] >= (key_rows * direction)[None, :], scores, 0.0)


@triton.jit
def state_offsets(features, values, feature_stride, value_stride):
    """Return the 64-bit offsets [features, values] of a state."""
    return features.to(tl.int64)[:, None] * feature_stride + values.to(tl.int64)[None, :] * value_stride


@triton.jit
def store_state(tensor, number, state, features, values, D, E, wanted):
    """Store a state [features, values] as that of a number, 64-bit, of a contiguous tensor [..., D, E], where wanted.

    `wanted` is a mask and no branch, so that programs stay together.
    """
    place = tensor + number * D * E + (features[:, None] * E + values[None, :])
    tl.store(place, state, mask=(features < D)[:, None] & (values < E)[None, :] & wanted)


@triton.jit
def state_before(initial, sums, index, batch, head, piece, pieces, features, values, D, E, starts):
    """Return the state [features, values] before a piece: the initial one and the sums over earlier pieces, in order.

    `initial` is (pointer, four strides); `sums` is (pointer to [B H, pieces - 1, D E] in float32, stride of features,
    stride of values); `starts` says whether there is an initial state.
    """
    there = (features < D)[:, None] & (values < E)[None, :]
    state = tl.zeros(there.shape, tl.float32)
    if starts:
        place = initial[0] + (batch.to(tl.int64) * initial[1] + head.to(tl.int64) * initial[2])
        state += tl.load(place + state_offsets(features, values, initial[3], initial[4]), mask=there, other=0.0)
    place = sums[0] + index.to(tl.int64) * (pieces - 1) * D * E
    within = features[:, None] * sums[1] + values[None, :] * sums[2]
    for before in range(0, pieces - 1):  # as many steps in every piece, so that programs stay together
        state += tl.load(place + before * D * E + within, mask=there & (before < piece), other=0.0)
    return state


@triton.jit
def powers_of_two(peak):
    """Return 2^-n and 2^n, each exact, where n >= 0 is the least that brings a peak below 2^15."""
    beyond = tl.maximum((peak.to(tl.int32, bitcast=True) >> 23) - 141, 0)
    return ((127 - beyond) << 23).to(tl.float32, bitcast=True), ((127 + beyond) << 23).to(tl.float32, bitcast=True)


@triton.jit
def times_values(scores, values, total, PRECISION: tl.constexpr):
    """Return total + scores values, the scores rounded to the dtype of the values.

    In float16 a row of scores that goes beyond 2^15 is scaled by a power of two, so that none becomes infinite.
    """
    if values.dtype == tl.float16:
        inverse, power = powers_of_two(tl.max(tl.abs(scores), axis=1))
        product = tl.dot((scores * inverse[:, None]).to(tl.float16), values, input_precision="ieee")
        return total + product * power[:, None]
    else:
        return dot(scores.to(values.dtype), values, PRECISION, tl.float32, acc=total)


@triton.jit
def operand(state, tile):
    """Return a state as an operand in the dtype of a tile, and powers of two [1, values] to multiply its columns by.

    The powers are 1 but in float16 where a column goes beyond 2^15, so that no element of it becomes infinite.
    """
    if tile.dtype == tl.float16:
        inverse, power = powers_of_two(tl.max(tl.abs(state), axis=0))
        return (state * inverse[None, :]).to(tl.float16), power[None, :]
    else:
        return state.to(tile.dtype), 1.0


@triton.jit
def times_state(tile, state, power, total, PRECISION: tl.constexpr):
    """Return total + tile state, of what `operand` returned."""
    if tile.dtype == tl.float16:
        return total + tl.dot(tile, state, input_precision="ieee") * power
    else:
        return dot(tile, state, PRECISION, tl.float32, acc=total)


@triton.jit
def first_row(piece, pieces, piece_rows, direction):
    """Return the first row of a piece; backwards in time the first piece is the one that ends the sequence."""
    return tl.where(direction > 0, piece, pieces - 1 - piece) * piece_rows


@triton.jit
def chunk_row(first, chunk, chunks, direction, CHUNK: tl.constexpr):
    """Return the first row of a chunk of the piece that starts at `first`; its chunks are counted in a direction."""
    return first + tl.where(direction > 0, chunk, chunks - 1 - chunk) * CHUNK
