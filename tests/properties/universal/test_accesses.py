"""Properties of accesses: correct kernels satisfy them, and findings name kernel, line, program and element."""

from __future__ import annotations

from dataclasses import replace

import interpreted
import pytest
import torch
from torch import Tensor

from gradoracle.model.case import Case, Draw
from gradoracle.model.derivative import Derivative
from gradoracle.model.finding import Outcome
from gradoracle.model.kernel import Kernel
from gradoracle.model.verdict import Status
from tests.properties.judging import PROPERTIES, judge_on
from tests.properties.toys import evidence, judged
from tests.properties.universal.launches import (
    BLOCK,
    by_parts,
    clearing,
    double,
    doubling,
    launched,
    of_double,
    of_sums,
    summing,
    sums,
)

pytestmark = interpreted.NEEDED

INSIDE, RACE = PROPERTIES["every_access_stays_inside_its_tensor"], PROPERTIES["programs_of_a_launch_do_not_race"]
BARRIER, WRITTEN = (
    PROPERTIES["a_barrier_stands_between_a_store_and_a_load"],
    PROPERTIES["nothing_is_loaded_before_it_is_written"],
)
STORES = PROPERTIES["a_barrier_stands_between_two_stores"]
ALL = (INSIDE, RACE, BARRIER, STORES, WRITTEN)


@pytest.mark.parametrize("prop", ALL, ids=lambda prop: prop.name)
def test_a_correct_kernel_holds(prop):
    assert judged(prop, of_sums(summing()), Case("sums", {"B": 3, "N": 10}), sums).status is Status.HOLDS


def test_the_report_names_kernel_line_program_and_element():
    result = judged(INSIDE, of_sums(summing(more=1)), Case("sums", {"B": 3, "N": 10}), sums)
    first = next(finding for finding in result.findings if finding.outcome is Outcome.VIOLATED)
    assert first.tensor == "launches of forward"
    for fact in ("recorded_kernels.py:", "summed", "program (3, 0, 0)", "reads X[+30 elements", "shape [3, 10]"):
        assert fact in first.message


@pytest.mark.parametrize(("more", "status"), [(0, Status.HOLDS), (1, Status.VIOLATED)])
def test_a_further_entry_point_is_judged_by_what_it_accesses(more, status):
    extras = {"totals": lambda inputs, options, blocks: summing(more=more)(inputs["x"])}
    one = evidence(replace(of_sums(summing()), extras=extras), Case("sums", {"B": 3, "N": 10}), sums)
    one.entry("totals", one.shapes(Derivative.FORWARD))
    result = judge_on(INSIDE, one)
    assert result.status is status
    wrong = [finding.tensor for finding in result.findings if finding.outcome is Outcome.VIOLATED]
    assert wrong == ["launches of totals"] * more


def refusing_layouts(more: int):
    """Sums of contiguous tensors alone, that read ``more`` elements too many."""
    inner = summing(more=more)

    def call(x: Tensor) -> Tensor:
        if not x.is_contiguous():
            raise ValueError(f"x has strides {x.stride()}, expected a contiguous tensor")
        return inner(x)

    return call


@pytest.mark.parametrize("prop", ALL, ids=lambda prop: prop.name)
def test_where_a_layout_is_refused_accesses_are_those_with_contiguous_inputs(prop):
    case = Case("sums", {"B": 3, "N": 10}, draws={"x": Draw("normal", "strided")})
    assert judged(prop, of_sums(refusing_layouts(0)), case, sums).status is Status.HOLDS
    if prop is INSIDE:
        result = judged(prop, of_sums(refusing_layouts(1)), case, sums)
        first = next(finding for finding in result.findings if finding.outcome is Outcome.VIOLATED)
        assert first.tensor == "launches of contiguous inputs: forward"
        assert "reads X[+30 elements" in first.message and "shape [3, 10]" in first.message


def test_a_kernel_that_refuses_contiguous_inputs_is_refused():
    def call(x: Tensor) -> Tensor:
        raise ValueError("never")

    case = Case("sums", {"B": 3, "N": 10}, draws={"x": Draw("normal", "strided")})
    assert judged(INSIDE, of_sums(call), case, sums).status is Status.REFUSED


def test_partial_sums_that_pytorch_adds_up_must_be_written():
    case = Case("sums", {"B": 3, "N": 10})
    result = judged(WRITTEN, of_sums(by_parts(missing=1)), case, sums)
    said = [finding.message for finding in result.findings if finding.outcome is Outcome.VIOLATED]
    assert len(said) == 2 and all("launches.py:" in message for message in said), "forward and vjp"
    assert "aten.sum.dim_IntList" in said[0] and "reads partials[2, 0]" in said[0]
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


def test_what_autograd_reads_is_reported_as_its_own():
    kernel = Kernel("double", "double", lambda x: Tailed.apply(x * 1.0))
    result = judged(WRITTEN, kernel, Case("double", {"B": 3, "N": 10}), double)
    said = [finding.message for finding in result.findings if finding.outcome is Outcome.VIOLATED]
    assert said and said[0].startswith("autograd: aten.mul.Tensor") and "reads self[2, 0]" in said[0]


def test_an_update_in_place_is_a_violation_of_a_shipped_kernel_and_noted_of_one_from_outside():
    case = Case("double", {"B": 3, "N": 16})
    assert judged(BARRIER, of_double(doubling("in place")), case, double).status is Status.VIOLATED
    result = judged(BARRIER, of_double(doubling("in place"), outside=True), case, double)
    assert result.status is not Status.VIOLATED
    noted = [finding for finding in result.findings if finding.outcome is Outcome.NOT_CHECKED]
    assert noted and "safe if the value stored" in noted[0].message and "stores X[0, 0]" in noted[0].message
    assert result.status is Status.HOLDS
    (note,) = noted[0].notes
    assert note.startswith("recorded_kernels.py:") and ": neighbours stores" in note and "[0" not in note


@pytest.mark.parametrize("outside", [False, True])
@pytest.mark.parametrize("how", ["permuted", "neighbours", "permuted, with a barrier"])
def test_a_permutation_in_place_is_a_violation_of_any_kernel(how, outside):
    def call(x):
        spoilt = x.clone(memory_format=torch.contiguous_format)
        launched.in_place[(x.shape[0],)](spoilt, how, x.shape[1])
        return 2 * x

    result = judged(BARRIER, of_double(call, outside=outside), Case("double", {"B": 3, "N": 16}), double)
    expected = Status.HOLDS if "barrier" in how else Status.VIOLATED
    assert result.status is expected and not [each for each in result.findings if each.notes]


@pytest.mark.parametrize("order", ["none", "atomic"])
def test_two_stores_without_a_barrier_are_noted_of_a_kernel_from_outside(order):
    case = Case("double", {"B": 3, "N": 16})
    result = judged(STORES, of_double(clearing(order), outside=True), case, double)
    assert result.status is not Status.VIOLATED
    noted = [finding.message for finding in result.findings if finding.outcome is Outcome.NOT_CHECKED]
    assert noted and "safe if the same thread" in noted[0] and "recorded_kernels.py:" in noted[0]


def test_a_kernel_without_triton_is_not_checked():
    result = judged(RACE, of_sums(lambda x: x.sum(0)), Case("sums", {"B": 3, "N": 10}), sums)
    assert (result.status, result.reason) == (Status.NOT_CHECKED, "no Triton kernel was launched")
