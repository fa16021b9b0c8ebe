r"""The loss of an RNN transducer (arXiv 1211.3711).

    gradoracle check examples/recurrences/rnnt.py:right --dim T=2048

The definition goes frame by frame. The kernel, in PyTorch, goes along the antidiagonals of the lattice.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import pad

from gradoracle import IndexDomain, family, kernel, scan, sizes


@family(
    dims={"B": sizes(1, 2), "T": sizes(1, 300, asked=4096), "U": sizes(1, 6), "C": sizes(1, 5)},
    domains={"labels": IndexDomain("C")},
)
def rnnt(logits: Float[Tensor, "B T U+1 C+1"], labels: Int[Tensor, "B U"]) -> Float[Tensor, "B"]:
    """log p(labels), where class C is the blank, which ends a frame."""
    p = torch.log_softmax(logits, 3)
    emit = p[:, :, :-1].gather(3, labels[:, None, :, None].expand(-1, p.shape[1], -1, 1))[..., 0]  # [B T U]

    def frame(alpha, x):  # [B U+1]
        emit, blank = x
        row = [alpha[:, 0]]
        for u in range(labels.shape[1]):
            row.append(torch.logsumexp(torch.stack([alpha[:, u + 1], row[-1] + emit[:, u]]), 0))
        return torch.stack(row, 1) + blank, None

    start = torch.where(torch.arange(p.shape[2]) > 0, -torch.inf, p.new_zeros(len(p), 1))
    return scan(frame, start, (emit, p[..., -1]), dim=1)[0][:, -1]


@kernel(rnnt, claims=("forward", "vjp"))
def right(logits, labels, shift=lambda x: pad(x[:, :-1], (1, 0), value=-1e30)):
    """Float32 inside."""
    (n, m), p = logits.shape[1:3], torch.log_softmax(logits.float(), 3)
    names = pad(labels, (0, 1))[:, None, :, None].expand(-1, n, -1, 1)  # the last column has no label
    emit, blank = (  # [B U+1 T+U], by antidiagonal
        pad(x.mT, (0, m), value=-1e30).flatten(1)[:, : m * (n + m - 1)].unflatten(1, (m, -1))
        for x in (p.gather(3, names)[..., 0], p[..., -1])
    )
    alpha = pad(p[:, 0, 1:, 0] * 0 - 1e30, (1, 0))  # at t = u = 0 nothing has happened
    for i in range(n + m - 2):
        alpha = torch.logaddexp(alpha + blank[..., i], shift(alpha + emit[..., i]))
    return (alpha + blank[..., -1])[:, -1].to(logits.dtype)


@kernel(rnnt, claims=("forward", "vjp"))
def wrong(logits, labels):
    """What leaves the lattice at the last label comes in again at the first: T > U + 1."""
    return right(logits, labels, shift=lambda x: x.roll(1, 1))
