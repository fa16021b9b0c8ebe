"""Mamba's selective scan: a Triton kernel with one program for each channel, which keeps its states for the backward.

gradoracle check examples/modern/mamba.py:right --dtype float32
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from jaxtyping import Float
from torch import Tensor
from triton.language.extra import libdevice

import gradoracle

FEW = gradoracle.sizes(1, 4)


@gradoracle.family(dims={"B": gradoracle.sizes(1, 2), "D": FEW, "T": gradoracle.sizes(1, 9), "N": FEW})
def selective_scan(
    u: Float[Tensor, "B D T"], delta: Float[Tensor, "B D T"], a: Float[Tensor, "D N"],
    b: Float[Tensor, "B N T"], c: Float[Tensor, "B N T"], skip: Float[Tensor, "D"],
) -> Float[Tensor, "B D T"]:  # fmt: skip
    """h_t = exp(-step_t exp(a)) h_{t-1} + step_t b_t u_t, y_t = <c_t, h_t> + skip u_t, step = softplus(delta)."""
    step = torch.log1p(torch.exp(delta))
    h, outputs = torch.zeros_like(a), []
    for t in range(u.shape[-1]):
        now = step[..., t, None]  # [B D 1]
        h = torch.exp(-now * torch.exp(a)) * h + now * b[:, None, :, t] * u[..., t, None]
        outputs.append((h * c[:, None, :, t]).sum(-1))
    return torch.stack(outputs, -1) + skip[:, None] * u


@triton.jit
def _softplus(x):
    return tl.where(x > 0, x, 0.0) + libdevice.log1p(tl.exp(-tl.abs(x)))


@triton.jit
def _forward(U, DT, A, BT, CT, SKIP, Y, H, D, T, N, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    n = tl.arange(0, BLOCK)
    rate = -tl.exp(tl.load(A + row % D * N + n, n < N, 0.0).to(tl.float32))  # [BLOCK]
    skip = tl.load(SKIP + row % D).to(tl.float32)
    h = tl.zeros((BLOCK,), tl.float32)
    for t in range(T):
        step = _softplus(tl.load(DT + row * T + t).to(tl.float32))
        u = tl.load(U + row * T + t).to(tl.float32)
        at = (row // D * N + n) * T + t
        h = tl.exp(step * rate) * h + step * u * tl.load(BT + at, n < N, 0.0).to(tl.float32)
        y = tl.sum(h * tl.load(CT + at, n < N, 0.0).to(tl.float32)) + skip * u
        tl.store(H + (row * T + t) * N + n, h, n < N)
        tl.store(Y + row * T + t, y.to(Y.dtype.element_ty))


@triton.jit
def _backward(U, DT, A, BT, CT, SKIP, H, G, DU, DDT, DA, DB, DC, DS, D, T, N, BUG: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    n = tl.arange(0, BLOCK)
    rate = -tl.exp(tl.load(A + row % D * N + n, n < N, 0.0).to(tl.float32))
    skip = tl.load(SKIP + row % D).to(tl.float32)
    dh, da, ds = tl.zeros((BLOCK,), tl.float32), tl.zeros((BLOCK,), tl.float32), 0.0
    for back in range(T):
        t = T - 1 - back
        x, u = tl.load(DT + row * T + t).to(tl.float32), tl.load(U + row * T + t).to(tl.float32)
        g, step = tl.load(G + row * T + t).to(tl.float32), _softplus(x)
        at, decay = (row // D * N + n) * T + t, tl.exp(step * rate)
        b, c = tl.load(BT + at, n < N, 0.0).to(tl.float32), tl.load(CT + at, n < N, 0.0).to(tl.float32)
        h = tl.load(H + (row * T + t) * N + n, n < N, 0.0)
        before = h if BUG else tl.load(H + (row * T + t - 1) * N + n, (n < N) & (t > 0), 0.0)
        dh += g * c
        tl.store(DU + row * T + t, (tl.sum(dh * b) * step + skip * g).to(DU.dtype.element_ty))
        dstep = tl.sum(dh * (b * u + rate * decay * before))
        tl.store(DDT + row * T + t, (dstep * tl.sigmoid(x)).to(DDT.dtype.element_ty))
        tl.atomic_add(DB + at, dh * step * u, n < N)  # channels share b and c
        tl.atomic_add(DC + at, g * h, n < N)
        da, ds = da + dh * decay * before * step * rate, ds + g * u
        dh = decay * dh
    tl.store(DA + row * N + n, da, n < N)
    tl.store(DS + row, ds)


class _Scan(torch.autograd.Function):
    @staticmethod
    def forward(ctx, u, delta, a, b, c, skip, bug):
        inputs = [each.contiguous() for each in (u, delta, a, b, c, skip)]
        (batch, d, t), n = u.shape, a.shape[1]
        y, h = torch.empty_like(inputs[0]), torch.empty(batch, d, t, n, device=u.device)
        _forward[(batch * d,)](*inputs, y, h, d, t, n, BLOCK=triton.next_power_of_2(n))
        ctx.save_for_backward(*inputs, h)
        ctx.bug = bug
        return y

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, g):
        u, delta, a, b, c, skip, _ = ctx.saved_tensors
        (batch, d, t), n = u.shape, a.shape[1]
        du, ddelta = torch.empty_like(u), torch.empty_like(delta)
        da, ds = (torch.empty(batch, d, *rest, device=u.device) for rest in ((n,), ()))
        db, dc = (torch.zeros(batch, n, t, device=u.device) for _ in range(2))
        _backward[(batch * d,)](
            *ctx.saved_tensors, g.contiguous(), du, ddelta, da, db, dc, ds, d, t, n, ctx.bug, triton.next_power_of_2(n)
        )
        return du, ddelta, da.sum(0).to(a.dtype), db.to(b.dtype), dc.to(c.dtype), ds.sum(0).to(skip.dtype), None


@gradoracle.kernel(selective_scan)
def right(u, delta, a, b, c, skip):
    return _Scan.apply(u, delta, a, b, c, skip, False)


@gradoracle.kernel(selective_scan)
def wrong(u, delta, a, b, c, skip):
    """Its backward takes the state after a step for the one before it."""
    return _Scan.apply(u, delta, a, b, c, skip, True)
