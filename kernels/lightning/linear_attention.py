"""Lightning attention as torch.autograd sees it: reverse mode, forward mode, and every mix of two of them.

    order 1: VJP (`_Gradients`), JVP (`_Tangent`)
    order 2: double backward, forward over reverse and reverse over forward, all through the exact HVP (`_Hessian`)

Order 3, and forward over forward, raise NotImplementedError. State is S [B, H, D, Dv] throughout.
"""

from __future__ import annotations

from typing import Any, NoReturn

import torch

from ..absent import asked, complete, spread
from ..differentiation import LastFunction, refuse
from .blocks import Blocks
from .gradients import gradients
from .guardrails import Problem, check, check_cotangents
from .hessian import hessian
from .scan import scan, sum_pieces
from .tangents import tangent, tangent_sums

Given = tuple[Any, Any, Any, Any]  # q, k, v, initial_state
Needs = tuple[bool, bool, bool, bool]


def lightning(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    initial_state: torch.Tensor | None = None,
    return_state: bool = False,
    precision: str = "ieee",
    blocks: Blocks | None = None,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """Return O_i = q_i S_0 + sum over j <= i of (q_i . k_j) v_j, and the state S_0 + sum over all j of k_j^T v_j.

    Args:
        q: [B, H, N, D]. k: [B, H, N, D]. v: [B, H, N, Dv]. N >= 1, D and Dv from 1 to 128, one dtype of float32,
            bfloat16, float16; any strides, none is copied.
        initial_state: S_0 [B, H, D, Dv] in float32, zero by default.
        return_state: whether to return the state after the last row too.
        precision: of the dots of float32: "ieee"; "bf16x6", six products of bfloat16 parts on tensor cores, nearly as
            precise, operands at most 2^111; or "tf32".
        blocks: one configuration for every pass; chosen by dtype, precision and N by default.

    Returns:
        o [B, H, N, Dv] in the dtype of q; with `return_state`, (o, state [B, H, D, Dv] in float32). Contiguous. Linear
        in each input and differentiable twice, in forward and reverse mode.

    Raises:
        ValueError: naming the argument, the value given and what is expected. Nothing falls back to another kernel.
        NotImplementedError: from a third derivative, or forward mode over forward mode.

    Rounded to the dtype of q: scores and the state before a chunk, as operands of their dots, and each output and
    gradient, once. States and all sums are float32. Every run gives the same bits. Memory besides inputs and outputs:
    `workspace_bytes`; nothing of size N x N, nor a state per chunk, is kept.
    """
    problem = check(q, k, v, initial_state, return_state, precision, blocks)
    o, state = _Lightning.apply(q, k, v, initial_state, problem, return_state)[:2]
    return (o, state) if return_state else o


def _vjp(problem: Problem, needs: Needs, given: Given, g: Any, dstate: Any, sums: Any) -> tuple[Any, ...]:
    """Return the VJP for the primals that need it, itself differentiable; None where there is no cotangent."""
    if not any(needs) or (g is None and dstate is None):
        return None, None, None, None
    (g,) = complete((g,), given[2:3])
    return spread(needs, _Gradients.apply(*given, g, dstate, sums, problem, needs))


def _hvp(
    problem: Problem, needs: Needs, given: Given, g: Any, dstate: Any, moved: tuple[Any, ...], sums: Any
) -> tuple[Any, ...]:
    """Return the tangent of the VJP along (tq, tk, tv, tinitial, tg, tdstate); None where no tangent is given."""
    if not any(needs) or all(each is None for each in moved):
        return None, None, None, None
    return spread(needs, _Hessian.apply(*given, g, dstate, *moved, sums, problem, needs))


class _Lightning(torch.autograd.Function):
    """(q, k, v, initial) -> (o, state, sums of pieces); the sums are a residual without derivative."""

    @staticmethod
    def forward(q: Any, k: Any, v: Any, initial: Any, problem: Problem, ends: bool) -> tuple[Any, ...]:
        sums = sum_pieces(problem, k, v)
        return *scan(problem, q, k, v, initial=initial, sums=sums, ends=ends), sums

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, ...]) -> None:
        *given, ctx.problem, ctx.ends = inputs
        if output[2] is not None:
            ctx.mark_non_differentiable(output[2])
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*given, output[2])
        ctx.save_for_forward(*given, output[2])

    @staticmethod
    def backward(ctx: Any, g: Any, dstate: Any, _: None) -> tuple[Any, ...]:
        *given, sums = ctx.saved_tensors
        return *_vjp(ctx.problem, ctx.needs_input_grad[:4], tuple(given), g, dstate, sums), None, None

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> tuple[Any, ...]:
        *given, sums = ctx.saved_tensors
        return *_Tangent.apply(*given, *tangents[:4], sums, ctx.problem, ctx.ends), None


class _Gradients(torch.autograd.Function):
    """(q, k, v, initial, g, dstate, sums) -> those of (dq, dk, dv, dinitial) that are needed."""

    @staticmethod
    def forward(
        q: Any, k: Any, v: Any, initial: Any, g: Any, dstate: Any, sums: Any, problem: Problem, needs: Needs
    ) -> tuple[Any, ...]:
        check_cotangents(problem, g, dstate)
        later = sum_pieces(problem, q, g, -1) if any(needs[1:]) else None
        return asked(needs, gradients(problem, needs, (q, k, v, initial), g, dstate, sums, later))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, ...]) -> None:
        *tensors, ctx.problem, ctx.needs = inputs
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*tensors)
        ctx.save_for_forward(*tensors)

    @staticmethod
    def backward(ctx: Any, *cotangents: Any) -> tuple[Any, ...]:
        # <u, VJP(x, g)> = <g, J(x) u>: its gradient is H u in x, since the Hessian is symmetric, and J u in g
        *given, g, dstate, sums = ctx.saved_tensors
        directions = spread(ctx.needs, cotangents)
        if all(direction is None for direction in directions):
            return (None,) * 9
        needed = ctx.needs_input_grad
        second = _hvp(ctx.problem, needed[:4], tuple(given), g, dstate, (*directions, None, None), sums)
        along: tuple[Any, Any] = (None, None)
        if needed[4] or needed[5]:
            along = _Tangent.apply(*given, *directions, sums, ctx.problem, needed[5])
        return *second, along[0] if needed[4] else None, along[1], None, None, None

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> tuple[Any, ...]:
        *given, g, dstate, sums = ctx.saved_tensors
        second = _hvp(ctx.problem, ctx.needs, tuple(given), g, dstate, tangents[:6], sums)
        return asked(ctx.needs, second)


class _Tangent(torch.autograd.Function):
    """(q, k, v, initial, tq, tk, tv, tinitial, sums) -> the tangents of (o, state)."""

    @staticmethod
    def forward(
        q: Any, k: Any, v: Any, initial: Any, tq: Any, tk: Any, tv: Any, tinitial: Any, sums: Any,
        problem: Problem, ends: bool,
    ) -> tuple[Any, ...]:  # fmt: skip
        moved = tangent_sums(problem, k, v, tk, tv)
        return tangent(problem, (q, k, v, initial), (tq, tk, tv, tinitial), sums=sums, tsums=moved, ends=ends)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, ...]) -> None:
        *tensors, ctx.problem, ctx.ends = inputs
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*tensors)

    @staticmethod
    def backward(ctx: Any, g: Any, dstate: Any) -> tuple[Any, ...]:
        # <g, J(x) t>: its gradient is the HVP along t in x, and the VJP of g in t
        *tensors, sums = ctx.saved_tensors
        given, directions, needed = tuple(tensors[:4]), tuple(tensors[4:]), ctx.needs_input_grad
        if g is None and dstate is None:
            return (None,) * 11
        (g,) = complete((g,), given[2:3])
        second = _hvp(ctx.problem, needed[:4], given, g, dstate, (*directions, None, None), sums)
        return *second, *_vjp(ctx.problem, needed[4:8], given, g, dstate, sums), None, None, None

    @staticmethod
    def jvp(ctx: Any, *given: Any) -> NoReturn:
        refuse("lightning", "forward mode over forward mode")


class _Hessian(LastFunction):
    """(q, k, v, initial, g, dstate, their tangents, sums) -> the tangents of those of (dq, dk, dv, dinitial) needed."""

    operator = "lightning"

    @staticmethod
    def forward(
        q: Any, k: Any, v: Any, initial: Any, g: Any, dstate: Any,
        tq: Any, tk: Any, tv: Any, tinitial: Any, tg: Any, tdstate: Any, sums: Any, problem: Problem, needs: Needs,
    ) -> tuple[Any, ...]:  # fmt: skip
        check_cotangents(problem, g, dstate)
        tsums = tangent_sums(problem, k, v, tk, tv) if needs[0] else None
        later = tlater = None
        if any(needs[1:]):
            later, tlater = sum_pieces(problem, q, g, -1), tangent_sums(problem, q, g, tq, tg, -1)
        found = hessian(
            problem, needs, (q, k, v, initial), (tq, tk, tv, tinitial), (g, dstate), (tg, tdstate),
            sums=(sums, tsums), later=(later, tlater),
        )  # fmt: skip
        return asked(needs, found)
