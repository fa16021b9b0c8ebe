"""The state space dual of Mamba-2, chunk by chunk, as the listing of its paper writes it in PyTorch.

gradoracle check examples/modern/ssd.py:right --dtype float32
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

import gradoracle

SIZES = {
    "B": gradoracle.sizes(1, 2), "T": gradoracle.sizes(1, 14), "H": gradoracle.sizes(1, 2),
    "P": gradoracle.sizes(1, 4), "N": gradoracle.sizes(1, 4),
}  # fmt: skip
CHUNK = 4


@gradoracle.family(dims=SIZES)
def ssd(
    x: Float[Tensor, "B T H P"], gate: Float[Tensor, "B T H"], b: Float[Tensor, "B T N"], c: Float[Tensor, "B T N"]
) -> Float[Tensor, "B T H P"]:
    """y_t = sum over s <= t of <c_t, b_s> prod over s < r <= t of sigmoid(gate_r) x_s."""
    total = F.logsigmoid(gate).cumsum(1).transpose(1, 2)  # [B H T]
    place = torch.arange(x.shape[1])
    past = place[:, None] >= place
    decay = torch.where(past, torch.exp(torch.where(past, total[..., :, None] - total[..., None, :], 0.0)), 0.0)
    return torch.einsum("btn,bsn,bhts,bshp->bthp", c, b, decay, x)


def _segments(a: Tensor) -> Tensor:
    """[... T] to [... T T]: the sums of a over s < r <= t, -inf above the diagonal."""
    t = a.shape[-1]
    spread = a[..., None].expand(*a.shape, t).tril(-1) if t > 1 else torch.zeros_like(a[..., None])
    above = torch.ones(t, t, dtype=torch.bool, device=a.device).triu(1)
    return spread.cumsum(-2).masked_fill(above, -torch.inf)


def _chunked(x, gate, b, c, bug):
    batch, t, h, p = x.shape
    pad = -t % CHUNK
    a = F.pad(F.logsigmoid(gate), (0, 0, 0, pad)).unflatten(1, (-1, CHUNK)).permute(0, 3, 1, 2)  # [B H C L]
    x = F.pad(x, (0, 0, 0, 0, 0, pad)).unflatten(1, (-1, CHUNK))  # [B C L H P]
    b, c = (F.pad(each, (0, 0, 0, pad)).unflatten(1, (-1, CHUNK)) for each in (b, c))  # [B C L N]
    total = a.cumsum(-1)
    inside = torch.einsum("bcln,bcsn,bhcls,bcshp->bclhp", c, b, torch.exp(_segments(a)), x)
    states = torch.einsum("bcln,bhcl,bclhp->bchpn", b, torch.exp(total[..., -1:] - total), x)
    states = torch.cat([torch.zeros_like(states[:, :1]), states], 1)
    last = total[..., -1] if not bug else total[..., -2]
    between = torch.exp(_segments(F.pad(last, (1, 0))))  # [B H C+1 C+1]
    states = torch.einsum("bhzc,bchpn->bzhpn", between, states)[:, :-1]
    carried = torch.einsum("bcln,bchpn,bhcl->bclhp", c, states, torch.exp(total))
    return (inside + carried).reshape(batch, t + pad, h, p)[:, :t]


@gradoracle.kernel(ssd)
def right(x, gate, b, c):
    return _chunked(x, gate, b, c, False)


@gradoracle.kernel(ssd)
def wrong(x, gate, b, c):
    """A chunk's last step does not decay what comes from the chunks before it."""
    return _chunked(x, gate, b, c, True)
