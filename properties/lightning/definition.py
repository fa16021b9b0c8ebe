"""The definition of causal linear attention without decay."""

from __future__ import annotations

import torch
from jaxtyping import Float, Float32
from torch import Tensor
from torch.nn.functional import pad

LONGEST_LITERAL = 512  # rows up to which all scores q k^T are written down
PIECE = 64  # rows, of longer sequences


def lightning(
    q: Float[Tensor, "B H N D"],
    k: Float[Tensor, "B H N D"],
    v: Float[Tensor, "B H N Dv"],
    *,
    initial_state: Float32[Tensor, "B H D Dv"] | None = None,
    return_state: bool = False,
) -> tuple[Float[Tensor, "B H N Dv"], Float32[Tensor, "B H D Dv"]]:
    """o_i = q_i S0 + sum over j <= i of (q_i . k_j) v_j, and on request the state S0 + sum over j of k_j^T v_j.

    Scores are written down for N <= 512; longer sequences are summed by pieces, in memory linear in N.
    """
    o = literal(q, k, v) if q.shape[2] <= LONGEST_LITERAL else by_pieces(q, k, v)
    if initial_state is not None:
        o = o + q @ initial_state
    if not return_state:
        return o  # type: ignore[return-value]
    state = k.transpose(-1, -2) @ v
    return o, state if initial_state is None else initial_state + state


def literal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """tril(q k^T) v: [B H N Dv] of q, k [B H N D] and v [B H N Dv]."""
    return torch.tril(q @ k.transpose(-1, -2)) @ v


def by_pieces(q: Tensor, k: Tensor, v: Tensor, rows: int = PIECE) -> Tensor:
    """The same as ``literal``: scores within pieces of ``rows`` rows, and k^T v of all earlier pieces."""
    length = q.shape[2]
    pieces = -(-length // rows)
    missing = pieces * rows - length
    q, k, v = (pad(x, (0, 0, 0, missing)).unflatten(2, (pieces, rows)) for x in (q, k, v))
    sums = (k.transpose(-1, -2) @ v).cumsum(2)  # [B H pieces D Dv]
    earlier = pad(sums[:, :, :-1], (0, 0, 0, 0, 1, 0))
    return (literal(q, k, v) + q @ earlier).flatten(2, 3)[:, :, :length]
