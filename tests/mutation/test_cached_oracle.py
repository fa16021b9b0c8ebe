"""An oracle that remembers gives what the oracle gives, of the values that it was asked about and of no others."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from gradoracle.cases.sample import build
from gradoracle.check.widened import in_float64
from gradoracle.model.case import Case
from gradoracle.model.contract import contract
from gradoracle.model.derivative import Derivative
from gradoracle.mutation import cached_oracle
from gradoracle.mutation.cached_oracle import CachedOracle
from gradoracle.oracle.truth import Oracle
from tests.properties.toys import pick

CASE = Case("pick", {"B": 3, "N": 7}, seed=1)
IEEE = contract("ieee32", "float32")


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the questions that reached the oracle itself."""
    found: list[str] = []

    def noting(name: str) -> Any:
        own = getattr(Oracle, name)

        def told(self: Oracle, *args: Any, **fields: Any) -> Any:
            found.append(name)
            return own(self, *args, **fields)

        return told

    for name in ("budgets", "truth"):
        monkeypatch.setattr(Oracle, name, noting(name))
    return found


def answers(oracle: Oracle, sample: Any) -> list[torch.Tensor]:
    budgets = oracle.budgets(sample, Derivative.VJP, IEEE)
    truths = oracle.truth(sample, Derivative.VJP, budgets, IEEE)
    return [part for name in truths for part in (truths[name].value, truths[name].radius, budgets[name].sigma)]


def test_what_is_remembered_is_what_was_found_out(tmp_path: Path, asked: list[str]) -> None:
    sample = build(CASE, pick.signature)
    own = answers(Oracle(pick, "float64"), sample)
    first = answers(CachedOracle(tmp_path, pick, "float64", 64), sample)
    assert asked == ["budgets", "truth"] * 2
    again = answers(CachedOracle(tmp_path, pick, "float64", 64), build(CASE, pick.signature))
    assert asked == ["budgets", "truth"] * 2
    for mine, theirs, later in zip(own, first, again, strict=True):
        assert torch.equal(mine, theirs) and torch.equal(mine, later)


def test_other_values_other_questions_and_other_layouts(tmp_path: Path, asked: list[str]) -> None:
    oracle = CachedOracle(tmp_path, pick, "float64", 64)
    sample = build(CASE, pick.signature)
    answers(oracle, sample)
    strided = sample.map(lambda x: x.t().contiguous().t() if x.dim() == 2 else x)
    answers(oracle, strided)
    assert asked == ["budgets", "truth"]  # the same values in another layout
    answers(oracle, build(replace(CASE, seed=2), pick.signature))
    assert asked == ["budgets", "truth"] * 2
    oracle.budgets(sample, Derivative.VJP, IEEE, worst=True)
    oracle.budgets(sample, Derivative.FORWARD, IEEE)
    assert len(asked) == 6
    one = sample.with_inputs(x=sample.inputs["x"].clone().index_fill_(1, torch.tensor([0]), 9.0))
    oracle.budgets(one, Derivative.VJP, IEEE)
    assert len(asked) == 7


def test_widened_tensors_are_told_from_those_as_written(tmp_path: Path, asked: list[str]) -> None:
    oracle = CachedOracle(tmp_path, pick, "float64", 64)
    sample = build(replace(CASE, dtype="bfloat16"), pick.signature)
    wide = sample.map(in_float64)
    own = [answers(Oracle(pick, "float64"), each) for each in (sample, wide)]
    asked.clear()
    for _ in range(2):
        for each, expected in zip((sample, wide), own, strict=True):
            for mine, theirs in zip(answers(oracle, each), expected, strict=True):
                assert torch.equal(mine, theirs)
    assert asked == ["budgets", "truth"] * 2


def test_what_only_looks_up_writes_nothing_and_what_is_large_is_not_kept(
    tmp_path: Path, asked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    sample = build(CASE, pick.signature)
    oracle = CachedOracle(tmp_path, pick, "float64", 64)
    oracle.keeps = False
    answers(oracle, sample)
    assert not list(tmp_path.iterdir())
    monkeypatch.setattr(cached_oracle, "MOST", 10)
    answers(CachedOracle(tmp_path, pick, "float64", 64), sample)
    assert not list(tmp_path.iterdir()) and asked == ["budgets", "truth"] * 2


def test_a_widened_sample_is_another_and_is_remembered_too(tmp_path: Path, asked: list[str]) -> None:
    case = replace(CASE, dtype="bfloat16")
    sample = build(case, pick.signature)
    oracle = CachedOracle(tmp_path, pick, "float64", graphs=8)
    answers(oracle, sample)
    first = answers(oracle, sample.map(in_float64))
    assert asked == ["budgets", "truth"] * 2
    again = answers(CachedOracle(tmp_path, pick, "float64", graphs=8), sample.map(in_float64))
    assert asked == ["budgets", "truth"] * 2
    assert all(torch.equal(one, other) for one, other in zip(first, again, strict=True))


@pytest.mark.parametrize("strides", [(0, 0), (1, 0), (5, 3)])
def test_what_is_asked_has_a_name_whatever_its_strides(strides: tuple[int, int]) -> None:
    """A tensor of one element is contiguous with any strides, and can then not be read as bytes."""
    line, other = (torch.full((4,), value).as_strided((1, 1), strides) for value in (1.5, 2.5))
    sample = build(Case("pick", {"B": 1, "N": 1}, seed=1), pick.signature)
    first, same, second = (
        cached_oracle._key(("truth",), sample.with_inputs(**dict.fromkeys(sample.inputs, each)))
        for each in (line, line.clone(), other)
    )
    assert first == same != second
