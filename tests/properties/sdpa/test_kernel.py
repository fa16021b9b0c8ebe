"""The shipped Triton kernel satisfies its properties, and what they measure of convergence and overflow is correct."""

from __future__ import annotations

from dataclasses import replace

from gradoracle.properties import sdpa

from gradoracle.check.judge_property import judge_property
from gradoracle.model.case import parse
from gradoracle.model.derivative import Derivative
from gradoracle.model.finding import Outcome
from gradoracle.model.verdict import Status
from tests.properties.sdpa import attention
from tests.properties.sdpa.attention import evidence, judge

SHIPPED = sdpa.KERNELS[0]
PROPERTIES = {prop.name: prop for prop in sdpa.FAMILY.properties}
CASES = [
    "case:1 sdpa cpu float32 B=1 H=2 T=17 M=33 D=16 Dv=8 blocks=small seed=1",
    "case:1 sdpa cpu bfloat16 B=2 H=1 T=20 M=7 D=5 Dv=9 --causal=true k~normal/transposed blocks=wide seed=2",
    "case:1 sdpa cpu float16 B=1 H=1 T=9 M=21 D=12 Dv=3 --scale=0.25 --causal=true do~positive/sliced seed=3",
    "case:1 sdpa cpu float64 B=1 H=2 T=6 M=5 D=4 Dv=3 seed=4",
    "case:1 sdpa cpu float32 B=2 H=1 T=5 M=1 D=1 Dv=1 --scale=1.0 q~largemean k~ties seed=5",
    "case:1 sdpa cpu bfloat16 B=1 H=2 T=1 M=40 D=16 Dv=16 q~extreme k~extreme v~outlier seed=6",
]


def test_the_shipped_kernel_breaks_no_property_and_each_is_decided() -> None:
    held: set[str] = set()
    for line in CASES:
        own = evidence(line, SHIPPED)
        properties = [prop for prop in PROPERTIES.values() if prop.applies(own.case, SHIPPED) is None]
        found = {prop.name: judge_property(prop, own) for prop in properties}
        assert not {name: result for name, result in found.items() if result.status is Status.VIOLATED}
        decided = {name for name, result in found.items() if result.status is Status.HOLDS}
        assert len(decided) >= 15
        held |= decided
    assert held == set(PROPERTIES)


def test_a_kernel_without_entry_points_is_not_asked_for_them() -> None:
    bare = replace(SHIPPED, extras={}, jvp=None, hvp=None, deterministic=False)
    _, _, case = parse(CASES[0])
    barred = {
        name for name, prop in PROPERTIES.items() if (prop.applies(case, bare) or "").startswith("the kernel has no")
    }
    assert barred == {
        "the_saved_statistics_are_those_of_the_scores",
        "l_lies_between_one_and_the_number_of_keys",
        "stats_rebuild_p",
        "backward_from_the_saved_statistics_is_the_vjp",
        "jvp_from_the_saved_statistics_is_the_jvp",
        "frozen_stats_jvp_vs_autograd_gap",
        "frozen_stats_jvp_of_stale_statistics",
        "jvp_of_stale_statistics",
        "the_central_difference_converges_to_the_hvp",
    }


def test_a_ds_beyond_float16_is_a_declared_overflow() -> None:
    # dS reaches 80 000; the definition's graph multiplies it by the scale before the product, the kernel after it
    line = "case:1 sdpa cpu float16 B=2 H=3 T=33 M=7 D=127 Dv=127 --causal=true do~extreme blocks=small seed=8439"
    own = evidence(line, SHIPPED)
    assert not own.tensors(Derivative.VJP)["dq"].isfinite().all()
    findings = list(own.compare(Derivative.VJP))
    assert all(finding.outcome is not Outcome.VIOLATED for finding in findings)
    assert judge("q_dq_equals_k_dk", line, SHIPPED).status is Status.NOT_CHECKED


def test_the_order_of_convergence_is_measured_in_float64() -> None:
    found = judge("the_central_difference_converges_to_the_hvp", CASES[3], SHIPPED)
    orders = [finding for finding in found.findings if finding.tensor.startswith("order of")]
    assert [finding.tensor for finding in orders] == ["order of hvp.q", "order of hvp.k", "order of hvp.v"]
    assert all(finding.outcome is Outcome.HOLDS for finding in orders)


def test_a_one_sided_difference_shows_in_the_order() -> None:
    found = judge("the_central_difference_converges_to_the_hvp", CASES[3], attention.kernel("one-sided difference"))
    orders = [finding for finding in found.findings if finding.tensor.startswith("order of")]
    assert orders and all(finding.outcome is Outcome.VIOLATED for finding in orders)
    assert "order 0.99" in orders[0].message or "order 1.0" in orders[0].message


def test_dq_holds_where_one_key_takes_a_row() -> None:
    # what rounding takes from o is as large as dS there; a kernel that rounds both together is wrong on these
    for line in (
        "case:1 sdpa cpu bfloat16 B=1 H=1 T=2 D=2 M=2 Dv=33 --scale=1.0 q~normal:10 k~uniform do~positive seed=0",
        "case:1 sdpa cpu bfloat16 B=3 H=4 T=32 D=7 M=23 Dv=33 --scale=1.0 q~normal:10 k~uniform v~normal:3 do~positive "
        "blocks=wide seed=9656",
        "case:1 sdpa cpu bfloat16 B=1 H=1 T=1 D=1 M=2 Dv=1 q~normal:3 k~normal:0.1 v~normal/broadcast seed=0",
    ):
        assert judge("vjp_matches_the_oracle", line, SHIPPED).status is Status.HOLDS
