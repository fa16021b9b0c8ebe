"""tl.dot_scaled: the numbers of every format, the scales of each block of 32, and what sm_90 rounds."""

from __future__ import annotations

import interpreted
import pytest
import torch
import triton
import triton.language as tl
from torch import Tensor

from gradoracle.host import interpreter
from gradoracle.host.interpreter.values import widened

pytestmark = [pytest.mark.xdist_group("interpreter"), interpreted.NEEDED]
interpreter.activate()

M, N, K = 16, 32, 64
NIBBLES = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6], dtype=torch.float64)
BYTES = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}


@triton.jit
def _scaled(
    A, B, SA, SB, Z, LEFT: tl.constexpr, RIGHT: tl.constexpr, SCALED: tl.constexpr, FAST: tl.constexpr,
    AK: tl.constexpr, BK: tl.constexpr, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, BN: tl.constexpr,
    ALONG_K: tl.constexpr,
):  # fmt: skip
    m, n, s = tl.arange(0, M), tl.arange(0, N), tl.arange(0, K // 32)
    a = tl.load(A + m[:, None] * AK + tl.arange(0, AK)[None, :])
    b = tl.load(B + tl.arange(0, BK)[:, None] * BN + tl.arange(0, BN)[None, :])
    sa = tl.load(SA + m[:, None] * (K // 32) + s[None, :])
    if SCALED:
        sb = tl.load(SB + n[:, None] * (K // 32) + s[None, :])
        z = tl.dot_scaled(a, sa, LEFT, b, sb, RIGHT, fast_math=FAST, rhs_k_pack=ALONG_K)
    else:
        z = tl.dot_scaled(a, sa, LEFT, b, None, RIGHT, fast_math=FAST, rhs_k_pack=ALONG_K)
    tl.store(Z + m[:, None] * N + n[None, :], z)


def product(
    a: Tensor,
    b: Tensor,
    sa: Tensor,
    sb: Tensor | None,
    left: str,
    right: str,
    *,
    fast: bool = False,
    along: bool = True,
) -> Tensor:
    z = torch.empty(M, N)
    _scaled[(1,)](
        a, b, sa, sa if sb is None else sb, z, left, right, sb is not None, fast, a.shape[1], b.shape[0], M, N, K,
        b.shape[1], along,
    )  # fmt: skip
    return z


def made(kind: str, rows: int, seed: int) -> tuple[Tensor, Tensor]:
    """Operands [rows K] (packed: [rows K/2]) and their numbers, float64 [rows K]; small, so that sums are exact."""
    generator = torch.Generator().manual_seed(seed)
    if kind == "e2m1":
        codes = torch.randint(0, 16, (rows, K), generator=generator, dtype=torch.uint8)
        return codes[:, ::2] | codes[:, 1::2] << 4, NIBBLES[codes.long()]
    small = torch.randint(-4, 5, (rows, K), generator=generator).float()
    held = small.to({**BYTES, "bf16": torch.bfloat16, "fp16": torch.float16}[kind])
    return held, held.double()


def codes(rows: int, seed: int) -> Tensor:
    return torch.randint(124, 131, (rows, K // 32), generator=torch.Generator().manual_seed(seed), dtype=torch.uint8)


def numbers(scales: Tensor) -> Tensor:
    return torch.exp2(scales.double() - 127).repeat_interleave(32, 1)


@pytest.mark.parametrize("left", ["e4m3", "e5m2", "e2m1", "bf16", "fp16"])
@pytest.mark.parametrize("right", ["e4m3", "e5m2", "e2m1"])
def test_each_block_of_32_has_its_scale(left: str, right: str) -> None:
    (a, x), (b, y) = made(left, M, 0), made(right, N, 1)
    sa, sb = codes(M, 2), codes(N, 3)
    expected = (x * numbers(sa)) @ (y * numbers(sb)).T
    assert torch.equal(product(a, b.T.contiguous(), sa, sb, left, right).double(), expected)
    unscaled = (x * numbers(sa)) @ y.T
    assert torch.equal(product(a, b.T.contiguous(), sa, None, left, right).double(), unscaled)
    assert not torch.equal(expected, unscaled) and not torch.equal(expected, x @ y.T)


@pytest.mark.parametrize("kind", BYTES)
def test_bytes_are_read_in_the_named_format(kind: str) -> None:
    (a, x), (b, y) = made(kind, M, 4), made(kind, N, 5)
    sa, sb = codes(M, 6), codes(N, 7)
    got = product(a.view(torch.uint8), b.T.contiguous().view(torch.uint8), sa, sb, kind, kind)
    assert torch.equal(got.double(), (x * numbers(sa)) @ (y * numbers(sb)).T)
    other = next(name for name in BYTES if name != kind)
    read = product(a.view(torch.uint8), b.T.contiguous().view(torch.uint8), sa, sb, other, other)
    assert not torch.equal(read, got)


def test_nibbles_may_be_packed_along_n() -> None:
    (a, x), (_, y) = made("e4m3", M, 8), made("e2m1", N, 9)
    index = {float(v): i for i, v in reversed(list(enumerate(NIBBLES.tolist())))}
    own = torch.tensor([[index[float(v)] for v in row] for row in y], dtype=torch.uint8).T  # [K N]
    packed = (own[:, ::2] | own[:, 1::2] << 4).contiguous()
    sa, sb = codes(M, 10), codes(N, 11)
    got = product(a, packed, sa, sb, "e4m3", "e2m1", along=False)
    assert torch.equal(got.double(), (x * numbers(sa)) @ (y * numbers(sb)).T)


def test_the_codes_at_the_ends_are_what_sm_90_makes_of_them() -> None:
    one = torch.ones(M, K).to(torch.float8_e4m3fn)
    other = torch.ones(K, N).to(torch.float8_e4m3fn)
    same = torch.full((N, K // 32), 127, dtype=torch.uint8)

    def scaled(code: int, **options: bool) -> float:
        scales = torch.full((M, K // 32), code, dtype=torch.uint8)
        return float(product(one, other, scales, same, "e4m3", "e4m3", **options)[0, 0])

    assert scaled(0) == 0.0 and scaled(1) == K * 2.0**-126
    assert scaled(255) != scaled(255) and scaled(255, fast=True) == float("inf")
    assert scaled(254) == float("inf") and scaled(247) == K * 2.0**120
    with widened():
        z = torch.empty(M, N, dtype=torch.float64)
        zeros = torch.zeros(M, K // 32, dtype=torch.uint8)
        _scaled[(1,)](
            one.view(torch.uint8),
            other.view(torch.uint8),
            zeros,
            same,
            z,
            "e4m3",
            "e4m3",
            True,
            False,
            K,
            K,
            M,
            N,
            K,
            N,
            True,
        )
    assert float(z[0, 0]) == K * 2.0**-127


def test_products_are_those_of_bfloat16_which_keep_more_than_8_bit_cores() -> None:
    a, b = torch.zeros(M, K), torch.zeros(K, N)
    a[:, 0], a[:, 1], a[:, 2] = 256, -256, 2.0**-6
    b[:3] = torch.tensor([256.0, 256.0, 1.0])[:, None]
    same = torch.full((N, K // 32), 127, dtype=torch.uint8)
    a, b = a.to(torch.float8_e4m3fn), b.to(torch.float8_e4m3fn)
    assert float(product(a, b, same[:M], same, "e4m3", "e4m3")[0, 0]) == 2.0**-6  # 2^-22 of the largest product


@triton.jit
def _many(A, B, S, Z, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    e, m, n, k, s = tl.program_id(0), tl.arange(0, M), tl.arange(0, N), tl.arange(0, K // 2), tl.arange(0, K // 32)
    a = tl.load(A + e * M * (K // 2) + m[:, None] * (K // 2) + k[None, :])
    b = tl.load(B + e * N * (K // 2) + n[None, :] * (K // 2) + k[:, None])
    sa = tl.load(S + e * M * (K // 32) + m[:, None] * (K // 32) + s[None, :])
    sb = tl.load(S + n[:, None] * (K // 32) + s[None, :])
    tl.store(Z + e * M * N + m[:, None] * N + n[None, :], tl.dot_scaled(a, sa, "e2m1", b, sb, "e2m1"))


def test_programs_in_step_have_operands_and_scales_of_their_own() -> None:
    pairs = [(made("e2m1", N, 20 + i), made("e2m1", N, 30 + i), codes(N, 40 + i)) for i in range(6)]
    a, b = (torch.stack([pair[i][0] for pair in pairs]) for i in (0, 1))
    scales, z = torch.stack([pair[2] for pair in pairs]), torch.empty(6, N, N)
    _many[(6,)](a, b, scales, z, N, N, K)
    for i, ((_, x), (_, y), own) in enumerate(pairs):
        assert torch.equal(z[i].double(), (x * numbers(own)) @ (y * numbers(pairs[0][2])).T)


@triton.jit
def _eight_bits(A, B, Z, SAYS: tl.constexpr, MOST: tl.constexpr, K: tl.constexpr):
    m, k = tl.arange(0, 64), tl.arange(0, K)
    a, b = tl.load(A + m[:, None] * K + k[None, :]), tl.load(B + m[None, :] * K + k[:, None])
    z = tl.dot(a, b, max_num_imprecise_acc=MOST) if SAYS else tl.dot(a, b)
    tl.store(Z + m[:, None] * 64 + m[None, :], z)


@pytest.mark.parametrize("kind", BYTES.values())
def test_sums_of_fewer_products_than_an_instruction_adds_are_those_of_float16(kind: torch.dtype) -> None:
    a, b, z = torch.zeros(64, 128), torch.ones(64, 128).to(kind), torch.empty(64, 64)
    a[:, 0], a[:, 1] = 256, 2.0**-6  # in one block: wgmma cuts the second, 2^-14 of the first
    for most, expected in ((0, 256 + 2.0**-6), (31, 256 + 2.0**-6), (32, 256.0)):
        _eight_bits[(1,)](a.to(kind), b, z, True, most, 128)
        assert float(z[0, 0]) == expected


@pytest.mark.parametrize("kind", BYTES.values())
def test_without_a_word_sums_of_8_bit_cores_keep_14_bits_to_the_end(kind: torch.dtype) -> None:
    a, b, z = torch.zeros(64, 128), torch.ones(64, 128).to(kind), torch.empty(64, 64)
    a[:, 0], a[:, 64] = 256, 2.0**-6  # in blocks of their own: 2^-14 of the sum
    for says, most, expected in ((False, 0, 256.0), (True, 32, 256 + 2.0**-6), (True, 128, 256.0)):
        _eight_bits[(1,)](a.to(kind), b, z, says, most, 128)
        assert float(z[0, 0]) == expected
