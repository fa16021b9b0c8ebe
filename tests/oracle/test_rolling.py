"""Rolling: loops of Python become recurrences, with the values and derivatives of the loop; what is no loop stays."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from gradoracle.model.derivative import Derivative, program
from gradoracle.oracle.exact.recording import record
from gradoracle.oracle.exact.recurrence import recurrences
from gradoracle.oracle.exact.trace import differentiated, recurrent

T, H, K = 30, 2, 4
Definition = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


def selected(q: Tensor, k: Tensor, v: Tensor, a: Tensor) -> Tensor:
    s, out = q.new_zeros(H, K, K), []
    for t in range(len(q)):
        s = s * a[t][..., None] + k[t][..., None] * v[t][..., None, :]
        out.append((s * q[t][..., None]).sum(-2))
    return torch.stack(out)


def written(q: Tensor, k: Tensor, v: Tensor, a: Tensor) -> Tensor:
    s, out = q.new_zeros(H, K, K), torch.empty_like(v)
    for t in range(len(q)):
        s = s * a[t][..., None] + k[t][..., None] * v[t][..., None, :]
        out[t] = (s * q[t][..., None]).sum(-2)
    return out


def unbound(q: Tensor, k: Tensor, v: Tensor, a: Tensor) -> Tensor:
    s, out = q.new_zeros(H, K, K), []
    for one in zip(q.unbind(0), k.unbind(0), v.unbind(0), a.unbind(0), strict=True):
        s = s * one[3][..., None] + one[1][..., None] * one[2][..., None, :]
        out.append(torch.einsum("hkv,hk->hv", s, one[0]))
    return torch.stack(out, 1)


def last_alone(q: Tensor, k: Tensor, v: Tensor, a: Tensor) -> Tensor:
    s = q.new_zeros(H, K, K)
    for t in range(len(q)):
        s = s * a[t][..., None] + k[t][..., None] * v[t][..., None, :]
    return s * q[-1][..., None]


def backwards(q: Tensor, k: Tensor, v: Tensor, a: Tensor) -> Tensor:
    s, out = v[-1], torch.zeros_like(v)
    for t in reversed(range(len(q) - 1)):
        s = torch.tanh(s * a[t] + k[t]) * v[t + 1]
        out[t] = s + q[t]
    return out


def two_back(q: Tensor, k: Tensor, v: Tensor, a: Tensor) -> Tensor:
    x = [v[0], v[1]]
    for t in range(2, len(q)):
        x.append(a[t] * x[-1] * 0.5 + 0.2 * x[-2] + k[t] * (q[t] / (t + 1)))
    return torch.stack(x)


def in_chunks(q: Tensor, k: Tensor, v: Tensor, a: Tensor) -> Tensor:
    s, out = q.new_zeros(H, K, K), []
    for c in range(0, len(q), 3):
        x, y, z = q[c : c + 3], k[c : c + 3], v[c : c + 3]
        scores = torch.tril(torch.einsum("ihk,jhk->hij", x, y))
        out.append(torch.einsum("hij,jhv->ihv", scores, z) + torch.einsum("ihk,hkv->ihv", x, s))
        s = s + torch.einsum("ihk,ihv->hkv", y, z)
    return torch.cat(out)


def by_head(q: Tensor, k: Tensor, v: Tensor, a: Tensor) -> Tensor:
    heads = []
    for h in range(H):
        s, out = q.new_zeros(K, K), []
        for t in range(len(q)):
            s = s * a[t, h][..., None] + torch.outer(k[t, h], v[t, h])
            out.append(q[t, h] @ s)
        heads.append(torch.stack(out))
    return torch.stack(heads, 1)


def online_softmax(q: Tensor, k: Tensor, v: Tensor, a: Tensor) -> Tensor:
    m, total, o = torch.full_like(q[0], -torch.inf), torch.zeros_like(q[0]), torch.zeros_like(q[0])
    for t in range(len(q)):
        new = torch.maximum(m, k[t])
        shrunk, p = torch.exp(m - new), torch.exp(k[t] - new)
        total, o, m = total * shrunk + p, o * shrunk + p * v[t], new
    return o / total


def by_length(q: Tensor, k: Tensor, v: Tensor, a: Tensor) -> Tensor:
    lengths, s, out = torch.tensor([[7], [len(q)]]), torch.zeros_like(q[0]), []
    for t in range(len(q)):
        s = torch.where(t < lengths, torch.tanh(a[t] * s + k[t]), s)
        out.append(torch.where(lengths <= t, 0.0, s * v[t]))
    return torch.stack(out)


LOOPS: dict[str, Definition] = {
    f.__name__: f  # type: ignore[attr-defined]
    for f in (
        selected,
        written,
        unbound,
        last_alone,
        backwards,
        two_back,
        in_chunks,
        by_head,
        online_softmax,
        by_length,
    )
}


def inputs(length: int = T) -> list[Tensor]:
    dice = torch.Generator().manual_seed(3)
    x = [torch.randn(length, H, K, generator=dice).double() * 0.5 for _ in range(3)]
    return [*x, torch.sigmoid(torch.randn(length, H, K, generator=dice).double() + 2)]


@pytest.mark.parametrize("name", LOOPS)
def test_loops_are_rolled_up(name: str) -> None:
    definition = LOOPS[name]
    short, long = (recurrent(lambda *x: (definition(*x),), *inputs(n)) for n in (T, 2 * T))
    assert short is not None and long is not None
    assert len(list(short.nodes)) == len(list(long.nodes)) < 70
    assert len(list(recurrences(long))) == (H if definition is by_head else 1)


@pytest.mark.parametrize("derivative", Derivative)
@pytest.mark.parametrize("name", LOOPS)
def test_rolled_loops_have_the_values_of_the_loop(name: str, derivative: Derivative) -> None:
    definition, args = LOOPS[name], inputs()
    graph = recurrent(lambda *x: (definition(*x),), *args)
    assert graph is not None and graph.source is not None
    dice = torch.Generator().manual_seed(4)
    if derivative.takes_tangents:
        args += [torch.randn(x.shape, generator=dice).double() for x in inputs()]
    if derivative.takes_cotangents:
        args += [torch.randn(definition(*inputs()).shape, generator=dice).double()]
    if derivative is not Derivative.FORWARD:
        graph = differentiated(program(graph.source, derivative, 4), *args)
    for found, true in zip(graph(*args), program(definition, derivative, 4)(*args), strict=True):
        assert torch.allclose(found, true, rtol=1e-12, atol=1e-13)


def truncated(q: Tensor, k: Tensor, v: Tensor, a: Tensor) -> Tensor:
    """The gradient is stopped every seventh step: no two runs of six are one loop."""
    s = q[0] * 0
    for t in range(len(q)):
        s = (s.detach() if t % 7 == 0 else s) * a[t] + k[t] * v[t]
    return s


def halved_once(q: Tensor, k: Tensor, v: Tensor, a: Tensor) -> Tensor:
    """One step differs by a number."""
    s = q[0] * 0
    for t in range(len(q)):
        s = s * a[t] * (0.5 if t == 17 else 1.5) + torch.exp(k[t]) * torch.sin(v[t])
    return s


def jumping(q: Tensor, k: Tensor, v: Tensor, a: Tensor) -> Tensor:
    """Slices in no order."""
    s = q[0] * 0
    for t in range(len(q)):
        s = torch.sin(s * a[t * t % len(q)]) + torch.exp(k[t]) * torch.cos(v[t])
    return s


def rereading(q: Tensor, k: Tensor, v: Tensor, a: Tensor) -> Tensor:
    """Each step reads what another one wrote."""
    out = torch.zeros_like(v)
    for t in range(1, len(q)):
        out[t] = torch.sin(out[t // 2]) + torch.exp(k[t]) * torch.cos(v[t]) * a[t] + q[t]
    return out


@pytest.mark.parametrize("definition", [truncated, halved_once, jumping, rereading])
@pytest.mark.parametrize("derivative", [Derivative.FORWARD, Derivative.VJP])
def test_what_is_no_loop_keeps_its_values(definition: Definition, derivative: Derivative) -> None:
    args = inputs()
    graph = recurrent(lambda *x: (definition(*x),), *args)
    if derivative is Derivative.VJP:
        args += [torch.ones_like(definition(*args))]
        if graph is not None and graph.source is not None:
            graph = differentiated(program(graph.source, derivative, 4), *args)
    elif graph is None:
        graph = record(lambda *x: (definition(*x),), args, pure=True)
    if graph is not None:
        pure = record(program(definition, derivative, 4), args, pure=True)
        for found, true in zip(graph(*args), pure(*args), strict=True):
            assert torch.allclose(found, true, rtol=1e-12, atol=1e-13)


def test_numbers_may_differ_from_step_to_step() -> None:
    graph = recurrent(lambda *x: (halved_once(*x),), *inputs())
    assert graph is not None and len(list(recurrences(graph))) == 1


def test_layers_are_no_loop() -> None:
    """A few equal layers are read one by one."""

    def layers(x: Tensor) -> tuple[Tensor]:
        for _ in range(6):
            x = torch.tanh(x * 1.1 + 0.3) * torch.sigmoid(x) + torch.exp(-x * x) / (1 + x * x)
        return (x,)

    assert recurrent(layers, inputs()[0]) is None
