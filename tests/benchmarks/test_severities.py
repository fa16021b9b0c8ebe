"""Severities: rows of wrong and of imprecise kernels, kept in a file and added up."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import interpreted
import pytest
import severities
from pages import table_rows
from severities import (
    BUGS,
    CRASHES,
    GREEN,
    ROBUSTNESS,
    STATED,
    UNDECIDED,
    WRONG,
    Row,
    doubtful,
    kernels_by_severity,
    read,
    record,
    sentence,
    table,
)

PACKAGE = """
import torch


def eager(x, w):
    wide = x.float()
    return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6)).to(x.dtype) * w
"""
ADAPTERS = """
import torch
from jaxtyping import Float
from torch import Tensor

import gradoracle
from released import eager


@gradoracle.family(dims={"B": gradoracle.sizes(1, 4), "N": gradoracle.sizes(4, 40)})
def norm(x: Float[Tensor, "B N"], w: Float[Tensor, "N"]) -> Float[Tensor, "B N"]:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * w


def helper(x, w):
    return eager(x, w)


@gradoracle.kernel(norm)
def rounded(x, w):
    return helper(x, w)


wrong = gradoracle.kernel(norm, name="wrong")(lambda x, w: norm.definition(x.float(), w.float()).to(x.dtype) * 1.01)
"""


@pytest.fixture
def adapters(tmp_path, monkeypatch) -> Path:
    (tmp_path / "released.py").write_text(PACKAGE)
    (tmp_path / "adapters.py").write_text(ADAPTERS)
    monkeypatch.syspath_prepend(str(tmp_path))
    installed = tmp_path / "released-1.2.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: Released\nVersion: 1.2\n")
    (installed / "top_level.txt").write_text("released\n")
    return tmp_path / "adapters.py"


def row(kernel: str, dtype: str, now: str, source: str = "a.py", **fields: object) -> Row:
    return Row(source, kernel, "", dtype, 4, now, **fields)


@interpreted.NEEDED
def test_a_wrong_and_an_imprecise_kernel_have_the_rows_that_their_names_say(adapters, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(severities, "Request", partial(severities.Request, property="[fv]*_matches*"))
    file = tmp_path / "rows.csv"
    severities.main([str(adapters), "--examples", "12", "--file", str(file)])
    rows = {(row.kernel, row.dtype): row for row in read(file)}
    assert len(rows) == 6 and {row.source for row in rows.values()} == {"adapters.py"}
    for dtype in ("bfloat16", "float16", "float32"):
        wrong = rows["wrong", dtype]
        assert (wrong.now, wrong.severity, wrong.forward, wrong.vjp) == ("wrong", "wrong", "✗ wrong", "✗ wrong")
        assert wrong.is_wrong_in_first_order and not rows["rounded", dtype].is_wrong_in_first_order
    assert rows["rounded", "float32"].now == "green"
    for dtype, preset in (("bfloat16", "eager-bf16"), ("float16", "eager-fp16")):
        found = rows["rounded", dtype]
        assert (found.now, found.forward, found.keeps) == ("precision stated", "! precision lost", preset)
        assert "bits of out" in found.stated and found.package == "Released 1.2"
    assert rows["wrong", "float32"].package == "" and all(row.cases == 4 for row in rows.values())
    capsys.readouterr()
    severities.main([str(adapters), "--examples", "4", "--file", str(file), "--table"])
    out = capsys.readouterr().out
    assert out.startswith("| source") and "Of 2 released" in out and "1 are wrong" in out  # nothing was run again


def test_what_cannot_be_imported_is_not_run_and_says_why(tmp_path, capsys):
    (tmp_path / "adapters.py").write_text("import no_such_package\n" + ADAPTERS)
    file = tmp_path / "rows.csv"
    severities.main([f"{tmp_path / 'adapters.py'}:wrong", "--file", str(file)])
    assert {row.now for row in read(file)} == {"not run"} and len(read(file)) == 3
    assert all("no_such_package" in row.reason and str(tmp_path) not in row.reason for row in read(file))
    assert sum("no_such_package" in line for line in doubtful(read(file))) == 3


def test_rows_are_read_as_they_were_written_and_replaced_by_kernel_and_dtype(tmp_path):
    first = [
        row("k", "bfloat16", "precision stated", stated="1.0 bits of dx, 2.0 of dy", seconds=1.5),
        row("k", "float16", "green", commit="1234567"),
    ]
    record(tmp_path / "rows.csv", first)
    assert read(tmp_path / "rows.csv") == first and read(tmp_path / "none.csv") == []
    again = replace(first[1], now="wrong", reason="α, β")
    record(tmp_path / "rows.csv", [again])
    assert read(tmp_path / "rows.csv") == [first[0], again]


def counts(text: str) -> dict[tuple[str, str], dict[str, int]]:
    """What a table counts of each source and dtype, without zeros."""
    found = {}
    for each in table_rows(text, "source"):
        numbers = {head: int(cell) for head, cell in each.items() if head not in ("source", "dtype")}
        found[each["source"], each["dtype"]] = {head: number for head, number in numbers.items() if number}
    return found


def test_a_table_adds_up_and_counts_released_kernels_by_their_gravest_dtype():
    rows = [
        row("a", "bfloat16", "precision stated", keeps="eager-bf16"),
        row("a", "float16", "wrong", forward="✓", vjp="✓", hvp="✗ wrong"),
        row("b", "bfloat16", "precision stated", keeps="eager-bf16"),
        row("b", "float16", "green"),
        row("b", "float32", "wrong", forward="✓", vjp="✗ wrong"),
        row("c", "bfloat16", "precision stated", keeps="none"),
        row("d", "bfloat16", "robustness"),
        row("f", "bfloat16", "not run"),
        row("g", "float16", "undecided"),
        row("j", "float16", "crashes"),
        row("h", "bfloat16", "wrong", source=BUGS),
        row("i", "bfloat16", "precision stated", source=BUGS),
    ]
    text = table(rows)
    assert counts(text) == {
        ("a.py", "bfloat16"): {"kernels": 4, STATED: 3, ROBUSTNESS: 1},
        ("a.py", "float16"): {"kernels": 4, WRONG: 1, CRASHES: 1, UNDECIDED: 1, GREEN: 1},
        ("a.py", "float32"): {"kernels": 1, WRONG: 1, "forward or VJP wrong": 1},
        ("bugs", "bfloat16"): {"kernels": 2, WRONG: 1, STATED: 1},
        **{("bugs", dtype): {} for dtype in ("float16", "float32")},
    }
    more = counts(table([*rows, row("a", "float16", "wrong", source="b.py")]))
    assert more["all released", "float16"] == {"kernels": 5, WRONG: 2, CRASHES: 1, UNDECIDED: 1, GREEN: 1}
    released = [each for each in rows if each.source != BUGS]
    assert kernels_by_severity(released) == {WRONG: 2, CRASHES: 1, UNDECIDED: 1, STATED: 1, ROBUSTNESS: 1}
    assert text.splitlines()[-1] == sentence(released)
    assert all(part in sentence(released) for part in ("Of 6 released", "2 are wrong", "1 in the forward", "1 crash"))
    assert [line.split()[1] for line in doubtful(rows)] == ["f", "g", "j", "i"]
