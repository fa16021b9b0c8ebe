"""Complex numbers in definitions: graphs of real operators, exact roots of unity, and what has no rule."""

from __future__ import annotations

import pytest
import torch
from catalogue import CATALOGUE
from jaxtyping import Float
from torch import Tensor

import gradoracle
from gradoracle.cases.saved_tensors import sample_of
from gradoracle.model.case import Case, Draw
from gradoracle.model.derivative import Derivative, program
from gradoracle.oracle.exact import float64
from gradoracle.oracle.exact.definition import evaluated, require
from gradoracle.oracle.exact.trace import Graph, trace

COMPLEX = [
    name for name in CATALOGUE if name.startswith("complex") or name in ("polar", "rfft", "irfft", "fft", "hfft")
]


def ramp(*shape: int) -> Tensor:
    return torch.linspace(-1, 2, torch.Size(shape).numel(), dtype=torch.float64).reshape(shape)


def transform(x: Tensor) -> Graph:
    return trace(lambda own: (torch.view_as_real(torch.fft.fft(torch.view_as_complex(own))),), x)


@pytest.mark.parametrize("derivative", Derivative)
@pytest.mark.parametrize("name", COMPLEX)
def test_a_graph_has_real_tensors_alone(name: str, derivative: Derivative) -> None:
    values = [node.meta.get("val") for node in CATALOGUE[name].graph(derivative).nodes]
    tensors = [value for value in values if isinstance(value, Tensor)]
    assert tensors and not any(tensor.is_complex() for tensor in tensors)


@pytest.mark.parametrize("name", COMPLEX)
@pytest.mark.parametrize("derivative", Derivative)
def test_it_is_what_pytorch_computes(name: str, derivative: Derivative) -> None:
    entry = CATALOGUE[name]
    args = entry.arguments(derivative, seed=5)
    expected = program(entry.function, derivative, len(entry.shapes))(*args)
    for found, own in zip(float64.read(entry.graph(derivative), args), expected, strict=True):
        torch.testing.assert_close(found, own, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("n", [1, 2, 7, 16, 17, 24, 34, 60, 97, 128])
def test_transforms_of_every_kind_of_length(n: int) -> None:
    x = ramp(2, n, 2)
    (found,) = float64.read(transform(x), [x])
    torch.testing.assert_close(torch.view_as_complex(found), torch.fft.fft(torch.view_as_complex(x)))


def test_quarter_turns_are_exact() -> None:
    x = torch.tensor([[[1.0, 0.0], [2.0, 0.0], [4.0, 0.0], [8.0, 0.0]]], dtype=torch.float64)
    (found,) = float64.read(transform(x), [x])
    assert found.tolist() == [[[15.0, 0.0], [-3.0, 6.0], [-5.0, 0.0], [-3.0, -6.0]]]


def test_a_constant_of_the_definition_is_read() -> None:
    turn = torch.tensor([1j, -2.0], dtype=torch.complex128)
    graph = trace(lambda x: (torch.view_as_real(torch.view_as_complex(x) * turn),), ramp(2, 2))
    (found,) = float64.read(graph, [torch.tensor([[3.0, 4.0], [5.0, 6.0]], dtype=torch.float64)])
    assert found.tolist() == [[-4.0, 3.0], [-10.0, -12.0]]


def test_an_operator_without_a_rule_is_named() -> None:
    with pytest.raises(NotImplementedError, match=r"aten\.log\.default has no rule for complex numbers; expected sums"):
        trace(lambda x: (torch.log(torch.view_as_complex(x)).real,), ramp(3, 2))


def test_a_power_without_a_rule_is_refused() -> None:
    with pytest.raises(NotImplementedError, match="another exponent"):
        trace(lambda x: ((torch.view_as_complex(x) ** 0.5).real,), ramp(3, 2))


@gradoracle.family
def turned(x: Float[Tensor, "B N 2"]) -> Float[Tensor, "B N 2"]:
    return torch.view_as_real(torch.view_as_complex(x) * 1j)


@pytest.mark.parametrize("layout", ["transposed", "strided", "offset"])
def test_a_definition_is_given_tensors_that_have_a_complex_view(layout: str) -> None:
    sample = sample_of(Case("turned", {"B": 3, "N": 5}).with_draws(x=Draw("normal", layout)), turned)
    with pytest.raises(RuntimeError, match=r"stride|storage_offset"):
        turned.definition(sample.inputs["x"])
    require(turned, sample)
    found = evaluated(turned, sample.inputs, {})
    assert torch.equal(found, torch.stack([-sample.inputs["x"][..., 1], sample.inputs["x"][..., 0]], -1))
