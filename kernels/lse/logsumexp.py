"""LSE as torch.autograd sees it: reverse mode, forward mode, and every mix of two of them, each through its kernel.

    order 1: VJP (`_Gradients`), JVP (`_Tangent`)
    order 2: double backward, forward over reverse and reverse over forward, all through the exact HVP (`_Hessian`)

Order 3, and forward over forward, raise NotImplementedError.
"""

from __future__ import annotations

from typing import Any, NoReturn

import torch

from ..absent import asked, complete, plus, spread
from ..differentiation import LastFunction, refuse
from . import fused, hessian, output, separate, sinks, tangents
from .block_sizes import BlockSizes
from .blocks import Blocks
from .guardrails import Problem, check, check_cotangent
from .launch import Tensors

AUTOMATIC_WORKSPACE = 32 << 20
"""Bytes of workspace up to which "auto" is fused: what a GPU's cache holds. Beyond it, writing and reading the partial
gradients takes longer than rebuilding P (H200, bfloat16, B4 H16 T2048 M2048 D64: 1.0 ms fused, 0.7 ms separate)."""

Given = tuple[Any, ...]  # q, k, sinks, q_ids, kv_ids
Needs = tuple[bool, bool, bool]


def lse(
    q: torch.Tensor,
    k: torch.Tensor,
    *,
    sinks: torch.Tensor | None = None,
    q_segments: torch.Tensor | None = None,
    kv_segments: torch.Tensor | None = None,
    scale: float | None = None,
    causal: bool = False,
    softcap: float | None = None,
    backward: str = "auto",
    workspace_limit: int | None = None,
    precision: str = "ieee",
    blocks: Blocks | None = None,
    block_sizes: BlockSizes | None = None,
) -> torch.Tensor:
    """Return L_i = log(e^sink + sum over the keys j that query i sees of e^S_ij), S = scale q k^T.

    Args:
        q: [B, H, T, D]. k: [B, G, M, D], G divides H: query head h reads key head h // (H / G). T, M >= 1, D from 1 to
            256, one dtype of float32, bfloat16, float16; any strides, none is copied but
            for the parts below.
        sinks: [H] in the dtype of q, one more term of every row of a head; none by default.
        q_segments, kv_segments: [B, T] and [B, M], int32 or int64: a query sees the keys of its own segment only.
        scale: a finite number above 0; 1 / sqrt(D) by default.
        causal: query i sees key j iff j <= i + M - T.
        softcap: S becomes c tanh(S / c), before the mask; none by default.
        backward: "fused" (P is rebuilt once, partial gradients of q lie in a workspace of `workspace_bytes`),
            "separate" (one kernel for dq, one for dk, no workspace), or "auto": fused where the workspace keeps to its
            limit and both gradients are needed.
        workspace_limit: bytes of that workspace at most; by default 32 MiB for "auto" and none for "fused".
        precision: of the dots of float32: "ieee"; "bf16x6", six products of bfloat16 parts on tensor cores, nearly as
            good, for which a pass keeps parts of q and k, 6 bytes for each feature (of D rounded up to 16 n), up to
            D = 128 in forward and VJP and 64 in JVP and HVP, and no part of the workspace; or "tf32".
        blocks: forces one block configuration on every pass; automatic by default.
        block_sizes: forces tiles of the forward and of each backward by name, and which backward; or `blocks`.

    Returns:
        L [B, H, T] in float32 and natural units, contiguous; -inf, with derivatives exactly 0, where a query sees no
        key and there is no sink.

    Raises:
        ValueError: naming the argument, the value given and what is expected; also where "fused" is demanded and its
            workspace is above the limit. Nothing falls back to another kernel.
        NotImplementedError: from a third derivative, or forward mode over forward mode.

    Rounded to the dtype of q: dS and dS', as operands of their dots, and each gradient, once. All else is float32. P is
    rebuilt from the row maximum and sum, and not from L, which at logits of 1e4 is a thousandth off. Every run gives
    the same bits.
    """
    problem = check(
        q, k, sinks, q_segments, kv_segments, scale=scale, causal=causal, softcap=softcap, backward=backward,
        workspace_limit=workspace_limit, precision=precision, blocks=blocks, block_sizes=block_sizes,
    )  # fmt: skip
    if problem.backward == "fused":
        _fuses(problem, True)
    result: torch.Tensor = _LogSumExp.apply(q, k, sinks, q_segments, kv_segments, problem)[0]
    return result


def _tensors(given: Given, g: Any = None, tangents: tuple[Any, ...] = (None, None, None)) -> Tensors:
    q, k, own, q_ids, kv_ids = given
    return Tensors(q, k, g, own, q_ids, kv_ids, *tangents)


def _vjp(problem: Problem, needs: Needs, given: Given, g: Any, m: Any, l: Any) -> tuple[Any, ...]:
    """Return the VJP for the primals that need it, itself differentiable."""
    if not any(needs):
        return None, None, None
    return spread(needs, _Gradients.apply(*given, g, m, l, problem, needs))


def _hvp(
    problem: Problem, needs: Needs, given: Given, g: Any, tangents: tuple[Any, ...], m: Any, l: Any
) -> tuple[Any, ...]:
    """Return the HVP for the primals that need it; None where no tangent is given, since it is zero there."""
    if not any(needs) or all(tangent is None for tangent in tangents):
        return None, None, None
    return spread(needs, _Hessian.apply(*given, g, *complete(tangents, given[:3]), m, l, problem, needs))


class _LogSumExp(torch.autograd.Function):
    """(q, k, sinks, q_ids, kv_ids) -> (L, m, l); m and l are residuals, their derivatives are part of each formula."""

    @staticmethod
    def forward(q: Any, k: Any, own: Any, q_ids: Any, kv_ids: Any, problem: Problem) -> tuple[Any, ...]:
        return output.run(problem, _tensors((q, k, own, q_ids, kv_ids)))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, ...]) -> None:
        *given, ctx.problem = inputs
        ctx.mark_non_differentiable(*output[1:])
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*given, *output[1:])
        ctx.save_for_forward(*given, *output[1:])

    @staticmethod
    def backward(ctx: Any, g: Any, *_: None) -> tuple[Any, ...]:
        if g is None:
            return (None,) * 6
        *given, m, l = ctx.saved_tensors
        return *_vjp(ctx.problem, ctx.needs_input_grad[:3], tuple(given), g, m, l), None, None, None

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> tuple[Any, ...]:
        *given, m, l = ctx.saved_tensors
        return _Tangent.apply(*given, *complete(tangents[:3], given[:3]), m, l, ctx.problem), None, None


class _Gradients(torch.autograd.Function):
    """(q, k, sinks, q_ids, kv_ids, g, m, l) -> those of (dq, dk, dsinks) that are needed."""

    @staticmethod
    def forward(
        q: Any, k: Any, own: Any, q_ids: Any, kv_ids: Any, g: Any, m: Any, l: Any, problem: Problem, needs: Needs
    ) -> tuple[Any, ...]:
        tensors = _tensors((q, k, own, q_ids, kv_ids), check_cotangent(problem, g))
        if (needs[0] or needs[1]) and _fuses(problem, needs[0] and needs[1]):
            dq, dk = fused.run(problem, tensors, m, l)
        else:
            dq, dk = separate.run(problem, tensors, m, l, needs[:2])
        found = (dq, dk, sinks.run(problem, tensors, m, l) if needs[2] else None)
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
        *given, g, m, l = ctx.saved_tensors
        directions = spread(ctx.needs, cotangents)
        if all(direction is None for direction in directions):
            return (None,) * 10
        second = _hvp(ctx.problem, ctx.needs_input_grad[:3], tuple(given), g, directions, m, l)
        tangent = None
        if ctx.needs_input_grad[5]:
            tangent = _Tangent.apply(*given, *complete(directions, given[:3]), m, l, ctx.problem)
        return *second, None, None, tangent, None, None, None, None

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> tuple[Any, ...]:
        *given, g, m, l = ctx.saved_tensors
        second = _hvp(ctx.problem, ctx.needs, tuple(given), g, tangents[:3], m, l)
        linear = (None,) * 3 if tangents[5] is None else _vjp(ctx.problem, ctx.needs, tuple(given), tangents[5], m, l)
        return tuple(plus(a, b) for a, b, need in zip(second, linear, ctx.needs, strict=True) if need)


class _Tangent(torch.autograd.Function):
    """(q, k, sinks, q_ids, kv_ids, tq, tk, tsinks, m, l) -> the tangent of L."""

    @staticmethod
    def forward(
        q: Any, k: Any, own: Any, q_ids: Any, kv_ids: Any, tq: Any, tk: Any, town: Any, m: Any, l: Any, problem: Problem
    ) -> torch.Tensor:
        return tangents.run(problem, _tensors((q, k, own, q_ids, kv_ids), None, (tq, tk, town)), m, l)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
        *tensors, ctx.problem = inputs
        ctx.save_for_backward(*tensors)

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> tuple[Any, ...]:
        # <g, J(x) t>: its gradient is the HVP along t in x, and the VJP of g in t
        *tensors, m, l = ctx.saved_tensors
        given, directions, needed = tuple(tensors[:5]), tuple(tensors[5:]), ctx.needs_input_grad
        second = _hvp(ctx.problem, needed[:3], given, g, directions, m, l)
        return *second, None, None, *_vjp(ctx.problem, needed[5:8], given, g, m, l), None, None, None

    @staticmethod
    def jvp(ctx: Any, *given: Any) -> NoReturn:
        refuse("lse", "forward mode over forward mode")


class _Hessian(LastFunction):
    """(q, k, sinks, q_ids, kv_ids, g, tq, tk, tsinks, m, l) -> those of (hq, hk, hsinks) that are needed."""

    operator = "lse"

    @staticmethod
    def forward(
        q: Any, k: Any, own: Any, q_ids: Any, kv_ids: Any, g: Any, tq: Any, tk: Any, town: Any, m: Any, l: Any,
        problem: Problem, needs: Needs,
    ) -> tuple[Any, ...]:  # fmt: skip
        tensors = _tensors((q, k, own, q_ids, kv_ids), check_cotangent(problem, g), (tq, tk, town))
        tangent = tangents.run(problem, tensors, m, l)
        hq, hk = hessian.run(problem, tensors, m, l, tangent, needs[:2])
        found = (hq, hk, sinks.run(problem, tensors, m, l, tangent) if needs[2] else None)
        return asked(needs, found)


def _fuses(problem: Problem, both: bool) -> bool:
    """Return whether the backward is the fused one; `both`: whether dq and dk are needed."""
    needed = fused.workspace_bytes(
        batch=problem.batch,
        heads=problem.heads,
        queries=problem.queries,
        keys=problem.keys,
        features=problem.features,
        block=problem.tile("dkv").key,
    )
    if problem.backward == "auto":
        limit = AUTOMATIC_WORKSPACE if problem.workspace_limit is None else problem.workspace_limit
        return both and needed <= limit
    if problem.backward == "fused" and problem.workspace_limit is not None and needed > problem.workspace_limit:
        raise ValueError(
            f"workspace_limit is {problem.workspace_limit} bytes and the fused backward needs {needed}: expected a "
            "limit that holds it, or the separate backward"
        )
    return problem.backward == "fused"
