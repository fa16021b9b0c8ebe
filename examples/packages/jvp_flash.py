r"""The attention of jvp_flash_attention, which offers a JVP.

pip install --no-deps jvp_flash_attention==0.14.0
gradoracle check examples/packages/jvp_flash.py:attention --dtype float32
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

import gradoracle

with gradoracle.cuda_claimed():
    from jvp_flash_attention.jvp_attention import JVPAttn

SIZES = {
    "B": gradoracle.sizes(1, 2),
    "H": gradoracle.sizes(1, 2),
    "T": gradoracle.sizes(32, 96, multiple=2),
    "D": gradoracle.choices(32),
}


@gradoracle.family(dims=SIZES, options={"causal": (False, True)})
def softmax_attention(
    q: Float[Tensor, "B H T D"], k: Float[Tensor, "B H T D"], v: Float[Tensor, "B H T D"], *, causal: bool = False
) -> Float[Tensor, "B H T D"]:
    scores = q @ k.mT * q.shape[-1] ** -0.5
    if causal:
        t = torch.arange(q.shape[-2])
        scores = torch.where(t <= t[:, None], scores, -torch.inf)
    return torch.softmax(scores, -1) @ v


@gradoracle.kernel(softmax_attention, needs_cuda=True)
def attention(q, k, v, *, causal=False):
    return JVPAttn.fwd_dual(q, k, v, causal=causal)
