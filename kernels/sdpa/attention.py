"""SDPA as torch.autograd sees it: reverse mode, forward mode, and every mix of two of them, each through its kernel.

    order 1: VJP (`_Gradients`), JVP (`_Tangent`)
    order 2: double backward, forward over reverse and reverse over forward, all through the exact HVP (`_Hessian`)

Order 3, and forward over forward, raise NotImplementedError.
"""

from __future__ import annotations

from typing import Any, NoReturn

import torch

from ..absent import complete, plus, spread
from ..differentiation import LastFunction, refuse
from . import gradients, hessian, output, tangents
from .blocks import Blocks
from .guardrails import Gradients, Problem, Triple, check

Needs = tuple[bool, bool, bool]


def sdpa(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    scale: float | None = None,
    causal: bool = False,
    precision: str = "ieee",
    blocks: Blocks | None = None,
) -> torch.Tensor:
    """Return o = softmax(scale q k^T) v, differentiable twice in reverse, once in forward mode and in each mix of both.

    Args:
        q: [B, H, T, D]. k: [B, H, M, D]. v: [B, H, M, Dv]. T, M >= 1, D and Dv from 1 to 128, any strides, one dtype of
            float32, bfloat16, float16 (float64 in Triton's interpreter). None is copied, nor a
            cotangent or tangent, but for the parts below.
        scale: a finite number above 0; 1 / sqrt(D) by default.
        causal: query i sees key j iff j <= i + M - T; one that sees no key has o = 0 and all derivatives 0.
        precision: of the dots of float32: "ieee"; "bf16x6", six products of bfloat16 parts on tensor cores, nearly as
            accurate (the preset of that name), for which forward and backward up to D = 64 keep the parts of what they
            read, 6 bytes for each feature (of D rounded up to 16 n), while they run; or "tf32".
        blocks: forces one block configuration on every pass; automatic by default.

    Returns:
        o [B, H, T, Dv] in the dtype of q, contiguous.

    Raises:
        ValueError: naming the argument, the value given and what is expected. Nothing falls back to another kernel.
        NotImplementedError: from a third derivative, or forward mode over forward mode.

    Rounded to the dtype of q: P (unnormalised in forward), dS, P' and dS', each as operand of a dot, and every output,
    once. All else, accumulators, row statistics and elementwise arithmetic, is float32 (float64 for float64); the scale
    multiplies S, and dq and dk, in float32. An fp16 operand dS or dS' above 65504 overflows, and below 6e-8 underflows:
    that is the precision contract, as it is of every fused fp16 kernel. Every run gives the same bits.
    """
    problem = check(q, k, v, scale=scale, causal=causal, precision=precision, blocks=blocks)
    return _Attention.apply(q, k, v, problem)[0]


def _vjp(
    problem: Problem,
    needs: Needs,
    primals: Triple,
    g: torch.Tensor,
    m: torch.Tensor,
    l: torch.Tensor,
    o: torch.Tensor | None = None,
) -> Gradients:
    """Return the VJP for the primals that need it, itself differentiable; `o` saves it a pass where it is at hand."""
    if not any(needs):
        return None, None, None
    return spread(needs, _Gradients.apply(*primals, g, m, l, None if o is None else o.detach(), problem, needs))


def _hvp(
    problem: Problem,
    needs: Needs,
    primals: Triple,
    g: torch.Tensor,
    given: tuple[torch.Tensor | None, ...],
) -> Gradients:
    """Return the HVP for the primals that need it; None where no tangent is given, since it is zero there."""
    if not any(needs) or all(tangent is None for tangent in given):
        return None, None, None
    return spread(needs, _Hessian.apply(*primals, g, *complete(given, primals), problem, needs))


class _Attention(torch.autograd.Function):
    """(q, k, v) -> (o, m, l); m and l are residuals, their derivatives are part of each formula."""

    @staticmethod
    def forward(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, problem: Problem) -> tuple[torch.Tensor, ...]:
        return output.run(problem, q, k, v)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, ...]) -> None:
        q, k, v, ctx.problem = inputs
        ctx.mark_non_differentiable(*output[1:])
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(q, k, v, *output)
        ctx.save_for_forward(q, k, v, *output[1:])

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor | None, *_: None) -> tuple[torch.Tensor | None, ...]:
        if g is None:
            return None, None, None, None
        q, k, v, o, m, l = ctx.saved_tensors
        return *_vjp(ctx.problem, ctx.needs_input_grad[:3], (q, k, v), g, m, l, o), None

    @staticmethod
    def jvp(ctx: Any, *given: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        q, k, v, m, l = ctx.saved_tensors
        return _Tangent.apply(q, k, v, *complete(given[:3], (q, k, v)), m, l, ctx.problem), None, None


class _Gradients(torch.autograd.Function):
    """(q, k, v, g, m, l, o) -> those of (dq, dk, dv) that are needed; o, if not None, is a centre that cancels."""

    @staticmethod
    def forward(
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        g: torch.Tensor,
        m: torch.Tensor,
        l: torch.Tensor,
        o: torch.Tensor | None,
        problem: Problem,
        needs: Needs,
    ) -> tuple[torch.Tensor, ...]:
        results = gradients.run(problem, (q, k, v), g, m, l, needs, o)
        return tuple(result for result in results if result is not None)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, ...]) -> None:
        *tensors, _, ctx.problem, ctx.needs = inputs
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*tensors)
        ctx.save_for_forward(*tensors)

    @staticmethod
    def backward(ctx: Any, *cotangents: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        # <u, VJP(x, g)> = <g, J(x) u>: its gradient is H u in x, since the Hessian is symmetric, and J u in g
        q, k, v, g, m, l = ctx.saved_tensors
        directions = spread(ctx.needs, cotangents)
        if all(direction is None for direction in directions):
            return (None,) * 9
        needed = ctx.needs_input_grad
        primals = (q, k, v)
        second = _hvp(ctx.problem, needed[:3], primals, g, directions)
        tangent = None
        if needed[3]:
            tangent = _Tangent.apply(*primals, *complete(directions, primals), m, l, ctx.problem)
        return *second, tangent, None, None, None, None, None

    @staticmethod
    def jvp(ctx: Any, *given: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        q, k, v, g, m, l = ctx.saved_tensors
        primals = (q, k, v)
        second = _hvp(ctx.problem, ctx.needs, primals, g, given[:3])
        linear = (None,) * 3 if given[3] is None else _vjp(ctx.problem, ctx.needs, primals, given[3], m, l)
        return tuple(plus(a, b) for a, b, need in zip(second, linear, ctx.needs, strict=True) if need)


class _Tangent(torch.autograd.Function):
    """(q, k, v, tq, tk, tv, m, l) -> the tangent of o."""

    @staticmethod
    def forward(
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        tq: torch.Tensor,
        tk: torch.Tensor,
        tv: torch.Tensor,
        m: torch.Tensor,
        l: torch.Tensor,
        problem: Problem,
    ) -> torch.Tensor:
        # m and l are the backward's; the sweep finds them as that of the explicit JVP does, to the same bits
        return tangents.run(problem, (q, k, v), (tq, tk, tv), None, None, centred=True, primal=False)[1]

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
        *tensors, ctx.problem = inputs
        ctx.save_for_backward(*tensors)

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        # <g, J(x) t>: its gradient is the HVP along t in x, and the VJP of g in t
        q, k, v, tq, tk, tv, m, l = ctx.saved_tensors
        needed = ctx.needs_input_grad
        second = _hvp(ctx.problem, needed[:3], (q, k, v), g, (tq, tk, tv))
        return *second, *_vjp(ctx.problem, needed[3:6], (q, k, v), g, m, l), None, None, None

    @staticmethod
    def jvp(ctx: Any, *given: torch.Tensor | None) -> NoReturn:
        refuse("sdpa", "forward mode over forward mode")


class _Hessian(LastFunction):
    """(q, k, v, g, tq, tk, tv) -> those of (hq, hk, hv) that are needed; the end of differentiation."""

    operator = "sdpa"

    @staticmethod
    def forward(
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        g: torch.Tensor,
        tq: torch.Tensor,
        tk: torch.Tensor,
        tv: torch.Tensor,
        problem: Problem,
        needs: Needs,
    ) -> tuple[torch.Tensor, ...]:
        results = hessian.run(problem, (q, k, v), g, (tq, tk, tv), needs)
        return tuple(result for result in results if result is not None)
