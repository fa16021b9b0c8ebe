"""What the kernel claims: forward and VJP. Its JVP and HVP are not judged, and those of a kernel that has them are."""

from __future__ import annotations

import pytest
from gradoracle.properties.gated_delta import FAMILY, KERNELS

from gradoracle.check.run import check
from gradoracle.model.claims import Mark, Standing, standings
from gradoracle.model.derivative import Derivative
from gradoracle.model.finding import Outcome
from gradoracle.model.verdict import Status
from gradoracle.project.request import Request
from gradoracle.report import terminal
from tests.properties.gated_delta.delta_rule import ORACLE, kernel
from tests.properties.judging import judge

LINE = "case:1 gated_delta cpu float32 B=1 H=2 T=7 D=3 Dv=2 --return_state=true initial_state~normal seed=1"
SECOND = (Derivative.JVP, Derivative.HVP)


@pytest.mark.usefixtures("unshrunk")
def test_a_report_says_that_jvp_and_hvp_are_not_claimed() -> None:
    (own,) = KERNELS
    assert [each for each in Derivative if own.is_claimed(each)] == [Derivative.FORWARD, Derivative.VJP]
    request = Request("gated_delta", device="cpu", dtypes=("float32",), examples=6, workers=0, property="*_matches_*")
    report = check(request)
    found = standings(report, own.name)
    assert [found[each].mark for each in Derivative] == [Mark.HOLDS, Mark.HOLDS, Mark.ABSENT, Mark.ABSENT]
    assert found[Derivative.JVP] == found[Derivative.HVP] == Standing(Mark.ABSENT, "not claimed")
    assert report.exit_code == 0
    assert {verdict.property_name.split("_")[0] for verdict in report.verdicts} == {"forward", "vjp"}
    assert "forward ✓  VJP ✓  JVP - not claimed  HVP - not claimed" in terminal.render([report])


@pytest.mark.parametrize("derivative", SECOND)
def test_a_kernel_that_has_them_is_judged_by_those_of_the_definition(derivative: Derivative) -> None:
    name = f"{derivative.value}_matches_the_oracle"
    assert judge(name, LINE, kernel(), ORACLE).status is Status.HOLDS
    found = judge(name, LINE, kernel("values written without beta"), ORACLE)
    assert found.status is Status.VIOLATED
    violated = {finding.tensor for finding in found.findings if finding.outcome is Outcome.VIOLATED}
    assert violated <= {
        f"{derivative.value}.{each.name}" for each in (*FAMILY.signature.outputs, *FAMILY.signature.inputs)
    }
