r"""Cyclic flow attention of fla-core: softmax attention to slots whose phase turns with the tokens.

    pip install --no-deps fla-core==0.6.0 einops
    gradoracle check examples/packages/fla_cyclic.py:chunk_cyfa --dtype float32

The state holds P + 1 Fourier coefficients of P slots (P odd, a pair of coefficients for each frequency). A token writes
at the phase lambda_t, the sum of all steps so far, and reads the slots as they are turned to that phase.
"""

from __future__ import annotations

import math

import fla_terms
import torch
from jaxtyping import Float, Float32
from torch import Tensor
from torch.nn.functional import logsigmoid

import gradoracle

with gradoracle.cuda_claimed():
    import fla.ops as ops

SIZES = {**fla_terms.SIZES, "P": gradoracle.choices(15, 31)}
EPS = 1e-6


def turn(phases, x):
    """Coefficients x [.. P+1] turned by phases [..]: pair n by the angle 2 pi n phase / P, for both of its members."""
    period = x.shape[-1] - 1
    frequency = torch.arange((period + 1) // 2, device=x.device).to(x)
    angle = 2 * math.pi / period * phases[..., None] * frequency  # [.. pairs]
    cosine, sine = torch.cos(angle), torch.sin(angle)
    a, b = x[..., 0::2], x[..., 1::2]
    return torch.stack([cosine * a - sine * b, sine * a + cosine * b], -1).flatten(-2)


def basis(period, like):
    """The P orthonormal slots as rows of P + 1 Fourier coefficients: cos, sin of 0, then of each frequency."""
    angle = 2 * math.pi / period * torch.arange(period, device=like.device)[:, None].to(like)
    angle = angle * torch.arange((period + 1) // 2, device=like.device).to(like)  # [P pairs]
    size = torch.full_like(angle, math.sqrt(2 / period))
    size[:, 0] = math.sqrt(1 / period)
    return torch.stack([size * torch.cos(angle), size * torch.sin(angle)], -1).flatten(-2)


@gradoracle.family(dims=SIZES, outputs=("o", "final_keys", "final_values", "final_phase"))
def cyfa(
    q: Float[Tensor, "B T H K"],
    k: Float[Tensor, "B T H K"],
    v: Float[Tensor, "B T H V"],
    gate: Float32[Tensor, "B T H"],
    step: Float32[Tensor, "B T H"],
    beta: Float32[Tensor, "B T H"],
    readout: Float32[Tensor, "H P P"],
    q_weight: Float[Tensor, "K"],
    k_weight: Float[Tensor, "K"],
    initial_keys: Float32[Tensor, "B H K P+1"],
    initial_values: Float32[Tensor, "B H P+1 V"],
    initial_phase: Float32[Tensor, "B H"],
) -> tuple[
    Float[Tensor, "B T H V"],
    Float32[Tensor, "B H K P+1"],
    Float32[Tensor, "B H P+1 V"],
    Float32[Tensor, "B H"],
]:
    """q and k are normalised; the gate's decay is log sigmoid of it, beta the sigmoid, a step the sigmoid too."""
    q = q * torch.rsqrt(q.square().mean(-1, keepdim=True) + EPS) * q_weight
    k = k * torch.rsqrt(k.square().mean(-1, keepdim=True) + EPS) * k_weight
    q, k, v, g, step, beta = (
        x.transpose(1, 2) for x in (q, k, v, logsigmoid(gate), torch.sigmoid(step), torch.sigmoid(beta))
    )
    phase, total = step.cumsum(-1) + initial_phase[..., None], g.cumsum(-1)  # [B H T]
    slots = basis(readout.shape[-1], readout)  # [P P+1]
    past = torch.ones(q.shape[2], q.shape[2], dtype=torch.bool, device=q.device).tril()
    decay = torch.where(past, total[..., :, None] - total[..., None, :], 0.0)
    decay, since = torch.where(past, torch.exp(decay), 0.0), torch.exp(total)[..., None]  # [B H T T], [B H T 1]
    written = beta[..., None] * turn(-phase, slots[0].expand(*phase.shape, -1))  # [B H T P+1]
    scores = q.shape[-1] ** -0.5 * (((q @ k.mT) * decay) @ written + since * (q @ initial_keys))
    table = readout @ slots  # [H P P+1]
    p = torch.softmax(turn(phase, scores) @ table.mT, -1)
    weights = turn(-phase, p @ table)
    o = ((weights @ written.mT) * decay) @ v + since * (weights @ initial_values)
    written = decay[..., -1, :, None] * written
    keys = since[..., -1:, :] * initial_keys + k.mT @ written
    values = since[..., -1:, :] * initial_values + written.mT @ v
    return o.transpose(1, 2), keys, values, phase[..., -1]


def cyclic(operation, q, k, v, gate, step, beta, readout, q_weight, k_weight, keys, values, phase):
    o, last = operation(
        q, k, v, logsigmoid(gate), torch.sigmoid(step), torch.sigmoid(beta), readout, q_weight, k_weight, EPS, EPS,
        initial_state=(keys, values, phase), output_final_state=True,
    )  # fmt: skip
    return o, *last


@gradoracle.kernel(cyfa, needs_cuda=True)
def chunk_cyfa(q, k, v, gate, step, beta, readout, q_weight, k_weight, keys, values, phase):
    return cyclic(ops.chunk_cyfa, q, k, v, gate, step, beta, readout, q_weight, k_weight, keys, values, phase)


@gradoracle.kernel(cyfa, needs_cuda=True, no_gradient=tuple(spec.name for spec in cyfa.signature.primals))
def fused_recurrent_cyfa(q, k, v, gate, step, beta, readout, q_weight, k_weight, keys, values, phase):
    with torch.no_grad():  # for inference: it refuses inputs that require a gradient
        return cyclic(
            ops.fused_recurrent_cyfa, q, k, v, gate, step, beta, readout, q_weight, k_weight, keys, values, phase
        )
