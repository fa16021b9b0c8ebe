"""The path that is parallel in T, for few K C: operators of chunks, a scan over them, then all chunks at once.

1. Each chunk of the sequence is run from each of its K C start states (a state is y at one of the last K positions, in
   one label): the operator [K C, K C] of the chunk, and what it adds to log Z if the sequence ends in it.
2. A scan over the operators gives the state at each chunk's start, normalised by a whole number, and log Z.
3. Each chunk is run once more from its state: alpha, and backward in time beta, at every position.
4. Posteriors follow from alpha and beta without recursion.

Backward in time a sequence's chunks are counted from its own end, so that padding costs nothing and is never read.
"""

from __future__ import annotations

from typing import Any

import torch
import triton

from .blocks import padded
from .guardrails import Problem
from .launch import launch
from .scan import scan_kernel
from .tables import (
    Carried,
    Named,
    Table,
    directed,
    empty_log_z,
    empty_table,
    first_state,
    launch_recursion,
    rows_of,
    storing,
)


def carry(problem: Problem, named: Named, *, forward: bool = True, tangent: bool = False) -> Carried:
    """Return the state at the start of every chunk, and log Z where `forward`."""
    batch, chunks, size = problem.batch, problem.chunks, problem.durations * problem.labels
    wide: dict[str, Any] = {"dtype": torch.float64, "device": problem.device}
    own: dict[str, Any] = {
        "operators": torch.empty(batch, chunks, size, size, **wide),
        "finals": torch.full((batch, size), -torch.inf, **wide),
        "states": torch.full((batch, chunks, problem.durations, problem.labels), -torch.inf, **wide),
        "norms": torch.zeros(batch, chunks, **wide),
        "log_z": empty_log_z(problem),
        "wants_z": int(forward),
        "size": size,
    }
    y0, ty0 = first_state(problem, named, forward)
    own["states"][:, 0, 0] = y0
    if tangent:
        own |= {
            "toperators": torch.empty(batch, chunks, size, size, **wide),
            "tfinals": torch.zeros(batch, size, **wide),
            "tstates": torch.zeros_like(own["states"]),
            "tlog_z": torch.zeros(batch, **wide),
        }
        own["tstates"][:, 0, 0] = ty0
    pool = {**directed(problem, named, forward), **own}
    launch_recursion(
        problem, pool, forward=forward, chunks=chunks, steps=problem.chunk, operators=True, tangent=tangent
    )
    states = padded(size)
    rows = rows_of(problem, batch, states * states)
    launch(scan_kernel, problem, triton.cdiv(batch, rows), pool, ROWS=rows, STATES=states, TANGENT=tangent)
    return Carried(own["states"], own["norms"], own["log_z"], own.get("tstates"), own.get("tlog_z"))


def table(problem: Problem, named: Named, carried: Carried, *, forward: bool, tangent: bool = False) -> Table:
    """Return alpha (and enter) or beta at every position from the states at chunks' starts."""
    rows = problem.chunks * problem.chunk + 1
    filled = empty_table(problem, named, forward, rows, carried.norms, -1, tangent)
    pool = {**directed(problem, named, forward), **storing(filled), "states": carried.states}
    if tangent:
        pool["tstates"] = carried.tstates
    pool["finals"] = carried.norms.new_empty(problem.batch)
    pool["tfinals"] = carried.norms.new_empty(problem.batch)
    launch_recursion(
        problem, pool, forward=forward, chunks=problem.chunks, steps=problem.chunk, tangent=tangent
    )  # fmt: skip
    return filled
