r"""Soft dynamic time warping (arXiv 1703.01541) of two sequences.

    gradoracle check examples/recurrences/soft_dtw.py:right --dim N=1024

The definition goes row by row and, within a row, cell by cell. The kernel, in PyTorch, goes along antidiagonals, with
a smooth minimum that has a backward of its own.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import pad

from gradoracle import family, kernel, scan, sizes


@family(
    dims={"B": sizes(1, 2), "N": sizes(1, 300, asked=4096), "M": sizes(1, 9), "D": sizes(1, 4)},
    options={"gamma": (1.0, 0.1)},
)
def soft_dtw(x: Float[Tensor, "B N D"], y: Float[Tensor, "B M D"], *, gamma: float = 1.0) -> Float[Tensor, "B"]:
    """R[N, M], where R[i, j] = |x_i - y_j|^2 - gamma log(sum of exp(-R/gamma) at (i-1, j), (i, j-1), (i-1, j-1))."""

    def cell(left, given):  # [B]
        above, corner, cost = given
        left = cost - gamma * torch.logsumexp(torch.stack([left, above, corner]) / -gamma, 0)
        return left, left

    def row(above, x):  # [B M+1]
        cost = (x[:, None] - y).square().sum(2)
        _, found = scan(cell, torch.full_like(x[:, 0], torch.inf), (above[:, 1:], above[:, :-1], cost), dim=1)
        return pad(found, (1, 0), value=torch.inf), None

    start = pad(x.new_zeros(len(x), 1), (0, y.shape[1]), value=torch.inf)
    return scan(row, start, x, dim=1)[0][:, -1]


class _Softmin(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, gamma, subtracted):
        ctx.save_for_backward(x)
        ctx.gamma, ctx.subtracted = gamma, subtracted
        return -gamma * torch.logsumexp(x / -gamma, 0)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        weights = torch.exp((x.amin(0) * ctx.subtracted - x) / ctx.gamma)
        return g * weights / weights.sum(0).clamp_min(1e-30), None, None


@kernel(soft_dtw, claims=("forward", "vjp"))
def right(x, y, *, gamma=1.0, subtracted=1.0):
    """Float32 inside."""
    cost = (x.float()[:, :, None] - y.float()[:, None]).square().sum(3).mT  # [B M N]
    (m, n), near = cost.shape[1:], pad(cost[..., 0] * 0 + 1e30, (1, 0), value=1e30)
    far = torch.cat([near[:, :1] * 0, near[:, 1:]], 1)
    cost = pad(cost, (0, m), value=1e30).flatten(1)[:, : m * (n + m - 1)].unflatten(1, (m, -1))  # by antidiagonal
    for each in cost.unbind(2):  # [B M]
        least = _Softmin.apply(torch.stack([near[:, 1:], near[:, :-1], far[:, :-1]]), gamma, subtracted)
        far, near = near, pad(each + least, (1, 0), value=1e30)
    return near[:, -1].to(x.dtype)


@kernel(soft_dtw, claims=("forward", "vjp"))
def wrong(x, y, *, gamma=1.0):
    """Its backward takes exp(-R / gamma) of costs as they are, not relative to the least: nothing is left of it."""
    return right(x, y, gamma=gamma, subtracted=0.0)
