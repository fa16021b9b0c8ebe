r"""Delta rules of fla-core: plain, gated, KDA, Comba, preconditioned and with momentum.

    pip install --no-deps fla-core==0.6.0 einops
    gradoracle check examples/packages/fla_delta_rule.py:chunk_gated_delta_rule --dtype float32

A delta rule decays its state and corrects what it holds for a key: S_t = D_t S_{t-1} + w_t u_t^T with
u_t = beta_t (v_t - p_t^T D_t S_{t-1}) and D_t = diag(e^{g_t}). Gates and betas are inputs without bounds; the
definition takes their log sigmoid and sigmoid, and divides keys by their norms. Operations without a backward are for
inference: their gradients are refused.
"""

from __future__ import annotations

import fla.ops as ops
import torch
from fla_terms import SIZES, heads_first, normalized, pairs
from jaxtyping import Float, Float32
from torch import Tensor
from torch.nn.functional import logsigmoid, softplus

import gradoracle


def products(a, b, decay):
    """sum over k of a_tk b_sk decay_tsk, [... T T]; decay [... T T K] or [... T T 1]."""
    if decay.shape[-1] == 1:
        return (a @ b.mT) * decay[..., 0]
    return torch.einsum("...tk,...sk,...tsk->...ts", a, b, decay)


def corrected(strict, rhs):
    """u of u_t + sum over s < t of strict_ts u_s = rhs_t; what is not below the diagonal of ``strict`` is ignored."""
    unit = torch.eye(rhs.shape[-2], dtype=rhs.dtype, device=rhs.device)
    return torch.linalg.solve_triangular(strict.tril(-1) + unit, rhs, upper=False)


def delta(q, w, v, p, g, beta, initial, scale, undecayed=False):
    """Outputs [B T H V] and last state [B H K V] of the delta rule; all by heads, g [B H T K] or [B H T 1].

    ``undecayed``: p reads S_{t-1}, not D_t S_{t-1}.
    """
    total, beta = g.cumsum(-2), beta[..., None]
    decay, since = pairs(total, total), torch.exp(total)  # [B H T T K], [B H T K]
    read = total - g if undecayed else total
    held = beta * products(p, w, pairs(read, total, strict=True))
    u = corrected(held, beta * (v - (p * torch.exp(read)) @ initial))
    o = scale * (products(q, w, decay) @ u + (q * since) @ initial)
    last = since[..., -1, :, None] * initial + (w * decay[..., -1, :, :]).mT @ u
    return o.transpose(1, 2), last


def unit_keys(k):
    """The keys for operations that take them normalised."""
    return normalized(k.float()).to(k.dtype)


@gradoracle.family(dims=SIZES, outputs=("o", "final_state"))
def delta_rule(
    q: Float[Tensor, "B T H K"],
    k: Float[Tensor, "B T H K"],
    v: Float[Tensor, "B T H V"],
    beta: Float[Tensor, "B T H"],
    initial_state: Float32[Tensor, "B H K V"],
) -> tuple[Float[Tensor, "B T H V"], Float32[Tensor, "B H K V"]]:
    """Without a decay."""
    q, k, v, beta = heads_first(q, normalized(k), v, torch.sigmoid(beta))
    return delta(q, k, v, k, torch.zeros_like(beta[..., None]), beta, initial_state, q.shape[-1] ** -0.5)


@gradoracle.kernel(delta_rule, dtypes=("bfloat16", "float16"))
def chunk_delta_rule(q, k, v, beta, initial_state):
    beta = torch.sigmoid(beta)
    return ops.chunk_delta_rule(q, unit_keys(k), v, beta, initial_state=initial_state, output_final_state=True)


@gradoracle.kernel(delta_rule)
def fused_recurrent_delta_rule(q, k, v, beta, initial_state):
    beta = torch.sigmoid(beta)
    return ops.fused_recurrent_delta_rule(
        q, unit_keys(k), v, beta, initial_state=initial_state, output_final_state=True
    )


@gradoracle.family(dims=SIZES, outputs=("o", "final_state"))
def gated_delta_rule(
    q: Float[Tensor, "B T H K"],
    k: Float[Tensor, "B T H K"],
    v: Float[Tensor, "B T H V"],
    gate: Float[Tensor, "B T H"],
    beta: Float[Tensor, "B T H"],
    initial_state: Float32[Tensor, "B H K V"],
) -> tuple[Float[Tensor, "B T H V"], Float32[Tensor, "B H K V"]]:
    """With one decay for each head."""
    q, k, v, g, beta = heads_first(q, normalized(k), v, logsigmoid(gate), torch.sigmoid(beta))
    return delta(q, k, v, k, g[..., None], beta, initial_state, q.shape[-1] ** -0.5)


def with_gate(operation, q, k, v, gate, beta, initial_state):
    g, beta = logsigmoid(gate.float()), torch.sigmoid(beta)
    return operation(q, unit_keys(k), v, g=g, beta=beta, initial_state=initial_state, output_final_state=True)


@gradoracle.kernel(gated_delta_rule)
def chunk_gated_delta_rule(q, k, v, gate, beta, initial_state):
    return with_gate(ops.chunk_gated_delta_rule, q, k, v, gate, beta, initial_state)


@gradoracle.kernel(gated_delta_rule)
def chunk_gdn(q, k, v, gate, beta, initial_state):
    return with_gate(ops.chunk_gdn, q, k, v, gate, beta, initial_state)


@gradoracle.kernel(gated_delta_rule)
def fused_recurrent_gated_delta_rule(q, k, v, gate, beta, initial_state):
    return with_gate(ops.fused_recurrent_gated_delta_rule, q, k, v, gate, beta, initial_state)


@gradoracle.kernel(gated_delta_rule)
def fused_recurrent_gdn(q, k, v, gate, beta, initial_state):
    return with_gate(ops.fused_recurrent_gdn, q, k, v, gate, beta, initial_state)


@gradoracle.family(dims=SIZES, outputs=("o", "final_state"))
def kda(
    q: Float[Tensor, "B T H K"],
    k: Float[Tensor, "B T H K"],
    v: Float[Tensor, "B T H V"],
    gate: Float[Tensor, "B T H K"],
    beta: Float[Tensor, "B T H"],
    initial_state: Float32[Tensor, "B H K V"],
) -> tuple[Float[Tensor, "B T H V"], Float32[Tensor, "B H K V"]]:
    """With one decay for each channel of the key."""
    q, k, v, g, beta = heads_first(q, normalized(k), v, logsigmoid(gate), torch.sigmoid(beta))
    return delta(q, k, v, k, g, beta, initial_state, q.shape[-1] ** -0.5)


@gradoracle.kernel(kda)
def chunk_kda(q, k, v, gate, beta, initial_state):
    return with_gate(ops.chunk_kda, q, k, v, gate, beta, initial_state)


@gradoracle.kernel(kda)
def fused_recurrent_kda(q, k, v, gate, beta, initial_state):
    return with_gate(ops.fused_recurrent_kda, q, k, v, gate, beta, initial_state)


@gradoracle.family(dims=SIZES, outputs=("o", "final_state"))
def comba(
    q: Float[Tensor, "B T H K"],
    k: Float[Tensor, "B T H K"],
    v: Float[Tensor, "B T H V"],
    p: Float[Tensor, "B T H K"],
    gate: Float[Tensor, "B T H"],
    beta: Float[Tensor, "B T H"],
    initial_state: Float32[Tensor, "B H K V"],
) -> tuple[Float[Tensor, "B T H V"], Float32[Tensor, "B H K V"]]:
    """What is read, p, is not what is written, k; it is read before the state decays: u = beta (v - p^T S_{t-1})."""
    q, k, v, p, g, beta = heads_first(q, normalized(k), v, normalized(p), logsigmoid(gate), torch.sigmoid(beta))
    return delta(q, k, v, p, g[..., None], beta, initial_state, q.shape[-1] ** -0.5, undecayed=True)


@gradoracle.kernel(comba)
def chunk_comba(q, k, v, p, gate, beta, initial_state):
    k, p, g, beta = unit_keys(k), unit_keys(p), logsigmoid(gate.float()), torch.sigmoid(beta)
    return ops.chunk_comba(q, k, v, p, g, beta, initial_state=initial_state, output_final_state=True)


@gradoracle.kernel(comba)
def fused_recurrent_comba(q, k, v, p, gate, beta, initial_state):
    k, p, g, beta = unit_keys(k), unit_keys(p), logsigmoid(gate.float()), torch.sigmoid(beta)
    return ops.fused_recurrent_comba(q, k, p, v, g, beta, initial_state=initial_state, output_final_state=True)


def preconditioned(k, gate, beta, initial, center):
    """k times 1.5^(-r / (1 + |r|)), r = log(A_t + 1e-6) - center, and A_T; A sums the beta k^2 of [B H T K] keys."""
    total = logsigmoid(gate).cumsum(-1)[..., None]
    a = pairs(total, total)[..., 0] @ (torch.sigmoid(beta)[..., None] * k * k) + torch.exp(total) * initial[:, :, None]
    r = torch.log(a + 1e-6) - center[:, None, None]
    return k * torch.exp(-torch.log(r.new_tensor(1.5)) * r / (1 + r.abs())), a[..., -1, :]


STATES = ("o", "final_state", "final_preconditioner")


def with_preconditioned_keys(
    q, k, v, gate, beta, precond_gate, precond_beta, initial_state, initial_preconditioner, center
):
    """The delta rule, gate [B T H K] or [B T H 1]; what is written is the key, preconditioned."""
    q, k, v = heads_first(normalized(q), normalized(k), v)
    g, beta, *rest = heads_first(logsigmoid(gate), torch.sigmoid(beta), precond_gate, precond_beta)
    w, a = preconditioned(k, *rest, softplus(initial_preconditioner), center)
    return *delta(q, w, v, k, g, beta, initial_state, q.shape[-1] ** -0.5), a


@gradoracle.family(dims=SIZES, outputs=STATES)
def precond_gated_delta_rule(
    q: Float[Tensor, "B T H K"],
    k: Float[Tensor, "B T H K"],
    v: Float[Tensor, "B T H V"],
    gate: Float[Tensor, "B T H"],
    beta: Float[Tensor, "B T H"],
    precond_gate: Float[Tensor, "B T H"],
    precond_beta: Float[Tensor, "B T H"],
    initial_state: Float32[Tensor, "B H K V"],
    initial_preconditioner: Float32[Tensor, "B H K"],
    center: Float32[Tensor, "H"],
) -> tuple[Float[Tensor, "B T H V"], Float32[Tensor, "B H K V"], Float32[Tensor, "B H K"]]:
    """What is written is the key, preconditioned by a decaying sum of its squares."""
    return with_preconditioned_keys(
        q, k, v, gate[..., None], beta, precond_gate, precond_beta, initial_state, initial_preconditioner, center
    )


def with_preconditioner(
    operation, q, k, v, gate, beta, precond_gate, precond_beta, initial_state, initial_preconditioner, center
):
    o, last, a = operation(
        q, k, v, g=logsigmoid(gate.float()), beta=torch.sigmoid(beta), g_atk=logsigmoid(precond_gate.float()),
        beta_atk=torch.sigmoid(precond_beta), initial_state=initial_state, log_atk_scale=center,
        initial_A_state=softplus(initial_preconditioner), output_final_state=True,
    )  # fmt: skip
    return o, last, a.float()  # of chunks it has the dtype of k


@gradoracle.kernel(precond_gated_delta_rule)
def chunk_precond_gated_delta_rule(q, k, v, gate, beta, precond_gate, precond_beta, state, preconditioner, center):
    return with_preconditioner(
        ops.chunk_precond_gated_delta_rule, q, k, v, gate, beta, precond_gate, precond_beta, state, preconditioner,
        center,
    )  # fmt: skip


@gradoracle.kernel(precond_gated_delta_rule)
def fused_recurrent_precond_gated_delta_rule(
    q, k, v, gate, beta, precond_gate, precond_beta, state, preconditioner, center
):
    return with_preconditioner(
        ops.fused_recurrent_precond_gated_delta_rule, q, k, v, gate, beta, precond_gate, precond_beta, state,
        preconditioner, center,
    )  # fmt: skip


@gradoracle.family(dims=SIZES, outputs=STATES)
def precond_kda(
    q: Float[Tensor, "B T H K"],
    k: Float[Tensor, "B T H K"],
    v: Float[Tensor, "B T H V"],
    gate: Float[Tensor, "B T H K"],
    beta: Float[Tensor, "B T H"],
    precond_gate: Float[Tensor, "B T H"],
    precond_beta: Float[Tensor, "B T H"],
    initial_state: Float32[Tensor, "B H K V"],
    initial_preconditioner: Float32[Tensor, "B H K"],
    center: Float32[Tensor, "H"],
) -> tuple[Float[Tensor, "B T H V"], Float32[Tensor, "B H K V"], Float32[Tensor, "B H K"]]:
    """The preconditioned rule with one decay for each channel of the key."""
    return with_preconditioned_keys(
        q, k, v, gate, beta, precond_gate, precond_beta, initial_state, initial_preconditioner, center
    )


@gradoracle.kernel(precond_kda)
def chunk_precond_kda(q, k, v, gate, beta, precond_gate, precond_beta, state, preconditioner, center):
    return with_preconditioner(
        ops.chunk_precond_kda, q, k, v, gate, beta, precond_gate, precond_beta, state, preconditioner, center
    )


@gradoracle.kernel(precond_kda)
def fused_recurrent_precond_kda(q, k, v, gate, beta, precond_gate, precond_beta, state, preconditioner, center):
    return with_preconditioner(
        ops.fused_recurrent_precond_kda, q, k, v, gate, beta, precond_gate, precond_beta, state, preconditioner, center
    )


@gradoracle.family(dims=SIZES, outputs=("o", "final_state", "final_momentum"))
def momentum_delta_rule(
    q: Float[Tensor, "B T H K"],
    k: Float[Tensor, "B T H K"],
    v: Float[Tensor, "B T H V"],
    gate: Float[Tensor, "B T H"],
    momentum_gate: Float[Tensor, "B T H"],
    p: Float[Tensor, "B T H K"],
    beta: Float[Tensor, "B T H"],
    eta: Float[Tensor, "B T H"],
    initial_state: Float32[Tensor, "B H K V"],
    initial_momentum: Float32[Tensor, "B H K V"],
) -> tuple[Float[Tensor, "B T H V"], Float32[Tensor, "B H K V"], Float32[Tensor, "B H K V"]]:
    """S_t = a_t S_{t-1} - beta_t M_t and M_t = mu_t M_{t-1} - eta_t k_t u_t^T with u_t = v_t - a_t p_t^T S_{t-1}."""
    q, k, p, v = heads_first(normalized(q), normalized(k), normalized(p), v)
    alpha, mu, beta, eta = heads_first(logsigmoid(gate), logsigmoid(momentum_gate), beta, eta)
    alpha, mu, beta = alpha.cumsum(-1)[..., None], mu.cumsum(-1)[..., None], torch.sigmoid(beta)[..., None]
    kept, moved = pairs(alpha, alpha)[..., 0], beta * pairs(mu, mu)[..., 0]  # [B H T T]
    start = beta * torch.exp(mu)  # what of M_0 step r subtracts
    before, k = kept.tril(-1), torch.sigmoid(eta)[..., None] * k
    read = v - (torch.exp(alpha) * p) @ initial_state + (p * (before @ start)) @ initial_momentum
    u = corrected((p @ k.mT) * (before @ moved), read)
    weights, lost = kept @ moved, kept @ start  # in S_t: of k_s u_s^T [B H T T], of M_0 [B H T 1]
    o = ((q @ k.mT) * weights) @ u + (torch.exp(alpha) * q) @ initial_state - (q * lost) @ initial_momentum
    last = torch.exp(alpha[..., -1:, :]) * initial_state - lost[..., -1:, :] * initial_momentum
    last = last + (k * weights[..., -1, :, None]).mT @ u
    momentum = torch.exp(mu[..., -1:, :]) * initial_momentum - (k * pairs(mu, mu)[..., -1, :, :]).mT @ u
    return (q.shape[-1] ** -0.5 * o).transpose(1, 2), last, momentum


def with_momentum(operation, q, k, v, gate, momentum_gate, p, beta, eta, state, momentum):
    o, last = operation(
        q, k, v, logsigmoid(gate.float()), logsigmoid(momentum_gate.float()), p, torch.sigmoid(beta.float()),
        torch.sigmoid(eta.float()), initial_state=(state, momentum), output_final_state=True,
    )  # fmt: skip
    return o, last[0], last[1]


@gradoracle.kernel(momentum_delta_rule, dtypes=("bfloat16", "float16"))
def chunk_momentum_delta_rule(q, k, v, gate, momentum_gate, p, beta, eta, state, momentum):
    return with_momentum(ops.chunk_momentum_delta_rule, q, k, v, gate, momentum_gate, p, beta, eta, state, momentum)


@gradoracle.kernel(momentum_delta_rule)
def fused_recurrent_momentum_delta_rule(q, k, v, gate, momentum_gate, p, beta, eta, state, momentum):
    return with_momentum(
        ops.fused_recurrent_momentum_delta_rule, q, k, v, gate, momentum_gate, p, beta, eta, state, momentum
    )
