"""CTC: forward and backward variables in the log domain, in an autograd.Function of first order after a log_softmax.

gradoracle check examples/modern/ctc.py:right --dtype float32
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

import gradoracle


@gradoracle.family(
    dims={
        "B": gradoracle.sizes(1, 3), "T": gradoracle.sizes(7, 10), "S": gradoracle.sizes(1, 3),
        "C": gradoracle.sizes(2, 5),
    },
    domains={"labels": gradoracle.IndexDomain("C", minimum=1)},
)  # fmt: skip
def ctc(x: Float[Tensor, "B T C"], labels: Int[Tensor, "B S"]) -> Float[Tensor, "B"]:
    """-log of the sum of the probabilities of all paths that read as the labels; class 0 is the blank."""
    p = torch.softmax(x, -1)
    path, leap = _path(labels)
    emitted = torch.gather(p, 2, path[:, None].expand(-1, p.shape[1], -1))  # [B T 2S+1]
    start = (torch.arange(path.shape[1]) < 2).to(x.dtype)
    alpha = emitted[:, 0] * start
    for t in range(1, x.shape[1]):
        one = torch.nn.functional.pad(alpha, (1, 0))[:, :-1]
        two = torch.nn.functional.pad(alpha, (2, 0))[:, :-2]
        alpha = (alpha + one + torch.where(leap, two, 0.0)) * emitted[:, t]
    return -torch.log(alpha[:, -1] + alpha[:, -2])


def _path(labels: Tensor) -> tuple[Tensor, Tensor]:
    """The labels with blanks around them, and where a path may leap over a blank: both [B 2S+1]."""
    path = torch.stack([torch.zeros_like(labels), labels], -1).flatten(1)
    path = torch.cat([path, torch.zeros_like(labels[:, :1])], 1)
    before = torch.nn.functional.pad(path, (2, 0))[:, :-2]
    return path, (path != 0) & (path != before)


def _moved(variable: Tensor, by: int) -> Tensor:
    fill = torch.full_like(variable[:, : abs(by)], -torch.inf)
    return torch.cat([fill, variable[:, :-by]], 1) if by > 0 else torch.cat([variable[:, -by:], fill], 1)


class _Ctc(torch.autograd.Function):
    @staticmethod
    def forward(ctx, log_p, labels, bug):
        path, leap = _path(labels)
        emitted = log_p.gather(2, path[:, None].expand(-1, log_p.shape[1], -1))
        reset = torch.where(torch.arange(path.shape[1]) < 2, 0.0, -torch.inf)
        alphas = [emitted[:, 0] + reset]
        for t in range(1, log_p.shape[1]):
            last = alphas[-1]
            two = _moved(last, 2).masked_fill(~leap, -torch.inf)
            alphas.append(torch.logsumexp(torch.stack([last, _moved(last, 1), two]), 0) + emitted[:, t])
        log_z = torch.logaddexp(alphas[-1][:, -1], alphas[-1][:, -2])
        ctx.save_for_backward(log_p, path, leap, emitted, torch.stack(alphas, 1), log_z)
        ctx.bug = bug
        return -log_z

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, g):
        log_p, path, leap, emitted, alpha, log_z = ctx.saved_tensors
        ahead = leap if ctx.bug else torch.nn.functional.pad(leap, (0, 2))[:, 2:]  # who leaps is the later label
        beta = torch.where(torch.arange(path.shape[1]) >= path.shape[1] - 2, 0.0, -torch.inf).expand(alpha[:, 0].shape)
        found = [alpha[:, -1] + beta]
        for t in range(log_p.shape[1] - 1, 0, -1):
            on = beta + emitted[:, t]
            two = _moved(on, -2).masked_fill(~ahead, -torch.inf)
            beta = torch.logsumexp(torch.stack([on, _moved(on, -1), two]), 0)
            found.append(alpha[:, t - 1] + beta)
        share = torch.exp(torch.stack(found[::-1], 1) - log_z[:, None, None])  # [B T 2S+1]
        where = path[:, None].expand(-1, log_p.shape[1], -1)
        return -torch.zeros_like(log_p).scatter_add(2, where, share) * g[:, None, None], None, None


@gradoracle.kernel(ctc, claims=("forward", "vjp"))
def right(x, labels):
    return _Ctc.apply(torch.log_softmax(x.float(), -1), labels, False).to(x.dtype)


@gradoracle.kernel(ctc, claims=("forward", "vjp"))
def wrong(x, labels):
    """Its backward variables leap where the label before them does."""
    return _Ctc.apply(torch.log_softmax(x.float(), -1), labels, True).to(x.dtype)
