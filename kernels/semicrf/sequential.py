"""The sequential path, for any K and C: one chunk after the other, a state kept between two, alpha recomputed backward.

Memory besides inputs and outputs is O(B (sqrt(T K) C + K C^2)), see `workspace_bytes`: forward keeps only the states
[K, C] at the starts of chunks of about sqrt(T K) positions. Backward walks over stretches of chunks from the last
to the first; of each it extends beta to its start, chunk by chunk, recomputes alpha of all its chunks beside each
other, each from its state, and adds its posteriors to the gradients. Tables hold one stretch and K positions, in rows
tau % kept.

Where a ring of K positions fits a program's tile, a chunk is one launch. Where it does not, a chunk is taken in blocks
of R positions, R slots of [C] or [C, C] being what fits: one launch adds up, in parallel, what the positions before the
block contribute to each of its positions (`far`), the next takes the block's R steps with a ring of R slots. Either way
a launch loads only what earlier launches stored: no program loads what it stored itself. A stretch is one chunk there.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from .blocks import STRETCH
from .guardrails import Problem
from .tables import (
    Carried,
    Named,
    Table,
    directed,
    empty_log_z,
    empty_table,
    launch_far,
    launch_recursion,
    needs_far,
    slots,
    storing,
)


def run_chunk(problem: Problem, pool: Named, table: Table, chunk: int, state: torch.Tensor, tstate: Any,
              forward: bool) -> None:  # fmt: skip
    """Take the steps of one chunk from its state [B, K, C], into the table."""
    first, tangent = chunk * problem.chunk, table.ty is not None
    steps = min(problem.chunk, _end(problem, table) - first)
    named = {**pool, **storing(table)}
    if not needs_far(problem):
        named |= {"states": state.contiguous(), "first": first}
        if tangent:
            named["tstates"] = tstate.contiguous()
        launch_recursion(problem, named, forward=forward, chunks=1, steps=steps, tangent=tangent)
        return
    block = slots(problem)
    named |= {"norms": table.norms, "far": state.new_empty(problem.batch, block, problem.labels)}
    if tangent:
        named["tfar"] = state.new_empty(problem.batch, block, problem.labels)
    for start in range(first, first + steps, block):
        taken = min(block, first + steps - start)
        named["first"] = start
        launch_far(problem, named, forward=forward, steps=taken, tangent=tangent)
        launch_recursion(problem, named, forward=forward, chunks=1, steps=taken, far=True, tangent=tangent)


def _end(problem: Problem, table: Table) -> int:
    """Return the last tau that there is."""
    return problem.positions if table.origin < 0 else table.origin


def first_of(problem: Problem, table: Table) -> tuple[torch.Tensor, Any]:
    """Return the state [B, K, C] at tau = 0, and its tangent: row 0 of a new table and nothing before it."""
    shape = (problem.batch, problem.durations, problem.labels)
    state, tstate = table.y.new_full(shape, -torch.inf), None
    state[:, 0] = table.y[:, 0]
    if table.ty is not None:
        tstate = table.y.new_zeros(shape)
        tstate[:, 0] = table.ty[:, 0]
    return state, tstate


def next_state(problem: Problem, table: Table, chunk: int) -> tuple[torch.Tensor, Any]:
    """Return the state after a chunk, with its tangent, and enter the norm that it is relative to into the table's."""
    last = (chunk + 1) * problem.chunk
    rows = (last - torch.arange(problem.durations, device=table.y.device)) % table.kept
    state = table.y.index_select(1, rows)
    peak = state.amax((1, 2)).floor()
    shift = torch.where(peak.isfinite(), peak, 0.0)
    table.norms[:, chunk + 1] = table.norms[:, chunk] + shift
    return state - shift[:, None, None], None if table.ty is None else table.ty.index_select(1, rows)


def carry(problem: Problem, named: Named, *, tangent: bool = False, table: Table | None = None) -> Carried:
    """Return the state at the start of every chunk, and log Z; fill a given table of kept = T + 1 rows, or more."""
    norms = torch.zeros(problem.batch, problem.chunks, dtype=torch.float64, device=problem.device)
    kept = problem.chunk + problem.durations + 1
    if table is None:
        table = empty_table(problem, named, True, kept, norms, -1, tangent)
    finals, tfinals = (norms.new_zeros(problem.batch) for _ in range(2))
    pool = {**directed(problem, named, True), "finals": finals, "tfinals": tfinals}
    states = norms.new_empty(problem.batch, problem.chunks, problem.durations, problem.labels)
    tstates = torch.empty_like(states) if tangent else None
    state, tstate = first_of(problem, table)
    for chunk in range(problem.chunks):
        if chunk:
            state, tstate = next_state(problem, table, chunk - 1)
        states[:, chunk] = state
        if tstates is not None:
            tstates[:, chunk] = tstate
        run_chunk(problem, pool, table, chunk, state, tstate, True)
    log_z = empty_log_z(problem)
    lengths = named["lengths"]
    final = (lengths - 1).clamp(min=0) // problem.chunk
    full = lengths > 0
    log_z[0] = torch.where(full, table.norms.gather(1, final[:, None])[:, 0], log_z[0])
    log_z[1] = torch.where(full, finals, log_z[1])
    return Carried(states, table.norms, log_z, tstates, torch.where(full, tfinals, 0.0) if tangent else None)


def walk(problem: Problem, named: Named, carried: Carried, tangent: bool) -> Iterator[tuple[int, int, Table, Table]]:
    """Yield (first position, how many, alpha, beta) of stretch after stretch, from the last to the first.

    The tables hold what the posteriors of segments that start there need, until the next stretch is requested.
    """
    size = 1 if needs_far(problem) else min(STRETCH, problem.chunks)
    kept = size * problem.chunk + problem.durations + 1
    end = problem.chunks * problem.chunk
    alpha = empty_table(problem, named, True, kept, carried.norms, -1, tangent)
    beta = empty_table(problem, named, False, kept, torch.zeros_like(carried.norms), end, tangent)
    spare = carried.norms.new_zeros(problem.batch)
    ahead = {**directed(problem, named, True), "finals": spare, "tfinals": spare.clone()}
    back = directed(problem, named, False)
    state, tstate = first_of(problem, beta)
    for low in reversed(range(0, problem.chunks, size)):
        high = min(low + size, problem.chunks)
        for backward in range(problem.chunks - high, problem.chunks - low):
            if backward > 0:
                state, tstate = next_state(problem, beta, backward - 1)
            run_chunk(problem, back, beta, backward, state, tstate, False)
        first = low * problem.chunk
        if low == 0:
            again = empty_table(problem, named, True, 1, carried.norms, -1, tangent)
            for filled, row in ((alpha.x, again.x), (alpha.y, again.y), (alpha.tx, again.tx), (alpha.ty, again.ty)):
                if filled is not None and row is not None:
                    filled[:, 0] = row[:, 0]
        _recompute(problem, ahead, alpha, carried, low, high)
        since = first + 1 if low else 0
        yield since, min(high * problem.chunk, problem.positions) + 1 - since, alpha, beta


def _recompute(problem: Problem, pool: Named, alpha: Table, carried: Carried, low: int, high: int) -> None:
    """Fill the table of alpha with the chunks low, ..., high - 1, all at once; with one chunk where the ring is cut."""
    tangent = alpha.ty is not None
    first = low * problem.chunk
    if not needs_far(problem):
        named = {**pool, **storing(alpha), "states": carried.states[:, low:high].contiguous(), "first": first}
        if carried.tstates is not None:
            named["tstates"] = carried.tstates[:, low:high].contiguous()
        launch_recursion(problem, named, forward=True, chunks=high - low, steps=problem.chunk, tangent=tangent)
        return
    moved = None if carried.tstates is None else carried.tstates[:, low]
    if low:
        # relative to the chunk before, of which these are positions
        rows = (first - torch.arange(problem.durations, device=problem.device)) % alpha.kept
        shift = (carried.norms[:, low] - carried.norms[:, low - 1])[:, None, None]
        alpha.y.index_copy_(1, rows, carried.states[:, low] + shift)
        if alpha.ty is not None and moved is not None:
            alpha.ty.index_copy_(1, rows, moved)
    run_chunk(problem, pool, alpha, low, carried.states[:, low], moved, True)
