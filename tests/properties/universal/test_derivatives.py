"""Laws of derivatives, linearity and differences: each has a kernel that it catches; the right one holds beside it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from gradoracle.properties.universal import UNIVERSAL

from gradoracle.model.verdict import Status
from tests.properties.toys import CASE, RIGHT, drawn, edited, judged, kernel, right

LAWS = {law.name: law for law in UNIVERSAL}


def wrong_output(x, y):
    p, s = right(x, y)
    return torch.cat([p[:, :-1], p[:, -1:] * 1.0001], 1), s


def wrong_gradient(x, y):
    return right(edited(x, lambda g: g * 1.001), y)


def overflowing(x, y):
    e = torch.exp(x)
    return e / e.sum(-1, keepdim=True) * y * y, torch.logsumexp(x, -1)


def clamped_cotangent(x, y):
    return right(edited(x, lambda g: g.clamp(-0.05, 0.05)), y)


def dropped_cotangent(x, y):
    p, s = right(x, y)
    return p, edited(s, torch.zeros_like)


def frozen_in_backward(x, y):
    """The gradient is right; differentiated once more, softmax is a constant."""

    class Softmax(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x):
            p = torch.softmax(x, -1)
            ctx.save_for_backward(p)
            return p

        @staticmethod
        def backward(ctx: Any, g):
            p = ctx.saved_tensors[0].detach()
            return p * (g - (g * p).sum(-1, keepdim=True))

    return Softmax.apply(x) * y * y, torch.logsumexp(x, -1)


class NeedsEveryCotangent(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x, y):
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(x, y)
        return torch.softmax(x, -1) * y * y, torch.logsumexp(x, -1)

    @staticmethod
    def backward(ctx: Any, dp, ds):
        x, y = ctx.saved_tensors
        p = torch.softmax(x, -1)
        dp = torch.zeros_like(x) if dp is None else dp
        inner = dp * y * y
        return p * (inner - (inner * p).sum(-1, keepdim=True)) + ds[:, None] * p, 2 * dp * p * y  # no check of ds


def jvp_of(scale=1.0, drop=()):
    """An explicit JVP of ``pick``, scaled, or without the tangents of some inputs."""

    def jvp(inputs, tangents, options, blocks):
        x, y = inputs["x"], inputs["y"]
        tx, ty = (torch.zeros_like(tangents[name]) if name in drop else tangents[name] for name in "xy")
        (p, s), (tp, ts) = torch.func.jvp(lambda x, y: right(x, y), (x, y), (tx, ty))
        return (p, s), (tp * scale, ts * scale)

    return jvp


def jvp_with_other_outputs(inputs, tangents, options, blocks):
    (p, s), moved = jvp_of()(inputs, tangents, options, blocks)
    return (p * 1.0001, s), moved


def hvp_without_cross_terms(inputs, tangents, cotangents, options, blocks):
    """Hxx tx + Hxy ty, but Hyy ty alone: the cross term is there on one side only."""
    x, y = inputs["x"], inputs["y"]

    def gradient(x, y):
        return torch.func.vjp(right, x, y)[1]((cotangents["p"], cotangents["s"]))

    hx = torch.func.jvp(gradient, (x, y), (tangents["x"], tangents["y"]))[1][0]
    hy = torch.func.jvp(gradient, (x, y), (torch.zeros_like(x), tangents["y"]))[1][1]
    return hx, hy


WRONG = {
    "forward_matches_the_oracle": kernel(wrong_output),
    "vjp_matches_the_oracle": kernel(wrong_gradient),
    "jvp_matches_the_oracle": kernel(right, jvp=jvp_of(scale=1.0001)),
    "hvp_matches_the_oracle": kernel(frozen_in_backward),
    "vjp_and_jvp_are_adjoint": kernel(right, jvp=jvp_of(scale=1.01)),
    "hvp_is_symmetric": kernel(right, hvp=hvp_without_cross_terms),
    "vjp_is_linear_in_the_cotangent": kernel(clamped_cotangent),
    "jvp_of_a_tangent_on_each_input_alone": kernel(right, jvp=jvp_of(drop=("y",))),
    "vjp_of_a_cotangent_on_each_output_alone": kernel(dropped_cotangent),
}


def test_the_outputs_of_an_explicit_jvp_are_judged_where_it_gives_any():
    law = LAWS["the_outputs_of_an_explicit_jvp_match_the_oracle"]
    assert law.applies(CASE, RIGHT).startswith("its JVP is torch.autograd's")
    assert judged(law, kernel(right, jvp=jvp_of())).status is Status.HOLDS
    wrong = kernel(right, jvp=jvp_with_other_outputs)
    assert judged(law, wrong).status is Status.VIOLATED
    assert judged(LAWS["jvp_matches_the_oracle"], wrong).status is Status.HOLDS
    silent = kernel(right, jvp=lambda *given: (None, jvp_of()(*given)[1]))
    assert judged(law, silent).reason == "its JVP gives no outputs"


@pytest.mark.parametrize("name", WRONG)
def test_each_law_catches_its_wrong_kernel_where_the_right_one_holds(name):
    assert judged(LAWS[name], RIGHT).status is Status.HOLDS
    assert judged(LAWS[name], WRONG[name]).status is Status.VIOLATED


def test_infinite_outputs_are_named_where_the_truth_is_finite():
    law, case = LAWS["finite_where_the_truth_is_finite"], drawn(x="extreme:1000")
    assert judged(law, RIGHT, case).status is Status.HOLDS
    found = judged(law, kernel(overflowing), case)
    assert found.status is Status.VIOLATED
    assert all(finding.lost and "dim" not in finding.place for finding in found.findings if finding.pattern)
    assert judged(law, kernel(overflowing)).status is Status.HOLDS  # at logits of ordinary size nothing overflows


def test_a_backward_that_needs_every_cotangent_crashes_and_says_so():
    law = LAWS["vjp_of_a_cotangent_on_each_output_alone"]
    cases = [replace(CASE, seed=seed) for seed in (0, 1)]
    found = {judged(law, kernel(NeedsEveryCotangent.apply), case).status for case in cases}
    assert found == {Status.HOLDS, Status.CRASHED}  # one of the outputs alone is enough, the other is not


class NeedsTheFirstTangent(torch.autograd.Function):
    """x y in forward mode, with a tangent only where x has one."""

    @staticmethod
    def forward(x, y):
        return x * y

    @staticmethod
    def setup_context(ctx: Any, inputs, output):
        ctx.set_materialize_grads(False)
        ctx.save_for_forward(*inputs)
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, g):
        x, y = ctx.saved_tensors
        return g * y, g * x

    @staticmethod
    def jvp(ctx: Any, tx, ty):
        x, y = ctx.saved_tensors
        return torch.zeros_like(x) if tx is None else tx * y + (0 if ty is None else x * ty)


def test_a_tangent_that_needs_another_inputs_tangent_is_wrong():
    law = LAWS["jvp_of_a_tangent_on_each_input_alone"]

    def needing(x, y):
        p, s = right(x, y)
        return p / (x * y) * NeedsTheFirstTangent.apply(x, y), s

    def product(x, y):
        p, s = right(x, y)
        return p / (x * y) * (x * y), s

    cases = [replace(CASE, seed=seed) for seed in (0, 1)]
    assert {judged(law, kernel(product), case).status for case in cases} == {Status.HOLDS}
    found = {judged(law, kernel(needing), case).status for case in cases}
    assert found == {Status.HOLDS, Status.VIOLATED}  # along x it is right


def test_doubling_is_bit_exact_only_where_determinism_is_claimed():
    law = LAWS["vjp_is_linear_in_the_cotangent"]

    def noisy(x, y):
        return right(edited(x, lambda g: g * (1 + 6e-8 * g.abs())), y)

    assert judged(law, kernel(noisy)).status is Status.VIOLATED
    assert judged(law, kernel(noisy, deterministic=False)).status is Status.HOLDS


def test_doubling_at_the_edge_of_underflow_is_no_violation():
    law = LAWS["vjp_is_linear_in_the_cotangent"]
    for dp in ("tiny:1e-37", "subnormal", "tiny"):
        assert judged(law, RIGHT, drawn(dp=dp, ds=dp)).status is not Status.VIOLATED


STEP = LAWS["hvp_finite_difference_convergence"]
ORDER = LAWS["hvp_finite_difference_convergence_is_of_second_order"]


def stale_statistics():
    """softmax with the maximum and sum of the first call at each shape and dtype."""
    kept: dict[Any, Any] = {}

    def stale(x, y):
        key = (tuple(x.shape), x.dtype)
        if key not in kept:
            kept[key] = torch.logsumexp(x.detach(), -1, keepdim=True)
        p = torch.softmax(x, -1)
        frozen = torch.exp(x.detach() - kept[key])
        return (p - p.detach() + frozen) * y * y, torch.logsumexp(x, -1)

    return stale


def test_statistics_of_an_earlier_point_do_not_converge():
    stale = kernel(stale_statistics())
    assert judged(LAWS["vjp_matches_the_oracle"], kernel(stale_statistics())).status is Status.HOLDS
    assert judged(STEP, RIGHT).status is Status.HOLDS
    assert judged(STEP, stale).status is Status.VIOLATED


def test_differences_hold_in_narrow_formats_and_at_odd_inputs():
    for dtype in ("bfloat16", "float16"):
        for seed in range(4):
            case = replace(CASE, dtype=dtype, seed=seed)
            narrow = kernel(lambda x, y: tuple(t.to(x.dtype) for t in right(x.float(), y.float())), dtypes=None)
            assert judged(STEP, narrow, case).status in (Status.HOLDS, Status.NOT_CHECKED)
    for recipe in ("largemean", "ties", "zeros", "tiny", "extreme:100", "onehot", "constant"):
        for draws in ({"x": recipe}, {"x": recipe, "tx": recipe, "ty": recipe}):
            assert judged(STEP, RIGHT, drawn(**draws)).status in (Status.HOLDS, Status.NOT_CHECKED), draws


def test_single_precision_inside_a_float64_kernel_has_no_second_order():
    def single(x, y):
        return tuple(t.to(x.dtype) for t in right(x.float(), y.float()))

    assert judged(ORDER, RIGHT).status is Status.HOLDS
    found = judged(ORDER, kernel(single))
    assert found.status is Status.VIOLATED
    assert "the order is" in found.findings[0].message
    assert judged(LAWS["vjp_matches_the_oracle"], kernel(single)).status is Status.HOLDS  # in float32 it is right


def test_a_third_derivative_of_zero_is_not_checked():
    found = judged(ORDER, RIGHT, drawn(x="zeros", y="zeros", tx="zeros", ty="zeros"))
    assert found.status is Status.NOT_CHECKED
    assert "ten times rounding" in found.reason
