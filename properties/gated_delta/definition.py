"""The definition of the gated delta rule, a recurrence over tokens."""

from __future__ import annotations

import torch
from jaxtyping import Float, Float32
from torch import Tensor

from gradoracle.model.recurrence import scan


def gated_delta(
    q: Float[Tensor, "B H T D"],
    k: Float[Tensor, "B H T D"],
    v: Float[Tensor, "B H T Dv"],
    g: Float32[Tensor, "B H T"],
    beta: Float[Tensor, "B H T"],
    *,
    scale: float | None = None,
    initial_state: Float32[Tensor, "B H D Dv"] | None = None,
    return_state: bool = False,
) -> tuple[Float[Tensor, "B H T Dv"], Float32[Tensor, "B H D Dv"]]:
    """o_t = scale S_t^T q_t, where S_t = e^g_t S_(t-1) + k_t u_t^T and u_t = beta_t (v_t - (e^g_t S_(t-1))^T k_t).

    S_0 is the initial state, or 0; on request the last state is returned. ``scale`` is D^-1/2 by default.
    """

    def step(state: Tensor, token: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
        q, k, v, g, beta = token  # [B H D], [B H D], [B H Dv], [B H], [B H]
        state = torch.exp(g)[..., None, None] * state
        update = beta[..., None] * (v - (k[..., None, :] @ state)[..., 0, :])
        state = state + k[..., :, None] @ update[..., None, :]
        return state, (q[..., None, :] @ state)[..., 0, :]

    factor = q.shape[-1] ** -0.5 if scale is None else scale
    start = q.new_zeros(*k.shape[:2], k.shape[3], v.shape[3]) if initial_state is None else initial_state
    state, o = scan(step, start, (q * factor, k, v, g, beta), dim=2)
    return (o, state) if return_state else o  # type: ignore[return-value]
