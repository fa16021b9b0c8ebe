r"""RWKV-7's generalised delta rule (arXiv 2503.14456).

    gradoracle check examples/recurrences/rwkv7.py:right --dim T=2048

The kernel is a loop in PyTorch that keeps the state of every sixteenth step; its backward computes the others again.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import normalize
from torch.utils.checkpoint import checkpoint

from gradoracle import family, kernel, scan, sizes


@family(dims={"B": sizes(1, 2), "T": sizes(1, 300, asked=1 << 20), "K": sizes(2, 9), "V": sizes(1, 8)})
def rwkv7(
    r: Float[Tensor, "B T K"], w: Float[Tensor, "B T K"], k: Float[Tensor, "B T K"], v: Float[Tensor, "B T V"],
    z: Float[Tensor, "B T K"], a: Float[Tensor, "B T K"],
) -> Float[Tensor, "B T V"]:  # fmt: skip
    """S_t r_t, where S_t = S_{t-1} (diag(d_t) - u_t (s(a_t) u_t)^T) + v_t k_t^T, u = z/|z|, d = exp(-0.6065 s(w))."""

    def step(state, x):  # [B V K]
        r, d, k, v, u, a = x
        removed = (state * u[:, None]).sum(-1, keepdim=True)
        state = state * d[:, None] - removed * (a * u)[:, None] + v[..., None] * k[:, None]
        return state, (state * r[:, None]).sum(-1)

    decay, unit = torch.exp(-0.6065 * torch.sigmoid(w)), z / z.norm(dim=-1, keepdim=True)
    return scan(step, r.new_zeros(len(r), v.shape[2], k.shape[2]), (r, decay, k, v, unit, torch.sigmoid(a)), dim=1)[1]


def _chunk(state, *xs):
    out = []
    for r, d, k, v, u, a in zip(*(x.unbind(1) for x in xs), strict=True):
        state = state * d[:, None] + torch.stack([v, -(state @ u[..., None])[..., 0]], 2) @ torch.stack([k, a * u], 1)
        out.append(state @ r[..., None])
    return torch.cat(out, 2).mT, state


@kernel(rwkv7)
def right(r, w, k, v, z, a, truncated=False):
    """Float32 inside."""
    d, u = torch.exp(-0.6065 * torch.sigmoid(w.float())), normalize(z.float(), dim=-1, eps=0)
    given, out = (r.float(), d, k.float(), v.float(), u, torch.sigmoid(a.float())), []
    state = torch.zeros_like(v[:, 0, :, None] * k[:, 0, None], dtype=torch.float32)
    for chunk in zip(*(x.split(16, 1) for x in given), strict=True):
        o, state = checkpoint(_chunk, state.detach() if truncated else state, *chunk, use_reentrant=False)
        out.append(o)
    return torch.cat(out, 1).to(r.dtype)


@kernel(rwkv7)
def wrong(r, w, k, v, z, a):
    """The gradient of a state does not reach the chunk before: T > 16."""
    return right(r, w, k, v, z, a, truncated=True)
