"""Laws of accesses: a Triton kernel that touches what it should holds, one wrong on purpose is caught, with where."""

from __future__ import annotations

import pytest
import torch
from gradoracle.properties.universal import UNIVERSAL
from jaxtyping import Float
from torch import Tensor

import gradoracle
from gradoracle.execution import interpreter
from gradoracle.model.case import Case
from gradoracle.model.finding import Outcome
from gradoracle.model.kernel import Kernel
from gradoracle.model.verdict import Status
from tests.properties.toys import judged

pytestmark = pytest.mark.skipif(
    interpreter.explain_unavailable() is not None, reason=str(interpreter.explain_unavailable())
)
interpreter.activate()
from tests import recorded_kernels as launched  # noqa: E402

LAWS = {law.name: law for law in UNIVERSAL}
INSIDE, RACE = LAWS["every_access_stays_inside_its_tensor"], LAWS["programs_of_a_launch_do_not_race"]
BARRIER, WRITTEN = LAWS["a_barrier_stands_between_a_store_and_a_load"], LAWS["nothing_is_loaded_before_it_is_written"]
STORES = LAWS["a_barrier_stands_between_two_stores"]
ALL = (INSIDE, RACE, BARRIER, STORES, WRITTEN)
BLOCK = 16


@gradoracle.family(outputs=("o",))
def sums(x: Float[Tensor, "B N"]) -> Float[Tensor, "N"]:
    """Sums over the first dim."""
    return x.sum(0)


@gradoracle.family(outputs=("o",))
def double(x: Float[Tensor, "B N"]) -> Float[Tensor, "B N"]:
    """2 x."""
    return 2 * x


def summing(how: str = "atomic", more: int = 0, empty: bool = False):
    def call(x: Tensor) -> Tensor:
        o = torch.empty(x.shape[1]) if empty else torch.zeros(x.shape[1])
        launched.summed[(x.shape[0] + more,)](x.contiguous(), o, x.shape[1], how, BLOCK)
        return o

    return call


def by_parts(missing: int = 0, zeroed: bool = False):
    """Partial sums that PyTorch adds up; some were never written."""

    def call(x: Tensor) -> Tensor:
        rows, columns = x.shape
        partials = torch.zeros(rows, columns) if zeroed else torch.empty(rows, columns)
        launched.gathered[(rows - missing,)](x, partials, rows, columns, *x.stride(), BLOCK)
        return partials.sum(0)

    return call


def doubling(order: str):
    def call(x: Tensor) -> Tensor:
        o, spare = x.clone(), torch.zeros(x.shape)
        launched.neighbours[(x.shape[0],)](o, spare, torch.zeros(x.shape), order, x.shape[1])
        return o if order == "in place" else 2 * x

    return call


def clearing(order: str):
    def call(x: Tensor) -> Tensor:
        o = torch.empty(x.shape)
        launched.cleared[(x.shape[0],)](2 * x, o, order, x.shape[1])
        return o

    return call


def of_sums(call, outside: bool = False) -> Kernel:
    return Kernel("sums", "sums", call, vjp=lambda x, g, *_: (g["o"].expand_as(x["x"]).clone(),), outside=outside)


def of_double(call, outside: bool = False) -> Kernel:
    return Kernel("double", "double", call, vjp=lambda x, g, *_: (2 * g["o"],), outside=outside)


def status(law, kernel: Kernel, family=sums, dims=None) -> Status:
    return judged(law, kernel, Case(family.name, dims or {"B": 3, "N": 10}), family).status


@pytest.mark.parametrize("law", ALL, ids=lambda law: law.name)
def test_a_correct_kernel_holds(law):
    assert status(law, of_sums(summing())) is Status.HOLDS


@pytest.mark.parametrize(
    ("law", "wrong"),
    [
        (INSIDE, summing(more=1)),
        (RACE, summing("stored")),
        (RACE, summing("mixed")),
        (WRITTEN, summing(empty=True)),
        (WRITTEN, by_parts(missing=1)),
    ],
)
def test_a_wrong_kernel_is_caught_by_its_law_alone(law, wrong):
    found = {each.name: status(each, of_sums(wrong)) for each in ALL}
    assert found == {each.name: Status.VIOLATED if each is law else Status.HOLDS for each in ALL}


def test_the_report_names_kernel_line_program_and_element():
    result = judged(INSIDE, of_sums(summing(more=1)), Case("sums", {"B": 3, "N": 10}), sums)
    first = next(finding for finding in result.findings if finding.outcome is Outcome.VIOLATED)
    assert first.tensor == "launches of forward"
    assert "recorded_kernels.py:" in first.message
    assert "summed, program (3, 0, 0), reads X[+30 elements from its first] of shape [3, 10]" in first.message


def test_partial_sums_that_pytorch_adds_up_must_be_written():
    case = Case("sums", {"B": 3, "N": 10})
    result = judged(WRITTEN, of_sums(by_parts(missing=1)), case, sums)
    said = [finding.message for finding in result.findings if finding.outcome is Outcome.VIOLATED]
    assert len(said) == 2 and all("test_accesses.py:" in message for message in said), "forward and vjp"
    assert "aten.sum.dim_IntList, an operator of PyTorch, reads partials[2, 0], which was allocated" in said[0]
    assert judged(WRITTEN, of_sums(by_parts()), case, sums).status is Status.HOLDS
    assert judged(WRITTEN, of_sums(by_parts(missing=1, zeroed=True)), case, sums).status is Status.HOLDS


class Tailed(torch.autograd.Function):
    """2 x, whose gradient has a last row that nothing wrote."""

    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:
        o = torch.empty(x.shape)
        launched.gathered[(x.shape[0],)](x, o, *x.shape, *x.stride(), BLOCK)
        return 2 * o

    @staticmethod
    def backward(ctx, g: Tensor) -> Tensor:
        dx = torch.empty(g.shape)
        dx[:-1] = 2 * g[:-1]
        return dx


def test_what_autograd_reads_is_told_as_its_own():
    kernel = Kernel("double", "double", lambda x: Tailed.apply(x * 1.0))
    result = judged(WRITTEN, kernel, Case("double", {"B": 3, "N": 10}), double)
    said = [finding.message for finding in result.findings if finding.outcome is Outcome.VIOLATED]
    assert said and said[0].startswith("autograd: aten.mul.Tensor, an operator of PyTorch, reads self[2, 0], which")


def test_a_store_that_is_loaded_needs_a_barrier():
    dims = {"B": 3, "N": 16}
    assert status(BARRIER, of_double(doubling("none")), double, dims) is Status.VIOLATED
    assert status(BARRIER, of_double(doubling("barrier")), double, dims) is Status.HOLDS


def test_an_update_in_place_is_a_violation_of_a_shipped_kernel_and_noted_of_one_from_outside():
    case = Case("double", {"B": 3, "N": 16})
    assert judged(BARRIER, of_double(doubling("in place")), case, double).status is Status.VIOLATED
    result = judged(BARRIER, of_double(doubling("in place"), outside=True), case, double)
    assert result.status is not Status.VIOLATED
    noted = [finding for finding in result.findings if finding.outcome is Outcome.NOT_CHECKED]
    assert (
        noted
        and "safe if each element stored depends on itself as loaded" in noted[0].message
        and "stores X[0, 0]" in noted[0].message
    )


@pytest.mark.parametrize("order", ["none", "atomic"])
def test_two_stores_need_a_barrier_in_a_shipped_kernel_and_are_noted_of_one_from_outside(order):
    case = Case("double", {"B": 3, "N": 16})
    found = {each.name: judged(each, of_double(clearing(order)), case, double).status for each in ALL}
    assert found == {each.name: Status.VIOLATED if each is STORES else Status.HOLDS for each in ALL}
    assert judged(STORES, of_double(clearing("barrier")), case, double).status is Status.HOLDS
    result = judged(STORES, of_double(clearing(order), outside=True), case, double)
    assert result.status is not Status.VIOLATED
    noted = [finding.message for finding in result.findings if finding.outcome is Outcome.NOT_CHECKED]
    assert noted and "safe if one thread makes both stores of an element: recorded_kernels.py:" in noted[0]


def test_a_kernel_without_triton_is_not_checked():
    result = judged(RACE, of_sums(lambda x: x.sum(0)), Case("sums", {"B": 3, "N": 10}), sums)
    assert (result.status, result.reason) == (Status.NOT_CHECKED, "no Triton kernel was launched")
