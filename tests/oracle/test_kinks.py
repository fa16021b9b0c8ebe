"""Kinks, infinities, NaN: where arithmetic leaves off, the exact readings say what PyTorch says."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from catalogue import double, graph_of
from torch import Tensor

from gradoracle.model.derivative import Derivative, program
from gradoracle.oracle.exact import certified, multiprecision
from gradoracle.oracle.exact.enclosure import Enclosure
from gradoracle.oracle.exact.trace import trace

pytest.importorskip("flint")


TIED = double(1.0, 3.0, 3.0, -2.0, 0.0)
KINKS: dict[str, Callable[[Tensor], Tensor]] = {
    "amax": lambda x: x.amax(-1) ** 2,
    "amin": lambda x: (-x).amin(-1) ** 2,
    "max": lambda x: x.max(-1).values ** 2,
    "max_of_all": lambda x: x.max() ** 2,
    "maximum": lambda x: torch.maximum(x, 6.0 - x) * x,
    "minimum": lambda x: torch.minimum(x, 6.0 - x) * x,
    "relu": lambda x: torch.relu(x) * (x + 1),
    "abs": lambda x: torch.abs(x) * (x + 1),
    "sign": lambda x: torch.sign(x) * x,
    "clamp": lambda x: x.clamp(-2.0, 3.0) * (x + 1),
    "clamp_min": lambda x: x.clamp(min=3.0) * (x + 1),
    "hardtanh": lambda x: torch.nn.functional.hardtanh(x, -2.0, 3.0) * (x + 1),
    "leaky_relu": lambda x: torch.nn.functional.leaky_relu(x) * (x + 1),
    "elu": lambda x: torch.nn.functional.elu(x) * (x + 1),
    "where": lambda x: torch.where(x >= 3.0, x * x, x),
    "sort": lambda x: x.sort(dim=-1, stable=True).values * torch.arange(5.0, dtype=x.dtype),
    "round": lambda x: torch.round(x / 2) * x,
    "pow_zero": lambda x: x**2 + x**1 + x**0,
    "prod": lambda x: x.prod(-1),
    "norm_of_zeros": lambda x: torch.linalg.vector_norm(x * 0, dim=-1),
    "logaddexp": lambda x: torch.logaddexp(x, x.flip(0)),
}


@pytest.mark.parametrize("derivative", [Derivative.FORWARD, Derivative.VJP, Derivative.JVP, Derivative.HVP])
@pytest.mark.parametrize("name", KINKS)
def test_at_kinks_the_truth_is_pytorchs(name: str, derivative: Derivative) -> None:
    function, x = KINKS[name], TIED
    args = [x]
    if derivative.takes_tangents:
        args.append(double(0.5, -1.0, 0.25, 2.0, 3.0))
    if derivative.takes_cotangents:
        args.append(torch.arange(1.0, 6.0, dtype=torch.float64)[: function(x).numel()].reshape(function(x).shape))
    graph = graph_of(function, derivative, *args)
    pytorch = program(function, derivative, 1)(*args)
    for ball, value, torchs in zip(certified.read(graph, args), multiprecision.read(graph, args), pytorch, strict=True):
        assert not ball.undecided.any()
        assert (ball.error(torchs).abs() <= 1e-14 * (1 + torchs.abs().nan_to_num())).all(), (ball.high, torchs)
        assert (value.error(torchs).abs() <= 1e-14 * (1 + torchs.abs().nan_to_num())).all()


SPECIAL = double(-math.inf, -2.0, -1.0, -0.5, 0.0, 0.5, 1.0, 2.0, math.inf, math.nan)
UNARY = [
    *("neg", "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sqrt", "rsqrt", "reciprocal", "tanh", "sigmoid"),
    *("erf", "erfc", "sin", "cos", "tan", "atan", "sinh", "cosh", "abs", "relu", "sign", "square", "isnan", "isinf"),
]
BINARY = ["add", "sub", "mul", "div", "pow", "maximum", "minimum", "eq", "ne", "lt", "le", "gt", "ge"]


@pytest.mark.parametrize("read", [certified.read, multiprecision.read], ids=["certified", "mpmath"])
@pytest.mark.parametrize("name", UNARY + BINARY)
def test_infinities_nan_and_poles_are_pytorchs(name: str, read: Callable[..., list[Enclosure]]) -> None:
    count = 1 if name in UNARY else 2
    args = (
        [SPECIAL] if count == 1 else [SPECIAL[:, None].expand(10, 10).contiguous(), SPECIAL.expand(10, 10).contiguous()]
    )
    operator = getattr(torch, name)
    graph = trace(lambda *xs: (operator(*xs).to(torch.float64),), *args)
    (found,), (expected,) = read(graph, args), graph(*args)
    wrong = ~(found.error(expected).abs() <= 1e-14 * (1 + expected.abs().nan_to_num()))
    assert not wrong.any(), [(a[wrong], found.high[wrong], expected[wrong]) for a in args]


@pytest.mark.parametrize("read", [certified.read, multiprecision.read], ids=["certified", "mpmath"])
@pytest.mark.parametrize(
    "name", ["sum", "prod", "amax", "cumsum", "cumprod", "softmax", "log_softmax", "logsumexp", "mm"]
)
def test_reductions_meet_infinities_as_pytorch_does(name: str, read: Callable[..., list[Enclosure]]) -> None:
    inf, nan = math.inf, math.nan
    x = torch.tensor(
        [[1, 2, 3], [-inf, 2, 3], [-inf, -inf, -inf], [inf, 2, 3], [inf, -inf, 3], [nan, 2, 3], [0, inf, 3], [0, 2, 3]],
        dtype=torch.float64,
    )
    y = torch.tensor([[1.0, 0.0], [0.0, -1.0], [2.0, 3.0]], dtype=torch.float64)
    function = torch.mm if name == "mm" else lambda x, y: getattr(torch, name)(x, -1)
    graph = trace(lambda x, y: (function(x, y),), x, y)
    (found,), (expected,) = read(graph, [x, y]), graph(x, y)
    assert (found.error(expected).abs() <= 1e-14 * (1 + expected.abs().nan_to_num())).all(), (found.high, expected)


def test_masked_entries_are_exactly_zero_and_empty_rows_are_minus_infinity() -> None:
    def masked(s: Tensor) -> tuple[Tensor, Tensor]:
        scores = s.masked_fill(torch.tensor([[False, True, False], [True, True, True]]), -math.inf)
        return torch.softmax(scores[:1], -1), torch.logsumexp(scores, -1)

    s = torch.tensor([[0.1, 0.2, 0.3], [1.0, 2.0, 3.0]], dtype=torch.float64)
    p, lse = certified.read(trace(masked, s), [s])
    assert p.high[0, 1] == 0 and p.radius[0, 1] == 0 and lse.high[1] == -math.inf and lse.radius[1] == 0


def test_ranges_far_beyond_float64_are_finite_inside() -> None:
    def log_of_exp(x: Tensor) -> Tensor:
        return torch.log(torch.exp(x) + torch.exp(x - 1.0))

    x = double(1e5, -1e5)
    (ball,) = certified.read(graph_of(log_of_exp, Derivative.FORWARD, x), [x])
    expected = x + math.log1p(math.exp(-1))
    assert not ball.undecided.any() and (ball.error(expected).abs() < 1e-10).all()
    (ball,) = certified.read(graph_of(torch.exp, Derivative.FORWARD, x), [x])
    assert ball.high[0] == math.inf and ball.radius[0] == 0, "finite, but beyond float64"
    assert ball.high[1] == 0 and 0 < ball.radius[1] < 1e-300
