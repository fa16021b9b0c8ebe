"""The gated delta rule, fused and recurrent: a Triton kernel of first order, with PyTorch's operations around it.

gradoracle check examples/modern/gated_delta_rule.py:right --dtype float32
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from jaxtyping import Float
from torch import Tensor

import gradoracle

SIZES = {
    "B": gradoracle.sizes(1, 3), "T": gradoracle.sizes(1, 7), "K": gradoracle.sizes(1, 5), "V": gradoracle.sizes(1, 5),
}  # fmt: skip


@gradoracle.family(dims=SIZES)
def gated_delta_rule(
    q: Float[Tensor, "B T K"], k: Float[Tensor, "B T K"], v: Float[Tensor, "B T V"],
    gate: Float[Tensor, "B T"], beta: Float[Tensor, "B T"],
) -> Float[Tensor, "B T V"]:  # fmt: skip
    """S_t = a_t S_{t-1} + b_t k_t (v_t - (a_t S_{t-1})^T k_t)^T, o_t = S_t^T q_t; a and b are sigmoids."""
    a, b = torch.sigmoid(gate), torch.sigmoid(beta)
    k = k * torch.rsqrt(k.square().sum(-1, keepdim=True) + 1e-6)
    state, outputs = torch.zeros_like(k[:, 0, :, None] * v[:, 0, None]), []
    for t in range(q.shape[1]):
        state = a[:, t, None, None] * state
        new = v[:, t] - (state * k[:, t, :, None]).sum(1)
        state = state + b[:, t, None, None] * k[:, t, :, None] * new[:, None]
        outputs.append((state * q[:, t, :, None]).sum(1))
    return torch.stack(outputs, 1)


@triton.jit
def _row(X, at, D, BLOCK: tl.constexpr):
    d = tl.arange(0, BLOCK)
    return tl.load(X + at * D + d, d < D, 0.0).to(tl.float32)


@triton.jit
def _forward(Q, K, V, A, B, O, S, T, DK, DV, BK: tl.constexpr, BV: tl.constexpr):
    i, j = tl.arange(0, BK), tl.arange(0, BV)
    inside = (i < DK)[:, None] & (j < DV)
    s = tl.zeros((BK, BV), tl.float32)
    for t in range(T):
        at = tl.program_id(0) * T + t
        k = _row(K, at, DK, BK)
        s = tl.load(A + at).to(tl.float32) * s
        new = _row(V, at, DV, BV) - tl.sum(s * k[:, None], 0)
        s += k[:, None] * (tl.load(B + at).to(tl.float32) * new)
        tl.store(S + (at * DK + i[:, None]) * DV + j, s, inside)
        tl.store(O + at * DV + j, tl.sum(s * _row(Q, at, DK, BK)[:, None], 0).to(O.dtype.element_ty), j < DV)


@triton.jit
def _backward(Q, K, V, A, B, S, G, DQ, DKEY, DVAL, DA, DB, T, DK, DV, BUG: tl.constexpr, BK: tl.constexpr, BV: tl.constexpr):  # fmt: skip  # noqa: E501
    i, j = tl.arange(0, BK), tl.arange(0, BV)
    inside = (i < DK)[:, None] & (j < DV)
    ds = tl.zeros((BK, BV), tl.float32)
    for back in range(T):
        t = T - 1 - back
        at = tl.program_id(0) * T + t
        q, k, g = _row(Q, at, DK, BK), _row(K, at, DK, BK), _row(G, at, DV, BV)
        a, b = tl.load(A + at).to(tl.float32), tl.load(B + at).to(tl.float32)
        s = tl.load(S + (at * DK + i[:, None]) * DV + j, inside, 0.0)
        before = tl.load(S + ((at - 1) * DK + i[:, None]) * DV + j, inside & (t > 0), 0.0)
        decayed = a * before
        new = _row(V, at, DV, BV) - tl.sum(decayed * k[:, None], 0)
        ds += q[:, None] * g
        dw = tl.sum(ds * k[:, None], 0)  # of b new, [BV]
        tl.store(DQ + at * DK + i, tl.sum(s * g, 1).to(DQ.dtype.element_ty), i < DK)
        dk = tl.sum(ds * (b * new), 1)
        dk = dk if BUG else dk - tl.sum(decayed * (b * dw), 1)
        tl.store(DKEY + at * DK + i, dk.to(DKEY.dtype.element_ty), i < DK)
        tl.store(DVAL + at * DV + j, (b * dw).to(DVAL.dtype.element_ty), j < DV)
        tl.store(DB + at, tl.sum(dw * new).to(DB.dtype.element_ty))
        ds -= k[:, None] * (b * dw)
        tl.store(DA + at, tl.sum(ds * before).to(DA.dtype.element_ty))
        ds = a * ds


class _DeltaRule(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, a, b, bug):
        inputs = [each.contiguous() for each in (q, k, v, a, b)]
        (batch, t, dk), dv = q.shape, v.shape[-1]
        o, s = torch.empty_like(inputs[2]), torch.empty(batch, t, dk, dv, device=q.device)
        ctx.plan = (t, dk, dv), (triton.next_power_of_2(dk), triton.next_power_of_2(dv)), bug
        _forward[(batch,)](*inputs, o, s, *ctx.plan[0], *ctx.plan[1])
        ctx.save_for_backward(*inputs, s)
        return o

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, g):
        sizes, blocks, bug = ctx.plan
        gradients = [torch.empty_like(each) for each in ctx.saved_tensors[:5]]
        _backward[(g.shape[0],)](*ctx.saved_tensors, g.contiguous(), *gradients, *sizes, bug, *blocks)
        return *gradients, None


def _layer(q, k, v, gate, beta, bug):
    k = k.float() * torch.rsqrt(k.float().square().sum(-1, keepdim=True) + 1e-6)
    return _DeltaRule.apply(q, k, v, F.sigmoid(gate.float()), F.sigmoid(beta.float()), bug)


@gradoracle.kernel(gated_delta_rule, claims=("forward", "vjp"))
def right(q, k, v, gate, beta):
    return _layer(q, k, v, gate, beta, False)


@gradoracle.kernel(gated_delta_rule, claims=("forward", "vjp"))
def wrong(q, k, v, gate, beta):
    """The gradient of k lacks what k does to the value that is replaced."""
    return _layer(q, k, v, gate, beta, True)
