"""Gradients of log Z, or their tangents along one direction, from alpha and beta of stretches of positions."""

from __future__ import annotations

from typing import Any

import torch
import triton

from . import parallel, sequential
from .blocks import PARTS, padded
from .guardrails import Problem
from .launch import Given, arguments, launch
from .posteriors import durations_kernel, positions_kernel
from .tables import Carried, Named, Table, rows_of, slots, width

Needs = tuple[bool, bool, bool, bool, bool]  # cum_scores, transition, duration_bias, proj_start, proj_end


class Posteriors:
    """Sums and stores what stretches of positions contribute; `g` and `tg` are [B] in float64, tg None without tangent.

    Attributes:
        dcum, dstart, dend: [B, T + 1, C] and [B, T, C], in `dtype`; None where not needed.
        probabilities: [B, T, K, C], where expected.
    """

    def __init__(self, problem: Problem, named: Named, carried: Carried, needs: Needs, g: Any, tg: Any = None, *,
                 dtype: torch.dtype | None = None, probabilities: bool = False) -> None:  # fmt: skip
        self.problem, self.carried, self.needs = problem, carried, needs
        batch, positions, labels, durations = problem.batch, problem.positions, problem.labels, problem.durations
        kind: dict[str, Any] = {"dtype": dtype or problem.dtype, "device": problem.device}
        wide: dict[str, Any] = {"dtype": torch.float64, "device": problem.device}
        self.tangent = tg is not None
        self.dcum = torch.empty(batch, positions + 1, labels, **kind) if needs[0] else None
        self.dstart = torch.empty(batch, positions, labels, **kind) if needs[3] else None
        self.dend = torch.empty(batch, positions, labels, **kind) if needs[4] else None
        self.probabilities = (
            torch.empty(batch, positions, durations, labels, dtype=torch.float32, device=problem.device)
            if probabilities
            else None
        )
        pairs = (durations, labels, labels) if problem.per_duration else (labels, labels)
        self._pairs = torch.zeros(pairs, **wide) if needs[1] else None
        self._durations = torch.zeros(durations, labels, **wide) if needs[2] else None
        self._named = {**named, "per_in": labels, "per_out": 1, "log_z": carried.log_z, "g": g}
        self._named |= {"alpha_norms": carried.norms}
        if self.tangent:
            self._named |= {"tg": tg, "tlog_z": carried.tlog_z}
        # an absent result has the dtype of those there are, so that one compiled kernel serves whichever are needed
        absent = torch.empty(1, **kind)
        for name, result in (("dcum", self.dcum), ("dstart", self.dstart), ("dend", self.dend)):
            self._named[name] = absent if result is None else result
        none = self.probabilities is None
        self._named["probabilities"] = absent.new_empty(1, dtype=torch.float32) if none else self.probabilities
        self._named |= {"wants_cum": int(needs[0]), "wants_start": int(needs[3]), "wants_end": int(needs[4])}

    def add(self, first: int, count: int, alpha: Table, beta: Table) -> None:
        """Add positions first, ..., first + count - 1, of which the tables hold what they need."""
        named = {**self._named, "first": first, "count": count, "origin": beta.origin, "beta_norms": beta.norms}
        named |= {"alpha": alpha.values(), "enter": alpha.y, "alpha_kept": alpha.kept}
        named |= {"beta": beta.y, "beta_kept": beta.kept}
        if self.tangent:
            named |= {"talpha": alpha.ty if alpha.tx is None else alpha.tx, "tenter": alpha.ty, "tbeta": beta.ty}
        dims = {"LABELS": padded(self.problem.labels), "PER_DURATION": self.problem.per_duration}
        if any((self.needs[0], *self.needs[3:], self.probabilities is not None)) or self._sums_pairs_by_position():
            self._add_positions(named, count, dims)
        if self._durations is not None or (self.problem.per_duration and self._pairs is not None):
            self._add_durations(named, count, dims)

    def results(self) -> tuple[Any, ...]:
        """Return the gradients in the order of `needs`, None where not needed."""
        shared = (None if each is None else each.to(self.problem.dtype) for each in (self._pairs, self._durations))
        return self.dcum, *shared, self.dstart, self.dend

    def _sums_pairs_by_position(self) -> bool:
        return self._pairs is not None and not self.problem.per_duration

    def _tile(self, count: int) -> tuple[int, int, int]:
        """Return rows and durations of a tile, and how many such rows there are."""
        problem = self.problem
        ring = slots(problem)
        each = max(ring * width(problem), 0 if problem.per_duration else padded(problem.labels) ** 2)
        rows = rows_of(problem, problem.batch * count, 2 * each)  # two tiles at a time would spill
        return rows, ring, triton.cdiv(problem.batch * count, rows)

    def _parts(self, count: int, each: int, stretches: int) -> tuple[int, int]:
        """Return how many programs share the tiles, and how many tiles each has.

        Each program leaves a part of `each` numbers; on the sequential path all parts take no more than a table does.
        """
        problem = self.problem
        room = PARTS if problem.path == "parallel" else problem.batch * count * problem.labels // each
        tiles = triton.cdiv(stretches, min(max(room, 1), PARTS, stretches))
        return triton.cdiv(stretches, tiles), tiles

    def _add_positions(self, named: Named, count: int, dims: dict[str, Any]) -> None:
        rows, ring, stretches = self._tile(count)
        labels = self.problem.labels
        sums = self._sums_pairs_by_position()
        parts, tiles = self._parts(count, labels**2, stretches) if sums else (stretches, 1)
        named = {**named, "tiles": tiles, "wants_transition": int(sums)}
        if sums:
            named["partials"] = torch.empty(parts, labels, labels, dtype=torch.float64, device=self.problem.device)
        launch(
            positions_kernel, self.problem, parts, named, ROWS=rows, SLOTS=ring, **dims,
            SEGMENTS=self.probabilities is not None, TANGENT=self.tangent,
        )  # fmt: skip
        if sums:
            self._pairs += named["partials"].sum(0)

    def _add_durations(self, named: Named, count: int, dims: dict[str, Any]) -> None:
        rows, ring, stretches = self._tile(count)
        problem = self.problem
        labels, durations = problem.labels, problem.durations
        each = durations * labels * (labels if problem.per_duration else 1)
        parts, tiles = self._parts(count, each, stretches)
        shape = (parts, durations, labels, labels) if problem.per_duration else (parts, durations, labels)
        partials = torch.empty(shape, dtype=torch.float64, device=problem.device)
        named = {**named, "tiles": tiles, ("pair_partials" if problem.per_duration else "partials"): partials}
        programs = parts * triton.cdiv(durations, ring)
        launch(durations_kernel, problem, programs, named, ROWS=rows, SLOTS=ring, **dims, TANGENT=self.tangent)
        total = partials.sum(0)
        if problem.per_duration:
            if self._pairs is not None:
                self._pairs += total
            total = total.sum(1)
        if self._durations is not None:
            self._durations += total


def forward(problem: Problem, given: Given, lengths: torch.Tensor, moved: Given | None = None) -> Carried:
    """Return log Z and what backward needs of it; with `moved`, tangents of the inputs or None, their tangents too."""
    named = arguments(problem, given, lengths, moved)
    return _carry(problem, named, moved is not None)


def gradients(problem: Problem, given: Given, lengths: torch.Tensor, carried: Carried, g: torch.Tensor, needs: Needs
              ) -> tuple[Any, ...]:  # fmt: skip
    """Return the gradients of sum over b of g_b log Z_b that are needed, None for the others."""
    named = arguments(problem, given, lengths)
    posteriors = Posteriors(problem, named, carried, needs, _weights(g))
    visit(problem, named, carried, posteriors)
    return posteriors.results()


def moved_gradients(problem: Problem, given: Given, lengths: torch.Tensor, g: Any, moved: Given, tg: Any, needs: Needs
                    ) -> tuple[Any, ...]:  # fmt: skip
    """Return the tangents of what `gradients` returns, along `moved` in the inputs and tg in g; None is zero."""
    named = arguments(problem, given, lengths, moved)
    carried = _carry(problem, named, True)
    direction = torch.zeros_like(g) if tg is None else tg
    posteriors = Posteriors(problem, named, carried, needs, _weights(g), _weights(direction))
    visit(problem, named, carried, posteriors)
    return posteriors.results()


def visit(problem: Problem, named: Named, carried: Carried, posteriors: Posteriors) -> None:
    """Add every position to the posteriors, by the problem's path."""
    tangent = posteriors.tangent
    if problem.path == "sequential":
        for first, count, alpha, beta in sequential.walk(problem, named, carried, tangent):
            posteriors.add(first, count, alpha, beta)
        return
    alpha = parallel.table(problem, named, carried, forward=True, tangent=tangent)
    backward = parallel.carry(problem, named, forward=False, tangent=tangent)
    beta = parallel.table(problem, named, backward, forward=False, tangent=tangent)
    posteriors.add(0, problem.positions + 1, alpha, beta)


def _carry(problem: Problem, named: Named, tangent: bool) -> Carried:
    if problem.path == "sequential":
        return sequential.carry(problem, named, tangent=tangent)
    return parallel.carry(problem, named, tangent=tangent)


def _weights(g: torch.Tensor) -> torch.Tensor:
    return g.to(torch.float64).contiguous()
