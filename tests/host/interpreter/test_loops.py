"""Loops of interpreted kernels: their variables are scalars of int32 or int64, as compiled ones are."""

from __future__ import annotations

import interpreted
import pytest
import torch

from gradoracle.host import interpreter

pytestmark = interpreted.NEEDED


interpreter.activate()
import triton  # noqa: E402
import triton.language as tl  # noqa: E402

from gradoracle.host.interpreter import lockstep  # noqa: E402
from gradoracle.host.interpreter.loops import counted  # noqa: E402


@triton.jit
def chunks(x, out, n, B: tl.constexpr):
    for i in range(tl.cdiv(n, B)):
        at = (i * B).to(tl.int64) + tl.arange(0, B)
        tl.store(out + at, tl.load(x + at, mask=at < n) * i, mask=at < n)


@triton.jit
def with_hints(x, out, n, B: tl.constexpr):
    for i in tl.range(0, n, B, num_stages=2):
        at = i.to(tl.int64) + tl.arange(0, B)
        tl.store(out + at, tl.load(x + at, mask=at < n) * (i // B), mask=at < n)


@triton.jit
def static(out, N: tl.constexpr):
    for i in tl.static_range(N):
        width: tl.constexpr = i + 1
        tl.store(out + i, width)


@triton.jit
def arithmetic(out, n):
    for i in range(-n, n + 1):
        at = out + (i + n) * 5
        tl.store(at, i // 2)
        tl.store(at + 1, i % 2)
        tl.store(at + 2, (-i).to(tl.int64))
        tl.store(at + 3, (i << 1) + (3 - i) + (i & 1))
        tl.store(at + 4, (i / 2 * 4).to(tl.int32))


@triton.jit
def wrapping(out, n):
    for i in range(n):
        tl.store(out + i, ((i + 1) * 2147483647).to(tl.int64))


@triton.jit
def inner(i, B: tl.constexpr):
    total = tl.zeros((), tl.int64)
    for j in range(i):
        total += j.to(tl.int64) * B
    return total


@triton.jit
def nested(out, n):
    for i in range(n):
        tl.store(out + tl.program_id(0) * n + i, inner(i, 2) + tl.program_id(0))


@triton.jit
def differing(out, n):
    p = tl.program_id(0)
    for i in range(p):
        tl.store(out + p * n + i, i.to(tl.float32) / 4)


@triton.jit
def windows(x, out, n, W: tl.constexpr):
    p = tl.program_id(0)
    total = tl.zeros((), tl.float32)
    for i in range(tl.maximum(p - W, 0), p + 1):
        if i > 2:
            total += tl.load(x + i) * i.to(tl.float32)
    for i in tl.range(p + 3, p, -1):
        total += i
    for i in range(p, n, p + 1):
        total += i // 2
    tl.store(out + p, total)


def test_programs_whose_loops_start_apart_give_what_each_gives_alone(monkeypatch):
    x = torch.randint(-9, 9, (70,)).float()
    found = []
    for most in (32, 1):
        monkeypatch.setattr(lockstep, "MOST_PROGRAMS", most)
        out = torch.zeros(70)
        windows[(70,)](x, out, 70, 5)
        found.append(out)
    i = torch.arange(70)
    expected = [
        float((x * i)[max(p - 5, 0, 3) : p + 1].sum()) + 3 * p + 6 + sum(j // 2 for j in range(p, 70, p + 1))
        for p in range(70)
    ]
    assert found[0].tolist() == found[1].tolist() == expected


def test_equal_numbers_of_steps_keep_programs_together(monkeypatch):
    sizes = []
    stock = lockstep.Group
    monkeypatch.setattr(lockstep, "Group", lambda programs: sizes.append(len(programs)) or stock(programs))
    out = torch.zeros(64)
    windows[(64,)](torch.zeros(64), out, 0, 0)
    assert sizes[0] == 32 and len(sizes) < 16


@pytest.mark.parametrize("kernel", [chunks, with_hints])
def test_a_loop_variable_is_cast_and_computes(kernel):
    x, out = torch.randn(37), torch.zeros(37)
    kernel[(1,)](x, out, 37, 8)
    assert torch.equal(out, x * (torch.arange(37) // 8))


def test_a_static_range_gives_constants():
    out = torch.zeros(4, dtype=torch.int32)
    static[(1,)](out, 4)
    assert out.tolist() == [1, 2, 3, 4]


def test_division_is_toward_zero_and_a_quotient_is_a_float32():
    out = torch.zeros(7, 5, dtype=torch.int64)
    arithmetic[(1,)](out, 3)
    expected = [[int(i / 2), i - 2 * int(i / 2), -i, 2 * i + 3 - i + (i & 1), 2 * i] for i in range(-3, 4)]
    assert out.tolist() == expected


def test_products_wrap_as_int32_before_they_are_cast():
    out = torch.zeros(3, dtype=torch.int64)
    wrapping[(1,)](out, 3)
    assert out.tolist() == [2147483647, -2, 2147483645]


def test_device_functions_loop_over_a_loop_variable():
    out = torch.zeros(3, 4, dtype=torch.int64)
    nested[(3,)](out, 4)
    assert out.tolist() == [[p + i * (i - 1) for i in range(4)] for p in range(3)]


def test_programs_with_different_bounds_each_run_to_their_own():
    out = torch.zeros(4, 4)
    differing[(4,)](out, 4)
    assert torch.equal(out, torch.tril(torch.arange(4) / 4 * torch.ones(4, 1), -1))


def test_bounds_decide_the_dtype():
    assert {i.dtype for i in counted(3)} == {tl.int32}
    assert {i.dtype for i in counted(2**31, 2**31 + 2)} == {tl.int64}
    assert [i + 1 for i in counted(2**31 - 2, 2**31 - 1)] == [2**31 - 1]
    (last,) = counted(2**31 - 1, 2**31)
    assert (last + 1).dtype is tl.int64 and last + 1 == 2**31


def test_bounds_that_are_no_integers_are_refused():
    with pytest.raises(TypeError, match="integer"):
        counted(1.5)
