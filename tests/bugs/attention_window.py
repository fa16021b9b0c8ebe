"""Attention within a sliding window, over the list of key blocks of each query block: correct, and a released bug.

Arithmetic is in float32, with autograd's own backward.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

import gradoracle
from gradoracle.mutation.bugs import Bugs

BLOCK = 8  # queries, and keys, of a block


@gradoracle.family(
    dims={"B": gradoracle.sizes(1, 3), "N": gradoracle.sizes(1, 70)}
    | {name: gradoracle.sizes(1, 32) for name in ("D", "Dv")},
    options={"window": (3, 2, 20)},
)
def local(
    q: Float[Tensor, "B N D"], k: Float[Tensor, "B N D"], v: Float[Tensor, "B N Dv"], *, window: int = 3
) -> Float[Tensor, "B N Dv"]:
    """softmax(q k^T / sqrt(D)) v over the last ``window`` keys up to the query's own."""
    s = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
    behind = torch.arange(q.shape[1])[:, None] - torch.arange(q.shape[1])[None, :]
    return torch.softmax(torch.where((behind >= 0) & (behind < window), s, -torch.inf), -1) @ v


def _local(q: Tensor, k: Tensor, v: Tensor, window: int, first_key: Callable[[int, int], int]) -> Tensor:
    """``first_key(j, block)``: from where on the mask counts the keys of the j-th needed block, which is ``block``."""
    rows = []
    size = q.shape[1]
    for start in range(0, size, BLOCK):
        queries = torch.arange(start, min(start + BLOCK, size))
        needed = range(max(0, start - window + 1) // BLOCK, start // BLOCK + 1)
        scores = []
        for j, block in enumerate(needed):
            keys = k[:, block * BLOCK : (block + 1) * BLOCK].float()
            s = q[:, queries].float() @ keys.mT * q.shape[-1] ** -0.5
            behind = queries[:, None] - (first_key(j, block) + torch.arange(keys.shape[1]))[None, :]
            scores.append(torch.where((behind >= 0) & (behind < window), s, -1e30))
        p = torch.softmax(torch.cat(scores, -1), -1)
        rows.append(p @ v[:, needed[0] * BLOCK : (needed[-1] + 1) * BLOCK].float())
    return torch.cat(rows, 1).to(q.dtype)


def right(q, k, v, *, window=3):
    """The correct kernel: the mask counts keys from the block's own place."""
    return _local(q, k, v, window, lambda j, block: block * BLOCK)


BUGS = Bugs(right)


@BUGS.of("jax-ml/jax@f15f9717c3", "forward_matches_the_oracle", "shift")
def keys_counted_from_the_shrunk_grid(q, k, v, *, window=3):
    """jax-ml/jax@f15f9717c3: with a local mask, blocks of keys that nothing sees are left out of the grid.

    The mask was computed from the place in that shrunk grid, and not from the place among all keys.
    """
    return _local(q, k, v, window, lambda j, block: j * BLOCK)
