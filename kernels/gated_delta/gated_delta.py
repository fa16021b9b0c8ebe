"""The gated delta rule as torch.autograd sees it: reverse mode, once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

import torch

from ..absent import asked, complete, spread
from .blocks import Blocks
from .chunks import inverses, output
from .gradients import gradients, local_cotangents
from .guardrails import Problem, check, check_cotangents
from .states import Pieces, backward_states, forward_pieces, forward_states


def gated_delta(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    *,
    scale: float | None = None,
    initial_state: torch.Tensor | None = None,
    return_state: bool = False,
    precision: str = "ieee",
    blocks: Blocks | None = None,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """Return o_t = scale S_t^T q_t and the last state, where S_t = e^g_t S_(t-1) + k_t u_t^T and
    u_t = beta_t (v_t - (e^g_t S_(t-1))^T k_t).

    Args:
        q: [B, H, T, D]. k: [B, H, T, D]. v: [B, H, T, Dv]. T >= 1, D and Dv from 1 to 128, one dtype of float32,
            bfloat16, float16; any strides, none is copied. Keys are taken as they are: the rule is stable where
            beta_t |k_t|^2 is at most 2.
        g: [B, H, T] in float32, any strides: the natural logarithm of the decay; -inf forgets all.
        beta: [B, H, T] in the dtype of q, any strides.
        scale: a finite number above 0; 1 / sqrt(D) by default.
        initial_state: S_0 [B, H, D, Dv] in float32, zero by default.
        return_state: whether to return the state after the last row too.
        precision: of the dots of float32: "ieee", or "tf32".
        blocks: one configuration for every pass; chosen by dtype, precision and T by default.

    Returns:
        o [B, H, T, Dv] in the dtype of q; with `return_state`, (o, state [B, H, D, Dv] in float32). Contiguous.
        Differentiable once, in reverse mode.

    Raises:
        ValueError: naming the argument, the value given and what is expected. Nothing falls back to another kernel.
        NotImplementedError: from a second derivative, or forward mode.

    Rounded to the dtype of q: the inverse of a chunk (chunks.py), and as operands of dots scores, states and updates,
    and their cotangents; each output and gradient, once. States from chunk to chunk and all sums are float32. In
    float16 an operand beyond 65504 becomes infinite. Every run gives the same bits. Memory: `workspace_bytes`.

    Source: Yang, Kautz, Hatamizadeh, Gated Delta Networks (arXiv:2412.06464); chunks as in Yang et al.,
    arXiv:2406.06484, section 3, but y = beta (v - e^G k S) is formed before the inverse is applied: W and U are not.
    """
    problem = check(
        q, k, v, g, beta, scale=scale, initial_state=initial_state, return_state=return_state, precision=precision,
        blocks=blocks,
    )  # fmt: skip
    o, state = _GatedDelta.apply(q, k, v, g, beta, initial_state, problem, return_state)[:2]
    return (o, state) if return_state else o


def _refuse(what: str) -> NoReturn:
    raise NotImplementedError(f"gated_delta has no {what}: expected one derivative, in reverse mode")


class _GatedDelta(torch.autograd.Function):
    """(q, k, v, g, beta, initial) -> (o, state, residuals), of which those that are there have no derivative."""

    @staticmethod
    def forward(q: Any, k: Any, v: Any, g: Any, beta: Any, initial: Any, problem: Problem, wanted: bool) -> Any:
        decays, inverse = inverses(problem, k, g, beta)
        pieces = forward_pieces(problem, k, v, beta, initial, decays, inverse)
        states, updates, last = forward_states(problem, k, v, beta, initial, decays, inverse, pieces, wanted=wanted)
        return output(problem, q, k, decays, states, updates), last, decays, inverse, *pieces

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, ...]) -> None:
        q, k, v, _, beta, initial, ctx.problem, _ = inputs
        ctx.mark_non_differentiable(*(each for each in output[2:] if each is not None))
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(q, k, v, beta, initial, *output[2:])

    @staticmethod
    def backward(ctx: Any, do: Any, dstate: Any, *_: None) -> tuple[Any, ...]:
        needs = ctx.needs_input_grad[:6]
        if not any(needs) or (do is None and dstate is None):
            return (None,) * 8
        *given, decays, inverse, entries, ends = ctx.saved_tensors
        (do,) = complete((do,), (given[2],))
        found = _Gradients.apply(*given, do, dstate, decays, inverse, entries, ends, ctx.problem, needs)
        return *spread(needs, found), None, None

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> NoReturn:
        _refuse("forward mode")


class _Gradients(torch.autograd.Function):
    """(q, k, v, beta, initial, do, dstate, residuals) -> those of (dq, dk, dv, dg, dbeta, dinitial) that are needed."""

    @staticmethod
    def forward(
        q: Any, k: Any, v: Any, beta: Any, initial: Any, do: Any, dstate: Any,
        decays: Any, inverse: Any, entries: Any, ends: Any, problem: Problem, needs: Sequence[bool],
    ) -> tuple[Any, ...]:  # fmt: skip
        check_cotangents(problem, do, dstate)
        pieces = Pieces(entries, ends)
        local = local_cotangents(problem, q, k, do, decays)
        costates, dsteps, dv, dinitial = backward_states(
            problem, q, k, beta, do, dstate, decays, inverse, local, pieces, wanted=needs[5]
        )
        del local
        dq = dk = dg = dbeta = None
        if needs[0] or needs[1] or needs[3] or needs[4]:
            states, updates, _ = forward_states(problem, k, v, beta, initial, decays, inverse, pieces, wanted=False)
            dq, dk, dg, dbeta = gradients(problem, (q, k, v, beta), do, decays, (states, updates), (costates, dsteps))
        return asked(needs, (dq, dk, dv, dg, dbeta, dinitial))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, ...]) -> None:
        """Save nothing."""

    @staticmethod
    def backward(ctx: Any, *cotangents: Any) -> NoReturn:
        _refuse("second derivative")

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> NoReturn:
        _refuse("second derivative")
