"""What the lightning kernels accept, checked before any launch; errors name the argument and what is expected."""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton

from .. import arguments
from ..arguments import LARGEST_ROWS
from ..blocks import dots_of
from .blocks import Blocks, choose, piece_rows, programs_of_head

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
LARGEST_FEATURES = 128


class Problem(NamedTuple):
    """A checked problem: dims, dtype and blocks, as every kernel of the family takes them.

    `precision` is that of the dots of float32. `forced` says whether the caller gave the blocks, which every pass then
    has. `piece_rows` is how many rows a piece of a sequence has, and `pieces` how many there are.
    """

    batch: int
    heads: int
    rows: int
    features: int
    value_features: int
    blocks: Blocks
    forced: bool
    piece_rows: int
    pieces: int
    dtype: torch.dtype
    precision: str
    device: torch.device

    @property
    def dots(self) -> str:
        """The kind of dots that the kernels have."""
        return dots_of(self.dtype, self.precision)


def check(
    q: object, k: object, v: object, initial_state: object, return_state: object, precision: object, blocks: object
) -> Problem:
    """Return the problem that the tensors and options pose; they are those of `lightning`.

    Raises:
        ValueError: naming the argument, the value given and what is expected.
    """
    q, k, v = (arguments.dense(name, given, 4) for name, given in (("q", q), ("k", k), ("v", v)))
    arguments.computable("q", q, DTYPES)
    (batch, heads, rows, features), values = q.shape, v.shape[3]
    arguments.extents(
        (
            ("q", q, "B", batch, LARGEST_ROWS),
            ("q", q, "H", heads, LARGEST_ROWS),
            ("q", q, "N", rows, LARGEST_ROWS),
            ("q", q, "D", features, LARGEST_FEATURES),
            ("v", v, "Dv", values, LARGEST_FEATURES),
        )
    )
    arguments.shape("k", k, (batch, heads, rows, features), "[B, H, N, D]")
    arguments.shape("v", v, (batch, heads, rows, values), "[B, H, N, Dv]")
    arguments.like("k", k, "q", q)
    arguments.like("v", v, "q", q)
    if initial_state is not None:
        state = arguments.dense("initial_state", initial_state, 4)
        arguments.shape("initial_state", state, (batch, heads, features, values), "[B, H, D, Dv]")
        arguments.dtype("initial_state", state, torch.float32)
        arguments.device("initial_state", state, q.device)
    arguments.boolean("return_state", return_state)
    dots = arguments.precision(precision, q.dtype)
    given = _check_blocks(blocks)
    chosen = given or choose(q.dtype, dots, rows)
    widest = max(features, values)
    programs = batch * heads * programs_of_head(chosen, widest, widest)
    length = piece_rows(chosen, dots_of(q.dtype, dots), rows, programs)
    pieces = triton.cdiv(rows, length)
    return Problem(
        batch, heads, rows, features, values, chosen, given is not None, length, pieces, q.dtype, dots, q.device
    )


def check_cotangents(problem: Problem, g: object, dstate: object) -> None:
    """Check that the cotangents are g [B, H, N, Dv], in the dtype of q, and dstate [B, H, D, Dv], float32, or None."""
    sizes = (problem.batch, problem.heads, problem.rows, problem.value_features)
    for name, tensor, expected, letters, held in (
        ("g", g, sizes, "[B, H, N, Dv]", problem.dtype),
        ("dstate", dstate, (*sizes[:2], problem.features, sizes[3]), "[B, H, D, Dv]", torch.float32),
    ):
        if tensor is not None:
            found = arguments.dense(name, tensor, 4)
            arguments.shape(name, found, expected, letters)
            arguments.dtype(name, found, held)
            arguments.device(name, found, problem.device)


def _check_blocks(blocks: object) -> Blocks | None:
    if blocks is None:
        return None
    if not isinstance(blocks, Blocks):
        raise ValueError(f"blocks is {blocks!r}: expected a lightning Blocks or None")
    for name in ("chunk", "micro", "value"):
        arguments.block_size(f"blocks.{name}", getattr(blocks, name))
    if blocks.micro > blocks.chunk:
        raise ValueError(f"blocks.micro is {blocks.micro}: expected at most blocks.chunk, {blocks.chunk}")
    if not isinstance(blocks.piece, int) or blocks.piece < 0 or blocks.piece % blocks.chunk:
        raise ValueError(f"blocks.piece is {blocks.piece!r}: expected a multiple of blocks.chunk, {blocks.chunk}, or 0")
    arguments.launchable(blocks.num_warps, blocks.num_stages)
    return blocks
