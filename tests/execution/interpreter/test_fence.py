"""A fence: what a kernel stores outside of every storage is named and not performed, in any call."""

from __future__ import annotations

import interpreted
import pytest
import torch

from gradoracle.execution import interpreter

pytestmark = interpreted.NEEDED


interpreter.activate()
import triton  # noqa: E402
import triton.language as tl  # noqa: E402

from gradoracle.execution.call_errors import Crashed  # noqa: E402
from gradoracle.execution.guard_memory import fenced, spot  # noqa: E402
from gradoracle.execution.interpreter.record import fencing, recording  # noqa: E402
from gradoracle.execution.interpreter.wrong_accesses import Kind  # noqa: E402

N = 8


@triton.jit
def moved(x, y, by, HOW: tl.constexpr, N: tl.constexpr):
    i = tl.arange(0, N)
    value = tl.load(x + i)
    tl.store(y + i, value * 2)
    if HOW == "store":
        tl.store(y + i + by, value)
    elif HOW == "masked":
        tl.store(y + i + by, value, mask=i < N - 1)
    elif HOW == "add":
        tl.atomic_add(y + i + by, value)
    elif HOW == "exchange":
        tl.atomic_xchg(y + i + by, value)
    elif HOW == "compare":
        tl.atomic_cas(y.to(tl.pointer_type(tl.int32)) + by, 0, 1)
    elif HOW == "load":
        tl.store(y + i, tl.load(x + i + by) + value)


FAR = (10**12, -(10**12), 2**62 - 2**58, -(2**46) * 3, 2**50 + 3)


@pytest.mark.parametrize("by", FAR)
@pytest.mark.parametrize("how", ["store", "masked", "add", "exchange", "compare", "load"])
@pytest.mark.parametrize("guard", [fencing, lambda: recording(lambda tensor: None)])
def test_an_access_far_outside_is_named_and_not_made(how, by, guard):
    x, y = torch.randn(N), torch.zeros(N)
    with guard() as record:
        moved[(1,)](x, y, by, how, N)
    (fault,) = (fault for fault in record.faults() if fault.kind in (Kind.READ_OUTSIDE, Kind.WRITTEN_OUTSIDE))
    assert fault.kind is (Kind.READ_OUTSIDE if how == "load" else Kind.WRITTEN_OUTSIDE)
    assert fault.place.file == __file__ and fault.place.function == "moved"
    assert torch.equal(y, x if how == "load" else 2 * x)


def test_what_lies_in_the_storage_is_left_to_the_kernel():
    x, room = torch.randn(N), torch.zeros(3 * N)
    with fencing() as fence:
        moved[(1,)](x, room[N : 2 * N], N, "store", N)
        moved[(1,)](x, room[N : 2 * N], -N, "store", N)
    assert not fence.faults()
    assert torch.equal(room, torch.cat([x, 2 * x, x]))


def test_a_call_that_leaves_its_memory_crashes_with_the_line_unless_that_is_known():
    x, y = torch.randn(N), torch.zeros(N)
    known: set = set()
    said = r"test_fence.py:\d+: moved, program .* writes y\[.*it was not performed"
    with pytest.raises(Crashed, match=said), fenced(known):
        moved[(1,)](x, y, FAR[0], "store", N)
    with fenced(known):
        moved[(1,)](x, y, FAR[0], "store", N)
    with recording(lambda tensor: None) as record:
        moved[(1,)](x, y, FAR[0], "add", N)
    with fenced(set(map(spot, record.faults()))):
        moved[(1,)](x, y, FAR[0], "add", N)


def test_a_correct_kernel_passes():
    x, y = torch.randn(N), torch.zeros(N)
    with fenced(set()):
        moved[(1,)](x, y, 0, "store", N)
    assert torch.equal(y, x)
