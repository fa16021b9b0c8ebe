"""float64: PyTorch itself, wherever the graph was traced."""

from __future__ import annotations

import pytest
import torch
from catalogue import CATALOGUE

from gradoracle.model.derivative import Derivative
from gradoracle.oracle.exact import float64

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
