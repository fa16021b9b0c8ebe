"""Builtins of Triton under names bound at import, before any launch."""

from __future__ import annotations

import interpreted
import pytest
import torch

from gradoracle.host import interpreter

pytestmark = interpreted.NEEDED


interpreter.activate()
import triton  # noqa: E402
import triton.language as tl  # noqa: E402
from triton.language import arange, dot, exp, load, program_id, store, where  # noqa: E402
from triton.language.math import log2  # noqa: E402

root = tl.math.sqrt
if hasattr(tl, "gather"):
    pick = tl.gather


@triton.jit
def aliased(x, out, N: tl.constexpr):
    i = arange(0, N)
    value = load(x + i)
    store(out + i, where(i > 1, exp(value) + log2(value) + root(value), 0.0) + program_id(0))


@triton.jit
def multiplied(x, out, N: tl.constexpr):
    i = arange(0, N)
    at = i[:, None] * N + i[None, :]
    store(out + at, dot(load(x + at), load(x + at), input_precision="ieee"))


def test_a_builtin_bound_at_import_is_interpreted():
    x, out = torch.rand(16) + 0.5, torch.zeros(16)
    aliased[(1,)](x, out, 16)
    expected = torch.where(torch.arange(16) > 1, x.exp() + x.log2() + x.sqrt(), 0)
    assert torch.allclose(out, expected, rtol=3e-7, atol=0)


def test_a_dot_bound_at_import_is_interpreted():
    x, out = torch.randn(16, 16), torch.zeros(16, 16)
    multiplied[(1,)](x, out, 16)
    assert torch.allclose(out, x @ x, atol=1e-5)


def test_outside_of_a_launch_builtins_say_what_triton_says():
    for called in (exp, tl.exp):
        with pytest.raises(ValueError, match="Did you forget to add"):
            called(1.0)
    assert exp is tl.exp and tl.core.is_builtin(exp)
