"""What the recursions compute besides log Z: alpha, beta, their log norms, and marginals; not differentiable."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from . import parallel, sequential
from .blocks import Blocks
from .gradients import Posteriors, forward, visit
from .guardrails import Problem, check
from .launch import arguments
from .tables import Table, directed, empty_table


class ForwardBackward(NamedTuple):
    """Alpha and beta, natural logarithms, in two parts: alpha_t[c] = alpha[t, c] + alpha_norm[t].

    alpha, beta: [B, T+1, C], float32; their largest label is 0. alpha_norm, beta_norm: [B, T+1], float64. Where no
    segmentation comes to a position, and past a sequence's length, all labels are -inf and the norm is 0.
    log_z: [B], float64, log Z before it is rounded to float32.
    """

    alpha: torch.Tensor
    beta: torch.Tensor
    alpha_norm: torch.Tensor
    beta_norm: torch.Tensor
    log_z: torch.Tensor


class Marginals(NamedTuple):
    """Probabilities, float32; 0 past a sequence's length, and everywhere where every segmentation is forbidden.

    position: [B, T, C], that the segment which covers a position has label c. Summed up from differences in float64, so
        that errors are absolute, of 1e-16 times the root of T, where the others' are relative.
    boundary: [B, T+1], that no segment goes across t; 1 at 0 and at the sequence's length.
    segment: [B, T, K, C], that [t, t + k + 1) is a segment of label c, whatever the label before it; None where it was
        not requested.
    """

    position: torch.Tensor
    boundary: torch.Tensor
    segment: torch.Tensor | None


@torch.no_grad()
def forward_backward(
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
) -> ForwardBackward:
    """Return alpha, beta, their log norms and log Z; arguments and errors are those of `semicrf`.

    alpha_t[c] sums over the segmentations of [0, t) whose last label is c (at t = 0 over nothing: 0 for each label that
    may come before), beta_t[c] over those of [t, length) after a segment of label c: log Z plus the logarithm of the
    probability of a boundary at t is log sum over c of exp(alpha_t[c] + beta_t[c]).
    """
    problem = check(cum_scores, transition, duration_bias, lengths, proj_start, proj_end, path, blocks, validate)
    named = arguments(problem, (cum_scores, transition, duration_bias, proj_start, proj_end), lengths)
    if problem.path == "parallel":
        carried = parallel.carry(problem, named)
        alpha = parallel.table(problem, named, carried, forward=True)
        beta = parallel.table(problem, named, parallel.carry(problem, named, forward=False), forward=False)
    else:
        alpha, beta = _whole_tables(problem, named)
        carried = sequential.carry(problem, named, table=alpha)
    tau = torch.arange(problem.positions + 1, device=problem.device).expand(problem.batch, -1)
    ends = named["lengths"][:, None] if beta.origin < 0 else beta.origin
    one, one_norm = _normalised(problem, alpha, tau)
    other, other_norm = _normalised(problem, beta, (ends - tau).clamp(min=0))
    past = tau > named["lengths"][:, None]
    one, other = (torch.where(past[:, :, None], -torch.inf, each) for each in (one, other))
    one_norm, other_norm = (torch.where(past, 0.0, each) for each in (one_norm, other_norm))
    return ForwardBackward(one, other, one_norm, other_norm, carried.log_z.sum(0))


@torch.no_grad()
def marginals(
    cum_scores: torch.Tensor,
    transition: torch.Tensor,
    duration_bias: torch.Tensor,
    lengths: torch.Tensor,
    *,
    proj_start: torch.Tensor | None = None,
    proj_end: torch.Tensor | None = None,
    segments: bool = True,
    path: str = "auto",
    blocks: Blocks | None = None,
    validate: bool = False,
) -> Marginals:
    """Return the marginal probabilities of labels at positions, of boundaries and, on request, of segments.

    Arguments and errors are those of `semicrf`; `segments` asks for the [B, T, K, C] of them.
    """
    problem = check(cum_scores, transition, duration_bias, lengths, proj_start, proj_end, path, blocks, validate)
    given = (cum_scores, transition, duration_bias, proj_start, proj_end)
    named = arguments(problem, given, lengths)
    carried = forward(problem, given, lengths)
    ones = torch.ones(problem.batch, dtype=torch.float64, device=problem.device)
    posteriors = Posteriors(
        problem, named, carried, (False, False, False, True, True), ones, dtype=torch.float64, probabilities=segments
    )
    visit(problem, named, carried, posteriors)
    starts, stops = posteriors.dstart, posteriors.dend
    assert starts is not None and stops is not None
    changes = starts.clone()
    changes[:, 1:] -= stops[:, :-1]
    position = changes.cumsum(1).clamp_(min=0.0)
    inside = torch.arange(problem.positions, device=problem.device) < named["lengths"][:, None]
    position = torch.where(inside[:, :, None], position, 0.0)
    z = carried.log_z[1]
    first = torch.where(z.isnan(), z, (z > -torch.inf).to(torch.float64))
    boundary = torch.cat((first[:, None], stops.sum(2)), 1)
    return Marginals(position.float(), boundary.float(), posteriors.probabilities)


def _whole_tables(problem: Problem, named: Any) -> tuple[Table, Table]:
    """Return tables of every position on the sequential path: that of alpha empty, that of beta filled."""
    rows = problem.chunks * problem.chunk + 1
    norms = torch.zeros(problem.batch, problem.chunks, dtype=torch.float64, device=problem.device)
    alpha = empty_table(problem, named, True, rows, norms, -1, False)
    beta = empty_table(problem, named, False, rows, torch.zeros_like(norms), rows - 1, False)
    pool = directed(problem, named, False)
    state, _ = sequential.first_of(problem, beta)
    for chunk in range(problem.chunks):
        if chunk:
            state, _ = sequential.next_state(problem, beta, chunk - 1)
        sequential.run_chunk(problem, pool, beta, chunk, state, None, False)
    return alpha, beta


def _normalised(problem: Problem, table: Table, tau: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the rows tau [B, T+1] of a whole table, less their largest label, in float32, and their log norms."""
    values = table.values().gather(1, tau[:, :, None].expand(-1, -1, problem.labels))
    norms = table.norms.gather(1, (tau - 1).clamp(min=0) // problem.chunk)
    peak = values.amax(2)
    shift = torch.where(peak == -torch.inf, 0.0, peak)
    return (values - shift[:, :, None]).float(), torch.where(peak == -torch.inf, 0.0, norms + shift)
