"""Linear attention by hand in eager PyTorch with float32 arithmetic, correct or with one named fault."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from gradoracle.properties.lightning import FAMILY
from torch import Tensor

from gradoracle.model.kernel import Kernel
from gradoracle.oracle.truth import Oracle
from tests.properties import judging
from tests.properties.faults import CORRECT, ByHand, edited

ORACLE = Oracle(FAMILY)
evidence = functools.partial(judging.evidence, oracle=ORACLE)
judge = functools.partial(judging.judge, oracle=ORACLE)
CHUNK = 8
ONE_PERCENT = 1.01


class LinearAttention(ByHand):
    """One implementation, chunk by chunk; ``fault`` names what is wrong with it."""

    def __call__(
        self, q: Tensor, k: Tensor, v: Tensor, *, initial_state: Tensor | None = None, return_state: bool = False
    ) -> Tensor | tuple[Tensor, Tensor]:
        """o [B H N Dv] in the dtype of q, and on request the state [B H D Dv] in float32; float64 for float64."""
        dtype, held = q.dtype, torch.float64 if q.dtype == torch.float64 else torch.float32
        q, k, v = self.inputs(q.to(held), k.to(held), v.to(held))
        state = k.new_zeros((*k.shape[:2], k.shape[3], v.shape[3])) if initial_state is None else initial_state
        if self.has("ones without an initial state") and initial_state is None:
            state = torch.ones_like(state)
        state = self.backward_changed("dS0 one percent large", state, lambda g: ONE_PERCENT * g)
        outputs = []
        for first in range(0, q.shape[2], CHUNK):
            rows = slice(first, first + CHUNK)
            outputs.append(self.chunk(q[:, :, rows], k[:, :, rows], v[:, :, rows], state))
            state = self.updated(state, q[:, :, rows], k[:, :, rows], v[:, :, rows], last=first + CHUNK >= q.shape[2])
        o = self.outputs(torch.cat(outputs, 2), q, k, v)
        if self.has("state cotangent dropped"):
            state = edited(state, torch.zeros_like)
        return (o.to(dtype), state) if return_state else o.to(dtype)

    def inputs(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """q, k and v with the faults that sit before the chunks."""
        q = self.backward_changed("dq one percent large", q, lambda g: ONE_PERCENT * g)
        k = self.backward_changed("dk one percent large", k, lambda g: ONE_PERCENT * g)
        v = self.backward_changed("dv one percent large", v, lambda g: ONE_PERCENT * g)
        if self.has("dk and dv one percent large"):
            k, v = (edited(x, lambda g: ONE_PERCENT * g) for x in (k, v))
        k = self.backward_changed("dk leaks to the next row", k, lambda g: g + 1e-6 * g.roll(1, 2))
        if self.has("a query reads its neighbour"):
            q = q + 1e-6 * q.roll(1, 2)
        if self.has("decay"):
            k = k * (1 - 1e-3 * torch.arange(k.shape[2], dtype=k.dtype))[:, None]
        if self.has("queries clamped"):
            q = q.clamp(-1.0, 1.0)
        return q, k, v

    def chunk(self, q: Tensor, k: Tensor, v: Tensor, state: Tensor) -> Tensor:
        """o of one chunk: its own tokens up to each row, and the state before it."""
        scores = q @ k.transpose(-1, -2)
        if self.has("tanh of the scores"):
            scores = torch.tanh(scores)
        diagonal = {"diagonal left out": -1, "mask off by one": 1}.get(self.fault, 0)
        masked = torch.tril(scores, diagonal)
        if self.has("leaky mask"):
            masked = masked + 1e-9 * torch.triu(scores, 1)
        if self.has("first row of a chunk sees nothing before"):
            return masked @ v + torch.cat([torch.zeros_like(q[:, :, :1]), q[:, :, 1:]], 2) @ state
        if self.has("chunk in its own state"):
            state = state + k.transpose(-1, -2) @ v
        if self.has("state left out of dq"):
            return masked @ v + q.detach() @ state
        return masked @ v + q @ state

    def updated(self, state: Tensor, q: Tensor, k: Tensor, v: Tensor, last: bool) -> Tensor:
        """The state after a chunk."""
        if last and self.has("last token left out of the state"):
            k, v = k[:, :, :-1], v[:, :, :-1]
        state = state + k.transpose(-1, -2) @ v
        if self.has("queries in the state"):
            state = state + 1e-5 * q.sum(2).unsqueeze(-1)
        if last and self.has("state rounded to 16 bit"):
            state = state.bfloat16().to(state.dtype)
        return state

    def outputs(self, o: Tensor, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """o with the faults that sit behind the chunks."""
        if self.has("normalised by the keys"):
            o = o / (1 + k.abs().sum(-1, keepdim=True).cumsum(2))
        if self.has("values add up by themselves"):
            o = o + 1e-3 * v.cumsum(2)
        if self.has("a curvature in q"):  # of no value and no gradient here
            o = o + 10 * (q - q.detach()).square().sum(-1, keepdim=True)
        return o


def _jvp_without_k(own: LinearAttention) -> Callable[..., Any]:
    """An explicit JVP that leaves out the tangent of k."""

    def jvp(inputs: Any, tangents: Any, options: Any, blocks: Any) -> Any:
        def call(q: Tensor, k: Tensor, v: Tensor, *initial: Tensor) -> Any:
            return own(q, k, v, initial_state=initial[0] if initial else None, **options)

        moved = tuple(torch.zeros_like(t) if name == "k" else t for name, t in tangents.items())
        return torch.func.jvp(call, tuple(inputs.values()), moved)

    return jvp


def kernel(fault: str = CORRECT) -> Kernel:
    """The kernel with a fault, or without."""
    own = LinearAttention(fault)
    jvp = _jvp_without_k(LinearAttention()) if fault == "jvp without k'" else None
    return Kernel(fault or "correct", "lightning", own, jvp=jvp, algorithm="chunks of 16", deterministic=True)
