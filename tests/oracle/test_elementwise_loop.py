"""An elementwise loop has the bits of its steps by PyTorch, one after the other."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from gradoracle.model.machine_code import HAS_NUMBA
from gradoracle.oracle.exact import elementwise_loop
from gradoracle.oracle.exact.elementwise_loop import ElementwiseLoop
from gradoracle.oracle.exact.graph import Graph
from gradoracle.oracle.exact.recurrence import recorded

pytestmark = pytest.mark.skipif(not HAS_NUMBA, reason="numba is not installed")
STEPS, LANES, SHAPE = 9, 3, (2, 4)
DICE = torch.Generator().manual_seed(3)
Program = Callable[..., tuple[Tensor, ...]]


def normal(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=DICE)


def gated(a: Tensor, b: Tensor, x: Tensor) -> tuple[Tensor, ...]:
    """Both coefficients broadcast, one from fewer dims."""
    return (x * a + b,)


def leapfrog(a: Tensor, b: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    """Two carries, a number, every operation, an operation used twice, and a carry that goes on as it is."""
    moved = (y - a * x) / b + x * 2.0
    return (moved + moved * 0.25, -x)


def swapped(a: Tensor, b: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    """A coefficient and a carry as they are."""
    return (y, x)


PROGRAMS: dict[str, tuple[Program, int]] = {"gated": (gated, 1), "leapfrog": (leapfrog, 2), "swapped": (swapped, 2)}


def graph_of(program: Program, carries: int, dtype: torch.dtype = torch.float64) -> Graph:
    return recorded(
        program,
        [torch.zeros(2, 1, dtype=dtype), torch.zeros(4, dtype=dtype)] + [torch.zeros(SHAPE, dtype=dtype)] * carries,
    )


@pytest.mark.parametrize("add", [False, True])
@pytest.mark.parametrize("back", [False, True])
@pytest.mark.parametrize("name", PROGRAMS)
def test_bits_are_those_of_the_steps(name: str, back: bool, add: bool) -> None:
    program, carries = PROGRAMS[name]
    loop = ElementwiseLoop.of(graph_of(program, carries), carries)
    assert loop is not None
    a, b = normal(STEPS, 2, 1), normal(1, 4)  # of each step, and of all
    start = [normal(STEPS + 1, LANES, *SHAPE) for _ in range(carries)]
    found, expected = [x.clone() for x in start], [x.clone() for x in start]
    loop.run([a, b], found, back=back, add=add)
    for step in range(STEPS)[:: -1 if back else 1]:
        before, after = (step + 1, step) if back else (step, step + 1)
        made = program(a[step], b[0], *(x[before] for x in expected))
        for x, one in zip(expected, made, strict=True):
            x[after] = x[after] + one if add else one
    assert all(torch.equal(x, y) for x, y in zip(found, expected, strict=True))
    first, last = (STEPS, 0) if back else (0, STEPS)
    assert all(
        torch.equal(x[first], y[first]) and not torch.equal(x[last], y[last]) for x, y in zip(found, start, strict=True)
    )


REFUSED: dict[str, tuple[Program, int]] = {
    "a function": (lambda a, b, x: (torch.exp(x) * a,), 1),
    "a sum over a dim": (lambda a, b, x: (x.sum(0, keepdim=True) + x,), 1),
    "a dim moved": (lambda a, b, x: ((x + a).flip(0),), 1),
    "an addition with a factor": (lambda a, b, x: (torch.add(x, a.expand(SHAPE), alpha=3),), 1),
    "carries of two shapes": (lambda a, b, x, y: (x * a, y), 2),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_elementwise_has_none(name: str) -> None:
    program, carries = REFUSED[name]
    shapes = [SHAPE, (3,)] if name == "carries of two shapes" else [SHAPE]
    graph = recorded(program, [normal(2, 1), normal(4), *(normal(*shape) for shape in shapes)])
    assert ElementwiseLoop.of(graph, carries) is None


def test_other_dtypes_have_none() -> None:
    assert ElementwiseLoop.of(graph_of(gated, 1, torch.float32), 1) is None


def test_without_numba_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(elementwise_loop, "HAS_NUMBA", False)
    assert ElementwiseLoop.of(graph_of(gated, 1), 1) is None
