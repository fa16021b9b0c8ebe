"""Forms that released kernels have run as they are, widened too: scans of pairs, atomics, heuristics, autotuners."""

from __future__ import annotations

import functools
import operator

import interpreted
import pytest
import torch
from places import loaded
from torch import Tensor

from gradoracle.host import interpreter

pytestmark = interpreted.NEEDED
interpreter.activate()

from gradoracle.host.widened import narrowed, widen, widening  # noqa: E402

kernels = loaded("host.interpreter.released_kernels")


def recurred(a: Tensor, b: Tensor, reverse: bool) -> Tensor:
    h, found = torch.zeros(len(a), dtype=torch.float64), []
    steps = range(a.shape[1])
    for n in reversed(steps) if reverse else steps:
        h = a[:, n].double() * h + b[:, n].double()
        found.append(h)
    return torch.stack(found[::-1] if reverse else found, 1)


@pytest.mark.parametrize("reverse", [False, True])
def test_a_scan_of_pairs(reverse: bool) -> None:
    a, b, h = torch.rand(3, 20), torch.randn(3, 20), torch.zeros(3, 20)
    kernels.recurrence[(3,)](a, b, h, 20, reverse, 32)
    torch.testing.assert_close(h.double(), recurred(a, b, reverse), rtol=1e-5, atol=1e-5)
    wide = [widen(x) for x in (a, b, torch.zeros(3, 20))]
    with widening():
        kernels.recurrence[(3,)](*wide, 20, reverse, 32)
    torch.testing.assert_close(narrowed(wide[2]), recurred(a, b, reverse), rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("scope", ["gpu", "cta", "sys"])
@pytest.mark.parametrize("sem", ["relaxed", "acquire", "release", "acq_rel"])
def test_every_atomic_with_every_semantic(sem: str, scope: str) -> None:
    x = torch.arange(3, 40, dtype=torch.int32)
    z = torch.tensor([0, -1, 99, -1, 0, 0, 0, 0], dtype=torch.int32)
    kernels.every_atomic[(3,)](x, z, len(x), sem, scope, 16)
    values = x.tolist()
    folded = [functools.reduce(each, values) for each in (operator.and_, operator.or_, operator.xor)]
    assert z.tolist() == [sum(values), 39, 3, *folded, len(x), 1]


@pytest.mark.parametrize("size", [64, 50])
def test_heuristics_above_which_an_autotuner_stands(size: int) -> None:
    x, z = torch.randn(size), torch.zeros(size)
    kernels.tuned[lambda given: (-(-size // given["BLOCK"]),)](x, z, size)
    assert torch.equal(z, 2 * x)


def test_a_function_of_scalars_takes_its_branches_for_each_element() -> None:
    x, y, z = torch.randn(5, 6), torch.zeros(5, 6), torch.zeros(5, 6)
    steps = torch.zeros(5, 6, dtype=torch.int32)
    kernels.mapped[(3,)](x, y, steps, z, 5, 6, 1.5, 2, 8)
    truth = torch.where(x > 0, x.double(), 1.5 * (torch.exp(x.double()) - 1))
    torch.testing.assert_close(y.double(), truth, rtol=1e-6, atol=1e-6)
    assert torch.equal(steps, torch.where(x > 0, 0, 3).int()) and torch.equal(z, x / 2)
    wide = [widen(t) for t in (x, torch.zeros(5, 6), torch.zeros(5, 6))]
    with widening():
        kernels.mapped[(3,)](*wide[:2], steps, wide[2], 5, 6, 1.5, 2, 8)
    torch.testing.assert_close(narrowed(wide[1]), truth, rtol=1e-14, atol=1e-14)
