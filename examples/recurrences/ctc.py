r"""Connectionist temporal classification (Graves et al., 2006).

    gradoracle check examples/recurrences/ctc.py:right --dim T=2048

The kernel is a forward-backward algorithm in PyTorch. It and the definition keep the alphas of a step small: an alpha
of thousands has no digits left, in float32, for the gradient. Where there is no path, log p is -inf, its gradient 0.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import pad

from gradoracle import IndexDomain, family, kernel, sizes

SIZES = {"B": sizes(1, 3), "T": sizes(1, 300, asked=4096), "S": sizes(2, 6), "C": sizes(1, 5)}


@family(dims=SIZES, domains={"labels": IndexDomain("C")})
def ctc(logits: Float[Tensor, "B T C+1"], labels: Int[Tensor, "B S"]) -> Float[Tensor, "B"]:
    """log p(labels), where class C is the blank."""
    path = pad(pad(labels[..., None], (1, 0), value=logits.shape[2] - 1).flatten(1), (0, 1), value=logits.shape[2] - 1)
    p = torch.log_softmax(logits, 2).gather(2, path[:, None].expand(-1, logits.shape[1], -1))  # [B T 2S+1]
    leap = pad(torch.where(path[:, 2:] == path[:, :-2], -torch.inf, 0.0), (2, 0), value=-torch.inf)
    alpha, total = torch.where(torch.arange(p.shape[2]) < 2, p[:, 0], -torch.inf), p.new_zeros(len(p), 1)
    for t in range(1, p.shape[1]):
        norm = alpha.logsumexp(1, keepdim=True)  # finite, since there may be blanks alone
        before, total = pad(alpha - norm, (2, 0), value=-torch.inf), total + norm
        alpha = _lse(torch.stack([before[:, 2:], before[:, 1:-1], before[:, :-2] + leap], 2)) + p[:, t]
    return _lse(total + alpha[:, -2:])


def _lse(x):
    """logsumexp along the last dim, with a gradient of 0 where all is -inf."""
    none = (x == -torch.inf).all(-1)
    return torch.where(none, -torch.inf, torch.where(none[..., None], 0.0, x).logsumexp(-1))


def _alphas(p, leap):
    alphas = [torch.where(torch.arange(p.shape[2], device=p.device) < 2, p[:, 0], -torch.inf)]
    for here in p.unbind(1)[1:]:
        before = pad(alphas[-1] - alphas[-1].amax(1, keepdim=True), (2, 0), value=-torch.inf)
        alphas.append(torch.stack([before[:, 2:], before[:, 1:-1], before[:, :-2] + leap]).logsumexp(0) + here)
    return torch.stack(alphas, 1), sum(alpha.amax(1) for alpha in alphas[:-1])


class _Paths(torch.autograd.Function):
    @staticmethod
    def forward(ctx, p, leap):
        """log of the sum over paths, of scores p [B T 2S+1]; leap [B 2S+1] is -inf where a path must not leap to."""
        (alpha, norm), back = _alphas(p, leap), pad(leap.flip(1)[:, :-2], (2, 0), value=-torch.inf)
        ctx.save_for_backward(torch.softmax(alpha + _alphas(p.flip(1, 2), back)[0].flip(1, 2) - p, 2).nan_to_num())
        return norm + alpha[:, -1, -2:].logsumexp(1)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, dz):
        return dz[:, None, None] * ctx.saved_tensors[0], None


@kernel(ctc, claims=("forward", "vjp"))
def right(logits, labels, repeats=True):
    """Float32 inside."""
    path = pad(pad(labels[..., None], (1, 0), value=logits.shape[2] - 1).flatten(1), (0, 1), value=logits.shape[2] - 1)
    p = torch.log_softmax(logits.float(), 2).gather(2, path[:, None].expand(-1, logits.shape[1], -1))
    leap = torch.where(path[:, 2:] == (path[:, :-2] if repeats else logits.shape[2] - 1), -torch.inf, 0.0)
    return _Paths.apply(p, pad(leap, (2, 0), value=-torch.inf)).to(logits.dtype)


@kernel(ctc, claims=("forward", "vjp"))
def wrong(logits, labels):
    """A path may leap over the blank between two equal labels."""
    return right(logits, labels, repeats=False)
