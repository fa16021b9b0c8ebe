"""The gated delta rule by hand in eager PyTorch, a token a step in float32, correct or with one named fault."""

from __future__ import annotations

import torch
from gradoracle.properties.gated_delta import FAMILY
from torch import Tensor

from gradoracle.model.kernel import Kernel
from gradoracle.oracle.truth import Oracle
from tests.properties.faults import CORRECT, ByHand

ORACLE = Oracle(FAMILY)


class DeltaRule(ByHand):
    """One implementation, token by token; ``fault`` names what is wrong with it."""

    def __call__(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        g: Tensor,
        beta: Tensor,
        *,
        scale: float | None = None,
        initial_state: Tensor | None = None,
        return_state: bool = False,
    ) -> Tensor | tuple[Tensor, Tensor]:
        """o [B H T Dv] in the dtype of q, and on request the state [B H D Dv] in float32; float64 for float64."""
        dtype, held = q.dtype, torch.float64 if q.dtype == torch.float64 else torch.float32
        q, k, v, beta = (x.to(held) for x in (q, k, v, beta))
        k = self.backward_changed("dk leaks to the next row", k, lambda x: x + 1e-6 * x.roll(1, 2))
        beta = self.backward_changed("dbeta leaks to the next row", beta, lambda x: x + 1e-6 * x.roll(1, 2))
        state = k.new_zeros((*k.shape[:2], k.shape[3], v.shape[3])) if initial_state is None else initial_state
        if self.has("ones without an initial state") and initial_state is None:
            state = torch.ones_like(state)
        if self.has("an initial state decays twice"):
            state = g[:, :, 0, None, None].exp() * state
        factor = q.shape[-1] ** -0.5 if scale is None else scale
        rows, before = [], state
        for t in range(q.shape[2]):
            before, state = state, self.step(state, k[:, :, t], v[:, :, t], g[:, :, t], beta[:, :, t])
            rows.append(factor * (q[:, :, t, None, :] @ state)[:, :, 0, :])
        if self.has("last token left out of the state"):
            state = before
        if self.has("state rounded to 16 bit"):
            state = state.bfloat16().to(held)
        o = torch.stack(rows, 2)
        if self.has("a row reads the value of the next"):
            o = o + 1e-6 * v.roll(-1, 2)
        return (o.to(dtype), state) if return_state else o.to(dtype)

    def step(self, state: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor) -> Tensor:
        """The state [B H D Dv] after a token: k [B H D], v [B H Dv], g and beta [B H]."""
        if self.has("a decay of at least one half"):
            g = g.clamp_min(-0.7)
        if self.has("a decay of at most 0.999"):
            g = g.clamp_max(-1e-3)
        state = g[..., None, None].exp() * state
        seen = (k[..., None, :] @ state)[..., 0, :]
        if self.has("what a key has is not taken away"):
            seen = torch.zeros_like(seen)
        if self.has("a coordinate of the state is overwritten by its own part of the key"):
            own = beta[..., None] * k
            return (1 - own * k)[..., None] * state + own[..., None] * v[..., None, :]
        update = beta[..., None] * (v - seen)
        if self.has("values written without beta"):
            update = update + 1e-3 * v
        state = state + k[..., :, None] @ update[..., None, :]
        return state.clamp(-0.5, 0.5) if self.has("state clamped") else state


def kernel(fault: str = CORRECT) -> Kernel:
    """The kernel with a fault, or without."""
    return Kernel(fault or "correct", "gated_delta", DeltaRule(fault), deterministic=True)
