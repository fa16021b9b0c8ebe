"""float64: PyTorch itself, wherever the graph was traced; and when a value on the way is beyond its range."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from catalogue import CATALOGUE
from torch import Tensor

from gradoracle.model.contract import PRESETS
from gradoracle.model.derivative import Derivative
from gradoracle.oracle.exact import float64
from gradoracle.oracle.exact.trace import trace
from gradoracle.oracle.rounding.reading import budgets
from gradoracle.oracle.truth import Oracle, Truth, Unread

NAMES = ["masked_attention", "layer_norm", "cross_entropy", "index_put", "sort", "slice_assignment"]


@pytest.mark.parametrize("name", NAMES)
def test_a_graph_is_run_as_pytorch_would(name: str) -> None:
    entry = CATALOGUE[name]
    for derivative in Derivative:
        args, graph = entry.arguments(derivative), entry.graph(derivative)
        for ours, theirs in zip(float64.read(graph, args), graph(*args), strict=True):
            assert torch.equal(ours, theirs)


def test_narrower_inputs_are_read_exactly() -> None:
    entry = CATALOGUE["attention"]
    args, graph = [x.bfloat16() for x in entry.arguments(Derivative.VJP)], entry.graph(Derivative.VJP)
    for ours, theirs in zip(float64.read(graph, args), graph(*(x.double() for x in args)), strict=True):
        assert ours.dtype is torch.float64 and torch.equal(ours, theirs)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("name", NAMES)
def test_a_graph_traced_on_the_cpu_runs_on_a_gpu(name: str) -> None:
    entry = CATALOGUE[name]
    for derivative in Derivative:
        args, graph = entry.arguments(derivative), entry.graph(derivative)
        here = float64.read(graph, args)
        there = float64.read(graph, [x.cuda() for x in args], device="cuda")
        for ours, theirs in zip(there, here, strict=True):
            assert ours.is_cuda and torch.allclose(ours.cpu(), theirs, rtol=1e-13, atol=1e-13)


NEVER = torch.tensor([[False, True, True]])


def left(function: Callable[[Tensor], Tensor], *numbers: float) -> str:
    x = torch.tensor([numbers], dtype=torch.float64)
    within = float64.Range()
    float64.read(trace(lambda x: (function(x),), x), [x], within=within)
    return within.left


LEAVES = {
    "exp": (lambda x: torch.exp(x), 800.0),
    "a finite wrong result": (lambda x: 1 / (x + torch.exp(x)), 800.0),
    "a sum": (lambda x: (x * 1e300).sum(-1), 1e8, 1e8),
    "a product of matrices": (lambda x: (x * 1e200) @ (x * 1e200).mT, 1.0),
    "division by what underflows": (lambda x: x / torch.exp(x), -9756.0),
    "log of what underflows": (lambda x: torch.log(torch.exp(x)), -800.0),
    "log of what nearly does": (lambda x: torch.log(torch.exp(x)), -740.0),
    "a ratio of what nearly does": (lambda x: torch.exp(x) / torch.exp(x + 1), -740.0),
    "division by a difference of rounded numbers": (lambda x: 1 / (1 - torch.exp(-x)), 1e-20),
    "its root's derivative": (lambda x: torch.rsqrt((1 - torch.exp(-x)).abs() * 2), 1e-20),
    "log1p of what is rounded to -1": (lambda x: torch.log1p(-torch.sigmoid(x)), 40.0),
    "what underflows and comes back": (lambda x: torch.exp(x) * torch.exp(-x + 10), -700.0 - 46),
}
STAYS = {
    "ordinary numbers": (lambda x: torch.exp(x) / (1 + x.square()), 3.0, -700.0),
    "masks": (lambda x: torch.softmax(torch.where(NEVER, -torch.inf, x), -1), 1.0, 2.0, 3.0),
    "finite masks": (lambda x: torch.softmax(x.masked_fill(NEVER, -1e9), -1), 1.0, 2.0, 3.0),
    "the logarithm of 0": (lambda x: torch.log(x), 0.0, 1.0),
    "division by 0": (lambda x: 1 / x, 0.0, 1.0),
    "division by a difference of inputs": (lambda x: 1 / (x - x.flip(-1)).abs(), 1.5, 1.5),
    "log1p of -1": (lambda x: torch.log1p(-x), 1.0),
    "a difference of rounded numbers that no pole follows": (
        lambda x: torch.log((torch.exp(2 * x - (2 * x).amax(-1, keepdim=True))).sum(-1)) + 1 / x,
        0.0,
        1.0,
    ),
    "outside of a domain": (lambda x: torch.sqrt(x) + torch.log(x), -1.0),
    "sums of what underflows": (lambda x: 1 + torch.exp(x), -900.0),
    "infinite inputs": (lambda x: x * 2 + 1, float("inf")),
}


@pytest.mark.parametrize("name", LEAVES)
def test_it_leaves(name: str) -> None:
    function, *numbers = LEAVES[name]
    assert left(function, *numbers), name  # type: ignore[arg-type]


@pytest.mark.parametrize("name", STAYS)
def test_it_stays(name: str) -> None:
    function, *numbers = STAYS[name]
    assert not left(function, *numbers), name  # type: ignore[arg-type]


def read(function: Callable[[Tensor], Tensor], x: Tensor, reading: str = "auto") -> list[Truth]:
    graph = trace(lambda x: (function(x),), x)
    own = budgets(graph, [x], PRESETS["ieee32"])
    return Oracle(None, reading).read(graph, [x], own, PRESETS["ieee32"])  # type: ignore[arg-type]


def test_the_truth_is_certified_then_and_what_has_no_budget_is_undecided() -> None:
    x = torch.tensor([1.5, 800.0, -746.0], dtype=torch.float64)
    (truth,) = read(lambda x: torch.log1p(torch.exp(x)) / x, x)
    assert truth.reading == "certified"
    torch.testing.assert_close(truth.value[1], torch.tensor(1.0, dtype=torch.float64))
    assert truth.undecided.tolist() == [False, True, False]


def test_a_pole_that_rounding_makes_is_no_truth() -> None:
    x = torch.tensor([1e-20, 1.0, 0.0], dtype=torch.float64)
    (truth,) = read(lambda x: 1 / (1 - torch.exp(-x)), x)
    assert truth.reading == "certified" and truth.undecided.tolist() == [True, False, True]
    torch.testing.assert_close(truth.value, torch.tensor([1e20, 1.5819767068693265, torch.inf], dtype=torch.float64))


def test_a_silent_finite_result_is_not_taken_for_the_truth() -> None:
    x = torch.tensor([2.0, 750.0], dtype=torch.float64)
    (truth,) = read(lambda x: 1 / (1 + torch.exp(x)) * torch.exp(x), x)  # 1 where float64 gives NaN
    assert float(truth.value[1]) == 1.0 and truth.undecided.tolist() == [False, True]


def test_what_float64_alone_cannot_read_is_refused() -> None:
    with pytest.raises(Unread, match=r"\(exp gives inf\); --oracle auto"):
        read(torch.exp, torch.tensor([800.0, 1.0], dtype=torch.float64), "float64")
