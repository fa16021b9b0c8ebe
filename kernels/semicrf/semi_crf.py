"""The semi-CRF's log Z as torch.autograd sees it: reverse mode, forward mode, and every mix of two of them.

    order 1: VJP (`_Gradients`), JVP (`_Tangent`)
    order 2: double backward, forward over reverse and reverse over forward, all through the exact HVP (`_Hessian`)

The HVP is exact: every recursion is run with its tangent. Order 3, and forward over forward, raise NotImplementedError.
"""

from __future__ import annotations

from typing import Any, NoReturn

import torch

from ..absent import asked, spread
from ..differentiation import LastFunction, refuse
from .blocks import Blocks
from .gradients import Needs, forward, gradients, moved_gradients
from .guardrails import Problem, check, check_cotangent
from .tables import Carried

GIVEN = 5  # cum_scores, transition, duration_bias, proj_start, proj_end
Given = tuple[Any, Any, Any, Any, Any]


def semicrf(
    cum_scores: torch.Tensor,
    transition: torch.Tensor,
    duration_bias: torch.Tensor,
    lengths: torch.Tensor,
    *,
    proj_start: torch.Tensor | None = None,
    proj_end: torch.Tensor | None = None,
    path: str = "auto",
    blocks: Blocks | None = None,
    validate: bool = False,
) -> torch.Tensor:
    """Return log Z [B], float32, in natural logarithm, of a semi-Markov CRF over segments of 1 to K positions.

    Z sums exp of the score over every way to cut [0, length) into segments with labels, and over the label c' before
    the first one. A segment [t, t + k) of label c that follows one of label c' scores cum_scores[t+k, c] -
    cum_scores[t, c] + duration_bias[k-1, c] + transition[c', c] (or transition[k-1, c', c]) + proj_start[t, c] +
    proj_end[t+k-1, c].

    Args:
        cum_scores: [B, T+1, C] of float32, bfloat16 or float16: sums of the scores of the positions before each;
            T >= 1, C from 1 to 64. Rows past a sequence's length are not read.
        transition: [C, C] or [K, C, C], from label to label. duration_bias: [K, C], K from 1 to 1024, K > T allowed.
        lengths: [B] of int32 or int64, from 0 to T.
        proj_start, proj_end: [B, T, C], what a segment of a label takes for where it starts and for its last position.
        path: "parallel" in T for few K C, "sequential" for any, or "auto": see `choose_path`.
        blocks: one configuration for every pass; chosen by path and dims by default.
        validate: whether to read the values of lengths and scores, which waits for a GPU, and refuse wrong ones.
            Lengths on the CPU are always read; on a GPU wrong ones count as 0 or T.

    Returns:
        log Z, differentiable twice in every score, in forward and reverse mode. log C where the length is 0, and -inf
        with zero gradients where every way is forbidden. NaN where NaN is read.

    Raises:
        ValueError: naming the argument, the value given and what is expected. Nothing falls back to another kernel.
        NotImplementedError: from a third derivative, or forward mode over forward mode.

    All tensors have one dtype but lengths, any strides; of large ones none is copied. -inf, in transition,
    duration_bias and projections only, forbids. Everything is computed in float64 from the scores as they are given;
    log Z and each gradient are rounded once. Every run gives the same bits; sums over shared parameters take no
    atomics. Memory besides inputs and outputs: `workspace_bytes`.
    """
    problem = check(cum_scores, transition, duration_bias, lengths, proj_start, proj_end, path, blocks, validate)
    return _SemiCRF.apply(cum_scores, transition, duration_bias, proj_start, proj_end, lengths, problem)[0]


def _hvp(problem: Problem, needs: Needs, given: Given, g: Any, moved: tuple[Any, ...], tg: Any, lengths: Any) -> Any:
    """Return the tangent of the VJP along `moved` and tg; None where no tangent is given."""
    if not any(needs) or (tg is None and all(each is None for each in moved)):
        return (None,) * GIVEN
    return spread(needs, _Hessian.apply(*given, g, *moved, tg, lengths, problem, needs))


def _vjp(problem: Problem, needs: Needs, given: Given, g: Any, lengths: Any, residuals: Any) -> tuple[Any, ...]:
    """Return the VJP for the primals that need it, itself differentiable; None where there is no cotangent."""
    if g is None or not any(needs):
        return (None,) * GIVEN
    return spread(needs, _Gradients.apply(*given, g, lengths, *residuals, problem, needs))


class _SemiCRF(torch.autograd.Function):
    """(5 given, lengths) -> (log Z, 3 residuals without derivative)."""

    @staticmethod
    def forward(cum: Any, transition: Any, duration: Any, start: Any, end: Any, lengths: Any, problem: Problem) -> Any:
        carried = forward(problem, (cum, transition, duration, start, end), lengths)
        log_z = (carried.log_z[0] + carried.log_z[1]).to(torch.float32)
        return log_z, carried.states, carried.norms, carried.log_z

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, ...]) -> None:
        *given, ctx.problem = inputs
        ctx.mark_non_differentiable(*output[1:])
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*given, *output[1:])
        ctx.save_for_forward(*given, *output[1:])

    @staticmethod
    def backward(ctx: Any, g: Any, *_: None) -> tuple[Any, ...]:
        saved = ctx.saved_tensors
        given, lengths, residuals = saved[:GIVEN], saved[GIVEN], saved[GIVEN + 1 :]
        return *_vjp(ctx.problem, ctx.needs_input_grad[:GIVEN], given, g, lengths, residuals), None, None

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> tuple[Any, ...]:
        saved = ctx.saved_tensors
        moved = tangents[:GIVEN]
        return _Tangent.apply(*saved[:GIVEN], *moved, *saved[GIVEN:], ctx.problem), None, None, None


class _Gradients(torch.autograd.Function):
    """(5 given, g, lengths, 3 residuals) -> those of the 5 gradients that are needed."""

    @staticmethod
    def forward(
        cum: Any, transition: Any, duration: Any, start: Any, end: Any, g: Any, lengths: Any, states: Any, norms: Any,
        log_z: Any, problem: Problem, needs: Needs,
    ) -> tuple[Any, ...]:  # fmt: skip
        check_cotangent(problem, g)
        carried = Carried(states, norms, log_z)
        found = gradients(problem, (cum, transition, duration, start, end), lengths, carried, g, needs)
        return asked(needs, found)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, ...]) -> None:
        *tensors, ctx.problem, ctx.needs = inputs
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*tensors)
        ctx.save_for_forward(*tensors)

    @staticmethod
    def backward(ctx: Any, *cotangents: Any) -> tuple[Any, ...]:
        # <u, VJP(x, g)> = <g, J(x) u>: its gradient is H u in x, since the Hessian is symmetric, and J u in g
        saved, needed = ctx.saved_tensors, ctx.needs_input_grad
        given, g, lengths, residuals = saved[:GIVEN], saved[GIVEN], saved[GIVEN + 1], saved[GIVEN + 2 :]
        directions = spread(ctx.needs, cotangents)
        if all(direction is None for direction in directions):
            return (None,) * (len(saved) + 2)
        second = _hvp(ctx.problem, needed[:GIVEN], given, g, directions, None, lengths)
        along = _Tangent.apply(*given, *directions, lengths, *residuals, ctx.problem) if needed[GIVEN] else None
        return *second, along, *(None,) * (len(saved) + 2 - GIVEN - 1)

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> tuple[Any, ...]:
        saved = ctx.saved_tensors
        moved, tg = tangents[:GIVEN], tangents[GIVEN]
        second = _hvp(ctx.problem, ctx.needs, saved[:GIVEN], saved[GIVEN], moved, tg, saved[GIVEN + 1])
        return asked(ctx.needs, second)


class _Tangent(torch.autograd.Function):
    """(5 given, 5 tangents, lengths, 3 residuals) -> the tangent of log Z."""

    @staticmethod
    def forward(
        cum: Any, transition: Any, duration: Any, start: Any, end: Any, tcum: Any, ttransition: Any, tduration: Any,
        tstart: Any, tend: Any, lengths: Any, states: Any, norms: Any, log_z: Any, problem: Problem,
    ) -> torch.Tensor:  # fmt: skip
        moved = (tcum, ttransition, tduration, tstart, tend)
        carried = forward(problem, (cum, transition, duration, start, end), lengths, moved)
        assert carried.tlog_z is not None
        return carried.tlog_z.to(torch.float32)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
        *tensors, ctx.problem = inputs
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*tensors)

    @staticmethod
    def backward(ctx: Any, g: Any) -> tuple[Any, ...]:
        # <g, J(x) t>: its gradient is the HVP along t in x, and the VJP of g in t
        saved, needed = ctx.saved_tensors, ctx.needs_input_grad
        given, directions, lengths = saved[:GIVEN], saved[GIVEN : 2 * GIVEN], saved[2 * GIVEN]
        if g is None:
            return (None,) * (len(saved) + 1)
        second = _hvp(ctx.problem, needed[:GIVEN], given, g, directions, None, lengths)
        first = _vjp(ctx.problem, needed[GIVEN : 2 * GIVEN], given, g, lengths, saved[2 * GIVEN + 1 :])
        return *second, *first, None, None, None, None, None

    @staticmethod
    def jvp(ctx: Any, *given: Any) -> NoReturn:
        refuse("semicrf", "forward mode over forward mode")


class _Hessian(LastFunction):
    """(5 given, g, their tangents, lengths) -> the tangents of those of the 5 gradients that are needed."""

    operator = "semicrf"

    @staticmethod
    def forward(
        cum: Any, transition: Any, duration: Any, start: Any, end: Any, g: Any, tcum: Any, ttransition: Any,
        tduration: Any, tstart: Any, tend: Any, tg: Any, lengths: Any, problem: Problem, needs: Needs,
    ) -> tuple[Any, ...]:  # fmt: skip
        check_cotangent(problem, g)
        given, moved = (cum, transition, duration, start, end), (tcum, ttransition, tduration, tstart, tend)
        found = moved_gradients(problem, given, lengths, g, moved, tg, needs)
        return asked(needs, found)
