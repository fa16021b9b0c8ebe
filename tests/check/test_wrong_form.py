"""Tensors of the wrong shape or dtype: one property reports them, others that need them are not checked."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from gradoracle.check.run import check
from gradoracle.model.verdict import BROKEN, Report, Status
from gradoracle.project.request import Request

FORMS = """
import torch, triton, triton.language as tl
import gradoracle
from jaxtyping import Float
from torch import Tensor

@gradoracle.family(dims={"B": gradoracle.sizes(2, 6), "N": gradoracle.sizes(7, 20)})
def scaled(x: Float[Tensor, "B N"], w: Float[Tensor, "N"]) -> Float[Tensor, "B N"]:
    return x * w

@triton.jit
def _forward(X, W, Y, N, BLOCK: tl.constexpr):
    row, n = tl.program_id(0), tl.arange(0, BLOCK)
    tl.store(Y + row * N + n, tl.load(X + row * N + n, mask=n < N) * tl.load(W + n, mask=n < N), mask=n < N)

class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w, form, more):
        ctx.save_for_backward(x, w)
        ctx.severed = form == "severed"
        x, w, y = x.contiguous(), w.contiguous(), torch.empty_like(x, memory_format=torch.contiguous_format)
        _forward[(x.shape[0] + more,)](x, w, y, x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1]))
        forms = {"more": y[..., None], "transposed": y.mT.contiguous(), "fewer": y[:-1].clone()}
        return forms.get(form, y)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        return g * w, None if ctx.severed else (g * x).sum(0), None, None

kernels = {
    "right": lambda x, w: Scaled.apply(x, w, "", 0),
    "one_dim_more": lambda x, w: Scaled.apply(x, w, "more", 0),
    "transposed": lambda x, w: Scaled.apply(x, w, "transposed", 0),
    "one_row_too_few": lambda x, w: Scaled.apply(x, w, "fewer", 0),
    "one_program_too_many": lambda x, w: Scaled.apply(x, w, "", 1),
    "another_dtype": lambda x, w: x.double() * w,
    "no_gradient_of_w": lambda x, w: Scaled.apply(x, w, "severed", 0),
    "other_values": lambda x, w: (x * w)[..., None] if x.shape[0] == 3 else 1.01 * x * w,
}
for name, call in kernels.items():
    globals()[name] = gradoracle.kernel(scaled, name=name)(call)
"""


def of_form(tmp_path: Path, kernel: str, **fields: Any) -> Report:
    (tmp_path / "forms.py").write_text(FORMS)
    fields = {"dtypes": ("float32",), "examples": 8, "workers": 0, "seconds": 60.0} | fields
    return check(Request(f"{tmp_path / 'forms.py'}:{kernel}", device="cpu", **fields))


@pytest.mark.parametrize(
    ("kernel", "property_name", "says"),
    [
        ("one_dim_more", "forward_matches_the_oracle", r"out has shape \(2, 7, 1\), expected \(2, 7\)"),
        ("transposed", "forward_matches_the_oracle", r"out has shape \(7, 2\), expected \(2, 7\)"),
        ("one_row_too_few", "forward_matches_the_oracle", r"out has shape \(1, 7\), expected \(2, 7\)"),
        ("another_dtype", "forward_matches_the_oracle", "out has dtype float64, expected float32"),
        ("no_gradient_of_w", "vjp_matches_the_oracle", "dw is None: w takes part in the definition"),
    ],
)
def test_a_tensor_of_the_wrong_form_violates_the_property_that_compares_it(
    tmp_path: Path, kernel: str, property_name: str, says: str
) -> None:
    """The others that need the tensor have nothing to judge: they are not checked, for that reason."""
    report = of_form(tmp_path, kernel)
    assert report.exit_code == 1 and [v.property_name for v in report.verdicts if v.status in BROKEN] == [property_name]
    assert len(report.faults) == 1 and report.faults[0].verdicts[0].property_name == property_name
    by_name = {verdict.property_name: verdict for verdict in report.verdicts}
    found = by_name[property_name].counterexample
    assert found is not None and re.search(says, " ".join(f.message for f in found.findings))
    tensor = says.split()[0]
    idle = [v for v in report.verdicts if any(reason.startswith(f"{tensor} ") for reason in v.reasons)]
    assert len(idle) > 5 and {v.status for v in idle} == {Status.NOT_CHECKED}
    assert tensor != "out" or by_name["every_access_stays_inside_its_tensor"] in idle


def test_where_one_property_alone_is_asked_it_reports_the_wrong_form(tmp_path: Path) -> None:
    report = of_form(tmp_path, "one_dim_more", property="runs_are_bit_identical", examples=4)
    assert report.exit_code == 1 and {v.status for v in report.verdicts} == {Status.VIOLATED}


def test_a_wrong_access_of_a_kernel_whose_tensors_have_the_right_form_is_reported(tmp_path: Path) -> None:
    report = of_form(tmp_path, "one_program_too_many")
    assert [v.property_name for v in report.verdicts if v.status in BROKEN] == ["every_access_stays_inside_its_tensor"]
    assert {v.status for v in of_form(tmp_path, "right").verdicts} == {Status.HOLDS, Status.NOT_CHECKED}


def test_wrong_values_on_other_cases_are_reported_beside_a_wrong_form(tmp_path: Path) -> None:
    report = of_form(tmp_path, "other_values", property="[fv][oj][rp]*_matches_the_oracle")
    statuses = {verdict.property_name: verdict.status for verdict in report.verdicts}
    assert statuses["vjp_matches_the_oracle"] is statuses["forward_matches_the_oracle"] is Status.VIOLATED


UNUSED = """
import torch, gradoracle
from jaxtyping import Float
from torch import Tensor

@gradoracle.family(dims={"T": gradoracle.sizes(1, 3), "N": gradoracle.sizes(1, 3)})
def chain(x: Float[Tensor, "T N"], w: Float[Tensor, "N"]) -> Float[Tensor, "N"]:
    h, gate = x[0], torch.sigmoid(w)
    for t in range(1, x.shape[0]):
        h = h * gate + x[t]
    return h

@gradoracle.kernel(chain)
def right(x, w):
    return chain.definition(x, w)

@gradoracle.kernel(chain)
def never(x, w):
    return chain.definition(x, w.detach())
"""


def test_no_gradient_is_asked_of_an_input_that_the_definition_does_not_use_at_these_sizes(tmp_path: Path) -> None:
    (tmp_path / "unused.py").write_text(UNUSED)
    found = {
        kernel: check(
            Request(f"{tmp_path / 'unused.py'}:{kernel}", device="cpu", dtypes=("float32",), examples=16, workers=0)
        )
        for kernel in ("right", "never")
    }
    assert found["right"].exit_code == 0 and found["never"].exit_code == 1
    (verdict,) = (v for v in found["never"].verdicts if v.property_name == "vjp_matches_the_oracle")
    assert verdict.counterexample is not None and "T=2" in str(verdict.counterexample.case)
    assert "dw is None" in " ".join(f.message for f in verdict.counterexample.findings)
