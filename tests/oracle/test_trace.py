"""Trace: the graph is that of PyTorch's own tracer, gives what the program gives, and holds for other values."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.attention import SDPBackend, sdpa_kernel

from gradoracle.model.contract import PRESETS
from gradoracle.model.derivative import Derivative, program
from gradoracle.oracle.exact.decompositions import table
from gradoracle.oracle.exact.graph import Graph
from gradoracle.oracle.exact.recording import ValueDependent
from gradoracle.oracle.exact.trace import trace
from gradoracle.oracle.rounding.reading import budgets

N = 5


def random(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64)


def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    visible = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool).tril()
    return torch.softmax(torch.where(visible, q @ k.transpose(-1, -2) * 0.5, -torch.inf), -1) @ v


def in_place(x: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    out[1:] = x[1:].square()
    return out.mul_(2.0).add_(x)


def arguments(derivative: Derivative, inputs: list[Tensor]) -> list[Tensor]:
    tangents = [random(*t.shape) for t in inputs] if derivative.takes_tangents else []
    cotangents = [random(*inputs[0].shape)] if derivative.takes_cotangents else []
    return [*inputs, *tangents, *cotangents]


@pytest.mark.parametrize("derivative", list(Derivative))
@pytest.mark.parametrize("definition", [attention, in_place])
def test_the_graph_is_that_of_make_fx(definition: Callable[..., Tensor], derivative: Derivative) -> None:
    inputs = [random(2, N, N) for _ in range(3 if definition is attention else 1)]
    args = arguments(derivative, inputs)
    own = program(definition, derivative, len(inputs))
    graph = trace(own, *args)
    with sdpa_kernel(SDPBackend.MATH):
        peer = make_fx(torch.func.functionalize(own, remove="mutations"), decomposition_table=table())(*args)
    peer.graph.eliminate_dead_code()
    assert operators(graph.nodes) == operators(peer.graph.nodes)
    others = arguments(derivative, [random(*t.shape) for t in inputs])
    for got, expected in zip(graph(*others), own(*others), strict=True):
        torch.testing.assert_close(got, expected)


def operators(nodes: object) -> Counter[str]:
    return Counter(str(node.target) for node in nodes if node.op == "call_function")  # type: ignore[attr-defined]


def test_shapes_are_kept_and_values_are_not() -> None:
    graph = trace(lambda x: (x.t() @ x,), random(3, N))
    values = [node.meta["val"] for node in graph.nodes if node.op == "call_function"]
    assert [tuple(value.shape) for value in values] == [(N, 3), (N, N)]
    assert all(value.device.type == "meta" for value in values) and values[0].stride() == (1, N)


def test_a_constant_of_the_closure_is_held_by_the_graph() -> None:
    weight, index = random(N), torch.tensor([0, 2])
    graph = trace(lambda x: ((x * weight)[index],), random(N))
    assert isinstance(graph, Graph) and len(graph.constants) == 2
    x = random(N)
    torch.testing.assert_close(graph(x)[0], (x * weight)[index])


@pytest.mark.parametrize("shape", [(N,), (257,), (3, 300)])
def test_an_identity_of_any_size_is_traced(shape: tuple[int, ...]) -> None:
    """PyTorch's own decomposition of eye counts more than 256 rows in a dtype that arange lacks on the CPU."""

    def program(x: Tensor) -> tuple[Tensor]:
        return (torch.eye(*shape, dtype=x.dtype) @ x,)

    x = random(shape[-1])
    assert torch.equal(trace(program, random(shape[-1]))(x)[0], program(x)[0])


@pytest.mark.parametrize(
    "value_dependent",
    [
        lambda x: x * x.sum().item(),
        lambda x: x if x.sum() > 0 else -x,
        lambda x: x[x > 0],
        lambda x: x * x.nonzero().shape[0],
        lambda x: x.masked_select(x > 0),
    ],
)
def test_a_program_that_looks_at_values_is_refused(value_dependent: Callable[[Tensor], Tensor]) -> None:
    with pytest.raises(ValueDependent, match="values of a traced tensor"):
        trace(lambda x: (value_dependent(x),), random(N))


def test_numbers_from_constants_are_no_values() -> None:
    graph = trace(lambda x: (x * torch.tensor([1.0, 2.0]).sum().item(),), random(N))
    x = random(N)
    torch.testing.assert_close(graph(x)[0], x * 3)


def test_a_view_is_read_on_values_of_any_layout() -> None:
    """Budgets compute values anew, which lie as their operands do, and not as those that were traced."""
    x = torch.arange(12, dtype=torch.float64).reshape(3, 4)
    graph = trace(lambda x: ((3 * x).view(-1),), x)
    turned = x.T.contiguous().T
    (here,), (there,) = budgets(graph, [x], PRESETS["ieee32"]), budgets(graph, [turned], PRESETS["ieee32"])
    assert torch.equal(here.sigma, there.sigma) and here.sigma.any()
