"""LSE by hand in eager PyTorch with float32 arithmetic, correct or with one named fault."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import torch
from gradoracle.properties.lse import FAMILY
from torch import Tensor

from gradoracle.model.kernel import Kernel
from gradoracle.oracle.truth import Oracle
from tests.properties import judging
from tests.properties.faults import CORRECT, ByHand

ORACLE = Oracle(FAMILY)
evidence = functools.partial(judging.evidence, oracle=ORACLE)
judge = functools.partial(judging.judge, oracle=ORACLE)
LOG2_E = 1.4426950408889634


class LogSumExp(ByHand):
    """One implementation, formula by formula; ``fault`` names what is wrong with it."""

    def visible(self, batch: int, queries: int, keys: int, causal: bool, segments: Any) -> Tensor:
        """[B, 1, T, M] which keys each query sees."""
        found = torch.ones(batch, 1, queries, keys, dtype=torch.bool)
        if causal:
            offset = 0 if self.has("aligned top-left") else keys - queries
            offset += self.has("mask off by one")
            found = found & (torch.arange(keys)[None, :] <= torch.arange(queries)[:, None] + offset)
        if segments[0] is not None and not self.has("segments ignored"):
            found = found & (segments[0][:, None, :, None] == segments[1][:, None, None, :])
        if self.has("last key dropped") and keys > 1:
            found = found & (torch.arange(keys) < keys - 1)
        return found

    def heads(self, k: Tensor, share: int) -> Tensor:
        """[B, H, M, D] the key head of each query head."""
        if self.has("key heads interleaved"):
            return k.repeat(1, share, 1, 1)
        k = k.repeat_interleave(share, 1)
        if share > 1 and self.has("dk without the sum over the group"):
            first = (torch.arange(k.shape[1]) % share == 0)[None, :, None, None]
            k = torch.where(first, k, k.detach())
        return k

    def scores(self, q: Tensor, k: Tensor, scale: float | None, softcap: float | None) -> Tensor:
        """[B, H, T, M] capped."""
        factor = q.shape[-1] ** -0.5 if scale is None or self.has("default scale") else scale
        if self.has("k clamped"):
            k = k.clamp(-1.5, 1.5)
        k = self.backward_changed("dk lacks the scale", k, lambda g: g / factor)
        k = self.backward_changed("dk one percent large", k, lambda g: g * 1.01)
        q = self.backward_changed("dq one percent large", q, lambda g: g * 1.01)
        s = q @ self.heads(k, q.shape[1] // k.shape[1]).transpose(-1, -2) * factor
        if softcap is not None:
            capped = torch.tanh(s / softcap)
            s = capped if self.has("cap not multiplied back") else softcap * capped
        return s

    def __call__(
        self,
        q: Tensor,
        k: Tensor,
        *,
        sinks: Tensor | None = None,
        q_segments: Tensor | None = None,
        kv_segments: Tensor | None = None,
        scale: float | None = None,
        causal: bool = False,
        softcap: float | None = None,
    ) -> Tensor:
        """lse [B, H, T] in float32; in float64 for float64."""
        held = torch.float64 if q.dtype == torch.float64 else torch.float32
        q, k = q.to(held), k.to(held)
        s = self.scores(q, k, scale, softcap)
        batch, heads, queries, keys = s.shape
        visible = self.visible(batch, queries, keys, causal, (q_segments, kv_segments))
        terms = torch.where(visible, s, -1e9 if self.has("masked by a large number") else -torch.inf)
        sees = visible.any(-1, keepdim=True).expand(batch, heads, queries, 1)
        if self.has("padded key"):
            terms = torch.cat([terms, torch.zeros(batch, heads, queries, 1, dtype=held)], -1)
            sees = torch.ones_like(sees)
        if sinks is not None:
            terms, sees = self.with_sinks(terms, sinks.to(held), sees)
        if self.has("masked by a large number"):
            sees = torch.ones_like(sees)
        rows = torch.where(sees, terms, 0.0)
        total = torch.logsumexp(rows, -1)
        if self.has("hessian with the wrong sign"):
            total = _flipped(total, q, k)
        if self.has("shares sum to more than one"):
            total = total + 0.01 * torch.where(visible, s - s.detach(), 0.0).sum(-1)
        if self.has("leaky mask in backward"):
            total = total + 1e-9 * torch.where(visible, 0.0, s - s.detach()).sum(-1)
        if self.has("base 2"):
            total = total * LOG2_E
        blind = 0.0 if self.has("zero for empty rows") else -torch.inf
        return torch.where(sees[..., 0], total, blind)

    def with_sinks(self, terms: Tensor, sinks: Tensor, sees: Tensor) -> tuple[Tensor, Tensor]:
        """Terms with the sinks, and which rows have a term."""
        if self.has("sink left out"):
            return terms, sees
        sinks = self.backward_changed("sign of dsinks", sinks, lambda g: -g)
        sinks = self.backward_changed("dsinks one percent large", sinks, lambda g: 1.01 * g)
        if self.has("sink in base 2"):
            sinks = sinks * LOG2_E
        if self.has("sink clamped"):
            sinks = sinks.clamp(min=-2.0)
        if self.has("sink of another head"):
            sinks = sinks.roll(1)
        column = sinks[None, :, None, None].expand(*terms.shape[:3], 1)
        if self.has("sink skipped in empty rows"):
            return torch.cat([terms, column], -1), sees
        return torch.cat([terms, column], -1), torch.ones_like(sees)


def _flipped(total: Tensor, q: Tensor, k: Tensor) -> Tensor:
    """A function with the value of ``total`` and, to second order, minus its curvature in q and in k."""
    return total - 10.0 * ((q - q.detach()).square().sum(-1) + (k - k.detach()).square().sum((1, 2, 3))[:, None, None])


class Backwards:
    """Two backwards of one kernel: the separate one is autograd's, the fused one may have a fault."""

    def __init__(self, own: LogSumExp) -> None:
        self.own, self.runs = own, 0

    def __call__(
        self, inputs: Mapping[str, Tensor], cotangent: Tensor, which: str, options: Mapping[str, Any], blocks: Any
    ) -> dict[str, Tensor]:
        """The gradients by name (``dq``)."""
        given = {n: t.detach().requires_grad_(t.is_floating_point()) for n, t in inputs.items()}
        expected = [name for name, tensor in given.items() if tensor.is_floating_point()]
        with torch.enable_grad():
            out = self.own(**given, **options)  # type: ignore[arg-type]
            found = torch.autograd.grad(out, [given[name] for name in expected], cotangent)
        gradients = {f"d{name}": tensor for name, tensor in zip(expected, found, strict=True)}
        self.runs += 1
        if which == "fused" and self.own.has("a partial dq counted twice"):
            gradients["dq"] = gradients["dq"] * torch.where(torch.arange(gradients["dq"].shape[2]) > 3, 2, 1)[:, None]
        if which == "fused" and self.own.has("its fused backward gives a dq 1e-5 large"):
            gradients["dq"] = gradients["dq"] * (1.0 + 1e-5)
        if which == "fused" and self.own.has("other bits each time"):
            gradients["dq"] = gradients["dq"] * (1.0 + 2.0**-20 * self.runs)
        return gradients


def kernel(fault: str = CORRECT) -> Kernel:
    """The kernel with a fault, or without."""
    own = LogSumExp(fault)
    return Kernel(fault or "correct", "lse", own, deterministic=True, extras={"backward": Backwards(own)})
