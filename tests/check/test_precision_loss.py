"""The statement at which precision is lost."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from places import loaded

from gradoracle.cases.sample import build
from gradoracle.check.evidence import Evidence
from gradoracle.check.precision_loss import lost_at
from gradoracle.check.widened import widened
from gradoracle.execution.kernel_runner import KernelRunner
from gradoracle.host import interpreter
from gradoracle.model.case import Case
from gradoracle.model.derivative import Derivative
from gradoracle.model.explanation import Statement
from gradoracle.model.finding import Outcome
from gradoracle.model.kernel import Kernel
from gradoracle.oracle.truth import Oracle

pytestmark = pytest.mark.skipif(
    interpreter.explain_unavailable() is not None, reason=str(interpreter.explain_unavailable())
)
imprecise = loaded("check.imprecise")
softmax = loaded("properties.universal.widened")
norm = loaded("check.rounded_norm")
FAMILIES = {each.name: each for each in (imprecise.mixed, softmax.scaled_softmax, norm.rounded_norm)}
FORWARD, VJP = Derivative.FORWARD, Derivative.VJP
MIXED = Case("mixed", {"B": 32, "N": 16, "D": 16}, seed=3)

# what loses precision, the derivative and the tensors that show it, what stands in the statement, and in others
LOSSES = [
    ("p", FORWARD, ["y"], "# p before the dot", []),
    ("p", VJP, ["dx", "dw"], "# p before the dot", []),
    ("helper", FORWARD, ["y"], "# in a helper", []),
    ("sum", FORWARD, ["y"], "# a sum in 16 bits", []),
    ("dot", FORWARD, ["y"], "# a dot in fewer bits", []),
    ("accumulated", VJP, ["dw"], "# accumulated in 16 bits", []),
    ("atomic", VJP, ["dw"], "# an atomic in 16 bits", []),
    ("input", VJP, ["dx", "dw"], "# the input", []),
    ("saved", VJP, ["dx", "dw"], "# kept for backward", ["# memory of p"]),
    ("output", VJP, ["dx"], "# dx", ["# memory of dx"]),
    ("gradient", VJP, ["dw"], "# the gradient", []),
]


def evidence_of(kernel: Kernel, case: Case = MIXED) -> Evidence:
    family = FAMILIES[case.family]
    return Evidence(case, build(case, family.signature), KernelRunner(family, kernel), Oracle(family, "float64"))


def violated(evidence: Evidence, derivative: Derivative) -> list[str]:
    return [each.tensor for each in evidence.compare(derivative) if each.outcome is Outcome.VIOLATED]


def comments(statements: Sequence[Statement]) -> list[str]:
    return [each.source[each.source.index("#") :] for each in statements if "#" in each.source]


@pytest.mark.parametrize(("loss", "derivative", "names", "text", "others"), LOSSES)
def test_the_statement_that_loses_precision_is_named(
    loss: str, derivative: Derivative, names: list[str], text: str, others: list[str]
) -> None:
    evidence = evidence_of(imprecise.kernel(loss))
    assert violated(evidence, derivative) == names
    assert violated(widened(evidence), derivative) == []
    found = lost_at(evidence, derivative, names)
    assert found is not None
    assert not found.together
    assert found.source.endswith(text)
    assert Path(found.statement.file).name == "imprecise.py"
    assert found.statement.error > 1
    assert [each.source[each.source.index("#") :] for each in found.others] == others


@pytest.mark.parametrize("derivative", [FORWARD, VJP])
def test_in_a_correct_kernel_no_statement_breaks_the_contract(derivative: Derivative) -> None:
    evidence = evidence_of(imprecise.kernel())
    assert violated(evidence, derivative) == []
    assert lost_at(evidence, derivative, evidence.names(derivative)) is None


@pytest.mark.parametrize(
    ("options", "text", "function"),
    [
        ({"narrow": True}, "tl.store(KEPT", "_softmax"),
        ({"rounded": True}, "given, own = ((x * factor).to(x.dtype), 1.0)", "forward"),
    ],
)
def test_a_kernel_in_16_bits(options: dict[str, bool], text: str, function: str) -> None:
    evidence = evidence_of(softmax.softmax("imprecise", **options), softmax.case("scaled_softmax", "bfloat16"))
    assert violated(evidence, VJP) == ["dx"]
    found = lost_at(evidence, VJP, ["dx"])
    assert found is not None
    assert found.source.startswith(text)
    assert found.statement.function == function


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    ("derivative", "name", "text", "others"),
    [
        (VJP, "dx", "m = (g * w).to(tl.float32)", []),
        (VJP, "dw", "dw = g * (x * r).to(g.dtype)", []),
        (FORWARD, "y", "normed = (x * r).to(x16.dtype)", ["y = normed * w"]),  # two roundings, where one is allowed
    ],
)
def test_a_kernel_that_multiplies_in_16_bits(
    derivative: Derivative, name: str, text: str, others: list[str], seed: int
) -> None:
    evidence = evidence_of(norm.KERNEL, Case("rounded_norm", {"B": 40, "N": 100}, dtype="bfloat16", seed=seed))
    assert name in violated(evidence, derivative)
    assert violated(widened(evidence), derivative) == []
    found = lost_at(evidence, derivative, [name])
    assert found is not None
    assert found.source == text
    assert [each.source for each in found.others] == others
    assert found.together == bool(others)


def test_statements_that_break_the_contract_together_only() -> None:
    evidence = evidence_of(imprecise.twice())
    assert violated(evidence, FORWARD) == ["y"]
    found = lost_at(evidence, FORWARD, ["y"])
    assert found is not None
    assert found.together
    assert found.statement.error <= 1
    assert sorted(comments([found.statement, *found.others])) == ["# one half", "# the other"]


@pytest.mark.parametrize("limit", [{"calls": 1}, {"seconds": 0.0}])
def test_nothing_is_named_if_no_call_is_left(limit: dict[str, float]) -> None:
    assert lost_at(evidence_of(imprecise.kernel("p")), FORWARD, ["y"], **limit) is None


def test_few_calls_suffice_for_many_statements() -> None:
    found = lost_at(evidence_of(imprecise.kernel("p")), VJP, ["dx", "dw"], calls=20)
    assert found is not None
    assert found.source.endswith("# p before the dot")
