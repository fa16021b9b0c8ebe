"""Algorithms of the gated delta rule: a chunked kernel's own order of roundings, for budgets only, never as truth.

Within a chunk the updates u solve (I + A) u = y, with y = beta (v - e^G k S) and S the state before the chunk. Where
the rule has learned what a chunk repeats, y is large and u is small: what y is off by is left in u. Step by step it
would be forgotten, so that a kernel with chunks has a wider budget, in every dtype.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from gradoracle.model.recurrence import scan

CHUNKS = (64, 16, 32)  # rows, the usual one first


@dataclass(frozen=True)
class Chunked:
    """A kernel that inverts chunks of so many rows."""

    rows: int

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
        """The rule, a chunk a step."""
        length, rows = q.shape[2], min(self.rows, q.shape[2])
        at = torch.arange(rows)
        seen, before = at[:, None] >= at[None, :], at[:, None] > at[None, :]
        unit, one = (torch.eye(size, dtype=q.dtype) for size in (rows, v.shape[3]))

        def step(state: Tensor, chunk: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
            q, k, v, g, beta = chunk  # [B H C D], [B H C D], [B H C Dv], [B H C], [B H C]
            between = torch.where(before, g[..., :, None], 0.0).cumsum(-2)  # no difference of sums: dg is then none
            decay, start = torch.where(seen, torch.exp(between), 0.0), torch.exp(g.cumsum(-1))[..., None]
            coupled = torch.where(before, beta[..., None] * decay * (k @ k.transpose(-1, -2)), 0.0)
            inverse = torch.linalg.solve_triangular(unit + coupled, unit, upper=False, unitriangular=True)
            update = inverse @ (beta[..., None] * (v - start * (k @ state)))
            o = start * (q @ state) + (decay * (q @ k.transpose(-1, -2))) @ update
            left = decay[..., -1, :, None]
            whole = start[..., -1:, :]
            kept = ((whole - whole.detach()) * (state @ one)) @ one  # 0: d whole multiplies operands, as dots do
            return whole.detach() * state + kept + (left * k).transpose(-1, -2) @ update, o

        factor = q.shape[-1] ** -0.5 if scale is None else scale
        first = q.new_zeros(*k.shape[:2], k.shape[3], v.shape[3]) if initial_state is None else initial_state
        count = -(-length // rows)
        missing = count * rows - length
        matrices = (pad(x, (0, 0, 0, missing)).unflatten(2, (count, rows)) for x in (q * factor, k, v))
        series = (pad(x, (0, missing)).unflatten(2, (count, rows)) for x in (g, beta))
        state, o = scan(step, first, (*matrices, *series), dim=2)
        o = o.flatten(2, 3)[:, :, :length]
        return (o, state) if return_state else o


def chunks_of(rows: int) -> str:
    """The name of the algorithm of a kernel with chunks of so many rows."""
    return f"chunks of {rows}"


ALGORITHMS = {chunks_of(each.rows): {"definition": each} for each in map(Chunked, CHUNKS)}
