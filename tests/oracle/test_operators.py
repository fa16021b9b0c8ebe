"""The page of operators names every rule, and the catalogue meets the ones that definitions lead to."""

from __future__ import annotations

import re
from pathlib import Path

import torch
from catalogue import CATALOGUE

from gradoracle.model.derivative import Derivative
from gradoracle.oracle.exact.graph import operator_name
from gradoracle.oracle.exact.interpretation import RULES
from gradoracle.oracle.exact.trace import trace

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "operators.md"


def test_the_page_names_every_operator_with_a_rule() -> None:
    listed = PAGE.read_text().split("## Operators with a rule")[1]
    named = set(re.findall(r"`([\w.]+\.\w+)`", listed))
    assert named == {name.removeprefix("aten.") for name in RULES}


def test_a_trace_is_free_of_in_place_operators_and_of_composites() -> None:
    banned = ("gelu", "silu", "layer_norm", "var.", "mean.", "addmm", "embedding", "logsumexp", "flash", "backward")
    for name in (
        "in_place",
        "slice_assignment",
        "rms_norm",
        "gelu",
        "layer_norm",
        "var",
        "linear",
        "sdpa_heads",
        "silu",
    ):
        for node in CATALOGUE[name].graph(Derivative.HVP).nodes:
            if node.op == "call_function":
                schema = getattr(node.target, "_schema", None)
                assert schema is None or not schema.is_mutable, node.format_node()
                assert not any(word in operator_name(node) for word in banned), node.format_node()


def test_values_are_not_baked_into_a_trace() -> None:
    zeros, ones = torch.zeros(3, dtype=torch.float64), torch.ones(3, dtype=torch.float64)
    graph = trace(lambda x: (torch.where(x > 0.5, x.exp(), x),), zeros)
    assert torch.equal(graph(ones)[0], ones.exp())


def test_traces_keep_softmax_whole() -> None:
    names = {operator_name(node) for node in CATALOGUE["attention"].graph(Derivative.VJP).nodes}
    assert "aten._softmax.default" in names
