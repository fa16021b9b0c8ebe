"""Packages: the page of public operations, from rows and from what adapters call."""

from __future__ import annotations

import packages
import pytest
from packages import Package, operations_of, page
from pages import line_with, table_rows
from severities import Row, sentence

PACKAGE = """
def released_double(x):
    return x * 2


def released_sine(x):
    return x.sin()


def released_halve(x):
    return x / 2


def inner(x):
    return x


released_constant = 1
"""
ADAPTERS = """
import released_operations as released
import torch
from jaxtyping import Float
from released_operations import released_sine
from torch import Tensor

import gradoracle


@gradoracle.family(dims={"N": gradoracle.sizes(1, 9)})
def doubled(x: Float[Tensor, "N"]) -> Float[Tensor, "N"]:
    return 2 * x


def helper(x):
    return released.released_double(x)


@gradoracle.kernel(doubled)
def double(x):
    return helper(x)


@gradoracle.kernel(doubled)
def sine(x):
    return released_sine(x)


@gradoracle.kernel(doubled)
def own(x):
    return x + x
"""


@pytest.fixture
def adapters(tmp_path, monkeypatch):
    folder = tmp_path / "adapters"
    folder.mkdir()
    (tmp_path / "released_operations.py").write_text(PACKAGE)
    (folder / "few.py").write_text(ADAPTERS)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(packages, "PACKAGES", (Package("Released", "released_operations", "released_"),))
    monkeypatch.setattr("importlib.metadata.version", lambda name: "1.2")
    monkeypatch.setattr("importlib.metadata.packages_distributions", lambda: {"released_operations": ["Released"]})
    return [folder / "few.py"]


def test_operations_are_read_from_the_code_of_adapters_and_of_their_helpers(adapters):
    assert list(operations_of(adapters)) == [
        ("Released", "released_double", "few.py:double"),
        ("Released", "released_sine", "few.py:sine"),
    ]


def test_an_operation_of_the_same_name_in_another_package_is_not_called(adapters, monkeypatch):
    same = Package("another-one", "released_operations", "released_")
    torch_own = Package("torch", listed=("released_sine", "size"))
    monkeypatch.setattr(packages, "PACKAGES", (same, torch_own))
    assert list(operations_of(adapters)) == []
    own = "@gradoracle.kernel(doubled)\ndef torch_own(x):\n    return torch.Tensor.size(x)"
    adapters[0].write_text(f"{ADAPTERS}\n\n{own}\n")
    assert list(operations_of(adapters)) == [("torch", "size", "few.py:torch_own")]


@pytest.mark.parametrize(
    ("name", "distributions", "called"),
    [
        ("jvp_flash_attention", "jvp-flash-attention 0.14.0", True),
        ("fla-core", "fla_core 0.6.0 liger-kernel 0.8.5", True),
        ("fla-core", "liger-kernel 0.8.5", False),
        ("torch", "", True),
        ("torch", "liger-kernel 0.8.5", False),
    ],
)
def test_an_adapter_calls_the_distributions_that_its_code_names(name, distributions, called):
    assert Package(name).called_by(distributions) is called


def test_the_page_counts_what_is_judged_and_says_what_is_not(adapters):
    rows = [
        Row(
            "few.py",
            "double",
            "",
            dtype,
            8,
            now,
            forward,
            "✓",
            "- not offered",
            hvp,
            keeps=keeps,
            properties=properties,
        )
        for dtype, now, forward, hvp, keeps, properties in (
            ("bfloat16", "precision stated", "! precision lost", "✓", "eager-bf16", "vjp_matches_the_oracle"),
            ("float16", "wrong", "✓", "✗ wrong", "", "hvp_matches_the_oracle and 2 more"),
            ("float32", "green", "✓", "✓", "", ""),
        )
    ]
    rows += [Row("few.py", "sine", "", dtype, reason="needs | a GPU") for dtype in ("bfloat16", "float16", "float32")]
    shown = page(rows, [], list(operations_of(adapters)))
    judged = line_with(shown, "public operations")
    assert judged.startswith("1 of 3 ") and "on the CPU (33%)" in judged and "GPU" not in judged
    assert sentence(rows) in shown
    double, halve, sine = (list(row.values()) for row in table_rows(shown, "operation"))
    forward, hvp = "! precision lost (bfloat16), ✓ (float16 float32)", "✗ wrong (float16), ✓ (bfloat16 float32)"
    derivatives = [forward, "✓", "- not offered", hvp]
    assert double == ["double", "few.py:double", *derivatives, "**wrong**", "hvp_matches_the_oracle", ""]
    assert halve == ["halve", *[""] * 6, "no adapter", ""]
    assert sine == ["sine", "few.py:sine", *[""] * 4, "not judged", "needs / a GPU", ""]


def test_the_page_says_what_forward_and_gradients_are_on_a_gpu(adapters):
    here = [Row("few.py", "double", "", "float32", 8, now="green", forward="✓", vjp="✓")]
    there = [
        Row("few.py", "double", "", "float32", 8, now="wrong", properties="vjp_matches_the_oracle and 2 more"),
        Row("few.py", "double", "", "float16", 2, now="green"),
        Row("few.py", "sine", "", "float32", 1, now="green"),
    ]
    shown = page(here, there, list(operations_of(adapters)))
    judged = line_with(shown, "public operations")
    assert judged.startswith("1 of 3 ") and "on the CPU (33%)" in judged and "2 on a GPU (67%)" in judged
    assert {row["operation"]: row["GPU"] for row in table_rows(shown, "operation")} == {
        "double": "**wrong** (float32, 8 cases)",
        "halve": "",
        "sine": "holds (float32, 1 case)",
    }
