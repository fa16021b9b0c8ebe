r"""Gated linear attention, gated slots, bounded-memory control, HGRN, RWKV-6 and mesa layer of fla-core.

    pip install --no-deps fla-core==0.6.0 einops
    gradoracle check examples/packages/fla_gated.py:chunk_gla --dtype float32

Their states decay by a vector: S_t = diag(e^{g_t}) S_{t-1} + k_t v_t^T (the mesa layer's by a number). A gate is an
input without bounds; the log decay is log sigmoid of it.
"""

from __future__ import annotations

import fla.ops as ops
import torch
from fla.ops.hgrn import chunk_hgrn as chunks_of_hgrn
from fla_terms import SIZES, heads_first, normalized, pairs
from jaxtyping import Float, Float32
from torch import Tensor
from torch.nn.functional import logsigmoid, pad, softplus

import gradoracle


@gradoracle.family(dims=SIZES, outputs=("o", "final_state"))
def gla(
    q: Float[Tensor, "B T H K"],
    k: Float[Tensor, "B T H K"],
    v: Float[Tensor, "B T H V"],
    gate: Float[Tensor, "B T H K"],
    initial_state: Float32[Tensor, "B H K V"],
) -> tuple[Float[Tensor, "B T H V"], Float32[Tensor, "B H K V"]]:
    """o_t = q_t S_t / sqrt(K)."""
    q, k, v, g = heads_first(q, k, v, logsigmoid(gate))
    total = g.cumsum(-2)
    decay = pairs(total, total)  # [B H T T K]
    weights = torch.einsum("bhtk,bhsk,bhtsk->bhts", q, k, decay)
    o = q.shape[-1] ** -0.5 * (weights @ v + (q * torch.exp(total)) @ initial_state)
    last = torch.exp(total[..., -1, :, None]) * initial_state + (k * decay[..., -1, :, :]).mT @ v
    return o.transpose(1, 2), last


@gradoracle.kernel(gla)
def chunk_gla(q, k, v, gate, initial_state):
    return ops.chunk_gla(q, k, v, logsigmoid(gate.float()), initial_state=initial_state, output_final_state=True)


@gradoracle.kernel(gla)
def fused_recurrent_gla(q, k, v, gate, initial_state):
    return ops.fused_recurrent_gla(
        q, k, v, logsigmoid(gate.float()), initial_state=initial_state, output_final_state=True
    )


def slots(q, k, v, s, decay, since, keys, values):
    """Softmax attention to M slots; all by heads.

    q, k [.. T K], v [.. T V], what is written s [.. T M], the decay of a slot from s to t [.. T T M] and from the start
    to t [.. T M], and the initial states ``keys`` [.. K M] and ``values`` [.. M V]. Returns o and both last states.
    """
    scores = torch.einsum("...ts,...tsm,...sm->...tm", q @ k.mT, decay, s) + (q @ keys) * since
    p = torch.softmax(q.shape[-1] ** -0.5 * scores, -1)
    weights = torch.einsum("...tm,...tsm,...sm->...ts", p, decay, s)
    o = weights @ v + (p * since) @ values
    written = s * decay[..., -1, :, :]
    keys = keys * since[..., -1, None, :] + k.mT @ written
    return o.transpose(1, 2), keys, since[..., -1, :, None] * values + written.mT @ v


@gradoracle.family(dims=SIZES | {"M": gradoracle.choices(16, 32)}, outputs=("o", "final_keys", "final_values"))
def gsa(
    q: Float[Tensor, "B T H K"],
    k: Float[Tensor, "B T H K"],
    v: Float[Tensor, "B T H V"],
    s: Float[Tensor, "B T H M"],
    gate: Float[Tensor, "B T H M"],
    initial_keys: Float32[Tensor, "B H K M"],
    initial_values: Float32[Tensor, "B H M V"],
) -> tuple[Float[Tensor, "B T H V"], Float32[Tensor, "B H K M"], Float32[Tensor, "B H M V"]]:
    """Slots that decay by their gates; what is written is given."""
    q, k, v, s, g = heads_first(q, k, v, s, logsigmoid(gate))
    total = g.cumsum(-2)
    return slots(q, k, v, s, pairs(total, total), torch.exp(total), initial_keys, initial_values)


@gradoracle.kernel(gsa)
def chunk_gsa(q, k, v, s, gate, initial_keys, initial_values):
    g = logsigmoid(gate.float())
    o, last = ops.chunk_gsa(q, k, v, s, g, initial_state=(initial_keys, initial_values), output_final_state=True)
    return o, *last


@gradoracle.kernel(gsa)
def fused_recurrent_gsa(q, k, v, s, gate, initial_keys, initial_values):
    g = logsigmoid(gate.float())
    o, last = ops.fused_recurrent_gsa(
        q, k, v, s, g, initial_state=(initial_keys, initial_values), output_final_state=True
    )
    return o, *last


@gradoracle.family(dims=SIZES | {"M": gradoracle.choices(16, 32)}, outputs=("o", "final_keys", "final_values"))
def abc(
    q: Float[Tensor, "B T H K"],
    k: Float[Tensor, "B T H K"],
    v: Float[Tensor, "B T H V"],
    s: Float[Tensor, "B T H M"],
    initial_keys: Float32[Tensor, "B H K M"],
    initial_values: Float32[Tensor, "B H M V"],
) -> tuple[Float[Tensor, "B T H V"], Float32[Tensor, "B H K M"], Float32[Tensor, "B H M V"]]:
    """Slots that hold averages: at t, position s has the weight e^{s_s} / sum over r <= t of e^{s_r}."""
    q, k, v, s = heads_first(q, k, v, s)
    z = torch.log(torch.exp(s).cumsum(-2))  # [B H T M]
    since = torch.exp(z[..., :1, :] - z)
    return slots(q, k, v, s.new_ones(s.shape), pairs(-z, -s), since, initial_keys, initial_values)


@gradoracle.kernel(abc)
def chunk_abc(q, k, v, s, initial_keys, initial_values):
    o, last = ops.chunk_abc(q, k, v, s, initial_state=(initial_keys, initial_values), output_final_state=True)
    return o, *last


@gradoracle.family(
    dims={"B": gradoracle.sizes(1, 3), "T": gradoracle.sizes(1, 100), "D": gradoracle.sizes(1, 40)},
    outputs=("o", "final_state"),
)
def hgrn(
    x: Float[Tensor, "B T D"], gate: Float[Tensor, "B T D"], initial_state: Float32[Tensor, "B D"]
) -> tuple[Float[Tensor, "B T D"], Float32[Tensor, "B D"]]:
    """h_t = e^{g_t} h_{t-1} + x_t."""
    total = logsigmoid(gate).cumsum(-2)
    o = torch.einsum("btsd,bsd->btd", pairs(total, total), x) + torch.exp(total) * initial_state[:, None]
    return o, o[:, -1]


@gradoracle.kernel(hgrn)
def fused_recurrent_hgrn(x, gate, initial_state):
    g = logsigmoid(gate.float()).to(x.dtype)
    o, last = ops.fused_recurrent_hgrn(x, g, initial_state=initial_state, output_final_state=True)
    return o, last.float()  # it has the dtype of x


@gradoracle.kernel(hgrn)
def chunk_hgrn(x, gate, initial_state):
    return chunks_of_hgrn(x, logsigmoid(gate.float()).to(x.dtype), initial_state, True)


@gradoracle.family(dims=SIZES, outputs=("o", "final_state"))
def rwkv6(
    r: Float[Tensor, "B T H K"],
    k: Float[Tensor, "B T H K"],
    v: Float[Tensor, "B T H V"],
    gate: Float[Tensor, "B T H K"],
    u: Float[Tensor, "H K"],
    initial_state: Float32[Tensor, "B H K V"],
) -> tuple[Float[Tensor, "B T H V"], Float32[Tensor, "B H K V"]]:
    """o_t = r_t (S_{t-1} + diag(u) k_t v_t^T) / sqrt(K)."""
    r, k, v, g = heads_first(r, k, v, logsigmoid(gate))
    total = g.cumsum(-2)
    before = pad(total, (0, 0, 1, 0))[..., :-1, :]
    weights = torch.einsum("bhtk,bhsk,bhtsk->bhts", r, k, pairs(before, total, strict=True))
    now = (r * u[:, None] * k).sum(-1, keepdim=True)
    o = r.shape[-1] ** -0.5 * (weights @ v + now * v + (r * torch.exp(before)) @ initial_state)
    end = total[..., -1:, :]
    last = torch.exp(end).mT * initial_state + (k * torch.exp(end - total)).mT @ v
    return o.transpose(1, 2), last


@gradoracle.kernel(rwkv6)
def chunk_rwkv6(r, k, v, gate, u, initial_state):
    w = logsigmoid(gate.float())
    return ops.chunk_rwkv6(r, k, v, w, u, initial_state=initial_state, output_final_state=True)


@gradoracle.kernel(rwkv6)
def fused_recurrent_rwkv6(r, k, v, gate, u, initial_state):
    w = logsigmoid(gate.float())
    return ops.fused_recurrent_rwkv6(r, k, v, w, u, initial_state=initial_state, output_final_state=True)


def solve(a, b):
    """x of a x = b, a [... n n] positive definite and b [... n]: Gauss-Jordan elimination, which needs no pivots."""
    n = a.shape[-1]
    rows = torch.cat([a, b[..., None]], -1)  # [... n n+1]
    unit = torch.eye(n, dtype=a.dtype, device=a.device)
    for j in range(n):
        pivot = rows[..., j, :] / rows[..., j, j, None]
        rows = rows - (rows[..., :, j] - unit[j])[..., None] * pivot[..., None, :]
    return rows[..., -1]


@gradoracle.family(
    dims={key: SIZES[key] for key in ("B", "T", "H")} | {"K": gradoracle.choices(16)},
    outputs=("o", "final_kk", "final_kv"),
)
def mesa_net(
    q: Float[Tensor, "B T H K"],
    k: Float[Tensor, "B T H K"],
    v: Float[Tensor, "B T H K"],
    gate: Float[Tensor, "B T H"],
    beta: Float[Tensor, "B T H"],
    lamb: Float[Tensor, "H K"],
    initial_root: Float32[Tensor, "B H K K"],
    initial_kv: Float32[Tensor, "B H K K"],
) -> tuple[Float[Tensor, "B T H K"], Float32[Tensor, "B H K K"], Float32[Tensor, "B H K K"]]:
    """o_t = (G_t + diag(lamb))^-1 q_t times H_t, with G and H the gated sums of beta k k^T and beta k v^T.

    q and k have unit norm, lamb >= 1/4 and the initial G is R R^T / K of a root R, as its conjugate gradients need.
    """
    q, k, v, g, beta = heads_first(normalized(q), normalized(k), v, logsigmoid(gate), torch.sigmoid(beta))
    initial_kk = initial_root @ initial_root.mT / q.shape[-1]
    total = g.cumsum(-1)[..., None]
    decay, since = pairs(total, total)[..., 0], torch.exp(total)[..., None]  # [B H T T], [B H T 1 1]
    kk = torch.einsum("bhts,bhsk,bhsl->bhtkl", decay, beta[..., None] * k, k) + since * initial_kk[:, :, None]
    kv = torch.einsum("bhts,bhsk,bhsl->bhtkl", decay, beta[..., None] * k, v) + since * initial_kv[:, :, None]
    ridge = torch.diag_embed(softplus(lamb) + 0.25)[:, None]  # [H 1 K K]
    o = (solve(kk + ridge, q)[..., None] * kv).sum(-2)
    return o.transpose(1, 2), kk[:, :, -1], kv[:, :, -1]


@gradoracle.kernel(mesa_net)
def chunk_mesa_net(q, k, v, gate, beta, lamb, initial_root, initial_kv):
    g, beta, lamb = logsigmoid(gate.float()), torch.sigmoid(beta.float()), softplus(lamb.float()) + 0.25
    kk = initial_root @ initial_root.mT / q.shape[-1]
    q, k = (normalized(x.float()).to(x.dtype) for x in (q, k))
    return ops.chunk_mesa_net(q, k, v, g, beta, lamb, h_kk_init=kk, h_kv_init=initial_kv, output_final_state=True)
