"""``*batch``: any number of leading dims, drawn for each case, the same in all tensors that name it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from gradoracle.cases.coverage import goals_of, wanted_goals
from gradoracle.cases.sample import build
from gradoracle.cases.saved_tensors import saved_case
from gradoracle.cases.shrinking import shrink
from gradoracle.cases.stream import stream
from gradoracle.check.run import check
from gradoracle.check.usable_case import sizes_wanted
from gradoracle.model.case import Case, parse, require_fit
from gradoracle.model.dims import choices, sizes
from gradoracle.model.domains import IndexDomain
from gradoracle.model.errors import UsageError
from gradoracle.model.family import Family, family
from gradoracle.model.kernel import Kernel, kernel
from gradoracle.model.verdict import Status
from gradoracle.project.request import Request
from gradoracle.report.catalogue import signature

FOUND = "import torch\nfrom jaxtyping import Bool, Float, Int\nfrom torch import Tensor\nimport gradoracle\n"
NORMED = """
@gradoracle.family
def normed(x: Float[Tensor, "*batch N"], w: Float[Tensor, "N"]) -> Float[Tensor, "*batch N"]:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * w
"""


@family(dims={"T": sizes(1, 9)}, domains={"index": IndexDomain("T")}, outputs=("y", "sum"))
def picked(
    x: Float[Tensor, "*batch T"], keep: Bool[Tensor, "*batch T"], index: Int[Tensor, "*batch"], w: Float[Tensor, "T"]
) -> tuple[Float[Tensor, "*batch T"], Float[Tensor, "*batch"]]:
    chosen = x.gather(-1, index[..., None])
    return torch.where(keep, x * w, 0.0) - chosen, x.sum(-1)


KERNEL = Kernel("picked", "picked", picked, outside=True)


def ranks(cases: list[Case]) -> set[int]:
    return {sum(dim.startswith("batch") for dim in case.dims) for case in cases}


def checked(tmp_path: Path, text: str, **fields: Any) -> Any:
    file = tmp_path / "mine.py"
    file.write_text(FOUND + text)
    fields = {"dtypes": ("float32",), "workers": 0, "examples": 20} | fields
    return check(Request(str(file), **fields))


def test_cases_have_none_to_three_dims_of_the_same_sizes_in_every_tensor() -> None:
    cases = stream(picked, KERNEL, examples=40)
    assert ranks(cases) == {0, 1, 2, 3}
    for case in cases:
        batch = tuple(size for dim, size in case.dims.items() if dim.startswith("batch"))
        sample = build(case, picked.signature, domains=picked.domains)
        shapes = {n: tuple(t.shape) for n, t in (*sample.inputs.items(), *sample.cotangents.items())}
        rows = (*batch, case.dims["T"])
        assert shapes == {"x": rows, "keep": rows, "index": batch, "w": rows[-1:], "y": rows, "sum": batch}
        assert parse(case.line())[2] == case
        assert list(case.dims) == [dim for dim in picked.dims if dim in case.dims]


def test_each_number_of_dims_is_a_coverage_goal() -> None:
    wanted = wanted_goals(picked, KERNEL, ("float32",), 120)
    met = {f"*batch is {text}" for text in ("0 dims", "1 dim", "2 dims", "3 dims")}
    assert met <= set(wanted)
    assert "batch2 has a tail" in wanted
    two = Case("picked", {"batch0": 2, "batch1": 1, "T": 3})
    assert {"*batch is 2 dims", "batch1 = 1"} <= goals_of(picked, KERNEL, two)
    one = Kernel("one", "picked", picked, dims={"*batch": choices(0, 1)}, outside=True)
    narrow = wanted_goals(picked, one, ("float32",), 120)
    assert "*batch is 2 dims" not in narrow and "batch1 = 1" not in narrow and "batch0 = 1" in narrow
    goals = {name for case in stream(picked, KERNEL, dtypes=("float32",), examples=120)
             for name in goals_of(picked, KERNEL, case)}  # fmt: skip
    assert set(wanted) <= goals


def test_kernel_family_and_user_restrict_the_number_of_dims_and_their_sizes() -> None:
    two = Kernel("two", "picked", picked, dims={"*batch": choices(0, 2)}, outside=True)
    assert ranks(stream(picked, two, examples=20)) == {0, 2}
    found = stream(picked, two, dims={"*batch": sizes(1, 3), "batch1": choices(3)}, examples=20)
    assert ranks(found) == {2} and {case.dims["batch1"] for case in found} == {3}
    with pytest.raises(ValueError, match=r"dim \*batch of two: 3 was asked for; .* allows 0 to 3, two supports 0, 2"):
        stream(picked, two, dims={"*batch": choices(3)}, examples=2)

    @family(dims={"*lead": choices(2)})
    def tripled(x: Float[Tensor, "*lead N"]) -> Float[Tensor, "*lead N"]:
        return 3 * x

    own = stream(tripled, Kernel("tripled", "tripled", tripled, outside=True), examples=12)
    assert {tuple(case.dims) for case in own} == {("lead0", "lead1", "N")}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"dims": {"*batch": sizes(0, 5)}}, r"has \*batch of 0 to 5 dims; expected at most 3"),
        ({"dims": {"T": sizes(0, 5)}}, "a T of size 0; expected sizes of at least 1"),
        ({"dims": {"*rest": sizes(0, 2)}}, r"dims \['\*rest'\] do not occur"),
        ({"divides": {"batch1": "T"}}, "batch1 is a bound or divides a dim, but not every case has it"),
    ],
)
def test_what_a_family_cannot_ask_of_these_dims_is_refused(arguments: dict[str, Any], words: str) -> None:
    def doubled(x: Float[Tensor, "*batch T"]) -> Float[Tensor, "*batch T"]:
        return 2 * x

    with pytest.raises(ValueError, match=words):
        family(**arguments)(doubled)


@pytest.mark.parametrize(
    ("dims", "words"),
    [
        ({"Q": sizes(1, 3)}, r"kernel doubled: dims has Q; family picked has .*T, .*\*batch"),
        ({"T": sizes(0, 3)}, "kernel doubled: dims has a T of size 0; expected sizes of at least 1"),
    ],
)
def test_a_kernel_narrows_dims_that_its_family_has(dims: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        kernel(picked, name="doubled", dims=dims)(picked.definition)
    narrowed = kernel(picked, name="doubled", dims={"*batch": sizes(0, 1)})(picked.definition)
    assert narrowed.dims == {"*batch": sizes(0, 1)}


def test_a_case_names_these_dims_from_the_first() -> None:
    for dims in ({}, {"batch0": 4}, {"batch0": 4, "batch1": 2}):
        require_fit(Case("picked", {**dims, "T": 3}), picked.signature)
    with pytest.raises(ValueError, match=r"gives batch1 and no batch0; expected the dims of \*batch from the first"):
        require_fit(Case("picked", {"batch1": 4, "T": 3}), picked.signature)
    with pytest.raises(ValueError, match="no size of dim T"):
        require_fit(Case("picked", {"batch0": 4}), picked.signature)


WIDE = Case("picked", {"batch0": 5, "batch1": 7, "batch2": 2, "T": 8}, seed=3)


@pytest.mark.parametrize(
    ("violates", "dims"),
    [
        (lambda case: True, {"T": 1}),
        (lambda case: "batch0" in case.dims, {"batch0": 1, "T": 1}),
        (lambda case: "batch1" in case.dims and case.dims["T"] > 2, {"batch0": 1, "batch1": 1, "T": 3}),
        (lambda case: any(case.dims.get(dim, 0) > 6 for dim in ("batch0", "batch1")), {"batch0": 7, "T": 1}),
        (lambda case: case.dims.get("batch2", 0) == 2, {"batch0": 1, "batch1": 1, "batch2": 2, "T": 1}),
    ],
)
def test_dims_that_do_not_matter_are_shrunk_away(violates: Any, dims: dict[str, int]) -> None:
    assert shrink(picked, KERNEL, WIDE, violates, seconds=60)[0] == Case("picked", dims)


def test_shrinking_keeps_to_the_numbers_of_dims_that_the_kernel_takes() -> None:
    two = Kernel("two", "picked", picked, dims={"*batch": choices(2, 3)}, outside=True)
    assert shrink(picked, two, WIDE, lambda case: True, seconds=60)[0].dims == {"batch0": 1, "batch1": 1, "T": 1}


def test_saved_tensors_say_how_many_dims_there_are(tmp_path: Path) -> None:
    def case_of(x: Tensor, index: Tensor) -> Case:
        torch.save({"x": x, "keep": x > 0, "index": index, "w": torch.randn(5)}, tmp_path / "saved.pt")
        return saved_case(picked, str(tmp_path / "saved.pt"), options={}, seed=0)

    assert case_of(torch.randn(5), torch.tensor(3)).dims == {"T": 5}
    assert case_of(torch.randn(2, 3, 5), torch.zeros(2, 3).long()).dims == {"batch0": 2, "batch1": 3, "T": 5}
    with pytest.raises(UsageError, match=r"index has shape \(2,\), which leaves 1 dims for \*batch .* as in x 2"):
        case_of(torch.randn(2, 3, 5), torch.zeros(2).long())
    with pytest.raises(UsageError, match=r"index has shape \(2, 4\), where batch1 is 4, but x has batch1 = 3"):
        case_of(torch.randn(2, 3, 5), torch.zeros(2, 4).long())
    with pytest.raises(UsageError, match=r"leaves 4 dims for \*batch of \[\*batch T\]; expected 0 to 3"):
        case_of(torch.randn(1, 1, 1, 1, 5), torch.zeros(1, 1, 1, 1).long())


def test_a_kernel_that_is_wrong_for_one_number_of_dims_is_violated_there_alone(tmp_path: Path) -> None:
    wrong = """
@gradoracle.kernel(normed)
def wrong(x, w):
    return normed(x, w) * (1.01 if x.dim() == 3 else 1)

@gradoracle.kernel(normed)
def right(x, w):
    return normed(x, w)
"""
    report = checked(tmp_path, NORMED + wrong, property="*d_matches_the_oracle", examples=12)
    verdicts = {(v.kernel, v.property_name): v for v in report.verdicts}
    assert verdicts["right", "forward_matches_the_oracle"].status is Status.HOLDS
    found = verdicts["wrong", "forward_matches_the_oracle"]
    assert found.status is Status.VIOLATED and found.counterexample is not None
    assert dict(parse(found.counterexample.case)[2].dims) == {"batch0": 1, "batch1": 1, "N": 1}
    assert set(report.goals) >= {"*batch is 0 dims", "*batch is 2 dims"}


def test_every_universal_property_holds_on_a_right_kernel_of_any_number_of_dims(tmp_path: Path) -> None:
    right = "\n@gradoracle.kernel(normed)\ndef right(x, w):\n    return normed(x, w)\n"
    report = checked(tmp_path, NORMED + right, examples=12)
    assert {v.status for v in report.verdicts} == {Status.HOLDS, Status.NOT_CHECKED} and report.exit_code == 0


def test_refusals_are_tabulated_by_the_number_of_dims(tmp_path: Path) -> None:
    one = """
@gradoracle.kernel(normed)
def one(x, w):
    if x.dim() != 2:
        raise ValueError("x must have 2 dims")
    return normed(x, w)
"""
    report = checked(tmp_path, NORMED + one, property="forward_matches_the_oracle")
    (table,) = report.refusals.values()
    assert {"*batch=0", "*batch=2", "*batch=3"} == {mark for mark in table if mark.startswith("*")}


def test_a_definition_that_does_not_take_every_number_of_dims_is_told_how_to_say_so() -> None:
    assert "@gradoracle.family(dims={'*batch': gradoracle.sizes(1, 3)})" in sizes_wanted(picked)


def test_the_listing_shows_the_annotation() -> None:
    inputs, _, outputs = signature(picked.signature).partition(" -> ")
    assert inputs.strip("()").split(", ") == ["x[*batch T]", "keep[*batch T] int", "index[*batch] int", "w[T]"]
    assert outputs.split(", ") == ["y[*batch T]", "sum[*batch]"]
    fixed: Family = picked.at({"batch0": 1, "T": 1})
    assert signature(fixed.signature).startswith("(x[batch0 T], ") and fixed.at({"T": 1}) is fixed
