r"""Softmax attention of fla-core and its variants: forgetting, stick-breaking, PaTH, NSA, Wall, Parallax, AttnRes.

    pip install --no-deps fla-core==0.6.0 einops
    gradoracle check examples/packages/fla_attention.py:parallel_attn --dtype float32

Attention is causal and scaled by K^-1/2; H key heads divide Q query heads. A gate is an input without bounds; the log
decay is log sigmoid of it. ``window``: a query sees that many keys, its own the last; 0: all.
"""

from __future__ import annotations

import math

import torch
from fla_terms import heads_first
from jaxtyping import Float, Float32
from torch import Tensor
from torch.nn.functional import logsigmoid

import gradoracle

with gradoracle.cuda_claimed():
    import fla.ops as ops
    from fla.ops.wall_attn.decode import build_wall_kv_cache

SIZES = {
    "B": gradoracle.sizes(1, 2),
    "T": gradoracle.sizes(1, 100),
    "H": gradoracle.choices(1, 2),
    "Q": gradoracle.choices(2, 4),
    "K": gradoracle.choices(16, 32),
    "V": gradoracle.choices(16, 32),
}
ATTENTION = {"dims": SIZES, "divides": {"H": "Q"}}
WINDOWS = {"window": (0, 5, 40)}


def shared(x, queries):
    """[B H T ...] -> [B Q T ...]: each key head for the query heads of its group."""
    return x.repeat_interleave(queries // x.shape[1], 1)


def visible(length, window=0, device=None):
    """[T T], true where query t sees key s."""
    t = torch.arange(length, device=device)
    distance = t[:, None] - t[None, :]
    return (distance >= 0) & (distance < window) if window else distance >= 0


def logits(scores, seen, sink=None):
    """The scores, -inf where they are not seen, followed by the logit of a sink for each head."""
    scores = torch.where(seen, scores, -torch.inf)
    if sink is None:
        return scores
    return torch.cat([scores, sink[:, None, None].expand(*scores.shape[:-1], 1)], -1)


def attend(scores, v, seen, sink=None):
    """Softmax of the scores that are seen, times v; a sink has no value; all by heads."""
    weights = torch.softmax(logits(scores, seen, sink), -1)[..., : v.shape[-2]]
    return (weights @ v).transpose(1, 2)


def products(q, k, g):
    """sum over k of q_tk k_sk e^(g_{s+1} + ... + g_t), [.. T T], where s <= t; q, k, g [.. T K]."""
    total, seen = g.cumsum(-2), visible(q.shape[-2], device=q.device)[..., None]
    between = torch.where(seen, total[..., :, None, :] - total[..., None, :, :], 0.0)
    return torch.einsum("...tk,...sk,...tsk->...ts", q, k, torch.where(seen, torch.exp(between), 0.0))


def attend_with_decay(q, k, v, gate, window, sink=None):
    """Attention whose scores of s at t have the gates g_{s+1} + ... + g_t added."""
    q, k, v, g = heads_first(q, k, v, logsigmoid(gate))
    total = g.cumsum(-1)
    scores = q.shape[-1] ** -0.5 * (q @ shared(k, q.shape[1]).mT) + total[..., :, None] - total[..., None, :]
    return attend(scores, shared(v, q.shape[1]), visible(q.shape[2], window, q.device), sink)


@gradoracle.family(**ATTENTION, options=WINDOWS)
def attn(
    q: Float[Tensor, "B T Q K"],
    k: Float[Tensor, "B T H K"],
    v: Float[Tensor, "B T H V"],
    gate: Float[Tensor, "B T Q"],
    sink: Float[Tensor, "Q"],
    *,
    window: int = 0,
) -> Float[Tensor, "B T Q V"]:
    """The gates g add g_{s+1} + ... + g_t to the score of s at t; e^sink is added to the denominator."""
    return attend_with_decay(q, k, v, gate, window, sink)


@gradoracle.kernel(attn)
def parallel_attn(q, k, v, gate, sink, *, window=0):
    return ops.parallel_attn(q, k, v, logsigmoid(gate.float()), window_size=window or None, sink_bias=sink)


@gradoracle.family(**ATTENTION, options=WINDOWS)
def forgetting_attn(
    q: Float[Tensor, "B T Q K"],
    k: Float[Tensor, "B T H K"],
    v: Float[Tensor, "B T H V"],
    gate: Float[Tensor, "B T Q"],
    *,
    window: int = 0,
) -> Float[Tensor, "B T Q V"]:
    """The same without a sink."""
    return attend_with_decay(q, k, v, gate, window)


@gradoracle.kernel(forgetting_attn)
def parallel_forgetting_attn(q, k, v, gate, *, window=0):
    return ops.parallel_forgetting_attn(q, k, v, logsigmoid(gate.float()), window_size=window or None)


@gradoracle.family(**ATTENTION, outputs=("o", "rest"))
def stickbreaking_attn(
    q: Float[Tensor, "B T Q K"], k: Float[Tensor, "B T H K"], v: Float[Tensor, "B T H V"], *, current: bool = False
) -> tuple[Float[Tensor, "B T Q V"], Float[Tensor, "B T Q"]]:
    """Each key, from the nearest back, takes the share sigmoid(score) of what is left of a stick of length 1."""
    q, k, v = heads_first(q, k, v)
    z = q.shape[-1] ** -0.5 * (q @ shared(k, q.shape[1]).mT)
    length = q.shape[2]
    seen = torch.ones(length, length, dtype=torch.bool, device=q.device).tril(0 if current else -1)
    left = torch.where(seen, logsigmoid(-z), 0.0)
    nearer = left.flip(-1).cumsum(-1).flip(-1) - left  # of the keys between s and t
    weights = torch.where(seen, torch.exp(logsigmoid(z) + nearer), 0.0)
    return (weights @ shared(v, q.shape[1])).transpose(1, 2), torch.exp(left.sum(-1)).transpose(1, 2)


@gradoracle.kernel(stickbreaking_attn)
def parallel_stickbreaking_attn(q, k, v, *, current=False):
    return ops.parallel_stickbreaking_attn(q, k, v, attend_current=current)


@gradoracle.family(**ATTENTION)
def path_attn(
    q: Float[Tensor, "B T Q K"],
    k: Float[Tensor, "B T H K"],
    v: Float[Tensor, "B T H V"],
    w: Float32[Tensor, "B T H K"],
    beta: Float32[Tensor, "B T H"],
    gate: Float32[Tensor, "B T Q"],
) -> Float[Tensor, "B T Q V"]:
    """The score of s at t is q_t^T (I - beta_t w_t w_t^T) ... (I - beta_{s+1} w_{s+1} w_{s+1}^T) k_s; w of norm 1.

    The gates g add g_{s+1} + ... + g_t to it before it is scaled: the operation scales them too, unlike ``attn``.
    """
    heads = q.shape[2]
    w = w * torch.rsqrt(w.square().sum(-1, keepdim=True) + 1e-6)
    q, k, v, w, beta, g = heads_first(q, k, v, w, 2 * torch.sigmoid(beta), logsigmoid(gate))
    k, v, w, beta = (shared(x, heads) for x in (k, v, w, beta[..., None]))
    unit = torch.eye(q.shape[2], dtype=q.dtype, device=q.device)
    moved = (beta * (w @ k.mT)).tril(-1)  # what step t removes of k_s, s < t, before the later steps
    moved = torch.linalg.solve_triangular(unit + (beta * (w @ w.mT)).tril(-1), moved, upper=False)
    total = g.cumsum(-1)
    scores = q @ k.mT - (q @ w.mT).tril() @ moved + total[..., :, None] - total[..., None, :]
    return attend(q.shape[-1] ** -0.5 * scores, v, visible(q.shape[2], device=q.device))


@gradoracle.kernel(path_attn)
def parallel_path_attn(q, k, v, w, beta, gate):
    w = w * torch.rsqrt(w.square().sum(-1, keepdim=True) + 1e-6)
    return ops.parallel_path_attn(q, k, v, w, 2 * torch.sigmoid(beta), logsigmoid(gate))[0]


BLOCK = 16  # positions in a block of native sparse attention


@gradoracle.family(dims=SIZES | {"H": gradoracle.choices(1, 2), "Q": gradoracle.choices(32)}, divides={"H": "Q"})
def nsa(
    q: Float[Tensor, "B T Q K"],
    k: Float[Tensor, "B T H K"],
    v: Float[Tensor, "B T H V"],
    compressed_gate: Float[Tensor, "B T Q"],
    selected_gate: Float[Tensor, "B T Q"],
) -> Float[Tensor, "B T Q V"]:
    """Attention to the means of past blocks, and to the first block and the query's own, each times a gate.

    At least 16 query heads share a key head, as the operation requires.
    """
    heads, length, scale = q.shape[2], q.shape[1], q.shape[-1] ** -0.5
    q, k, v, compressed, selected = heads_first(q, k, v, torch.sigmoid(compressed_gate), torch.sigmoid(selected_gate))
    k, v, t = shared(k, heads), shared(v, heads), torch.arange(length, device=q.device)
    block = t // BLOCK
    chosen = visible(length, device=q.device) & ((block == 0)[None, :] | (block[:, None] == block[None, :]))
    near = attend(scale * (q @ k.mT), v, chosen) * selected.transpose(1, 2)[..., None]
    if length < BLOCK:
        return near
    means = (torch.arange(length // BLOCK, device=q.device)[:, None] == block).to(q) / BLOCK  # [blocks T]
    past = t[:, None] >= (torch.arange(length // BLOCK, device=q.device) + 1) * BLOCK - 1  # [T blocks]
    scores = scale * (q @ (means @ k).mT)
    weights = torch.where(past, torch.exp(torch.where(past, scores, 0.0)), 0.0)
    weights = weights / torch.where(past.any(-1, keepdim=True), weights.sum(-1, keepdim=True), 1.0)
    return near + (weights @ (means @ v) * compressed[..., None]).transpose(1, 2)


@gradoracle.kernel(nsa)
def parallel_nsa(q, k, v, compressed_gate, selected_gate):
    own = torch.arange(q.shape[1], device=q.device) // BLOCK
    first = torch.where(own > 0, 0, -1)  # -1: no second block
    indices = torch.stack([own, first], -1)[:, None].expand(q.shape[0], -1, k.shape[2], 2).contiguous()
    return ops.parallel_nsa(
        q, k, v, torch.sigmoid(compressed_gate), torch.sigmoid(selected_gate), block_indices=indices, block_counts=2,
        block_size=BLOCK,
    )  # fmt: skip


@gradoracle.family(dims=SIZES | {"T": gradoracle.sizes(1, 64)}, divides={"H": "Q"}, options=WINDOWS)
def wall_attn(
    q: Float[Tensor, "B T Q K"],
    k: Float[Tensor, "B T H K"],
    v: Float[Tensor, "B T H V"],
    gate: Float[Tensor, "B T Q K"],
    scalar_gate: Float[Tensor, "B T Q"],
    sink: Float[Tensor, "Q"],
    *,
    window: int = 0,
) -> Float[Tensor, "B T Q V"]:
    """Each channel of q_t k_s decays by its own gates, and the score by a scalar gate; with a sink."""
    q, k, v, g, scalar = heads_first(q, k, v, logsigmoid(gate), logsigmoid(scalar_gate))
    total = scalar.cumsum(-1)
    scores = q.shape[-1] ** -0.5 * products(q, shared(k, q.shape[1]), g) + total[..., :, None] - total[..., None, :]
    return attend(scores, shared(v, q.shape[1]), visible(q.shape[2], window, q.device), sink)


@gradoracle.kernel(wall_attn)
def parallel_wall_attn(q, k, v, gate, scalar_gate, sink, *, window=0):
    g, scalar = logsigmoid(gate.float()).to(q.dtype), logsigmoid(scalar_gate.float())
    return ops.parallel_wall_attn(q, k, v, g, g_scalar=scalar, sink_bias=sink, window_size=window or None)


@gradoracle.family(
    dims=SIZES | {"T": gradoracle.sizes(1, 60), "R": gradoracle.sizes(1, 4)},
    divides={"H": "Q"},
    outputs=("o", "lse"),
)
def wall_attn_decode(
    q: Float[Tensor, "B R Q K"],
    k: Float[Tensor, "B T+R H K"],
    v: Float[Tensor, "B T+R H V"],
    gate: Float32[Tensor, "B T+R Q K"],
    sink: Float[Tensor, "Q"],
) -> tuple[Float[Tensor, "B R Q V"], Float32[Tensor, "B R Q"]]:
    """The last R rows of Wall attention, and the log2 of their denominators."""
    q, k, v, g = heads_first(q, k, v, logsigmoid(gate))
    queries, length = q.shape[2], k.shape[2]
    q = torch.cat([q.new_zeros(*q.shape[:2], length - queries, q.shape[-1]), q], 2)
    scores = q.shape[-1] ** -0.5 * products(q, shared(k, q.shape[1]), g)
    seen = visible(length, device=q.device)
    o = attend(scores, shared(v, q.shape[1]), seen, sink)
    lse = torch.logsumexp(logits(scores, seen, sink), -1) / math.log(2)
    return o[:, -queries:], lse.transpose(1, 2)[:, -queries:]


@gradoracle.kernel(wall_attn_decode, no_gradient=("q", "k", "v", "gate", "sink"))
def parallel_wall_attn_decode(q, k, v, gate, sink):
    with torch.no_grad():  # for inference: it has no backward
        prefix = logsigmoid(gate).cumsum(1) / math.log(2)
        keys, anchors = build_wall_kv_cache(k, prefix, 16)
        current = prefix[:, -q.shape[1] :].contiguous()
        return ops.parallel_wall_attn_decode(
            q.contiguous(), v.contiguous(), current, keys, anchors, sink, q.shape[-1] ** -0.5, 16
        )


@gradoracle.family(
    dims={name: sizes for name, sizes in SIZES.items() if name != "V"}, divides={"H": "Q"}, options=WINDOWS
)
def parallax(
    q: Float[Tensor, "B T Q K"],
    r: Float[Tensor, "B T Q K"],
    k: Float[Tensor, "B T H K"],
    v: Float[Tensor, "B T H K"],
    *,
    window: int = 0,
) -> Float[Tensor, "B T Q K"]:
    """o + (r k-bar) o - sum of p_s (r k_s) v_s, with o, k-bar and p the output, mean key and weights of attention."""
    q, r, k, v = heads_first(q, r, k, v)
    k, v = shared(k, q.shape[1]), shared(v, q.shape[1])
    seen = visible(q.shape[2], window, q.device)
    weights = torch.softmax(torch.where(seen, q.shape[-1] ** -0.5 * (q @ k.mT), -torch.inf), -1)
    second = weights * (r @ k.mT)
    o = (1 + second.sum(-1, keepdim=True)) * (weights @ v) - second @ v
    return o.transpose(1, 2)


@gradoracle.kernel(parallax, dtypes=("bfloat16", "float16"))
def parallel_parallax(q, r, k, v, *, window=0):
    return ops.parallel_parallax(q, r, k, v, window_size=window or None)


@gradoracle.family(
    dims={"L": gradoracle.sizes(1, 9), "N": gradoracle.sizes(1, 12), "D": gradoracle.sizes(1, 70)},
    options={"scale": (1.0, 0.5)},
)
def attnres(
    query: Float[Tensor, "D"],
    residuals: Float[Tensor, "L N D"],
    weight: Float[Tensor, "D"],
    output_weight: Float[Tensor, "D"],
    *,
    scale: float = 1.0,
) -> Float[Tensor, "N D"]:
    """Attention over L residual streams, whose keys are their RMS norms; the RMS norm of the result."""

    def norm(x, w):
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * w

    p = torch.softmax(scale * (norm(residuals, weight) @ query), 0)  # [L N]
    return norm((p[..., None] * residuals).sum(0), output_weight)


@gradoracle.kernel(attnres, needs_cuda=True)
def fused_attnres(query, residuals, weight, output_weight, *, scale=1.0):
    sources = [x.clone() for x in residuals.unbind(0)]  # it demands an alignment of 16 bytes
    return ops.fused_attnres(query, sources, weight, output_weight, scale=scale)
