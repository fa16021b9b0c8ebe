"""Recurrences: one body, traced once, gives the values, derivatives and budgets of the loop that it stands for."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from jaxtyping import Float
from torch import Tensor

import gradoracle
from gradoracle.cases.saved_tensors import sample_of
from gradoracle.model.case import Case
from gradoracle.model.contract import PRESETS
from gradoracle.model.derivative import Derivative, program
from gradoracle.model.recurrence import RecurrenceError, read_by
from gradoracle.oracle.exact import certified, float64, multiprecision
from gradoracle.oracle.exact.definition import Undefined
from gradoracle.oracle.exact.graph import Graph
from gradoracle.oracle.exact.interpretation import TooLarge, cost
from gradoracle.oracle.exact.recurrence import recurrences
from gradoracle.oracle.exact.trace import differentiated, recurrent, trace
from gradoracle.oracle.rounding.reading import Budget, budgets
from gradoracle.oracle.truth import Oracle

Definition = Callable[..., Tensor]
T, H, K, V = 40, 2, 3, 4


def gated(q: Tensor, k: Tensor, v: Tensor, a: Tensor) -> Tensor:
    """Gated linear attention: a carry of a matrix, products and a sum."""

    def step(state: Tensor, x: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
        q, k, v, a = x
        state = state * torch.sigmoid(a)[..., None] + k[..., None] * v[..., None, :]
        return state, torch.einsum("hkv,hk->hv", state, q)

    return gradoracle.scan(step, q.new_zeros(H, K, V), (q, k, v, a))[1]


def delta(q: Tensor, k: Tensor, v: Tensor, a: Tensor) -> Tensor:
    """A delta rule, in which the errors of a state cancel within a step."""

    def step(state: Tensor, x: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
        q, k, v, a = x
        u = torch.sigmoid(a[..., :1]) * (v - torch.einsum("hkv,hk->hv", state, k))
        state = state + k[..., None] * u[..., None, :]
        return state, torch.einsum("hkv,hk->hv", state, q)

    unit = k / k.norm(dim=-1, keepdim=True)
    return gradoracle.scan(step, q.new_zeros(H, K, V), (q, unit, v, a))[1]


def nonlinear(q: Tensor, k: Tensor, v: Tensor, a: Tensor) -> Tensor:
    """Several carries, a constant that is a tensor, the last carry, from the end."""
    weight = a[0, 0, 0] * 0.3

    def step(carry: tuple[Tensor, Tensor], x: tuple[Tensor, Tensor]) -> tuple[tuple[Tensor, Tensor], None]:
        h, c = carry
        q, k = x
        c = torch.sigmoid(q) * c + torch.tanh(weight * h + k)
        return (torch.tanh(c) * weight, c), None

    (h, c), _ = gradoracle.scan(step, (q[0] * 0, v[0, :, :K]), (q, k), reverse=True)
    return h + c


def log_sums(q: Tensor, k: Tensor, v: Tensor, a: Tensor) -> Tensor:
    """The forward algorithm of a chain, in the log domain, with a forbidden first label."""
    start = torch.where(torch.arange(K) == 0, -torch.inf, q[0, 0])

    def step(alpha: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        alpha = torch.logsumexp(alpha[:, None] + k[0, :1].T * 0.1, 0) + x
        return alpha, torch.logsumexp(alpha, 0)

    return gradoracle.scan(step, start, a[:, 0])[1]


def nested(q: Tensor, k: Tensor, v: Tensor, a: Tensor) -> Tensor:
    """A recurrence in the step of another one."""

    def outer(carry: Tensor, x: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        q, k = x
        inner, ys = gradoracle.scan(lambda c, x: (c * 0.5 + x, c * x), carry[0], q + k)
        return torch.stack([inner, carry[0]]), ys.sum(0)

    return gradoracle.scan(outer, q.new_zeros(2, K), (q, k))[1]


def counted(q: Tensor, k: Tensor, v: Tensor, a: Tensor) -> Tensor:
    """An integer carry, a mask, and what a step took as what it yields."""
    resets = torch.arange(T) % 7 == 3

    def step(carry: tuple[Tensor, Tensor], x: tuple[Tensor, Tensor]) -> tuple[tuple[Tensor, Tensor], Tensor]:
        s, n = carry
        q, reset = x
        s = torch.where(reset, 0.0, s) + q * n
        return (s, torch.where(reset, 1, n + 1)), carry[0]

    return gradoracle.scan(step, (q.new_zeros(H, K), torch.tensor(1)), (q, resets))[1]


def shifted(q: Tensor, k: Tensor, v: Tensor, a: Tensor) -> Tensor:
    """Slices counted from the end or up to it, as of the alphas of CTC."""

    def step(alpha: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        before = torch.nn.functional.pad(alpha, (2, 0))
        alpha = torch.tanh(0.5 * alpha + 0.3 * before[:, 1:-1] + 0.2 * before[:, :-2]) * torch.sigmoid(x)
        return alpha, alpha[:, 1:]

    return gradoracle.scan(step, q[0], k)[1]


DEFINITIONS: dict[str, Definition] = {
    f.__name__: f
    for f in (gated, delta, nonlinear, log_sums, nested, counted, shifted)  # type: ignore[attr-defined]
}


CANCELLING = (delta, log_sums)  # errors cancel within a step; counted one by one, as in the loop, they grow


def inputs(length: int = T, seed: int = 0) -> list[Tensor]:
    dice = torch.Generator().manual_seed(seed)
    shapes = [(length, H, K), (length, H, K), (length, H, V), (length, H, K)]
    return [torch.randn(shape, generator=dice).double() for shape in shapes]


def arguments(definition: Definition, derivative: Derivative, args: list[Tensor]) -> list[Tensor]:
    dice = torch.Generator().manual_seed(9)
    found = list(args)
    if derivative.takes_tangents:
        found += [torch.randn(x.shape, generator=dice).double() for x in args]
    if derivative.takes_cotangents:
        found += [torch.randn(definition(*args).shape, generator=dice).double()]
    return found


def graph_of(definition: Definition, derivative: Derivative, args: list[Tensor]) -> Graph:
    forward = recurrent(lambda *x: (definition(*x),), *args)
    assert forward is not None and forward.source is not None
    if derivative is Derivative.FORWARD:
        return forward
    return differentiated(program(forward.source, derivative, 4), *arguments(definition, derivative, args))


def unrolled(definition: Definition, derivative: Derivative, args: list[Tensor]) -> Graph:
    """The graph of the loop, in which no recurrence is recognised."""
    from gradoracle.oracle.exact.recording import record

    with read_by(None):
        graph = record(program(definition, derivative, 4), arguments(definition, derivative, args), pure=True)
    return graph


@pytest.mark.parametrize("derivative", Derivative)
@pytest.mark.parametrize("name", DEFINITIONS)
def test_values_are_those_of_the_loop(name: str, derivative: Derivative) -> None:
    definition = DEFINITIONS[name]
    args = arguments(definition, derivative, inputs())
    graph = graph_of(definition, derivative, inputs())
    expected = program(definition, derivative, 4)(*args)
    for found in (graph(*args), float64.read(graph, args), float64.read(graph, args, within=float64.Range())):
        for one, true in zip(found, expected, strict=True):
            assert torch.allclose(one, true, rtol=1e-12, atol=1e-13, equal_nan=True)


@pytest.mark.parametrize("derivative", Derivative)
@pytest.mark.parametrize("name", DEFINITIONS)
def test_exact_readings_agree_with_the_loop(name: str, derivative: Derivative) -> None:
    definition = DEFINITIONS[name]
    args = arguments(definition, derivative, inputs())
    graph = graph_of(definition, derivative, inputs())
    narrow = [torch.tensor(1e-25, dtype=torch.float64)] * len(graph.outputs)
    balls = certified.certify(graph, args, narrow)
    for one, true in zip(balls, float64.read(graph, args), strict=True):
        assert not bool(one.undecided.any()) and torch.allclose(one.high, true, rtol=1e-11, atol=1e-12, equal_nan=True)
    if derivative in (Derivative.FORWARD, Derivative.VJP):
        for one, ball in zip(multiprecision.read(graph, args), balls, strict=True):
            apart = (one.high - ball.high) + (one.low - ball.low)
            assert bool((apart.abs() <= 1e-20 * (1 + ball.high.abs())).all())


@pytest.mark.parametrize("preset", ["ieee32", "bf16", "eager-bf16", "float64"])
@pytest.mark.parametrize("derivative", [Derivative.FORWARD, Derivative.VJP])
@pytest.mark.parametrize("name", DEFINITIONS)
def test_budgets_are_those_of_the_loop(name: str, derivative: Derivative, preset: str) -> None:
    """The unrolled loop counts a state's errors as independent of each other; a recurrence knows what they share."""
    definition, contract = DEFINITIONS[name], PRESETS[preset]
    args = [x.to(torch.bfloat16).double() for x in arguments(definition, derivative, inputs())]
    found = budgets(graph_of(definition, derivative, inputs()), args, contract, worst=True)
    peers = budgets(unrolled(definition, derivative, inputs()), args, contract, worst=True)
    for one, peer in zip(found, peers, strict=True):
        assert torch.allclose(one.value, peer.value, rtol=1e-12, atol=1e-13, equal_nan=True)
        counted = peer.sigma > 0
        assert bool((one.sigma > 0).eq(counted).all())
        if not counted.any():
            continue
        ratio = (one.sigma / peer.sigma)[counted]
        least = 0.0 if definition in CANCELLING else 0.25
        most = 2.5 if definition in CANCELLING else 1.6
        assert least < float(ratio.min()) and least < float(ratio.median()) < most
        assert one.worst is not None and bool((one.worst >= one.errors.abs().amax(0)).all())


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("derivative", [Derivative.FORWARD, Derivative.VJP])
@pytest.mark.parametrize("name", DEFINITIONS)
def test_budgets_are_calibrated(name: str, derivative: Derivative, dtype: str) -> None:
    """The loop itself, in PyTorch's own arithmetic, is off by about as much as its budget says."""
    definition, kind = DEFINITIONS[name], getattr(torch, dtype)
    contract = PRESETS["ieee32" if dtype == "float32" else "eager-bf16"]
    squares = []
    for seed in range(3):
        args = [x.to(kind).double() for x in inputs(seed=seed)]
        given = [x.to(kind).double() for x in arguments(definition, derivative, args)]
        graph = graph_of(definition, derivative, args)
        run = program(definition, derivative, 4)(*(x.to(kind) for x in given))
        for got, true, budget in zip(run, float64.read(graph, given), budgets(graph, given, contract), strict=True):
            error = got.double() - true
            assert not bool(error[budget.sigma == 0].any())
            off = (error / budget.sigma)[budget.sigma > 0]
            assert off.numel() == 0 or float(off.abs().max()) < 6
            squares.append(off.square())
    assert 0.05 < float(torch.cat(squares).mean().sqrt()) < 1


def test_errors_that_cancel_in_a_step_do_not_grow() -> None:
    """The states of a delta rule with unit keys forget; counted one by one, their errors would grow without end."""
    short, long = (
        budgets(trace(lambda *x: (delta(*x),), *inputs(n)), inputs(n), PRESETS["ieee32"])[0] for n in (100, 3000)
    )
    assert float(long.sigma[-50:].mean()) < 1.5 * float(short.sigma[-50:].mean())


def rounded_run(args: list[Tensor]) -> Tensor:
    """``gated``, in float32."""
    q, k, v, a = (x.float() for x in args)
    state, out = torch.zeros(H, K, V), []
    for t in range(len(q)):
        state = state * torch.sigmoid(a[t])[..., None] + k[t][..., None] * v[t][..., None, :]
        out.append((state * q[t][..., None]).sum(-2))
    return torch.stack(out)


@pytest.mark.parametrize("length", [1, 7, 100, 2500])
def test_a_correct_kernel_is_within_its_budget_and_a_wrong_one_is_not(length: int) -> None:
    args = [x.float().double() for x in inputs(length)]
    graph = trace(lambda *x: (gated(*x),), *args)
    (budget,), (true,) = budgets(graph, args, PRESETS["ieee32"]), float64.read(graph, args)
    error = (rounded_run(args).double() - true) / budget.sigma
    assert float(error.abs().max()) < 6 and 0.05 < float(error.square().mean().sqrt()) < 1.5
    wrong = [*args[:2], args[2] + 1e-4 * (torch.arange(length) == length // 2)[:, None, None], args[3]]
    assert float(((rounded_run(wrong).double() - true) / budget.sigma).abs().max()) > 8


def test_budgets_are_the_same_in_blocks_of_any_length(monkeypatch: pytest.MonkeyPatch) -> None:
    """Values and probes do not depend on how many steps are computed at once; samples of independent errors do."""
    from gradoracle.oracle.exact import recurrence

    args = arguments(gated, Derivative.VJP, inputs())

    def found() -> list[Budget]:
        return budgets(graph_of(gated, Derivative.VJP, inputs()), args, PRESETS["ieee32"], worst=True)

    whole = found()
    monkeypatch.setattr(recurrence, "_LONGEST_BLOCK", 16)
    for one, other in zip(whole, found(), strict=True):
        assert torch.allclose(one.errors, other.errors, rtol=1e-9, atol=1e-22)
        assert one.worst is not None and other.worst is not None and torch.allclose(one.worst, other.worst)
        some = other.independent > 0
        assert 0.8 < float((one.independent / other.independent)[some].median()) < 1.25


def test_carries_are_computed_again_where_they_are_large(monkeypatch: pytest.MonkeyPatch) -> None:
    from gradoracle.oracle.exact import recurrence as exact
    from gradoracle.oracle.rounding import recurrence as rounding

    monkeypatch.setattr(exact, "_LONGEST_BLOCK", 16)
    args = arguments(gated, Derivative.HVP, inputs())
    kept = budgets(graph_of(gated, Derivative.HVP, inputs()), args, PRESETS["ieee32"], worst=True)
    monkeypatch.setattr(rounding, "_KEPT", 0)
    again = budgets(graph_of(gated, Derivative.HVP, inputs()), args, PRESETS["ieee32"], worst=True)
    for one, other in zip(kept, again, strict=True):
        assert torch.equal(one.sigma, other.sigma) and torch.equal(one.errors, other.errors)


def test_what_overflows_marks_what_comes_after_it() -> None:
    def grows(x: Tensor) -> Tensor:
        return gradoracle.scan(lambda c, x: (c * 8 + x, c), torch.ones((), dtype=x.dtype), x)[1]

    x = torch.zeros(60, dtype=torch.float64)
    (budget,) = budgets(trace(lambda x: (grows(x),), x), [x], PRESETS["ieee32"])
    assert budget.overflow is not None
    first = int(budget.overflow.nonzero()[0])
    assert 0 < first <= 43 and bool(budget.overflow[first:].all())  # 8^43 is above the largest float32


def test_what_leaves_float64_is_seen() -> None:
    def grows(x: Tensor) -> Tensor:
        last, _ = gradoracle.scan(lambda c, x: (c * 1e30 + x, None), torch.ones((), dtype=x.dtype), x)
        return 1 / last

    x, within = torch.zeros(30, dtype=torch.float64), float64.Range()
    float64.read(trace(lambda x: (grows(x),), x), [x], within=within)
    assert within.left


def test_a_body_is_traced_once_whatever_the_length() -> None:
    short, long = (trace(lambda *x: (gated(*x),), *inputs(n)) for n in (9, 2000))
    assert len(list(short.nodes)) == len(list(long.nodes)) < 20
    (one,) = recurrences(long)
    assert len(list(one.body.nodes)) < 30 and cost(long) > 200 * cost(short)


def test_what_is_too_large_for_balls_is_refused_before_it_starts() -> None:
    args = inputs(20)
    with pytest.raises(TooLarge):
        certified.read(trace(lambda *x: (gated(*x),), *args), args, operations=100)


@pytest.mark.parametrize("length", [0, 1, 2])
@pytest.mark.parametrize("derivative", [Derivative.FORWARD, Derivative.VJP])
def test_short_ones(length: int, derivative: Derivative) -> None:
    args = arguments(gated, derivative, inputs(length))
    graph = graph_of(gated, derivative, inputs(length))
    expected = program(gated, derivative, 4)(*args)
    found = budgets(graph, args, PRESETS["ieee32"], worst=True)
    for one, balls, true in zip(found, certified.read(graph, args), expected, strict=True):
        assert one.value.shape == balls.high.shape == true.shape
        assert torch.allclose(one.value, true) and torch.allclose(balls.high, true)


def test_a_step_that_counts_its_calls_is_refused() -> None:
    calls = [0]

    def step(carry: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        calls[0] += 1
        return carry * calls[0] + x, carry

    x = torch.zeros(T, dtype=torch.float64)
    with pytest.raises(RecurrenceError, match="computes something else when it is called again"):
        trace(lambda x: (gradoracle.scan(step, x[0], x)[1],), x)


@pytest.mark.parametrize("derivative", Derivative)
def test_what_a_step_writes_in_place_is_its_own(derivative: Derivative) -> None:
    def written(q: Tensor, k: Tensor, v: Tensor, a: Tensor) -> Tensor:
        def step(c: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
            c = 0.5 * c * x
            c[:, -2:-1] = 0.3 * c[:, -1:] + x[:, :1]
            return c, c[:, 1:]

        return gradoracle.scan(step, q[0], k)[1]

    args = arguments(written, derivative, inputs())
    graph = graph_of(written, derivative, inputs())
    assert list(recurrences(graph))
    for found, true in zip(graph(*args), program(written, derivative, 4)(*args), strict=True):
        assert torch.allclose(found, true, rtol=1e-12, atol=1e-13)


def test_that_of_pytorch_is_read_as_one() -> None:
    from torch._higher_order_ops.scan import scan

    from gradoracle.model.recurrence import uncompiled

    def program(x: Tensor) -> tuple[Tensor]:
        return (scan(lambda c, x: (c * 0.5 + x, c * x), x[0] * 0, x)[1],)

    x = torch.randn(T, 2, dtype=torch.float64)
    with uncompiled():
        graph = trace(program, x)
        assert list(recurrences(graph)) and torch.allclose(graph(x)[0], program(x)[0])


@gradoracle.family
def stabilised(x: Float[Tensor, "T"]) -> Float[Tensor, ""]:
    """exp of the sum, as a factor and a detached exponent that is carried."""

    def step(carry, now):
        c, m = carry
        larger = (m + now).detach()
        return (c * torch.exp(now + m - larger), larger), c

    c, m = gradoracle.scan(step, (torch.ones_like(x[0]), torch.zeros_like(x[0])), x)[0]
    return c * torch.exp(m)


def test_no_second_derivative_is_read_of_a_step_that_detaches() -> None:
    """Without the nodes of the detach the truth would be [0, 0.86] here, in place of [0.63, 0.63]."""
    sample, oracle = sample_of(Case("stabilised", {"T": 2}, seed=1), stabilised), Oracle(stabilised, "float64")
    x, g = sample.inputs["x"].double(), sample.cotangents["out"].double()
    gradient, true = oracle.graph(sample, Derivative.VJP)(x, g)[1], g * x.sum().exp()
    torch.testing.assert_close(gradient, true.expand(2))
    with pytest.raises(Undefined, match="has a detach in the step of a scan or loop, of which no second derivative"):
        oracle.graph(sample, Derivative.HVP)
