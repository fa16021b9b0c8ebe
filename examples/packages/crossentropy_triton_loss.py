r"""The loss of crossentropy-triton, between each token's logits and the next token.

pip install --no-deps crossentropy-triton==0.1.2
gradoracle check examples/packages/crossentropy_triton_loss.py:causal_loss --dtype float32
"""

from __future__ import annotations

import crossentropy_triton
import torch
from jaxtyping import Float, Int
from torch import Tensor

import gradoracle

SIZES = {"B": gradoracle.sizes(1, 4), "T": gradoracle.sizes(2, 10), "V": gradoracle.sizes(2, 70)}
IGNORED = -100


@gradoracle.family(dims=SIZES, domains={"t": gradoracle.IndexDomain("V", ignore=IGNORED)})
def next_token_entropy(x: Float[Tensor, "B T V"], t: Int[Tensor, "B T"]) -> Float[Tensor, ""]:
    """The mean of the cross entropies of x[:, i] at t[:, i + 1], without those that are ignored; 0 if all are."""
    target = t[:, 1:]
    kept = (target != IGNORED).to(x.dtype)
    chosen = torch.arange(x.shape[-1]) == target[..., None]
    log_p = torch.where(chosen, torch.log_softmax(x[:, :-1], -1), 0.0).sum(-1)
    return -(log_p * kept).sum() / torch.clamp(kept.sum(), min=1)


@gradoracle.kernel(next_token_entropy, needs_cuda=True)
def causal_loss(x, t):
    return crossentropy_triton.TritonCausalLMLoss(x.shape[-1])(x, t)
