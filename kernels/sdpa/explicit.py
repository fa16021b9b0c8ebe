"""Explicit entry points: each derivative by its kernel, without torch.autograd and without a graph."""

from __future__ import annotations

import torch

from ..absent import complete
from . import gradients, hessian, output, tangents
from .blocks import Blocks
from .guardrails import Gradients, Problem, Triple, check, check_like, check_needs, check_statistics


def forward(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    scale: float | None = None,
    causal: bool = False,
    precision: str = "ieee",
    blocks: Blocks | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return o [B, H, T, Dv], m = max_j S and l = sum_j exp(S - m) [B, H, T]; arguments and errors as of `sdpa`.

    S is in natural units. m and l are float32 (float64 for float64) and rebuild P = exp(S - m) / l. A row that sees no
    key has m = -inf, the maximum of nothing, l = 0 and o = 0.
    """
    problem = check(q, k, v, scale=scale, causal=causal, precision=precision, blocks=blocks)
    return output.run(problem, q, k, v)


def backward(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    m: torch.Tensor,
    l: torch.Tensor,
    *,
    o: torch.Tensor | None = None,
    scale: float | None = None,
    causal: bool = False,
    precision: str = "ieee",
    blocks: Blocks | None = None,
    needs: tuple[bool, bool, bool] = (True, True, True),
) -> Gradients:
    """Return the VJP (dq, dk, dv) of the cotangent g, None where `needs` does not ask.

    Args:
        q, k, v, scale, causal, precision, blocks: as of `sdpa`.
        g: cotangent of o [B, H, T, Dv], in the dtype of q, any strides.
        m, l: [B, H, T], as `forward` gives them; P is rebuilt from what is given, stale or not.
        o: [B, H, T, Dv], what `forward` gave with this m and l, any strides: dq then needs no pass before it. It is
            only a centre, whose rounding cancels.
        needs: which of dq, dk, dv to compute.

    Raises:
        ValueError: naming the argument, the value given and what is expected.
    """
    problem = check(q, k, v, scale=scale, causal=causal, precision=precision, blocks=blocks)
    _check_cotangent(problem, q, g)
    check_statistics(problem, m, l)
    if o is not None:
        check_like("o", o, "q", q, (problem.batch, problem.heads, problem.queries, problem.value_features))
    return gradients.run(problem, (q, k, v), g, m, l, check_needs(needs), o)


def vjp(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    *,
    scale: float | None = None,
    causal: bool = False,
    precision: str = "ieee",
    blocks: Blocks | None = None,
    needs: tuple[bool, bool, bool] = (True, True, True),
) -> Gradients:
    """Return `backward` with the o, m and l of `forward`."""
    o, m, l = forward(q, k, v, scale=scale, causal=causal, precision=precision, blocks=blocks)
    return backward(q, k, v, g, m, l, o=o, scale=scale, causal=causal, precision=precision, blocks=blocks, needs=needs)


def jvp(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    tq: torch.Tensor | None,
    tk: torch.Tensor | None,
    tv: torch.Tensor | None,
    *,
    m: torch.Tensor | None = None,
    l: torch.Tensor | None = None,
    scale: float | None = None,
    causal: bool = False,
    precision: str = "ieee",
    blocks: Blocks | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return o and its true tangent, P' V + P v' with P' = P * (S' - rowsum(P * S')), each [B, H, T, Dv].

    Args:
        q, k, v, scale, causal, precision, blocks: as of `sdpa`.
        tq, tk, tv: tangents of q, k, v: their shapes and dtype, any strides; None is zero.
        m, l: [B, H, T], both or neither; computed where not given. P, and so o too, is rebuilt from what is given.

    Raises:
        ValueError: naming the argument, the value given and what is expected.
    """
    problem = check(q, k, v, scale=scale, causal=causal, precision=precision, blocks=blocks)
    return _jvp(problem, (q, k, v), (tq, tk, tv), m, l, centred=True)


def jvp_frozen(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    tq: torch.Tensor | None,
    tk: torch.Tensor | None,
    tv: torch.Tensor | None,
    *,
    m: torch.Tensor | None = None,
    l: torch.Tensor | None = None,
    scale: float | None = None,
    causal: bool = False,
    precision: str = "ieee",
    blocks: Blocks | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return o and the tangent of the operator whose m and l are constants: P' = P * S', and else as `jvp`.

    It is not the derivative of `sdpa`: jvp - jvp_frozen = -rowsum(P * S') * o.
    """
    problem = check(q, k, v, scale=scale, causal=causal, precision=precision, blocks=blocks)
    return _jvp(problem, (q, k, v), (tq, tk, tv), m, l, centred=False)


def hvp(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    tq: torch.Tensor | None,
    tk: torch.Tensor | None,
    tv: torch.Tensor | None,
    *,
    scale: float | None = None,
    causal: bool = False,
    precision: str = "ieee",
    blocks: Blocks | None = None,
    needs: tuple[bool, bool, bool] = (True, True, True),
) -> Gradients:
    """Return the exact HVP (hq, hk, hv): the Hessian of <g, o> in (q, k, v) times (tq, tk, tv), g fixed.

    Closed form, in O(T + M) memory beyond the results. Arguments and errors as of `jvp` and `backward`.
    """
    problem = check(q, k, v, scale=scale, causal=causal, precision=precision, blocks=blocks)
    primals, given = (q, k, v), (tq, tk, tv)
    _check_cotangent(problem, q, g)
    _check_tangents(primals, given)
    needs = check_needs(needs)
    return hessian.run(problem, primals, g, complete(given, primals), needs)


def _jvp(
    problem: Problem,
    primals: Triple,
    given: tuple[torch.Tensor | None, ...],
    m: torch.Tensor | None,
    l: torch.Tensor | None,
    *,
    centred: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return o and its tangent; where no m and l are given, with those that its own sweeps find, or else forward."""
    _check_tangents(primals, given)
    directions = complete(given, primals)
    if m is None and l is None:
        if not centred:
            o, m, l = output.run(problem, *primals)
            return o, tangents.run(problem, primals, directions, m, l, centred=centred, primal=False)[1]
    else:
        check_statistics(problem, m, l)
    rebuilt, tangent = tangents.run(problem, primals, directions, m, l, centred=centred, primal=True)
    assert rebuilt is not None
    return rebuilt, tangent


def _check_cotangent(problem: Problem, q: torch.Tensor, g: torch.Tensor) -> None:
    check_like("g", g, "q", q, (problem.batch, problem.heads, problem.queries, problem.value_features))


def _check_tangents(primals: tuple[torch.Tensor, ...], given: tuple[torch.Tensor | None, ...]) -> None:
    for name, primal, tangent in zip("qkv", primals, given, strict=True):
        if tangent is not None:
            check_like(f"t{name}", tangent, name, primal, tuple(primal.shape))
