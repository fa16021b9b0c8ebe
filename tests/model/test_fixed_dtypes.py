"""Tensors of a fixed dtype: drawn in it, asked for in it, and held to its rounding, whatever the case's dtype is."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from jaxtyping import Float, Float32
from torch import Tensor

import gradoracle
from gradoracle.cases.sample import build
from gradoracle.check.run import check
from gradoracle.model.case import Case
from gradoracle.model.errors import UsageError
from gradoracle.model.verdict import Report, Status
from gradoracle.project.request import Request

SIZES = {"B": gradoracle.sizes(1, 20), "N": gradoracle.sizes(1, 64)}


@gradoracle.family(outputs=("lse",), dims=SIZES)
def shifted(x: Float[Tensor, "B N"], shift: Float32[Tensor, "B"]) -> Float32[Tensor, "B"]:
    return torch.logsumexp(x, -1) + shift


@gradoracle.kernel(shifted)
def right(x, shift):
    return torch.logsumexp(x.to(shift.dtype), -1) + shift


@gradoracle.kernel(shifted)
def narrow(x, shift):
    return right(x, shift).to(x.dtype)


@gradoracle.kernel(shifted)
def rounds_its_output(x, shift):
    return right(x, shift).to(x.dtype).to(shift.dtype)


@gradoracle.kernel(shifted)
def rounds_its_shift(x, shift):
    return torch.logsumexp(x.float(), -1) + shift.to(x.dtype).float()


def checked(kernel: str, **fields: object) -> Report:
    plain = {"device": "cpu", "examples": 24, "workers": 0, "property": "[fvjh]*_matches_the_oracle"}
    return check(Request(f"{Path(__file__)}:{kernel}", **{**plain, **fields}))  # type: ignore[arg-type]


def statuses(report: Report, dtype: str) -> dict[str, Status]:
    return {verdict.property_name: verdict.status for verdict in report.verdicts if verdict.dtype == dtype}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "float64"])
def test_a_sample_has_each_tensor_in_its_own_dtype(dtype: str) -> None:
    sample = build(Case("shifted", {"B": 2, "N": 3}, dtype), shifted.signature)
    case, fixed = getattr(torch, dtype), torch.float64 if dtype == "float64" else torch.float32
    assert (sample.inputs["x"].dtype, sample.tangents["x"].dtype) == (case, case)
    assert {t["shift"].dtype for t in (sample.inputs, sample.tangents)} == {fixed}
    assert sample.cotangents["lse"].dtype == fixed


def test_a_correct_kernel_holds_in_every_dtype() -> None:
    report = checked("right", dtypes=("float32", "bfloat16", "float16", "float64"))
    assert report.exit_code == 0
    assert all(verdict.status is Status.HOLDS for verdict in report.verdicts)
    floats = {v.dtype: v.sensitivity for v in report.verdicts if v.property_name == "forward_matches_the_oracle"}
    assert floats["bfloat16"] is not None and floats["bfloat16"] < 1e-4, "an output in float32 is held to float32"


def test_another_dtype_than_the_fixed_one_is_said() -> None:
    report = checked("narrow", dtypes=("bfloat16",), property="forward_matches*")
    (verdict,) = report.verdicts
    assert verdict.status is Status.VIOLATED and verdict.counterexample is not None
    first = verdict.counterexample.findings[0]
    assert first.tensor == "lse" and "bfloat16, expected float32" in first.message


@pytest.mark.parametrize("kernel", ["rounds_its_output", "rounds_its_shift"])
def test_a_fixed_dtype_in_name_only_is_violated(kernel: str) -> None:
    report = checked(kernel)
    for dtype in ("bfloat16", "float16"):
        assert statuses(report, dtype)["forward_matches_the_oracle"] is Status.VIOLATED
    assert set(statuses(report, "float32").values()) == {Status.HOLDS}


def test_saved_tensors_may_mix_the_two(tmp_path: Path) -> None:
    path = tmp_path / "saved.pt"
    tensors = {"x": torch.ones(2, 5, dtype=torch.bfloat16), "shift": torch.full((2,), 0.1)}
    torch.save(tensors, path)
    assert checked("right", inputs=str(path)).exit_code == 0
    torch.save({**tensors, "shift": tensors["shift"].bfloat16()}, path)
    with pytest.raises(UsageError, match="shift has dtype bfloat16, expected float32"):
        checked("right", inputs=str(path))
