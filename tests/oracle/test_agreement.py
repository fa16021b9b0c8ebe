"""Every operator of the catalogue and every derivative: certified, mpmath and float64 say the same."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator

import mpmath
import pytest
import torch
from catalogue import CATALOGUE
from torch import Tensor, fx

from gradoracle.model.derivative import Derivative
from gradoracle.oracle.exact import certified, float64, multiprecision
from gradoracle.oracle.exact.enclosure import Enclosure, Expansion
from gradoracle.oracle.exact.graph import Graph, operator_name
from gradoracle.oracle.exact.operators_movement import PLACED

pytestmark = pytest.mark.skipif(certified.unavailable() is not None, reason=str(certified.unavailable()))
EVERY = [pytest.param(name, d, id=f"{name}-{d.value}") for name in CATALOGUE for d in Derivative]
U = 2.0**-53


@functools.lru_cache(maxsize=4)
def case(name: str, derivative: Derivative) -> tuple[Graph, list[Tensor]]:
    entry = CATALOGUE[name]
    return entry.graph(derivative), entry.arguments(derivative)


def apart(ball: Enclosure, value: Expansion) -> Tensor:
    """|midpoint - value|, and what two pairs of float64 leave of each number (2^-106 of it)."""
    gap = (ball.high - value.high) + (ball.low - value.low)
    return gap.abs() - 2.0**-105 * value.high.abs()


@pytest.mark.parametrize(("name", "derivative"), EVERY)
def test_certified_encloses_mpmath_and_tightens(name: str, derivative: Derivative) -> None:
    graph, args = case(name, derivative)
    coarse, fine = certified.read(graph, args, bits=64), certified.read(graph, args, bits=192)
    for rough, ball, value in zip(coarse, fine, multiprecision.read(graph, args, digits=50), strict=True):
        assert not ball.undecided.any()
        assert (apart(rough, value) <= rough.radius).all()
        assert (apart(ball, value) <= ball.radius).all()
        assert (ball.radius <= rough.radius + 2.0**-105 * ball.high.abs()).all()
        assert (ball.radius <= 2.0**-100 * (1 + ball.high.abs())).all()


@pytest.mark.parametrize(("name", "derivative"), EVERY)
def test_float64_is_within_the_roundings_of_each_operator(name: str, derivative: Derivative) -> None:
    graph, args = case(name, derivative)
    checked = 0
    for node, step, operands, result in steps(graph, args):
        (ball,) = certified.read(step, operands, bits=192)
        excess = ball.error(result).abs() - bound(node, operands, result)
        assert (excess <= ball.radius).all(), f"{node.format_node()}: {excess.max():.1e} beyond its roundings"
        checked += 1
    assert checked


def steps(graph: Graph, args: list[Tensor]) -> Iterator[tuple[fx.Node, Graph, list[Tensor], Tensor]]:
    """Each float operator of a graph as a graph of its own, with its operands and result in a float64 run."""
    values: dict[fx.Node, object] = {}
    inputs = iter(args)
    for node in graph.nodes:
        if node.op == "placeholder":
            values[node] = next(inputs)
        elif node.op == "get_attr":
            values[node] = graph.constant(node)
        elif node.op == "call_function":
            step = alone(node)
            operands = [values[used] for used in node.all_input_nodes]
            whole = own_output(step, operands)
            values[node] = whole
            if "empty" in operator_name(node):
                continue  # what is there has not been written yet
            if isinstance(whole, Tensor) and whole.is_floating_point() and all(isinstance(x, Tensor) for x in operands):
                yield node, step, operands, whole  # type: ignore[misc]


def own_output(step: Graph, operands: list[object]) -> object:
    """What the one operator gives, in float64 (``float64.read`` for tensors; tuples are handed on as they are)."""
    if all(isinstance(x, Tensor) for x in operands):
        return float64.read(step, operands)[0]  # type: ignore[arg-type]
    return step(*operands)[0]


def bound(node: fx.Node, operands: list[Tensor], result: Tensor) -> Tensor | float:
    """How far rounding takes one operator: 2 ulp for one function of an element, (k + 2) u per sum of k terms."""
    name, x = operator_name(node).removeprefix("aten."), operands[0] if operands else result
    if name in PLACED and name != "index_put.default":
        return 0.0
    if name.split(".")[0] in ("sum", "mm", "bmm", "cumsum", "scatter_add", "index_put", "scatter_reduce"):
        terms = max(max(t.shape, default=1) for t in operands) * (2 if result.dim() == 0 else 1)
        sizes = [t.abs() if t.is_floating_point() else t for t in operands]
        (total,) = float64.read(alone(node), sizes)
        return U * (terms + x.numel() // max(result.numel(), 1) + 2) * total
    if name == "_softmax.default":
        spread = (x - x.amax(node.args[1], keepdim=True)).abs()  # type: ignore[arg-type]
        return U * (x.shape[int(str(node.args[1]))] + 8 + 2 * spread.masked_fill(spread.isinf(), 0).max()) * result
    if name == "_log_softmax.default":
        return U * (x.shape[int(str(node.args[1]))] + 8) * (1 + result.abs() + x.abs())
    if name == "linalg_solve_triangular.default":
        matrix = x.triu() if node.kwargs["upper"] else x.tril()
        if node.kwargs.get("unitriangular"):
            matrix = matrix - torch.diag_embed(matrix.diagonal(dim1=-2, dim2=-1)) + torch.eye(x.shape[-1])
        return U * (x.shape[-1] + 2) * (torch.linalg.inv(matrix).abs() @ matrix.abs() @ result.abs())
    if name.startswith(("prod", "cumprod")):
        return U * 2 * max(x.shape) * result.abs()
    if name.startswith(("add", "sub")) and "alpha" in node.kwargs:
        return 4 * U * (result.abs() + sum(t.abs() for t in operands))
    return 4 * U * result.abs() + math.ulp(0.0)


def alone(node: fx.Node) -> Graph:
    """One operator as a graph of its own."""
    own, names = fx.Graph(), {}
    for used in node.all_input_nodes:
        names[used] = own.placeholder(used.name)
        names[used].meta = used.meta
    own.output((own.node_copy(node, lambda used: names[used]),))
    return Graph(own, {})


def test_a_broken_rule_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    build = multiprecision.Multiprecision.__init__

    def broken(self: multiprecision.Multiprecision, digits: int) -> None:
        build(self, digits)
        right = self.functions["exp"]
        self.functions = {**self.functions, "exp": lambda x: right(x) * (1 + mpmath.mpf(10) ** -30)}

    graph, args = case("attention", Derivative.VJP)
    (ball, *_), (value, *_) = certified.read(graph, args, bits=192), multiprecision.read(graph, args, digits=50)
    assert (apart(ball, value) <= ball.radius).all()
    graph, args = case("exp", Derivative.FORWARD)
    monkeypatch.setattr(multiprecision.Multiprecision, "__init__", broken)
    (ball,), (value,) = certified.read(graph, args, bits=192), multiprecision.read(graph, args, digits=50)
    assert not (apart(ball, value) <= ball.radius).any()
