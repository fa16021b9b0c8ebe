"""SDPA by hand in eager PyTorch, correct or with one named fault."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import torch
from gradoracle.properties.sdpa import FAMILY
from torch import Tensor

from gradoracle.model.kernel import Kernel
from gradoracle.oracle.truth import Oracle
from tests.properties import judging
from tests.properties.faults import CORRECT, ByHand

ORACLE = Oracle(FAMILY)
evidence = functools.partial(judging.evidence, oracle=ORACLE)
judge = functools.partial(judging.judge, oracle=ORACLE)


def _visible(queries: int, keys: int, causal: bool, fault: str) -> Tensor:
    """[T, M] which keys each query sees."""
    if not causal:
        return torch.ones(queries, keys, dtype=torch.bool)
    offset = 0 if fault == "aligned top-left" else keys - queries
    offset += fault == "mask off by one"
    return torch.arange(keys)[None, :] <= torch.arange(queries)[:, None] + offset


class Attention(ByHand):
    """One implementation, formula by formula in float32 or float64; ``fault`` names what is wrong with it."""

    def scores(self, q: Tensor, k: Tensor, scale: float | None, causal: bool) -> tuple[Tensor, Tensor, float]:
        factor = q.shape[-1] ** -0.5 if scale is None else scale
        if self.has("q clamped"):
            q = q.clamp(-1.5, 1.5)
        if self.has("k clamped"):
            k = k.clamp(-1.5, 1.5)
        s = q @ k.transpose(-1, -2) * factor
        visible = _visible(q.shape[-2], k.shape[-2], causal, self.fault)
        if self.has("last key dropped"):
            visible[:, -1] = False
        return torch.where(visible, s, -torch.inf), visible, factor

    def forward(self, q: Tensor, k: Tensor, v: Tensor, scale: Any, causal: bool) -> tuple[Tensor, Tensor, Tensor]:
        """(o, m, l)."""
        s, visible, _ = self.scores(q, k, scale, causal)
        m = s.amax(-1)
        level = torch.where(visible.any(-1), m, 0.0)[..., None]
        weights = torch.exp(s - level)
        l = weights.sum(-1)
        if self.has("padded key in l"):
            l = l + torch.exp(-level[..., 0])
        p = weights / torch.where(l == 0, 1.0, l)[..., None]
        if self.has("blind rows average") and not bool(visible.any(-1).all()):
            p = torch.where(visible.any(-1, keepdim=True), p, 1.0 / k.shape[-2])
        if self.has("values clamped"):
            v = v.clamp(-1.5, 1.5)
        o = p @ v
        if self.has("output one percent large"):
            o = o * 1.01
        if self.has("m in base 2"):
            m = m * 1.4426950408889634
        if self.has("m of the whole head"):
            whole = m.amax(-1, keepdim=True).expand_as(m)
            l = l * torch.exp(m - whole)
            m = whole.contiguous()
        if self.has("l of another row"):
            l = l.roll(1, -1)
        return o, m, l

    def p(self, q: Tensor, k: Tensor, scale: Any, causal: bool) -> tuple[Tensor, float]:
        s, visible, factor = self.scores(q, k, scale, causal)
        sees = visible.any(-1, keepdim=True)
        return torch.where(sees, torch.softmax(torch.where(sees, s, 0.0), -1), 0.0), factor

    def backward(
        self, q: Tensor, k: Tensor, v: Tensor, g: Tensor, scale: Any, causal: bool
    ) -> tuple[Tensor, Tensor, Tensor]:
        """(dq, dk, dv)."""
        if self.has("default scale in backward"):
            p, _ = self.p(q, k, scale, causal)
            factor = q.shape[-1] ** -0.5
        else:
            p, factor = self.p(q, k, scale, causal)
        dp = g @ v.transpose(-1, -2)
        z = (dp * p).sum(-1, keepdim=True)
        ds = p * (dp if self.has("no z") else dp - z)
        dq, dk = ds @ k * factor, ds.transpose(-1, -2) @ q * factor
        weights = p * 1.01 if self.has("p not normalised in backward") else p
        dv = weights.transpose(-1, -2) @ g
        if self.has("dk lacks the scale"):
            dk = dk / factor
        if self.has("dv of another head"):
            dv = dv.roll(1, 1)
        return dq, dk, dv

    def tangent(
        self, primals: tuple[Tensor, ...], tangents: tuple[Tensor, ...], p: Tensor, factor: float, centred: bool
    ) -> tuple[Tensor, Tensor]:
        """(P', S')."""
        (q, k, _), (tq, tk, _) = primals, tangents
        ts = (tq @ k.transpose(-1, -2) + q @ tk.transpose(-1, -2)) * factor
        return p * (ts - (p * ts).sum(-1, keepdim=True)) if centred else p * ts, ts

    def jvp(self, primals: Any, tangents: Any, scale: Any, causal: bool) -> tuple[Tensor, Tensor]:
        """(o, tangent of o)."""
        return self.jvp_from(primals, tangents, None, scale, causal)

    def jvp_frozen(self, primals: Any, tangents: Any, statistics: Any, scale: Any, causal: bool) -> Tensor:
        """The tangent of o with m and l held."""
        p, factor = self.rebuilt(primals, statistics, scale, causal)
        tp, _ = self.tangent(primals, tangents, p, factor, self.has("frozen jvp centred"))
        return tp @ primals[2] + p @ tangents[2]

    def jvp_from(self, primals: Any, tangents: Any, statistics: Any, scale: Any, causal: bool) -> tuple[Tensor, Tensor]:
        """(o, tangent of o) of the P that m and l rebuild, or of its own."""
        p, factor = self.rebuilt(primals, statistics, scale, causal)
        tp, ts = self.tangent(primals, tangents, p, factor, not self.has("jvp not centred"))
        if self.has("centre is a mean"):
            tp = p * (ts - (p * ts).sum(-1, keepdim=True) / p.sum(-1, keepdim=True).clamp(min=1e-30))
        value = torch.zeros_like(tangents[2]) if self.has("v' dropped") else tangents[2]
        return p @ primals[2], tp @ primals[2] + p @ value

    def rebuilt(self, primals: Any, statistics: Any, scale: Any, causal: bool) -> tuple[Tensor, float]:
        """P of given m and l, or of its own."""
        s, visible, factor = self.scores(primals[0], primals[1], scale, causal)
        if statistics is None or self.has("stale statistics ignored"):
            return self.p(primals[0], primals[1], scale, causal)
        m, l = statistics
        level, total = (torch.where(visible.any(-1), t, n)[..., None] for t, n in ((m, 0.0), (l, 1.0)))
        return torch.exp(s - level) / total, factor

    def hvp(self, primals: Any, tangents: Any, cotangent: Tensor, scale: Any, causal: bool) -> tuple[Tensor, ...]:
        """(hq, hk, hv)."""
        (q, k, v), (tq, tk, tv), g = primals, tangents, cotangent
        p, factor = self.p(q, k, scale, causal)
        tp, _ = self.tangent(primals, tangents, p, factor, not self.has("hvp not centred"))
        dp, tdp = g @ v.transpose(-1, -2), g @ tv.transpose(-1, -2)
        z, tz = (dp * p).sum(-1, keepdim=True), (tdp * p + dp * tp).sum(-1, keepdim=True)
        ds, tds = p * (dp - z), tp * (dp - z) + p * (tdp - tz)
        hq = (tds @ k + ds @ tk) * factor
        hk = (tds.transpose(-1, -2) @ q + ds.transpose(-1, -2) @ tq) * factor
        return hq, hk, tp.transpose(-1, -2) @ g

    def difference(
        self, primals: Any, tangents: Any, cotangent: Tensor, step: float, scale: Any, causal: bool
    ) -> tuple[Tensor, ...]:
        """The HVP by a central difference."""
        behind = 0.0 if self.has("one-sided difference") else -step
        ahead, back = (
            self.backward(*(x + h * t for x, t in zip(primals, tangents, strict=True)), cotangent, scale, causal)
            for h in (step, behind)
        )
        width = 2 * step * 1.01 if self.has("wrong step") else step - behind
        return tuple((a - b) / width for a, b in zip(ahead, back, strict=True))


class _Function(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, attention: Attention, scale: Any, causal: bool) -> Tensor:
        ctx.save_for_backward(q, k, v)
        ctx.rest = attention, scale, causal
        return attention.forward(q, k, v, scale, causal)[0]

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Any, ...]:
        attention, scale, causal = ctx.rest
        return *attention.backward(*ctx.saved_tensors, g, scale, causal), None, None, None


def kernel(fault: str = CORRECT) -> Kernel:
    """The kernel with a fault, or without."""
    own = Attention(fault)

    def call(q: Tensor, k: Tensor, v: Tensor, *, scale: float | None = None, causal: bool = False) -> Tensor:
        return _Function.apply(q, k, v, own, scale, causal)

    def options(given: Any) -> tuple[Any, bool]:
        return given["scale"], given["causal"]

    def backward(inputs: Any, cotangents: Any, statistics: Any, given: Any, blocks: Any) -> Any:
        primals = _of(inputs)[::-1] if own.has("arguments crossed") else _of(inputs)
        return own.backward(*primals, *cotangents, *options(given))

    extras: dict[str, Callable[..., Any]] = {
        "stats": lambda inputs, given, blocks: own.forward(*_of(inputs), *options(given)),
        "backward": backward,
        "jvp_from_statistics": lambda inputs, tangents, statistics, given, blocks: own.jvp_from(
            _of(inputs), tangents, statistics, *options(given)
        ),
        "jvp_frozen": lambda inputs, tangents, statistics, given, blocks: own.jvp_frozen(
            _of(inputs), tangents, statistics, *options(given)
        ),
        "hvp_central_difference": lambda inputs, tangents, cotangents, step, given, blocks: own.difference(
            _of(inputs), tangents, *cotangents, step, *options(given)
        ),
    }
    return Kernel(
        fault or "correct",
        "sdpa",
        call,
        jvp=lambda inputs, tangents, given, blocks: own.jvp(_of(inputs), _of(tangents), *options(given)),
        hvp=lambda inputs, tangents, cotangents, given, blocks: own.hvp(
            _of(inputs), _of(tangents), cotangents["o"], *options(given)
        ),
        deterministic=True,
        extras=extras,
    )


def _of(named: Mapping[str, Tensor]) -> tuple[Tensor, ...]:
    """(of q, of k, of v)."""
    return named["q"], named["k"], named["v"]
