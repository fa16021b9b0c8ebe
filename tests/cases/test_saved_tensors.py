"""Saved tensors instead of the stream: the dims and dtype they give, and every file that does not fit."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest
import torch
from jaxtyping import Float, Int
from places import TESTS
from torch import Tensor

from gradoracle.cases.saved_tensors import load, sample_of, saved_case
from gradoracle.check.run import check
from gradoracle.model.dims import sizes
from gradoracle.model.domains import IndexDomain
from gradoracle.model.errors import UsageError
from gradoracle.model.family import family
from gradoracle.model.verdict import Report, Status
from gradoracle.project.request import Request

FILE = TESTS / "scaled.py"


@family(
    dims={"B": sizes(1, 4), "T": sizes(1, 9), "K": sizes(2, 5)},
    domains={"lengths": IndexDomain("T", 1, "length"), "starts": IndexDomain("T", 0, "cu_seqlens")},
    outputs=("total",),
)
def spans(
    scores: Float[Tensor, "B T+1"],
    lengths: Int[Tensor, "B"],
    *,
    weights: Float[Tensor, "K 2"] | None = None,
    starts: Int[Tensor, "B+1"] | None = None,
    double: bool = False,
) -> Float[Tensor, "B"]:
    return scores.sum(-1)


SCORES, LENGTHS = torch.randn(3, 6), torch.tensor([1, 5, 2])


def written(tmp_path: Path, tensors: Any) -> str:
    file = tmp_path / "saved.pt"
    torch.save(tensors, file)
    return str(file)


def case_of(tmp_path: Path, tensors: Any) -> Any:
    return saved_case(spans, written(tmp_path, tensors), options={}, seed=5)


def test_dims_and_dtype_are_read_off_the_tensors(tmp_path: Path) -> None:
    case = case_of(tmp_path, {"scores": SCORES.bfloat16(), "lengths": LENGTHS.int()})
    assert (case.dims, case.dtype, case.seed) == ({"B": 3, "T": 5, "K": 2}, "bfloat16", 5)
    assert set(case.draws) == {"lengths"}, "an optional input that is not saved is absent"
    case = case_of(tmp_path, {"scores": SCORES, "lengths": LENGTHS, "weights": torch.ones(4, 2)})
    assert case.dims["K"] == 4 and "weights" in case.draws


def test_the_sample_has_the_saved_values_strides_and_drawn_rest(tmp_path: Path) -> None:
    scores = torch.randn(6, 3).requires_grad_().T
    saved = {"scores": scores.detach(), "lengths": LENGTHS.int(), "tscores": torch.ones(3, 6)}
    path = written(tmp_path, saved)
    case = saved_case(spans, path, options={"double": True}, seed=1)
    sample = sample_of(case, spans, path)
    assert torch.equal(sample.inputs["scores"], scores) and sample.inputs["scores"].stride() == (1, 3)
    assert sample.inputs["lengths"].dtype == torch.int64 and sample.inputs["lengths"].tolist() == [1, 5, 2]
    assert torch.equal(sample.tangents["scores"], torch.ones(3, 6))
    assert sample.cotangents["total"].shape == (3,) and sample.options == {"double": True}
    assert sample.source == path and not sample_of(case, spans, None).source
    sample.inputs["scores"].zero_()
    assert torch.equal(sample_of(case, spans, path).inputs["scores"], scores), "each sample is read anew"


@pytest.mark.parametrize(
    ("tensors", "says"),
    [
        ([SCORES], "holds a list"),
        ({}, "holds nothing"),
        ({"scores": 3.0, "lengths": LENGTHS}, "type float as 'scores'"),
        ({"scores": SCORES.to_sparse(), "lengths": LENGTHS}, "type torch.sparse_coo as 'scores'"),
        ({"scores": SCORES}, "lacks 'lengths'"),
        ({"scores": SCORES, "lengths": LENGTHS, "q": SCORES}, "holds 'q', which spans"),
        ({"scores": SCORES, "lengths": LENGTHS, "dtotal": torch.ones(4)}, "dtotal has shape (4,), where B is 4, but"),
        ({"scores": SCORES, "lengths": LENGTHS[:2]}, "scores has B = 3"),
        ({"scores": SCORES[0], "lengths": LENGTHS}, "expected 2 dims [B T+1]"),
        ({"scores": SCORES[:, :0], "lengths": LENGTHS}, "expected at least one element"),
        ({"scores": SCORES[:, :1], "lengths": LENGTHS}, "T+1 is 1, expected T at least 1"),
        (
            {"scores": SCORES, "lengths": LENGTHS, "weights": torch.ones(2, 3)},
            "weights has shape (2, 3), expected",
        ),
        ({"scores": SCORES, "lengths": LENGTHS, "tscores": SCORES.half()}, "tscores in float16"),
        ({"scores": SCORES.to(torch.complex64), "lengths": LENGTHS}, "scores has dtype complex64"),
        ({"scores": LENGTHS[:, None], "lengths": LENGTHS}, "scores has dtype int64"),
        ({"scores": SCORES, "lengths": LENGTHS.float()}, "lengths has dtype float32"),
        ({"scores": SCORES * torch.nan, "lengths": LENGTHS}, "scores holds NaN"),
        ({"scores": SCORES, "lengths": LENGTHS + 1}, "lengths holds 6 at [1], expected integers from 1 to 5"),
        (
            {"scores": SCORES, "lengths": LENGTHS, "starts": torch.tensor([0, 3, 2, 5])},
            "starts falls from 3 to 2 at [2], expected offsets that rise from 0 to 5",
        ),
    ],
)
def test_a_file_that_does_not_fit_is_one_sentence(tmp_path: Path, tensors: Any, says: str) -> None:
    with pytest.raises(UsageError) as caught:
        case_of(tmp_path, tensors)
    text = str(caught.value)
    assert text.startswith(f"--inputs {tmp_path}") and says in text and "\n" not in text


@pytest.mark.parametrize("content", [b"", b"hello", b"PK\x03\x04 and then nothing"])
def test_a_file_that_holds_no_tensors_is_one_sentence(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "junk.pt"
    file.write_bytes(content)
    with pytest.raises(UsageError, match=r"junk\.pt cannot be read"):
        load(str(file))
    with pytest.raises(UsageError, match="no such file"):
        load(str(tmp_path / "missing.pt"))


def test_a_pickle_that_would_run_code_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="nothing but tensors"):
        load(written(tmp_path, {"scores": Path("x")}))


def checked(kernel: str, saved: str, **fields: Any) -> Report:
    request = {"device": "cpu", "workers": 0, "inputs": saved, "property": "[dfvi]*_*", **fields}
    return check(Request(f"{FILE}:{kernel}", **request))


@pytest.fixture
def saved(tmp_path: Path) -> str:
    generator = torch.Generator().manual_seed(3)
    x, w = torch.randn(40, 4, generator=generator).T, torch.randn(40, generator=generator)
    return written(tmp_path, {"x": x, "w": w, "dy": torch.ones(4, 40)})


def test_the_correct_kernel_holds_on_saved_tensors(saved: str) -> None:
    report = checked("right", saved)
    found = {verdict.property_name: verdict for verdict in report.verdicts}
    assert report.exit_code == 0 and report.cases_run == 1 and report.goals == {}
    for property_name in (
        "forward_matches_the_oracle",
        "vjp_matches_the_oracle",
        "inputs_and_cotangents_are_unmodified",
    ):
        assert found[property_name].status is Status.HOLDS and found[property_name].cases_held == 1


def test_a_wrong_kernel_is_violated_by_the_worst_case_and_its_command_reproduces_it(saved: str) -> None:
    report = checked("has_a_wrong_backward", saved, seed=2)
    (verdict,) = [v for v in report.verdicts if v.property_name == "vjp_matches_the_oracle"]
    assert verdict.status is Status.VIOLATED and verdict.counterexample is not None and report.exit_code == 1
    wrong = [f for f in verdict.counterexample.findings if f.outcome.value == "violated"]
    assert [(f.tensor, f.rule, f.elements) for f in wrong] == [("dw", "worst case", 40)]
    options = ["--inputs", saved, "--device", "cpu", "--seed", "2", "--property", "vjp_matches_the_oracle"]
    expected = ["gradoracle", "check", f"{FILE}:has_a_wrong_backward", *options]
    assert shlex.split(verdict.counterexample.command) == expected
    again = checked("has_a_wrong_backward", saved, seed=2, property="vjp_matches_the_oracle", workers=1)
    assert again.verdicts[0].worst_error == verdict.worst_error


def test_a_saved_input_that_is_changed_is_noticed(saved: str) -> None:
    report = checked("changes_its_input", saved, property="inputs_and_cotangents_are_unmodified")
    (verdict,) = report.verdicts
    assert verdict.status is Status.VIOLATED and verdict.counterexample is not None
    assert [f.tensor for f in verdict.counterexample.findings if f.outcome.value == "violated"] == ["w"]


def test_what_cannot_go_with_saved_tensors_is_refused(saved: str) -> None:
    with pytest.raises(UsageError, match="--dim N cannot be combined"):
        checked("right", saved, dims={"N": sizes(1, 4)})
    with pytest.raises(UsageError, match="--dtype is float16,bfloat16"):
        checked("right", saved, dtypes=("float16", "bfloat16"))
