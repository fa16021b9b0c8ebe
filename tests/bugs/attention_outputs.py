"""Attention with a second output, the log-sum-exp or a tangent: correct kernels, and released bugs of its cotangent.

Arithmetic is in float32, with a backward by hand; gradients are rounded once.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

import gradoracle
from gradoracle.mutation.bugs import Bugs

DTYPES = ("float32", "bfloat16", "float16")
DIMS = {name: gradoracle.sizes(1, 40) for name in ("T", "M", "D", "Dv")} | {"B": gradoracle.sizes(1, 3)}


@gradoracle.family(outputs=("o", "lse"), dims=DIMS)
def with_lse(
    q: Float[Tensor, "B T D"], k: Float[Tensor, "B M D"], v: Float[Tensor, "B M Dv"]
) -> tuple[Float[Tensor, "B T Dv"], Float[Tensor, "B T"]]:
    """softmax(q k^T / sqrt(D)) v, and the log of the sum that it divides by."""
    s = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
    return torch.softmax(s, -1) @ v, torch.logsumexp(s, -1)


class Gradients:
    """The correct backward; each bug overrides what it does with the cotangent of lse."""

    def of_scores(self, p: Tensor, dp: Tensor, dlse: Tensor) -> Tensor:
        return p * (dp - (dp * p).sum(-1, keepdim=True) + dlse[..., None])


class _WithLse(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, own: Gradients, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        ctx.own, ctx.factor = own, q.shape[-1] ** -0.5
        ctx.save_for_backward(q, k, v)
        s = q.float() @ k.float().mT * ctx.factor
        return (torch.softmax(s, -1) @ v.float()).to(q.dtype), torch.logsumexp(s, -1).to(q.dtype)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, do: Tensor, dlse: Tensor) -> tuple[Any, ...]:
        q, k, v = ctx.saved_tensors
        p = torch.softmax(q.float() @ k.float().mT * ctx.factor, -1)
        ds = ctx.own.of_scores(p, do.float() @ v.float().mT, dlse.float()) * ctx.factor
        return None, (ds @ k.float()).to(q.dtype), (ds.mT @ q.float()).to(k.dtype), (p.mT @ do.float()).to(v.dtype)


@gradoracle.kernel(with_lse, dtypes=DTYPES)
def both(q, k, v):
    """The correct kernel."""
    return _WithLse.apply(Gradients(), q, k, v)


BUGS = Bugs(both)


class _LseDropped(Gradients):
    def of_scores(self, p: Tensor, dp: Tensor, dlse: Tensor) -> Tensor:
        return super().of_scores(p, dp, torch.zeros_like(dlse))


@BUGS.of("Dao-AILab/flash-attention#1137", "vjp_of_a_cotangent_on_each_output_alone", "term")
@gradoracle.kernel(with_lse, dtypes=DTYPES)
def cotangent_of_lse_ignored(q, k, v):
    """Dao-AILab/flash-attention#1137: softmax_lse was returned, and its cotangent ignored.

    The backward took it under a name of no use, so that a loss on lse, such as the z-loss, had no gradient.
    """
    return _WithLse.apply(_LseDropped(), q, k, v)


class _LseRefused(Gradients):
    def of_scores(self, p: Tensor, dp: Tensor, dlse: Tensor) -> Tensor:
        raise NotImplementedError("higher-order AD is not supported where residuals are returned")


@BUGS.of("jax-ml/jax@cec06d1", "declared_support_is_accepted")
@gradoracle.kernel(with_lse, dtypes=DTYPES)
def lse_not_differentiable(q, k, v):
    """jax-ml/jax, splash_attention_kernel.py at cec06d1: asked for its log-sum-exp, the kernel has no derivative.

    What returns the residuals is the forward of a custom VJP, for which the one rule says that it is not supported.
    """
    return _WithLse.apply(_LseRefused(), q, k, v)


@gradoracle.family(outputs=("o", "moved"), dims=DIMS)
def with_tangent(
    q: Float[Tensor, "B T D"],
    k: Float[Tensor, "B M D"],
    v: Float[Tensor, "B M Dv"],
    qdot: Float[Tensor, "B T D"],
    kdot: Float[Tensor, "B M D"],
    vdot: Float[Tensor, "B M Dv"],
) -> tuple[Float[Tensor, "B T Dv"], Float[Tensor, "B T Dv"]]:
    """softmax(q k^T / sqrt(D)) v, and its tangent along (qdot, kdot, vdot)."""
    factor = q.shape[-1] ** -0.5
    p = torch.softmax(q @ k.transpose(-1, -2) * factor, -1)
    sdot = (qdot @ k.transpose(-1, -2) + q @ kdot.transpose(-1, -2)) * factor
    pdot = p * (sdot - (p * sdot).sum(-1, keepdim=True))
    return p @ v, pdot @ v + p @ vdot


def _tangent(
    q: Tensor, k: Tensor, v: Tensor, qdot: Tensor, kdot: Tensor, vdot: Tensor, scale: float | None = None
) -> tuple[Tensor, Tensor]:
    """(o, its tangent) in float32."""
    factor = q.shape[-1] ** -0.5 if scale is None else scale
    p = torch.softmax(q @ k.mT * factor, -1)
    sdot = (qdot @ k.mT + q @ kdot.mT) * factor
    return p @ v, (p * (sdot - (p * sdot).sum(-1, keepdim=True))) @ v + p @ vdot


class _WithTangent(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, both: bool, *tensors: Tensor) -> tuple[Tensor, Tensor]:
        ctx.both = both
        ctx.save_for_backward(*tensors)
        o, moved = _tangent(*(t.float() for t in tensors))
        return o.to(tensors[0].dtype), moved.to(tensors[0].dtype)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, do: Tensor, dmoved: Tensor) -> tuple[Any, ...]:
        with torch.enable_grad():
            given = [t.detach().float().requires_grad_() for t in ctx.saved_tensors]
            cotangents = do.float(), dmoved.float() if ctx.both else torch.zeros_like(dmoved.float())
            found = torch.autograd.grad(_tangent(*given), given, cotangents)
        return None, *(d.to(t.dtype) for d, t in zip(found, ctx.saved_tensors, strict=True))


@gradoracle.kernel(with_tangent)
def forward_with_tangent(q, k, v, qdot, kdot, vdot):
    """The correct kernel."""
    return _WithTangent.apply(True, q, k, v, qdot, kdot, vdot)


@BUGS.of(
    "amorehead/jvp_flash_attention@backward",
    "vjp_of_a_cotangent_on_each_output_alone",
    "term",
    right=forward_with_tangent,
)
@gradoracle.kernel(with_tangent)
def cotangent_of_the_tangent_ignored(q, k, v, qdot, kdot, vdot):
    """amorehead/jvp_flash_attention, backward of jvp_attention.py: the tangent is an output whose cotangent is ignored.

    A loss on the JVP is differentiated as if it depended on the output alone.
    """
    return _WithTangent.apply(False, q, k, v, qdot, kdot, vdot)


class _ForwardMode(torch.autograd.Function):
    """Attention whose tangent is computed in forward mode; ``expected`` says when, given (qdot, kdot, vdot) or None."""

    @staticmethod
    def forward(expected: Any, factor: float, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return (torch.softmax(q.float() @ k.float().mT * factor, -1) @ v.float()).to(q.dtype)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.expected, ctx.factor, *tensors = inputs
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*tensors)
        ctx.save_for_forward(*tensors)

    @staticmethod
    def backward(ctx: Any, do: Tensor) -> tuple[Any, ...]:
        q, k, v = (t.float() for t in ctx.saved_tensors)
        p = torch.softmax(q @ k.mT * ctx.factor, -1)
        dp = do.float() @ v.mT
        ds = p * (dp - (dp * p).sum(-1, keepdim=True)) * ctx.factor
        return None, None, *(d.to(do.dtype) for d in (ds @ k, ds.mT @ q, p.mT @ do.float()))

    @staticmethod
    def jvp(ctx: Any, _: Any, __: Any, *tangents: Tensor | None) -> Tensor:
        tensors = ctx.saved_tensors
        if not ctx.expected(tangents):
            return torch.zeros((*tensors[0].shape[:-1], tensors[2].shape[-1]), dtype=tensors[0].dtype)
        given = (torch.zeros_like(x) if t is None else t.to(x.dtype) for x, t in zip(tensors, tangents, strict=True))
        wide = (x.float() for x in (*tensors, *given))
        return _tangent(*wide, ctx.factor)[1].to(tensors[0].dtype)


def forward_mode(q, k, v, *, scale=None):
    """The correct kernel: a tangent wherever an input has one."""
    factor = q.shape[-1] ** -0.5 if scale is None else scale
    return _ForwardMode.apply(lambda tangents: True, factor, q, k, v)


@BUGS.of(
    "amorehead/jvp_flash_attention@ENABLE_JVP",
    "jvp_of_a_tangent_on_each_input_alone",
    "term",
    right=forward_mode,
    family="sdpa",
)
def no_tangent_without_that_of_q(q, k, v, *, scale=None):
    """amorehead/jvp_flash_attention, ENABLE_JVP: a tangent was computed only where q has one.

    With one on k or v alone the tangent of the output was none, which is taken for 0.
    """
    factor = q.shape[-1] ** -0.5 if scale is None else scale
    return _ForwardMode.apply(lambda tangents: tangents[0] is not None, factor, q, k, v)
