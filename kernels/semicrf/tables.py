"""Tables of alpha and beta: what the two paths keep between passes, and the launches that both make of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
import triton

from ..blocks import interpreted
from .blocks import PROGRAMS, padded
from .far import far_kernel
from .guardrails import Problem
from .launch import launch
from .recursion import recursion_kernel

Named = Mapping[str, Any]


class Carried(NamedTuple):
    """What forward leaves for backward, all of it float64.

    `states` [B, chunks, K, C] is y (see `recursion`) at the positions up to the start of each chunk, latest first,
    relative to `norms` [B, chunks], which are whole numbers. `log_z` [2, B] is a whole number and the rest. `tstates`
    and `tlog_z` [B] are their tangents along one direction, if there is one.
    """

    states: torch.Tensor
    norms: torch.Tensor
    log_z: torch.Tensor
    tstates: torch.Tensor | None = None
    tlog_z: torch.Tensor | None = None


class Table(NamedTuple):
    """Rows tau % kept of x (alpha; None where it is not made) and of y [B, kept, C], relative to norms [B, chunks].

    tau is t forward, and `origin` - t backward, or the sequence's length - t where origin is -1.
    """

    x: torch.Tensor | None
    y: torch.Tensor
    norms: torch.Tensor
    origin: int
    tx: torch.Tensor | None = None
    ty: torch.Tensor | None = None

    @property
    def kept(self) -> int:
        """How many rows the table has."""
        return self.y.shape[1]

    def values(self) -> torch.Tensor:
        """Return the rows of alpha or beta."""
        return self.y if self.x is None else self.x


def directed(problem: Problem, named: Named, forward: bool) -> dict[str, Any]:
    """Return the arguments with the transition read in the direction of time."""
    return {**named, "per_in": problem.labels if forward else 1, "per_out": 1 if forward else problem.labels}


def width(problem: Problem) -> int:
    """Return how many numbers of a tile belong to one row and duration."""
    labels = padded(problem.labels)
    return labels * labels if problem.per_duration else labels


def slots(problem: Problem) -> int:
    """Return how many positions a ring has room for: a power of two, K at least unless that is too large for a tile."""
    room = padded(problem.durations)
    return min(room, max(1, problem.blocks.tile // width(problem))) if problem.path == "sequential" else room


def needs_far(problem: Problem) -> bool:
    """Return whether a ring of K positions is too large for a tile."""
    return slots(problem) < problem.durations


def rows_of(problem: Problem, total: int, each: int) -> int:
    """Return how many rows of `each` numbers a program takes: as many as its tile holds.

    On a GPU only as many as its threads hold, where more would leave processors idle; two cases, so that few kernels
    are compiled.
    """
    fit = max(1, problem.blocks.tile // max(each, 1))
    if interpreted():
        return min(fit, triton.next_power_of_2(total))
    return fit if total >= fit * PROGRAMS else max(1, min(fit, 32 * problem.blocks.num_warps // max(each, 1)))


def launch_recursion(
    problem: Problem,
    named: Named,
    *,
    forward: bool,
    chunks: int,
    steps: int,
    operators: bool = False,
    far: bool = False,
    tangent: bool = False,
) -> None:
    """Launch `steps` steps of `chunks` chunks of every sequence, from each of K C start states where `operators`."""
    sources = problem.durations * problem.labels if operators else 1
    total = problem.batch * chunks * sources
    ring = slots(problem)
    each = max(ring * width(problem), 0 if problem.per_duration else padded(problem.labels) ** 2)
    rows = rows_of(problem, total, each)
    own = {"chunks": chunks, "steps": steps, "sources": sources, "window": ring if far else problem.durations}
    launch(
        recursion_kernel, problem, triton.cdiv(total, rows), {**named, **own},
        ROWS=rows, SLOTS=ring, LABELS=padded(problem.labels), PER_DURATION=problem.per_duration, FORWARD=forward,
        OPERATORS=operators, FAR=far, TANGENT=tangent,
    )  # fmt: skip


def launch_far(problem: Problem, named: Named, *, forward: bool, steps: int, tangent: bool) -> None:
    """Launch what earlier positions contribute to the next `steps` of every sequence."""
    total = problem.batch * steps
    ring = slots(problem)
    rows = rows_of(problem, total, ring * width(problem))
    launch(
        far_kernel, problem, triton.cdiv(total, rows), {**named, "steps": steps},
        ROWS=rows, SLOTS=ring, LABELS=padded(problem.labels), PER_DURATION=problem.per_duration, FORWARD=forward,
        TANGENT=tangent,
    )  # fmt: skip


def first_state(problem: Problem, named: Named, forward: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Return y [C] at tau = 0 and its tangent: enter_0, or alpha_0 = 0, or beta = 0 at a sequence's end."""
    transition, moved = named["transition"], named["ttransition"]
    if problem.per_duration or not forward:
        zeros = transition.new_zeros(problem.labels)
        return zeros, zeros
    y = torch.logsumexp(transition, 0)
    if moved.shape != transition.shape:
        return y, torch.zeros_like(y)
    return y, (torch.exp(transition - torch.where(y == -torch.inf, 0.0, y)) * moved).sum(0)


def empty_table(problem: Problem, named: Named, forward: bool, kept: int, norms: torch.Tensor, origin: int,
                tangent: bool) -> Table:  # fmt: skip
    """Return a table with row 0 filled: alpha_0 = 0 and enter_0, or beta = 0 at a sequence's end if that is tau = 0."""
    shape = (problem.batch, kept, problem.labels)
    y0, ty0 = first_state(problem, named, forward)
    makes_x = forward and not problem.per_duration

    def made(first: Any) -> torch.Tensor:
        table = norms.new_full(shape, -torch.inf)
        table[:, 0] = first
        return table

    if origin >= 0:
        y0 = torch.where((named["lengths"] == origin)[:, None], y0, -torch.inf)
    x, y, tx, ty = made(0.0) if makes_x else None, made(y0), None, None
    if tangent:
        tx, ty = (norms.new_zeros(shape) if makes_x else None), norms.new_zeros(shape)
        ty[:, 0] = ty0
    return Table(x, y, norms, origin, tx, ty)


def storing(table: Table) -> dict[str, Any]:
    """Return the arguments by which a recursion fills a table."""
    named: dict[str, Any] = {"ys": table.y, "kept": table.kept, "keeps_x": 0, "keeps_y": 1, "origin": table.origin}
    if table.x is not None:
        named |= {"xs": table.x, "keeps_x": 1}
    if table.ty is not None:
        named["tys"] = table.ty
    if table.tx is not None:
        named["txs"] = table.tx
    return named


def empty_log_z(problem: Problem) -> torch.Tensor:
    """Return log Z [2, B] of empty sequences: log C."""
    log_z = torch.zeros(2, problem.batch, dtype=torch.float64, device=problem.device)
    log_z[1] = torch.full((), problem.labels, dtype=torch.float64, device=problem.device).log()
    return log_z
