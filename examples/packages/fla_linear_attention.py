r"""Linear attention, retention, lightning attention, simple gated, based and log-linear attention of fla-core.

    pip install --no-deps fla-core==0.6.0 einops
    gradoracle check examples/packages/fla_linear_attention.py:chunk_simple_gla --dtype float32

Each family is one function, whatever the algorithm (chunks, recurrent, parallel) that computes it: o_t = scale q_t S_t
with a state S_t = e^{g_t} S_{t-1} + k_t v_t^T. A gate is an input without bounds; the log decay is log sigmoid of it.
"""

from __future__ import annotations

import fla.ops as ops
import fla_terms
import torch
from fla_terms import heads_first
from jaxtyping import Float, Float32
from torch import Tensor
from torch.nn.functional import elu, logsigmoid

import gradoracle

SIZES = {**fla_terms.SIZES, "T": gradoracle.sizes(1, 100)}


def decay(g):
    """e^(g_{s+1} + ... + g_t) at [t, s] for s <= t, else 0; g [... T]."""
    total = g.cumsum(-1)
    past = torch.ones(g.shape[-1], g.shape[-1], dtype=torch.bool, device=g.device).tril()
    between = torch.where(past, total[..., :, None] - total[..., None, :], 0.0)
    return torch.where(past, torch.exp(between), 0.0)


def gated(q, k, v, g, initial, scale):
    """Outputs [B T H V] and last state [B H K V] of S_t = e^{g_t} S_{t-1} + k_t v_t^T; g [B H T], S_0 ``initial``."""
    q, k, v = heads_first(q, k, v)
    weights, since = decay(g), torch.exp(g.cumsum(-1))  # [B H T T], [B H T]
    o = scale * (((q @ k.mT) * weights) @ v + since[..., None] * (q @ initial))
    last = since[..., -1, None, None] * initial + (k * weights[..., -1, :, None]).mT @ v
    return o.transpose(1, 2), last


def fixed(q, slope):
    """The log decays [B H T] of heads with a constant log decay each, ``slope`` [H]."""
    return slope[:, None].to(q).expand(q.shape[0], q.shape[2], q.shape[1])


@gradoracle.family(dims=SIZES, outputs=("o", "final_state"))
def simple_gla(
    q: Float[Tensor, "B T H K"],
    k: Float[Tensor, "B T H K"],
    v: Float[Tensor, "B T H V"],
    gate: Float[Tensor, "B T H"],
    initial_state: Float32[Tensor, "B H K V"],
) -> tuple[Float[Tensor, "B T H V"], Float32[Tensor, "B H K V"]]:
    return gated(q, k, v, logsigmoid(gate).transpose(1, 2), initial_state, q.shape[-1] ** -0.5)


def with_gate(operation, q, k, v, gate, initial_state):
    return operation(q, k, v, logsigmoid(gate.float()), initial_state=initial_state, output_final_state=True)


@gradoracle.kernel(simple_gla)
def chunk_simple_gla(q, k, v, gate, initial_state):
    return with_gate(ops.chunk_simple_gla, q, k, v, gate, initial_state)


@gradoracle.kernel(simple_gla)
def fused_chunk_simple_gla(q, k, v, gate, initial_state):
    return with_gate(ops.fused_chunk_simple_gla, q, k, v, gate, initial_state)


@gradoracle.kernel(simple_gla)
def fused_recurrent_simple_gla(q, k, v, gate, initial_state):
    return with_gate(ops.fused_recurrent_simple_gla, q, k, v, gate, initial_state)


@gradoracle.family(dims=SIZES)
def stateless_simple_gla(
    q: Float[Tensor, "B T H K"],
    k: Float[Tensor, "B T H K"],
    v: Float[Tensor, "B T H V"],
    gate: Float[Tensor, "B T H"],
) -> Float[Tensor, "B T H V"]:
    return gated(q, k, v, logsigmoid(gate).transpose(1, 2), q.new_zeros(()).expand(q.shape[-1], v.shape[-1]),
                 q.shape[-1] ** -0.5)[0]  # fmt: skip


@gradoracle.kernel(stateless_simple_gla)
def parallel_simple_gla(q, k, v, gate):
    return ops.parallel_simple_gla(q, k, v, logsigmoid(gate.float()))[0]


@gradoracle.family(dims=SIZES, outputs=("o", "final_state"))
def linear_attn(
    q: Float[Tensor, "B T H K"],
    k: Float[Tensor, "B T H K"],
    v: Float[Tensor, "B T H V"],
    initial_state: Float32[Tensor, "B H K V"],
) -> tuple[Float[Tensor, "B T H V"], Float32[Tensor, "B H K V"]]:
    return gated(q, k, v, fixed(q, torch.zeros(q.shape[2])), initial_state, q.shape[-1] ** -0.5)


def without_norm(operation, q, k, v, initial_state):
    return operation(q, k, v, initial_state=initial_state, output_final_state=True, normalize=False)


@gradoracle.kernel(linear_attn)
def chunk_linear_attn(q, k, v, initial_state):
    return without_norm(ops.chunk_linear_attn, q, k, v, initial_state)


@gradoracle.kernel(linear_attn)
def fused_chunk_linear_attn(q, k, v, initial_state):
    return without_norm(ops.fused_chunk_linear_attn, q, k, v, initial_state)


@gradoracle.kernel(linear_attn)
def fused_recurrent_linear_attn(q, k, v, initial_state):
    return without_norm(ops.fused_recurrent_linear_attn, q, k, v, initial_state)


@gradoracle.family(dims=SIZES, outputs=("o", "final_state", "final_normalizer"))
def normalized_linear_attn(
    q: Float[Tensor, "B T H K"],
    k: Float[Tensor, "B T H K"],
    v: Float[Tensor, "B T H V"],
    initial_state: Float32[Tensor, "B H K V"],
    initial_normalizer: Float32[Tensor, "B H K"],
) -> tuple[Float[Tensor, "B T H V"], Float32[Tensor, "B H K V"], Float32[Tensor, "B H K"]]:
    """o_t = q_t S_t / q_t z_t, with z_t = z_{t-1} + k_t; q, k and z_0 are positive."""
    q, k, z = elu(q) + 1, elu(k) + 1, elu(initial_normalizer) + 1
    scale = q.shape[-1] ** -0.5
    o, last = gated(q, k, v, fixed(q, torch.zeros(q.shape[2])), initial_state, scale)
    z = k.cumsum(1) + z[:, None]  # [B T H K]
    return o / (scale * (q * z).sum(-1, keepdim=True) + 1e-10), last, z[:, -1]


def with_norm(operation, q, k, v, initial_state, initial_normalizer):
    state = (initial_state, elu(initial_normalizer)[:, None] + 1)
    o, (last, z) = operation(elu(q) + 1, elu(k) + 1, v, initial_state=state, output_final_state=True, normalize=True)
    return o.to(q.dtype), last, z[:, 0].float()  # o is float32, as the state is


@gradoracle.kernel(normalized_linear_attn)
def chunk_linear_attn_normalized(q, k, v, initial_state, initial_normalizer):
    return with_norm(ops.chunk_linear_attn, q, k, v, initial_state, initial_normalizer)


@gradoracle.kernel(normalized_linear_attn)
def fused_chunk_linear_attn_normalized(q, k, v, initial_state, initial_normalizer):
    return with_norm(ops.fused_chunk_linear_attn, q, k, v, initial_state, initial_normalizer)


@gradoracle.kernel(normalized_linear_attn)
def fused_recurrent_linear_attn_normalized(q, k, v, initial_state, initial_normalizer):
    return with_norm(ops.fused_recurrent_linear_attn, q, k, v, initial_state, initial_normalizer)


def retention_slope(heads):
    """log(1 - 2^(-5 - h)), [H]."""
    return torch.log(1 - torch.exp2(-5 - torch.arange(heads, dtype=torch.float64)))


@gradoracle.family(dims=SIZES, outputs=("o", "final_state"))
def retention(
    q: Float[Tensor, "B T H K"],
    k: Float[Tensor, "B T H K"],
    v: Float[Tensor, "B T H V"],
    initial_state: Float32[Tensor, "B H K V"],
) -> tuple[Float[Tensor, "B T H V"], Float32[Tensor, "B H K V"]]:
    return gated(q, k, v, fixed(q, retention_slope(q.shape[2])), initial_state, q.shape[-1] ** -0.5)


@gradoracle.kernel(retention)
def chunk_retention(q, k, v, initial_state):
    return ops.chunk_retention(q, k, v, initial_state=initial_state, output_final_state=True)


@gradoracle.kernel(retention)
def fused_chunk_retention(q, k, v, initial_state):
    return ops.fused_chunk_retention(q, k, v, initial_state=initial_state, output_final_state=True)


@gradoracle.kernel(retention)
def fused_recurrent_retention(q, k, v, initial_state):
    return ops.fused_recurrent_retention(q, k, v, initial_state=initial_state, output_final_state=True)


@gradoracle.family(dims=SIZES)
def stateless_retention(
    q: Float[Tensor, "B T H K"], k: Float[Tensor, "B T H K"], v: Float[Tensor, "B T H V"]
) -> Float[Tensor, "B T H V"]:
    nothing = q.new_zeros(()).expand(q.shape[-1], v.shape[-1])
    return gated(q, k, v, fixed(q, retention_slope(q.shape[2])), nothing, q.shape[-1] ** -0.5)[0]


@gradoracle.kernel(stateless_retention)
def parallel_retention(q, k, v):
    return ops.parallel_retention(q, k, v)[0]


LAYERS = 4


@gradoracle.family(dims=SIZES, outputs=("o", "final_state"), options={"layer": (0, 1, 3)})
def lightning_attn(
    q: Float[Tensor, "B T H K"],
    k: Float[Tensor, "B T H K"],
    v: Float[Tensor, "B T H V"],
    initial_state: Float32[Tensor, "B H K V"],
    *,
    layer: int = 0,
) -> tuple[Float[Tensor, "B T H V"], Float32[Tensor, "B H K V"]]:
    """Head h decays by e^(-8 h / H (1 - layer / LAYERS))."""
    heads = q.shape[2]
    slope = -(8 / heads) * (1 - layer / LAYERS) * torch.arange(heads, dtype=torch.float64)
    return gated(q, k, v, fixed(q, slope), initial_state, q.shape[-1] ** -0.5)


@gradoracle.kernel(lightning_attn)
def chunk_lightning_attn(q, k, v, initial_state, *, layer=0):
    return ops.chunk_lightning_attn(q, k, v, layer, LAYERS, initial_state=initial_state, output_final_state=True)


@gradoracle.kernel(lightning_attn)
def fused_recurrent_lightning_attn(q, k, v, initial_state, *, layer=0):
    return ops.fused_recurrent_lightning_attn(
        q, k, v, layer, LAYERS, initial_state=initial_state, output_final_state=True
    )


@gradoracle.family(dims=SIZES | {"K": gradoracle.choices(16)}, options={"use_norm": (True, False)})
def based(
    q: Float[Tensor, "B T H K"], k: Float[Tensor, "B T H K"], v: Float[Tensor, "B T H V"], *, use_norm: bool = True
) -> Float[Tensor, "B T H V"]:
    """Attention with weights 1 + s + s^2 / 2 instead of e^s; at most 16 features, as the operations require."""
    q, k, v = heads_first(q, k, v)
    s = q.shape[-1] ** -0.5 * (q @ k.mT)
    weights = torch.where(torch.ones_like(s, dtype=torch.bool).tril(), 1 + s + s * s / 2, 0.0)
    o = weights @ v
    return (o / (weights.sum(-1, keepdim=True) + 1e-6) if use_norm else o).transpose(1, 2)


@gradoracle.kernel(based)
def parallel_based(q, k, v, *, use_norm=True):
    return ops.parallel_based(q, k, v, use_norm=use_norm)


@gradoracle.kernel(based)
def fused_chunk_based(q, k, v, *, use_norm=True):
    return ops.fused_chunk_based(q, k, v, use_norm=use_norm)


def levels(length):
    """The level at [t, s] for s <= t: 0 for t, and l for the block of 2^(l-1) positions that a Fenwick tree reads."""
    t = torch.arange(length)
    crossing = t[:, None] ^ t[None, :]  # its highest bit is the first power of two that separates s from t
    return sum((crossing >= 2**bit).long() for bit in range(length.bit_length()))


@gradoracle.family(
    dims=SIZES | {"K": gradoracle.choices(64), "T": gradoracle.sizes(1, 127), "L": gradoracle.choices(8)}
)
def log_linear_attn(
    q: Float[Tensor, "B T H K"],
    k: Float[Tensor, "B T H K"],
    v: Float[Tensor, "B T H V"],
    gate: Float[Tensor, "B T H"],
    level_scales: Float[Tensor, "B T H L"],
) -> Float[Tensor, "B T H V"]:
    """The weight of s at t is q_t k_s e^(g_{s+1} + ... + g_t) times the scale of t at the level of s; scale 1."""
    q, k, v, g, scales = heads_first(q, k, v, logsigmoid(gate), level_scales)
    level = levels(q.shape[2]).to(q.device)
    weights = sum(torch.where(level == n, scales[..., n, None], 0.0) for n in range(scales.shape[-1]))
    return (((q @ k.mT) * decay(g) * weights) @ v).transpose(1, 2)


@gradoracle.kernel(log_linear_attn)
def chunk_log_linear_attn(q, k, v, gate, level_scales):
    return ops.chunk_log_linear_attn(q, k, v, logsigmoid(gate.float()), level_scales)[0]
