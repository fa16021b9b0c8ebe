"""Certified: proven radii, precision raised until they are small, undecided branches never guessed."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from catalogue import double, graph_of
from torch import Tensor

from gradoracle.model.derivative import Derivative
from gradoracle.oracle.exact import certified, float64, multiprecision
from gradoracle.oracle.exact.enclosure import Enclosure
from gradoracle.oracle.exact.graph import UnsupportedOperator
from gradoracle.oracle.exact.interpretation import TooLarge, cost
from gradoracle.oracle.exact.trace import trace

flint = pytest.importorskip("flint")


def one(function: Callable[..., Tensor], *args: Tensor, bits: int = 128) -> Enclosure:
    """A forward reading."""
    return certified.read(graph_of(function, Derivative.FORWARD, *args, primals=len(args)), args, bits=bits)[0]


# Precision.


def test_precision_is_raised_until_the_radius_is_reached() -> None:
    # (exp(x) + 2^200) - 2^200 loses 200 bits: at 128 nothing of exp(x) is left
    def cancelling(x: Tensor) -> Tensor:
        return torch.exp(x) + 2.0**200 - 2.0**200

    x = double(0.5, 1.0)
    graph = graph_of(cancelling, Derivative.FORWARD, x)
    (coarse,) = certified.read(graph, [x], bits=128)
    assert (coarse.radius > 1e20).all()
    (ball,) = certified.certify(graph, [x], [torch.full((2,), 1e-30, dtype=torch.float64)])
    assert ball.bits > 256 and not ball.undecided.any() and (ball.radius <= 1e-30).all()
    assert (ball.error(x.exp()).abs() < 1e-15).all()
    (value,) = multiprecision.read(graph, [x], digits=120)
    assert torch.equal(value.high, ball.high)


def test_mpmath_settles_where_two_precisions_agree() -> None:
    # 1 - tanh(x)^2 at 300 is 4e^-600 = 1e-260: 50 digits see 0, and so do 90
    x, t = double(300.0), double(1.0)
    graph = graph_of(torch.tanh, Derivative.JVP, x, t)
    (coarse,) = multiprecision.read(graph, [x, t], digits=40)
    (ball,) = certified.certify(graph, [x, t], [double(1e-280)])
    assert coarse.high.item() == 0 and ball.high.item() > 0
    (settled,) = multiprecision.settle(graph, [x, t], [double(1e-280)], digits=160)
    assert not settled.unsettled.any() and settled.digits == 640 and ball.error(settled.high).abs() <= 1e-276
    (settled,) = multiprecision.settle(graph, [x, t], [double(1e-280)], digits=160, max_digits=320)
    assert settled.unsettled.all()


def test_elements_still_wider_at_the_last_precision_are_flagged_and_the_others_are_not() -> None:
    def mixed(x: Tensor) -> Tensor:
        return torch.cat([torch.exp(x) + 2.0**400 - 2.0**400, torch.exp(x)])

    x = double(0.5)
    graph = graph_of(mixed, Derivative.FORWARD, x)
    expected = [torch.full((2,), 1e-20, dtype=torch.float64)]
    (ball,) = certified.certify(graph, [x], expected, max_bits=256)
    assert ball.undecided.tolist() == [True, False] and ball.bits == 256
    (ball,) = certified.certify(graph, [x], lambda balls: [1e-20 * torch.ones_like(b.high) for b in balls])
    assert ball.undecided.tolist() == [False, False] and ball.bits == 512


def test_a_nan_budget_is_not_met_but_an_exact_truth_needs_none() -> None:
    x = double(-math.inf, 1.0)
    graph = graph_of(lambda x: torch.exp(x), Derivative.FORWARD, x)
    (ball,) = certified.certify(graph, [x], [double(math.nan, math.nan)], max_bits=256)
    assert ball.undecided.tolist() == [False, True]


def test_the_precision_of_flint_and_mpmath_is_put_back_also_after_an_error() -> None:
    import mpmath

    flint.ctx.prec, mpmath.mp.prec = 77, 99
    try:
        x = double(1.0)
        graph = graph_of(torch.exp, Derivative.FORWARD, x)
        certified.read(graph, [x], bits=300)
        multiprecision.read(graph, [x], digits=80)
        unknown = graph_of(torch.lgamma, Derivative.FORWARD, x)
        for reading in (certified.read, multiprecision.read):
            with pytest.raises(UnsupportedOperator):
                reading(unknown, [x])
        assert (flint.ctx.prec, mpmath.mp.prec) == (77, 99)
    finally:
        flint.ctx.prec, mpmath.mp.prec = 53, 53


# Branches.


def product_apart(x: Tensor) -> tuple[Tensor, Tensor]:
    """(1 + 2^-100)^2 and 1 + 2^-99, which differ by 2^-200, from x = 2^-100."""
    one_more = 1.0 + x
    return one_more * one_more, 1.0 + 2.0 * x


BRANCHES: dict[str, tuple[Callable[[Tensor, Tensor], Tensor], float, float]] = {
    # function of (a, b) with a - b = 2^-200 > 0; d/da there; the other branch's
    "relu": (lambda a, b: torch.relu(a - b), 1.0, 0.0),
    "where": (lambda a, b: torch.where(a > b, 3.0 * a, 5.0 * a), 3.0, 5.0),
    "abs": (lambda a, b: torch.abs(b - a), 1.0, -1.0),
    "maximum": (lambda a, b: torch.maximum(3.0 * (a - b), 5.0 * (b - a)), 3.0, -5.0),
    "clamp": (lambda a, b: torch.clamp(a - b, min=0.0), 1.0, 0.0),
    "amax": (lambda a, b: torch.stack([a, b]).amax(0), 1.0, 0.0),
    "comparison": (lambda a, b: (a > b).to(a.dtype) * a, 1.0, 0.0),
}


@pytest.mark.parametrize("name", BRANCHES)
def test_an_undecided_branch_is_wide_and_is_decided_at_a_higher_precision(name: str) -> None:
    function, right, wrong = BRANCHES[name]

    def gradient(x: Tensor, g: Tensor) -> tuple[Tensor, ...]:
        a, b = product_apart(x)
        _, pull = torch.func.vjp(lambda a: function(a, b), a)
        return pull(g)

    x, g = double(2.0**-100), double(1.0)
    graph = trace(gradient, x, g)
    (coarse,) = certified.read(graph, [x, g], bits=128)
    assert (coarse.radius >= abs(right - wrong) / 2).all(), "a branch was taken that was not decided"
    (ball,) = certified.certify(graph, [x, g], [double(1e-10)])
    assert not ball.undecided.any() and ball.bits == 256 and ball.high.item() == right
    (never,) = certified.certify(graph, [x, g], [double(1e-10)], max_bits=128)
    assert never.undecided.all()


def test_order_that_is_undecided_gives_nothing_rather_than_a_guess() -> None:
    def sorted_pair(x: Tensor) -> Tensor:
        return torch.stack(product_apart(x)).sort(0, descending=True).values

    x = double(2.0**-100)
    graph = trace(lambda x: (sorted_pair(x),), x)
    (coarse,) = certified.read(graph, [x], bits=128)
    assert coarse.radius.isinf().all() and coarse.undecided.all() and coarse.high.isnan().all()
    (ball,) = certified.certify(graph, [x], [torch.full((2, 1), 1e-20, dtype=torch.float64)])
    assert not ball.undecided.any()


def test_the_largest_of_computed_numbers_is_itself_and_nothing_else() -> None:
    # the gradient of amax compares each number with the largest, a ball with itself
    x, g = double(0.1, 0.7, 0.3), torch.tensor(1.0, dtype=torch.float64)
    graph = graph_of(lambda x: torch.exp(x).amax(), Derivative.VJP, x, g)
    _, ball = certified.read(graph, [x, g])
    assert not ball.undecided.any()
    assert ball.high.tolist() == [0.0, float(x[1].exp()), 0.0]


def test_signs_that_are_unknown_are_not_taken_for_equal() -> None:
    def agreement(x: Tensor) -> Tensor:
        a, b = product_apart(x)
        signs = torch.sign(torch.cat([a - b, b - a]))
        return (signs[:1] == signs[1:]).to(x.dtype)

    x = double(2.0**-100)
    graph = trace(lambda x: (agreement(x),), x)
    (coarse,) = certified.read(graph, [x], bits=128)
    assert coarse.radius.item() >= 0.5
    (ball,) = certified.read(graph, [x], bits=256)
    assert ball.high.item() == 0.0 and ball.radius.item() == 0.0


def test_a_logical_operator_is_decided_where_one_side_is_enough() -> None:
    def choice(x: Tensor) -> Tensor:
        a, b = product_apart(x)
        unknown, false, true = a > b, x > 1, x < 1
        return torch.stack([(unknown & false), (unknown | true), ~(unknown & false), (unknown & true)]).to(x.dtype)

    x = double(2.0**-100)
    (coarse,) = certified.read(trace(lambda x: (choice(x),), x), [x], bits=128)
    assert coarse.high[:3, 0].tolist() == [0.0, 1.0, 1.0] and coarse.radius[:3, 0].tolist() == [0.0, 0.0, 0.0]
    assert coarse.radius[3, 0] >= 0.5


# Errors of a kernel's tensor.


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_wrong_answers_are_caught_and_correct_ones_are_not(dtype: torch.dtype) -> None:
    x = torch.linspace(0.1, 3.0, 50, dtype=torch.float64)
    ball = one(lambda x: torch.exp(x) / 3.0, x)
    right = ball.high.to(dtype)
    ulp = torch.finfo(dtype).eps
    assert (ball.error(right).abs() <= 0.5 * ulp * ball.high.abs() * (1 + 1e-6) + ball.radius).all()
    wrong = (ball.high * (1 + 4 * ulp)).to(dtype)
    assert (ball.error(wrong).abs() - ball.radius >= 3 * ulp * ball.high.abs()).all()


def test_twice_the_radius_shows() -> None:
    x = double(0.3, 0.7)
    ball = one(torch.exp, x, bits=24)  # so wide that float64 is within it
    assert (ball.radius > 1e-9).all()
    assert (ball.error(ball.high) == 0).all()
    assert (ball.error(ball.high + 2 * ball.radius).abs() > 1.9 * ball.radius).all()
    assert (ball.error(x.exp()).abs() <= ball.radius).all()


def test_errors_against_infinities_and_nan() -> None:
    ball = one(torch.log, double(0.0, 0.0, -1.0, -1.0, 1.0, 2.0))
    got = double(-math.inf, 5.0, math.nan, 5.0, math.nan, math.inf)
    assert ball.error(got).abs().tolist() == [0.0, math.inf, 0.0, math.inf, math.inf, math.inf]


# What cannot be read.


@pytest.mark.parametrize("read", [certified.read, multiprecision.read], ids=["certified", "mpmath"])
@pytest.mark.parametrize(
    ("function", "operator"),
    [
        (torch.lgamma, "aten.lgamma.default"),
        (lambda x: torch.linalg.svd(x)[1], "aten._linalg_svd.default"),
        (torch.special.bessel_j0, "aten.special_bessel_j0.default"),
    ],
)
def test_a_missing_operator_is_named_with_the_reading(
    read: Callable[..., object], function: Callable[[Tensor], Tensor], operator: str
) -> None:
    x = torch.rand(3, 3, dtype=torch.float64)
    graph = trace(lambda x: (function(x),), x)
    reading = "certified" if read is certified.read else "mpmath"
    with pytest.raises(UnsupportedOperator) as caught:
        read(graph, [x])
    assert (caught.value.reading, caught.value.operator) == (reading, operator)


@pytest.mark.parametrize("read", [certified.read, multiprecision.read], ids=["certified", "mpmath"])
def test_a_graph_that_is_too_large_fails_before_it_begins(read: Callable[..., object]) -> None:
    a = torch.zeros(300, 300, dtype=torch.float64)
    graph = trace(lambda a: (a @ a,), a)
    assert cost(graph) == 2 * 300**3 + 300 * 300
    with pytest.raises(TooLarge, match=r"5\.4e\+07 .* 1\.0e\+07"):
        read(graph, [a], operations=10_000_000)


def test_without_flint_the_reason_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    assert certified.unavailable() is None
    monkeypatch.setattr(certified, "flint", None)
    reason = certified.unavailable()
    assert reason is not None and "python-flint" in reason
    x = double(1.0)
    with pytest.raises(certified.Unavailable, match="python-flint"):
        certified.read(graph_of(torch.exp, Derivative.FORWARD, x), [x])


# Constants.


def test_constants_of_pytorchs_derivative_formulas_are_exact() -> None:
    # d/dx 2^x = ln 2 2^x: with ln 2 in float64 the truth would be off by 3e-17 of itself
    x, t = double(0.0), double(1.0)
    (ball,) = certified.read(graph_of(torch.exp2, Derivative.JVP, x, t), [x, t])
    ln2_low = 2.319046813846299e-17  # ln 2 - float64(ln 2)
    assert ball.high.item() == math.log(2) and abs(ball.low.item() - ln2_low) < 1e-32
    (ball,) = certified.read(graph_of(torch.erf, Derivative.JVP, x, t), [x, t])
    assert ball.low.item() != 0


def test_casts_inside_a_definition_round_no_truth() -> None:
    x = double(0.1, 0.2)
    graph = trace(lambda x: (x.float().exp().to(torch.bfloat16).double(),), x)
    (ball,), (value,) = certified.read(graph, [x]), float64.read(graph, [x])
    assert (ball.error(value).abs() <= 2.0**-52 * value).all()


# A definition in the linear domain.


def log_partition(steps: Tensor, duration: Tensor) -> Tensor:
    """Log of the sum over the ways to cut 6 positions into pieces of 1..3 of exp(score): one entry of a resolvent."""
    t = torch.arange(7)
    k = t[None, :] - t[:, None]
    edge = steps.cumsum(0)[None, :] - steps.cumsum(0)[:, None] + duration[(k - 1).clamp(0, 2)]
    weight = torch.where((k >= 1) & (k <= 3), edge, -math.inf).exp()
    unit = torch.zeros(7, 1, dtype=steps.dtype)
    unit[6] = 1.0
    x = torch.linalg.solve_triangular(torch.eye(7, dtype=steps.dtype) - weight, unit, upper=True, unitriangular=True)
    return x[0, 0].log()


def by_enumeration(steps: Tensor, duration: Tensor) -> Tensor:
    def compositions(n: int) -> list[list[int]]:
        return [[]] if n == 0 else [[k, *rest] for k in (1, 2, 3) if k <= n for rest in compositions(n - k)]

    cumulative = steps.cumsum(0)
    scores = [cumulative[6] - cumulative[0] + sum(duration[k - 1] for k in pieces) for pieces in compositions(6)]
    return torch.logsumexp(torch.stack(scores), 0)


@pytest.mark.parametrize("forbidden", [False, True])
def test_a_resolvent_is_read_with_finite_gradients_where_pieces_are_forbidden(forbidden: bool) -> None:
    generator = torch.Generator().manual_seed(3)
    steps, duration = (torch.randn(n, dtype=torch.float64, generator=generator) for n in (7, 3))
    if forbidden:
        duration[1] = -math.inf
    args = [steps, duration, torch.tensor(1.0, dtype=torch.float64)]
    balls = certified.read(graph_of(log_partition, Derivative.VJP, *args, primals=2), args)
    leaves = [x.clone().requires_grad_() for x in args[:2]]
    total = by_enumeration(*leaves)
    expected = [total.detach(), *torch.autograd.grad(total, leaves)]
    for ball, value in zip(balls, expected, strict=True):
        assert not ball.undecided.any() and ball.high.isfinite().all()
        assert (ball.error(value.nan_to_num()).abs() < 1e-14).all()
    if forbidden:
        assert balls[2].high[1] == 0 and balls[2].radius[1] == 0
