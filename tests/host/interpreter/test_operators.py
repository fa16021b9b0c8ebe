"""Operators of PyTorch that read what nothing wrote: found with operator, element and line; what reads none is not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import interpreted
import pytest
import torch
from places import load
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack

from gradoracle.host import interpreter

pytestmark = interpreted.NEEDED
interpreter.activate()

from gradoracle.host.guard_memory import poisoned  # noqa: E402
from gradoracle.host.interpreter.record import recording  # noqa: E402
from gradoracle.model.wrong_accesses import Kind, WrongAccess  # noqa: E402

kernels = load("recorded_kernels")
ROWS, COLUMNS, BLOCK = 4, 5, 8


def faults(run: Callable[[], Any]) -> list[WrongAccess]:
    with poisoned() as memory, recording(memory.unwritten) as record:
        memory.watch = record.watch
        run()
    assert not _get_current_dispatch_mode_stack()
    return record.faults()


def partly(dtype: torch.dtype = torch.float32) -> Tensor:
    """[ROWS COLUMNS], the last row as torch.empty gave it."""
    x = torch.empty(ROWS, COLUMNS, dtype=dtype)
    x[: ROWS - 1] = 1
    return x


def partial_sums(programs: int, zeroed: bool = False) -> Tensor:
    """Sums over 4 rows, of which each program stores one to a buffer that PyTorch adds up."""
    x = torch.randn(ROWS, COLUMNS)
    partials = torch.zeros(ROWS, COLUMNS) if zeroed else torch.empty(ROWS, COLUMNS)
    kernels.gathered[(programs,)](x, partials, ROWS, COLUMNS, *x.stride(), BLOCK)
    return partials.sum(0)


def test_partial_sums_of_which_a_row_was_never_written_are_reported_with_operator_element_and_line():
    (fault,) = faults(lambda: partial_sums(ROWS - 1))
    assert (fault.kind, fault.kernel, fault.tensor) == (Kind.UNWRITTEN, "aten.sum.dim_IntList", "partials")
    assert (fault.index, fault.count, fault.shape, fault.programs) == ((ROWS - 1, 0), COLUMNS, (ROWS, COLUMNS), ())
    line, text = partial_sums.__code__.co_firstlineno + 5, str(fault)
    assert text.startswith(f"test_operators.py:{line}: aten.sum.dim_IntList, ")
    assert "reads partials[3, 0], " in text and "never written (5 elements" in text


def test_right_partial_sums_and_buffers_of_zeros_have_no_fault():
    assert not faults(lambda: partial_sums(ROWS))
    assert not faults(lambda: partial_sums(ROWS - 1, zeroed=True))


ONE = torch.ones(ROWS, COLUMNS)
READING: dict[str, Callable[[], Any]] = {
    "a conversion": lambda: partly().to(torch.float64),
    "a copy of it": lambda: partly().clone(),
    "a copy from it": lambda: ONE.clone().copy_(partly()),
    "a sum of bfloat16": lambda: partly(torch.bfloat16).sum(),
    "of integers": lambda: partly(torch.int32).sum(),
    "an argument that is no first one": lambda: torch.add(ONE, partly()),
    "an argument by keyword": lambda: torch.add(ONE, other=partly()),
    "one of a list": lambda: torch.cat([ONE, partly()]),
    "what is added to": lambda: partly().add_(1),
    "through views": lambda: partly().t().reshape(COLUMNS, 2, 2)[:, 1].sum(),
    "a number of it": lambda: partly()[-1, 0].item(),
    "the rows that are taken": lambda: partly()[torch.tensor([0, 3])],
    "those along a dim": lambda: partly().index_select(0, torch.tensor([3])),
    "those that are gathered": lambda: partly().gather(0, torch.full((1, COLUMNS), 3)),
    "where it is chosen": lambda: torch.where(ONE > 0, partly(), ONE),
    "rows that are added to": lambda: partly().index_add_(0, torch.tensor([3]), ONE[:1]),
    "places that are added to": lambda: partly().index_put_((torch.tensor([3]),), ONE[:1], accumulate=True),
    "below its diagonal": lambda: partly().tril(),
    "all of them at once": lambda: torch._foreach_add([ONE, partly()], 1),
}


@pytest.mark.parametrize("name", READING)
def test_an_operator_that_reads_an_unwritten_element_is_found(name):
    found = faults(READING[name])
    assert [fault.kind for fault in found] == [Kind.UNWRITTEN], list(map(str, found))
    assert str(found[0].place).startswith("test_operators.py:")


def written_by_out() -> Tensor:
    x = torch.empty(ROWS, COLUMNS)
    torch.add(ONE, 1, out=x)
    return x.sum()


def masked_in_place() -> Tensor:
    return partly().masked_fill_(torch.arange(ROWS)[:, None] == ROWS - 1, 0.0).sum()


def put_in_place() -> Tensor:
    return partly().index_put_((torch.tensor([3]),), ONE[:1]).sum()


NOT_READING: dict[str, Callable[[], Any]] = {
    "views": lambda: partly().t().reshape(COLUMNS, 2, 2).unsqueeze(0).expand(3, -1, -1, -1).detach().split(1),
    "its shape": lambda: (torch.empty_like(partly()), torch.zeros_like(partly()), partly().new_ones(3)),
    "rows that were written": lambda: partly()[: ROWS - 1].sum(0),
    "rows that are taken": lambda: partly()[torch.tensor([0, 2])],
    "what is gathered": lambda: partly().gather(0, torch.zeros(1, COLUMNS, dtype=torch.int64)),
    "what is not chosen": lambda: torch.where(torch.arange(ROWS)[:, None] < 3, partly(), 0.0),
    "what is masked": lambda: partly().masked_fill(torch.arange(ROWS)[:, None] == 3, 0.0),
    "rows added to": lambda: partly().index_add_(0, torch.tensor([0]), ONE[:1]),
    "what is filled": lambda: torch.empty(3).fill_(1.0).sum(),
    "what is copied to": lambda: torch.empty(ROWS, COLUMNS).copy_(ONE).sum(),
    "what is zeroed": lambda: torch.empty(3).zero_().sum(),
    "what an operator gives": written_by_out,
    "what is masked in place": masked_in_place,
    "what is put in place": put_in_place,
    "a tensor that PyTorch made": lambda: torch.ones(3).sum(),
}


@pytest.mark.parametrize("name", NOT_READING)
def test_what_reads_no_unwritten_element_is_not_found(name):
    assert not list(map(str, faults(NOT_READING[name])))


def test_of_a_triangle_the_half_that_is_read_counts():
    def run() -> None:
        x = torch.empty(3, 3)
        x[0, 0] = x[1, 0] = x[1, 1] = 1
        x[2] = 1
        x.tril()
        x.triu()

    (fault,) = faults(run)
    assert (fault.kernel, fault.element, fault.count) == ("aten.triu.default", "x[0, 1]", 3)


def test_an_element_is_named_by_the_variable_that_holds_it_and_else_by_the_operators_argument():
    def sliced() -> None:
        named = {"partials": partly()}
        named["partials"][1:].sum()

    def unnamed() -> None:
        partly()[1:].sum()

    assert [fault.element for fault in faults(sliced)] == ["named['partials'][3, 0]"]
    assert [fault.element for fault in faults(unnamed)] == ["self[2, 0]"]


class Scaled(torch.autograd.Function):
    """x, whose backward leaves the last element of the gradient as torch.empty gave it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, allocates: bool) -> Tensor:
        return torch.empty_like(x).copy_(x) if allocates else x * 1

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None]:
        dx = torch.empty(g.shape)
        dx[:-1] = g[:-1]
        return dx if ctx.needs_input_grad[0] else g, None


@pytest.mark.parametrize("allocates", [True, False])
def test_what_autograd_reads_of_a_gradient_is_found(allocates):
    def run() -> None:
        x = torch.ones(3, requires_grad=True)
        torch.autograd.grad(Scaled.apply(2 * x, allocates).sum(), x)

    # where forward allocated nothing: PyTorch forgets with a node of the graph what was entered in it
    assert [fault.kernel for fault in faults(run)] == (["aten.mul.Tensor"] if allocates else [])


def test_inside_a_node_of_the_graph_operators_are_watched_too():
    class Partial(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x * 2

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            partials = torch.empty(2, *g.shape)
            partials[0] = g
            return partials.sum(0)

    def run() -> None:
        x = torch.ones(3, requires_grad=True)
        torch.autograd.grad((Partial.apply(x) + Partial.apply(3 * x)).sum(), x)

    assert [(fault.element, fault.count) for fault in faults(run)] == [("partials[1, 0]", 6)]


def test_modes_of_the_kernel_are_left_in_their_order():
    class Seeing(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            return func(*args, **(kwargs or {}))

    def run() -> None:
        with Seeing():
            torch.empty(3)
        assert not _get_current_dispatch_mode_stack()
        partly().sum()

    assert len(faults(run)) == 1


def test_nothing_is_watched_where_nothing_is_allocated_or_the_recording_is_over():
    def run() -> None:
        torch.ones(3).sum()
        assert not _get_current_dispatch_mode_stack()

    assert not faults(run)
    with pytest.raises(ZeroDivisionError), poisoned() as memory, recording(memory.unwritten) as record:
        memory.watch = record.watch
        torch.empty(3)
        assert _get_current_dispatch_mode_stack()
        _ = 1 / 0
    assert not _get_current_dispatch_mode_stack()
