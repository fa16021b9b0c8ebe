r"""The log partition function of a linear-chain CRF.

    gradoracle check examples/recurrences/crf.py:right --dim T=2048

A Triton kernel for the forward algorithm, run from both ends: marginals are made of what it stores. It and the
definition keep the alphas of a step small: an alpha of thousands has no digits left, in float32, for the gradient.
"""

from __future__ import annotations

import functools

import torch
import triton
import triton.language as tl
from jaxtyping import Float
from torch import Tensor

from gradoracle import family, kernel, sizes


@family(dims={"B": sizes(1, 3), "T": sizes(1, 300, asked=4096), "C": sizes(2, 16)})
def crf(scores: Float[Tensor, "B T C"], moves: Float[Tensor, "C C"]) -> Float[Tensor, "B"]:
    """The log of the sum, over all sequences y, of exp(sum_t scores[t, y_t] + sum_t moves[y_{t-1}, y_t])."""
    alpha, total = scores[:, 0], 0.0
    for t in range(1, scores.shape[1]):
        norm = torch.logsumexp(alpha, 1)
        alpha, total = alpha - norm[:, None], total + norm
        alpha = torch.logsumexp(alpha[:, :, None] + moves, 1) + scores[:, t]
    return total + torch.logsumexp(alpha, 1)


@triton.jit
def _forward(S, M, A, Z, steps, C, BLOCK: tl.constexpr):
    j, at = tl.arange(0, BLOCK), tl.program_id(0).to(tl.int64) * steps
    moves = tl.load(M + j[:, None] * C + j, mask=(j[:, None] < C) & (j < C), other=-1e30)
    alpha, norm = tl.load(S + at * C + j, mask=j < C, other=-1e30), tl.zeros((), tl.float64)
    for t in range(steps):
        if t > 0:
            x = alpha[:, None] + moves
            top = tl.max(x, 0)
            alpha = top + tl.log(tl.sum(tl.exp(x - top), 0)) + tl.load(S + (at + t) * C + j, mask=j < C, other=0.0)
        alpha, norm = alpha - tl.max(alpha, 0), norm + tl.max(alpha, 0)
        tl.store(A + (at + t) * C + j, alpha, mask=j < C)
    tl.store(Z + tl.program_id(0), norm + tl.log(tl.sum(tl.exp(alpha), 0)))


def _alphas(scores, moves):
    alpha, z = torch.empty_like(scores), scores.new_empty(len(scores))  # [B T C] and log Z [B]
    _forward[(len(scores),)](scores.contiguous(), moves.contiguous(), alpha, z, *scores.shape[1:], BLOCK=16)
    return alpha, z


def _vjp(inputs, cotangents, options, blocks, turned=True):
    scores, moves, dz = (x.float().contiguous() for x in (*inputs.values(), *cotangents.values()))
    alpha, _ = _alphas(scores, moves)
    beta = _alphas(scores.flip(1), moves.T if turned else moves)[0].flip(1)
    pairs = (alpha[:, :-1, :, None] + moves + beta[:, 1:, None]).flatten(2).softmax(2)  # [B T-1 C*C]
    grads = dz[:, None, None] * (alpha + beta - scores).softmax(2), (dz @ pairs.sum(1)).view_as(moves)
    return [g.to(x.dtype) for g, x in zip(grads, inputs.values(), strict=True)]


@kernel(crf, vjp=_vjp)
def right(scores, moves):
    """Float32 inside."""
    return _alphas(scores.float().contiguous(), moves.float())[1].to(scores.dtype)


@kernel(crf, vjp=functools.partial(_vjp, turned=False))
def wrong(scores, moves):
    """Its backward takes moves[i, j] for the move from j to i where it begins at the end."""
    return right(scores, moves)
