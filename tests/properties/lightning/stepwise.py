"""Lightning attention as a scan: the state from row to row."""

from __future__ import annotations

from dataclasses import replace

from gradoracle.properties.lightning import FAMILY as lightning
from torch import Tensor

import gradoracle
from gradoracle.oracle.truth import Oracle


def stepwise(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    initial_state: Tensor | None = None,
    return_state: bool = False,
    fault: str = "",
) -> Tensor | tuple[Tensor, Tensor]:
    """As the family's definition. ``fault``: "state before" reads the state without the row's own token."""

    def step(state: Tensor, now: tuple[Tensor, Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        q, k, v = now  # [B H D], [B H Dv]
        after = state + k[..., None] * v[..., None, :]
        return after, (q[..., None, :] @ (state if fault == "state before" else after))[..., 0, :]

    start = initial_state
    if start is None:
        start = q.new_zeros(*q.shape[:2], k.shape[3], v.shape[3])
    state, o = gradoracle.scan(step, start, (q, k, v), dim=2)
    return (o, state) if return_state else o


ORACLE = Oracle(replace(lightning, definition=stepwise, scalable=None, algorithms={}))
