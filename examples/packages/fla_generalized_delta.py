r"""Generalized delta rules of fla-core: identity or diagonal plus low rank (IPLR, DPLR), and RWKV-7.

    pip install --no-deps fla-core==0.6.0 einops
    gradoracle check examples/packages/fla_generalized_delta.py:chunk_dplr_delta_rule --dtype float32

S_t = D_t S_{t-1} + b_t (a_t^T S_{t-1}) + k_t v_t^T, with D_t = diag(e^{g_t}), or 1. As in RWKV-7, a is minus a unit
vector and b that vector times a number in (0, 1), the sigmoid of an input: the state does not grow.
"""

from __future__ import annotations

import fla.ops as ops
import torch
from fla_terms import SIZES, heads_first, normalized
from jaxtyping import Float, Float32
from torch import Tensor
from torch.nn.functional import logsigmoid, pad

import gradoracle


def removal(direction, rate):
    """a and b of a rule that removes what the state holds for a direction [B T H K], by a rate [B T H]."""
    unit = normalized(direction)
    return -unit, unit * torch.sigmoid(rate)[..., None]


def products(x, y, later, earlier, strict=False):
    """sum over k of x_tk y_sk e^(later_tk - earlier_sk) at [t, s] for s <= t (``strict``: s < t), else 0."""
    past = torch.ones(x.shape[-2], x.shape[-2], dtype=torch.bool, device=x.device).tril(-1 if strict else 0)[..., None]
    between = torch.where(past, later[..., :, None, :] - earlier[..., None, :, :], 0.0)
    return torch.einsum("...tk,...sk,...tsk->...ts", x, y, torch.where(past, torch.exp(between), 0.0))


def low_rank(q, k, v, a, b, g, initial, scale):
    """Outputs [B T H V] and last state [B H K V]; q, k, a, b, g [B T H K]."""
    q, k, v, a, b, g = heads_first(q, k, v, a, b, g)
    total = g.cumsum(-2)
    before = pad(total, (0, 0, 1, 0))[..., :-1, :]
    unit = torch.eye(q.shape[-2], dtype=q.dtype, device=q.device)
    seen = products(a, k, before, total, strict=True) @ v + (a * torch.exp(before)) @ initial
    x = torch.linalg.solve_triangular(unit - products(a, b, before, total, strict=True), seen, upper=False)  # a^T S
    o = products(q, k, total, total) @ v + products(q, b, total, total) @ x + (q * torch.exp(total)) @ initial
    end = total[..., -1:, :]
    decay = torch.exp(end - total)
    last = torch.exp(end).mT * initial + (k * decay).mT @ v + (b * decay).mT @ x
    return scale * o.transpose(1, 2), last


@gradoracle.family(dims=SIZES, outputs=("o", "final_state"))
def iplr_delta_rule(
    q: Float[Tensor, "B T H K"],
    k: Float[Tensor, "B T H K"],
    v: Float[Tensor, "B T H V"],
    direction: Float[Tensor, "B T H K"],
    rate: Float[Tensor, "B T H"],
    initial_state: Float32[Tensor, "B H K V"],
) -> tuple[Float[Tensor, "B T H V"], Float32[Tensor, "B H K V"]]:
    """Without a decay."""
    a, b = removal(direction, rate)
    return low_rank(q, k, v, a, b, torch.zeros_like(a), initial_state, q.shape[-1] ** -0.5)


def undecayed(operation, q, k, v, direction, rate, initial_state):
    a, b = (x.to(q.dtype) for x in removal(direction.float(), rate.float()))
    return operation(q, k, v, a, b, initial_state=initial_state, output_final_state=True)


@gradoracle.kernel(iplr_delta_rule)
def chunk_iplr_delta_rule(q, k, v, direction, rate, initial_state):
    return undecayed(ops.chunk_iplr_delta_rule, q, k, v, direction, rate, initial_state)


@gradoracle.kernel(iplr_delta_rule)
def fused_recurrent_iplr_delta_rule(q, k, v, direction, rate, initial_state):
    return undecayed(ops.fused_recurrent_iplr_delta_rule, q, k, v, direction, rate, initial_state)


@gradoracle.family(dims=SIZES, outputs=("o", "final_state"))
def dplr_delta_rule(
    q: Float[Tensor, "B T H K"],
    k: Float[Tensor, "B T H K"],
    v: Float[Tensor, "B T H V"],
    direction: Float[Tensor, "B T H K"],
    rate: Float[Tensor, "B T H"],
    gate: Float[Tensor, "B T H K"],
    initial_state: Float32[Tensor, "B H K V"],
) -> tuple[Float[Tensor, "B T H V"], Float32[Tensor, "B H K V"]]:
    """With a decay for each channel of the key."""
    return low_rank(q, k, v, *removal(direction, rate), logsigmoid(gate), initial_state, q.shape[-1] ** -0.5)


def decayed(operation, q, k, v, direction, rate, gate, initial_state):
    a, b = (x.to(q.dtype) for x in removal(direction.float(), rate.float()))
    gk = logsigmoid(gate.float())
    return operation(q, k, v, a, b, gk, initial_state=initial_state, output_final_state=True)


@gradoracle.kernel(dplr_delta_rule)
def chunk_dplr_delta_rule(q, k, v, direction, rate, gate, initial_state):
    return decayed(ops.chunk_dplr_delta_rule, q, k, v, direction, rate, gate, initial_state)


@gradoracle.kernel(dplr_delta_rule)
def fused_recurrent_dplr_delta_rule(q, k, v, direction, rate, gate, initial_state):
    return decayed(ops.fused_recurrent_dplr_delta_rule, q, k, v, direction, rate, gate, initial_state)


@gradoracle.family(dims=SIZES, outputs=("o", "final_state"))
def rwkv7(
    r: Float[Tensor, "B T H K"],
    gate: Float[Tensor, "B T H K"],
    k: Float[Tensor, "B T H K"],
    v: Float[Tensor, "B T H V"],
    direction: Float[Tensor, "B T H K"],
    rate: Float[Tensor, "B T H"],
    initial_state: Float32[Tensor, "B H K V"],
) -> tuple[Float[Tensor, "B T H V"], Float32[Tensor, "B H K V"]]:
    """The same with scale 1."""
    return low_rank(r, k, v, *removal(direction, rate), logsigmoid(gate), initial_state, 1.0)


def wind(operation, r, gate, k, v, direction, rate, initial_state):
    a, b = (x.to(r.dtype) for x in removal(direction.float(), rate.float()))
    w = logsigmoid(gate.float())
    return operation(r, w, k, v, a, b, scale=1.0, initial_state=initial_state, output_final_state=True)


@gradoracle.kernel(rwkv7)
def chunk_rwkv7(r, gate, k, v, direction, rate, initial_state):
    return wind(ops.chunk_rwkv7, r, gate, k, v, direction, rate, initial_state)


@gradoracle.kernel(rwkv7)
def fused_recurrent_rwkv7(r, gate, k, v, direction, rate, initial_state):
    return wind(ops.fused_recurrent_rwkv7, r, gate, k, v, direction, rate, initial_state)
