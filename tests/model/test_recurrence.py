"""scan on plain tensors: a loop, as PyTorch's; and what is no recurrence, in one sentence."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import gradoracle
from gradoracle.model.recurrence import RecurrenceError, uncompiled

T = 5


def add(carry: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    return carry + x, carry * x


def test_a_scan_is_a_loop() -> None:
    x, carry, ys = torch.randn(T, 3).double(), torch.zeros(3).double(), []
    for t in range(T):
        ys.append(carry * x[t])
        carry = carry + x[t]
    last, found = gradoracle.scan(add, torch.zeros(3).double(), x)
    assert torch.equal(last, carry) and torch.equal(found, torch.stack(ys))


@pytest.mark.parametrize("dim", [0, 1, -1])
@pytest.mark.parametrize("reverse", [False, True])
def test_y_of_a_slice_stays_in_its_place(dim: int, reverse: bool) -> None:
    x = torch.arange(6.0).view(2, 3)
    _, ys = gradoracle.scan(lambda c, x: (c, x * 2), torch.zeros(()), x, dim=dim, reverse=reverse)
    assert torch.equal(ys, x * 2)


def test_reverse_begins_with_the_last_slice() -> None:
    last, ys = gradoracle.scan(lambda c, x: (x, c), torch.tensor(-1.0), torch.arange(3.0), reverse=True)
    assert last == 0 and ys.tolist() == [1.0, 2.0, -1.0]


def test_structures_are_kept() -> None:
    def step(carry: dict[str, Any], x: tuple[Tensor, Tensor]) -> Any:
        return {"sum": carry["sum"] + x[0], "old": [carry["sum"]]}, (x[1], None)

    init = {"sum": torch.zeros(2), "old": [torch.zeros(2)]}
    last, (ys, nothing) = gradoracle.scan(step, init, (torch.ones(T, 2), torch.ones(T, 4)))
    assert last["sum"].tolist() == [5, 5] and last["old"][0].tolist() == [4, 4]
    assert ys.shape == (T, 4) and nothing is None


@pytest.mark.parametrize("length", [0, 1])
def test_short_ones(length: int) -> None:
    last, ys = gradoracle.scan(add, torch.ones(3), torch.full((length, 3), 2.0))
    assert last.tolist() == [1.0 + 2 * length] * 3 and ys.shape == (length, 3)


def test_autograd_goes_through() -> None:
    x = torch.randn(T, 2, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: gradoracle.scan(add, x[0], x), (x,))


@pytest.mark.parametrize("reverse", [False, True])
def test_that_of_pytorch_is_the_same(reverse: bool) -> None:
    from torch._higher_order_ops.scan import scan

    x, init = torch.randn(T, 3), torch.zeros(3)
    with uncompiled():
        found = scan(add, init, x, reverse=reverse)
    expected = gradoracle.scan(add, init, x, reverse=reverse)
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


WRONG: dict[str, tuple[Callable[[], Any], str]] = {
    "shape": (
        lambda: gradoracle.scan(lambda c, x: (c[:1], x), torch.zeros(2), torch.zeros(T)),
        r"changes the shape of its carry from \[2\] to \[1\]",
    ),
    "dtype": (
        lambda: gradoracle.scan(lambda c, x: (c.double(), x), torch.zeros(2), torch.zeros(T)),
        "changes the dtype of its carry from torch.float32 to torch.float64",
    ),
    "second": (
        lambda: gradoracle.scan(lambda c, x: ((c[0], c[1][:1]), x), (torch.zeros(2), torch.zeros(2)), torch.zeros(T)),
        "changes the shape of number 2 of its carry",
    ),
    "structure": (
        lambda: gradoracle.scan(lambda c, x: ((c, c), x), torch.zeros(2), torch.zeros(T)),
        "changes the structure of its carry",
    ),
    "number": (lambda: gradoracle.scan(lambda c, x: (1.0, x), torch.zeros(2), torch.zeros(T)), "carries float"),
    "one": (lambda: gradoracle.scan(lambda c, x: c, torch.zeros(2), torch.zeros(T)), r"expected \(carry, y\)"),
    "nothing": (lambda: gradoracle.scan(add, [], torch.zeros(T)), "was given nothing in init"),
    "no tensor": (lambda: gradoracle.scan(add, torch.zeros(2), 3), "was given int in xs"),
    "dim": (lambda: gradoracle.scan(add, torch.zeros(2), torch.zeros(T), dim=1), r"dim 1 for xs of shape \[5\]"),
    "lengths": (
        lambda: gradoracle.scan(lambda c, x: (c, c), torch.zeros(2), (torch.zeros(T), torch.zeros(4))),
        "xs of lengths 4, 5 along dim 0",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_no_recurrence_is_said_in_a_sentence(name: str) -> None:
    call, message = WRONG[name]
    with pytest.raises(RecurrenceError, match=message) as caught:
        call()
    assert len(str(caught.value).splitlines()) == 1
