"""Alternatives: one argument in several shapes; every case that is drawn, shrunk or read gives exactly one of them."""

from __future__ import annotations

import pytest
import torch
from jaxtyping import Float
from torch import Tensor

from gradoracle.cases.coverage import goals_of, wanted_goals
from gradoracle.cases.sample import build
from gradoracle.cases.shrinking import shrink
from gradoracle.cases.stream import stream
from gradoracle.execution.kernel_runner import KernelRunner
from gradoracle.model.case import Case, Draw, parse
from gradoracle.model.derivative import Derivative
from gradoracle.model.family import family
from gradoracle.model.kernel import Kernel, kernel
from gradoracle.oracle.truth import Oracle
from gradoracle.report.catalogue import signature


@family(
    joint={"large rows": {"rows": "normal:10"}, "open": {"row": "forbidden:0.5", "x": "normal"}},
    alternatives=[("row", "rows")],
)
def scaled(
    x: Float[Tensor, "B N"],
    row: Float[Tensor, "N"] | None,
    rows: Float[Tensor, "B N"] | None,
    y: Float[Tensor, "B N"],
    *,
    bias: Float[Tensor, "N"] | None = None,
) -> Float[Tensor, "B N"]:
    """x times a row or rows, plus y and a bias."""
    factor = rows if row is None else row
    product = x * torch.where(factor == -torch.inf, 0.0, factor) + y
    return product if bias is None else product + bias


def right(x: Tensor, factor: Tensor, y: Tensor, *, bias: Tensor | None = None) -> Tensor:
    product = x * torch.where(factor == -torch.inf, 0.0, factor) + y
    return product if bias is None else product + bias


KERNEL: Kernel = kernel(scaled)(right)


def cases(examples: int = 150) -> list[Case]:
    return list(stream(scaled, KERNEL, dtypes=("float32",), examples=examples))


def test_every_case_gives_exactly_one_and_each_is_given() -> None:
    drawn = cases()
    given = [("row" in case.draws, "rows" in case.draws) for case in drawn]
    assert set(given) == {(True, False), (False, True)}
    met = {name for case in drawn for name in goals_of(scaled, KERNEL, case)}
    expected = wanted_goals(scaled, KERNEL, ("float32",), len(drawn))
    assert set(expected) <= met
    assert {"row given", "row absent", "rows given", "rows absent", "joint large rows", "joint open"} <= set(expected)
    assert not any("trow" in case.draws and "row" not in case.draws for case in drawn)


def test_the_kernel_takes_them_at_one_place_and_the_definition_by_name() -> None:
    subject = KernelRunner(scaled, KERNEL)
    for case in cases(30):
        sample = build(case, scaled.signature, domains=scaled.domains)
        (got,) = subject.forward(sample)[0].values()
        graph = Oracle(scaled).graph(sample, Derivative.FORWARD)
        doubles = [t.double() for t in sample.inputs.values()]
        assert torch.allclose(got.double(), graph(*doubles)[0], rtol=1e-5, atol=1e-5 * float(got.abs().max()))
    parameters = signature(scaled.signature).partition(")")[0].strip("(").split(", ")
    assert parameters == ["x[B N]", "row[N] or rows[B N]", "y[B N]", "*", "bias[N]=None"]


def test_a_callable_without_the_place_does_not_fit() -> None:
    with pytest.raises(TypeError, match=r"expected the inputs \(x, row or rows, y\) positionally"):
        kernel(scaled)(lambda x, y: x + y)


def test_a_case_that_gives_none_or_both_is_refused() -> None:
    for words, said in (("", "none of row, rows"), ("row~normal rows~ties", "row and rows of row, rows")):
        _, _, case = parse(f"case:1 scaled cpu float32 B=2 N=3 {words} seed=1")
        with pytest.raises(ValueError, match=f"{said}; expected exactly one of them"):
            build(case, scaled.signature)


def test_what_is_shrunk_keeps_the_one_that_is_given() -> None:
    seen: list[Case] = []

    def violates(case: Case) -> bool:
        seen.append(case)
        build(case, scaled.signature)
        return case.dims["N"] > 2

    case = Case("scaled", {"B": 3, "N": 17}, draws={"rows": Draw("ties"), "bias": Draw("ties")}, seed=3)
    found, _ = shrink(scaled, KERNEL, case, violates, seconds=60.0)
    assert len(seen) > 1 and all("rows" in case.draws and "row" not in case.draws for case in seen)
    assert found.draws == {"rows": Draw()}


def test_a_kernel_that_takes_one_of_them_only_is_given_no_other() -> None:
    only = Kernel("scaled", "scaled", right, options={"rows": ()})
    drawn = list(stream(scaled, only, dtypes=("float32",), examples=110))
    assert all("row" in case.draws and "rows" not in case.draws for case in drawn)
    expected = wanted_goals(scaled, only, ("float32",), len(drawn))
    assert "row given" in expected and "row absent" not in expected and "rows given" not in expected


def test_inputs_that_are_not_optional_are_no_alternatives() -> None:
    with pytest.raises(ValueError, match="alternatives names x; expected some of its optional inputs bias"):

        @family(alternatives=[("x",)])
        def plain(x: Float[Tensor, "N"], *, bias: Float[Tensor, "N"] | None = None) -> Float[Tensor, "N"]:
            return x
