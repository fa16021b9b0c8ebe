"""Small kernels that tests of the interpreter run: through the layer, and in a subprocess without it."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def cast(X, Z, N: tl.constexpr, TO: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(Z + i, tl.load(X + i).to(TO))


@triton.jit
def cast_toward_zero(X, Z, N: tl.constexpr, TO: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(Z + i, tl.load(X + i).to(TO, fp_downcast_rounding="rtz"))


@triton.jit
def bitcast(X, Z, N: tl.constexpr, TO: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(Z + i, tl.load(X + i).to(TO, bitcast=True))


@triton.jit
def arithmetic(X, Y, Z, N: tl.constexpr, OP: tl.constexpr):
    i = tl.arange(0, N)
    x = tl.load(X + i)
    y = tl.load(Y + i)
    if OP == "add":
        z = x + y
    elif OP == "sub":
        z = x - y
    elif OP == "mul":
        z = x * y
    elif OP == "div":
        z = x / y
    elif OP == "neg":
        z = -x
    elif OP == "abs":
        z = tl.abs(x)
    elif OP == "maximum":
        z = tl.maximum(x, y)
    elif OP == "minimum":
        z = tl.minimum(x, y)
    elif OP == "maximum_nan":
        z = tl.maximum(x, y, propagate_nan=tl.PropagateNan.ALL)
    elif OP == "clamp":
        z = tl.clamp(x, -1.0, 2.0)
    elif OP == "where_less":
        z = tl.where(x < y, x, y)
    elif OP == "less_as_number":
        z = (x < y).to(x.dtype)
    elif OP == "scaled":
        z = x * 0.1
    elif OP == "plus_full":
        z = x + tl.full((N,), 0.1, x.dtype)
    elif OP == "plus_zeros":
        z = x + tl.zeros((N,), x.dtype)
    elif OP == "fma":
        z = tl.fma(x, y, x)
    elif OP == "exp":
        z = tl.exp(x.to(tl.float32)).to(x.dtype)
    tl.store(Z + i, z)


@triton.jit
def compare(X, Y, Z, N: tl.constexpr, OP: tl.constexpr):
    i = tl.arange(0, N)
    x = tl.load(X + i)
    y = tl.load(Y + i)
    if OP == "lt":
        z = x < y
    elif OP == "le":
        z = x <= y
    elif OP == "gt":
        z = x > y
    elif OP == "ge":
        z = x >= y
    elif OP == "eq":
        z = x == y
    elif OP == "ne":
        z = x != y
    tl.store(Z + i, z.to(tl.int32))


@triton.jit
def masked_copy(X, Z, n, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(Z + i, tl.load(X + i, mask=i < n, other=-1.5))


@triton.jit
def reduce(X, Z, M: tl.constexpr, N: tl.constexpr, OP: tl.constexpr):
    i = tl.arange(0, M)
    j = tl.arange(0, N)
    x = tl.load(X + i[:, None] * N + j[None, :])
    if OP == "sum":
        tl.store(Z + i, tl.sum(x, 1))
    elif OP == "sum_columns":
        tl.store(Z + j, tl.sum(x, 0))
    elif OP == "max":
        tl.store(Z + i, tl.max(x, 1))
    elif OP == "min":
        tl.store(Z + i, tl.min(x, 1))
    elif OP == "argmax":
        tl.store(Z + i, tl.argmax(x, 1))
    elif OP == "cumsum":
        tl.store(Z + i[:, None] * N + j[None, :], tl.cumsum(x, 1))


@triton.jit
def product_combine(a, b):
    return a * b


@triton.jit
def reduce_by_function(X, Z, N: tl.constexpr):
    j = tl.arange(0, N)
    tl.store(Z, tl.reduce(tl.load(X + j), 0, product_combine))


@triton.jit
def dot(A, B, C, Z, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, PRECISION: tl.constexpr, OUT: tl.constexpr):
    i = tl.arange(0, M)
    j = tl.arange(0, N)
    k = tl.arange(0, K)
    a = tl.load(A + i[:, None] * K + k[None, :])
    b = tl.load(B + k[:, None] * N + j[None, :])
    c = tl.load(C + i[:, None] * N + j[None, :])
    tl.store(Z + i[:, None] * N + j[None, :], tl.dot(a, b, c, input_precision=PRECISION, out_dtype=OUT))


@triton.jit
def atomic_add(X, Z, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.atomic_add(Z + i % 4, tl.load(X + i), mask=i >= 4)


@triton.jit
def atomic_max(X, Z, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.atomic_max(Z + i % 4, tl.load(X + i))


@triton.jit
def atomic_exchange(X, Z, OLD, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(OLD + i, tl.atomic_xchg(Z + i, tl.load(X + i)))


@triton.jit
def atomic_cas(EXPECTED, X, Z, OLD, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(OLD + i, tl.atomic_cas(Z + i, tl.load(EXPECTED + i), tl.load(X + i)))


@triton.jit
def loop_of_loads(X, Z, n, N: tl.constexpr):
    i = tl.arange(0, N)
    total = tl.zeros((N,), tl.float32)
    for start in range(0, n, N):
        total += tl.load(X + start + i, mask=start + i < n, other=0.0).to(tl.float32)
    tl.store(Z + i, total)


@triton.jit
def program_numbers(Z, SCALE):
    row = tl.program_id(0) * tl.num_programs(1) + tl.program_id(1)
    tl.store(Z + row, row * SCALE)


@triton.jit
def mismatched(Z):
    tl.store(Z + tl.arange(0, 16), tl.arange(0, 16)[:, None] + tl.zeros((8, 8), tl.int32))


@triton.jit
def copy_block(X, Z, m, n, sx0, sx1, sz0, sz1, M: tl.constexpr, N: tl.constexpr):
    i = tl.arange(0, M)[:, None]
    j = tl.arange(0, N)[None, :]
    on = (i < m) & (j < n)
    tl.store(Z + i * sz0 + j * sz1, tl.load(X + i * sx0 + j * sx1, mask=on), mask=on)


@triton.jit
def store_where(Z, low, high, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(Z + i, 1.0, mask=(i >= low) & (i < high))


@triton.jit
def load_nothing(X, Z, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(Z + i, tl.load(X + i, mask=i < 0, other=-2.0))


@triton.jit
def unaligned(Z, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store((Z + 5 * i).to(tl.pointer_type(tl.float32)), i.to(tl.float32))


@triton.jit
def store_all_to_one(Z, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(Z + i * 0, i.to(tl.float32))


@triton.jit
def outer(X, Y, Z, M: tl.constexpr, N: tl.constexpr):
    i = tl.arange(0, M)
    j = tl.arange(0, N)
    x = tl.load(X + i)[:, None]
    y = tl.load(Y + j)[None, :]
    z = Z + i[:, None] * N + j[None, :]
    tl.store(z, x + y)
    tl.store(z + M * N, x - y)
    tl.store(z + 2 * M * N, x * y)
    tl.store(z + 3 * M * N, tl.maximum(x, y))
    tl.store(z + 4 * M * N, tl.where(x < y, x, y))
    tl.store(z + 5 * M * N, -x + 0 * y)
    tl.store(z + 6 * M * N, (x < y).to(tl.float32) * 2)
    tl.store(z + 7 * M * N, y + x * 0)
    tl.store(z + 8 * M * N, tl.where(x > 0, y, 0.5))


@triton.jit
def integers(X, Z, N: tl.constexpr):
    i = tl.arange(0, N)
    x = tl.load(X + i)
    tl.store(Z + i, (x + x).to(tl.int64))
    tl.store(Z + N + i, x.to(tl.int64) + x)
    tl.store(Z + 2 * N + i, (x // 3).to(tl.int64))
    tl.store(Z + 3 * N + i, (x % 3).to(tl.int64))
    tl.store(Z + 4 * N + i, (x >> 2).to(tl.int64))
    tl.store(Z + 5 * N + i, (x & 12).to(tl.int64))


@triton.jit
def float_argument(X, Z, scale, N: tl.constexpr):
    """X times a float argument, as a Python number and cast."""
    at = tl.arange(0, N)
    x = tl.load(X + at)
    tl.store(Z + at, x * scale)
    tl.store(Z + N + at, x * scale.to(tl.float32))
    tl.store(Z + 2 * N + at, x * scale.to(tl.bfloat16))


@triton.jit
def doubled_by_block_pointers(X, Z, T, D: tl.constexpr, B: tl.constexpr):
    x = tl.make_block_ptr(X, (T, D), (D, 1), (0, 0), (B, D), (1, 0))
    z = tl.make_block_ptr(Z, (T, D), (D, 1), (0, 0), (B, D), (1, 0))
    for _ in range(0, T, B):
        tl.store(z, tl.load(x, boundary_check=(0,)) * 2, boundary_check=(0,))
        x = tl.advance(x, (B, 0))
        z = tl.advance(z, (B, 0))


@triton.jit
def doubled_by_descriptors(X, Z, T, D: tl.constexpr, B: tl.constexpr):
    x = tl.make_tensor_descriptor(X, (T, D), (D, 1), (B, D))
    z = tl.make_tensor_descriptor(Z, (T, D), (D, 1), (B, D))
    for t in range(0, T, B):
        z.store([t, 0], x.load([t, 0]) * 2)


@triton.jit
def read_by_a_descriptor_at(X, Z, at, D: tl.constexpr):
    tl.store(Z + tl.arange(0, D)[None, :], tl.make_tensor_descriptor(X, (2, D), (D, 1), (1, D)).load([0, at]))


@triton.jit
def of_inline_assembly(X, Z, N: tl.constexpr):
    n = tl.arange(0, N)
    z = tl.inline_asm_elementwise("add.f32 $0, $1, $1;", "=f,f", [tl.load(X + n)], tl.float32, is_pure=True, pack=1)
    tl.store(Z + n, z)


@triton.jit
def doubled_by_given_descriptors(x, z, T, B: tl.constexpr):
    for t in range(0, T, B):
        z.store([t, 0], x.load([t, 0]) * 2)
