r"""Mamba-2's state space duality (arXiv 2405.21060).

    gradoracle check examples/recurrences/ssd.py:right --dim T=4096

The kernel works in chunks of 64, as the paper's listing does: products within a chunk, and states between chunks.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import pad, softplus

from gradoracle import family, kernel, scan, sizes


@family(dims={"B": sizes(1, 2), "T": sizes(1, 300, asked=4096), "H": sizes(1, 3), "P": sizes(1, 9), "N": sizes(1, 9)})
def ssd(
    x: Float[Tensor, "B T H P"], dt: Float[Tensor, "B T H"], a: Float[Tensor, "H"],
    b: Float[Tensor, "B T N"], c: Float[Tensor, "B T N"],
) -> Float[Tensor, "B T H P"]:  # fmt: skip
    """S_t c_t, where S_t = exp(d_t A) S_{t-1} + d_t x_t b_t^T, A = -exp(a) and d_t = softplus(dt_t - 4)."""

    def step(state, slices):  # [B H P N]
        x, d, b, c = slices
        state = torch.exp(-d * a.exp())[..., None, None] * state + (d[..., None] * x)[..., None] * b[:, None, None]
        return state, (state * c[:, None, None]).sum(-1)

    return scan(step, x.new_zeros(*x[:, 0].shape, b.shape[2]), (x, softplus(dt - 4), b, c), dim=1)[1]


def _sums(x):
    """[.. n n]: the sum of x from place j + 1 to place i, -inf for i < j."""
    i = torch.arange(x.shape[-1], device=x.device)
    return torch.where(i[:, None] > i, x[..., None], 0.0).cumsum(-2).masked_fill(i[:, None] < i, -torch.inf)


@kernel(ssd)
def right(x, dt, a, b, c, before=1):
    """Float32 inside."""
    steps, d = x.shape[1], softplus(dt.float() - 4)
    given = (x.float() * d[..., None], -d * a.float().exp(), b.float(), c.float())
    u, logs, b, c = (pad(z, (0, 0) * (z.dim() - 2) + (0, -steps % 64)).unflatten(1, (-1, 64)) for z in given)
    decay = _sums(logs.mT.transpose(1, 2)).exp()  # [B H n 64 64]
    own = torch.einsum("bnic,bnjc,bhnij,bnjhp->bnihp", c, b, decay, u)
    left = torch.einsum("bnjc,bhnj,bnjhp->bnhpc", b, decay[..., -1, :], u)  # the states that chunks alone would leave
    crossed = _sums(pad(logs.sum(2).mT, (before, 1 - before))).exp()[..., :-1, 1:]  # [B H n n]
    state = torch.einsum("bhzn,bnhpc->bzhpc", crossed, left)
    y = own + torch.einsum("bnic,bnhpc,bnih->bnihp", c, state, logs.cumsum(2).exp())
    return y.flatten(1, 2)[:, :steps].to(x.dtype)


@kernel(ssd)
def wrong(x, dt, a, b, c):
    """It decays what chunk n left, on the way to chunk z, by chunks n + 2 to z and not n + 1 to z - 1: T > 128."""
    return right(x, dt, a, b, c, before=0)
