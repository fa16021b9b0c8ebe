"""What the gated delta kernels accept, checked before any launch; errors name the argument and what is expected."""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton

from .. import arguments
from ..arguments import LARGEST_ROWS
from ..blocks import dots_of
from .blocks import CHUNKS, Blocks, choose, piece_chunks

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
PRECISIONS = ("ieee", "tf32")
LARGEST_FEATURES = 128


class Problem(NamedTuple):
    """A checked problem: dims, options, dtype and blocks, as every kernel of the family takes them.

    `scale` is a plain number and `precision` that of the dots of float32. `forced` says whether the caller gave the
    blocks, which every pass then has. A sequence has `chunks` chunks, and `pieces` pieces of `piece_chunks` chunks.
    """

    batch: int
    heads: int
    rows: int
    features: int
    value_features: int
    scale: float
    blocks: Blocks
    forced: bool
    chunks: int
    piece_chunks: int
    pieces: int
    dtype: torch.dtype
    precision: str
    device: torch.device

    @property
    def dots(self) -> str:
        """The kind of dots that the kernels have: "16 bit", "ieee", or "split" for TF32."""
        return dots_of(self.dtype, self.precision)


def check(
    q: object,
    k: object,
    v: object,
    g: object,
    beta: object,
    *,
    scale: object,
    initial_state: object,
    return_state: object,
    precision: object,
    blocks: object,
) -> Problem:
    """Return the problem that the tensors and options pose; they are those of `gated_delta`.

    Raises:
        ValueError: naming the argument, the value given and what is expected.
    """
    q, k, v = (arguments.dense(name, given, 4) for name, given in (("q", q), ("k", k), ("v", v)))
    g, beta = (arguments.dense(name, given, 3) for name, given in (("g", g), ("beta", beta)))
    arguments.computable("q", q, DTYPES)
    (batch, heads, rows, features), values = q.shape, v.shape[3]
    arguments.extents(
        (
            ("q", q, "B", batch, LARGEST_ROWS),
            ("q", q, "H", heads, LARGEST_ROWS),
            ("q", q, "T", rows, LARGEST_ROWS),
            ("q", q, "D", features, LARGEST_FEATURES),
            ("v", v, "Dv", values, LARGEST_FEATURES),
        )
    )
    arguments.shape("k", k, (batch, heads, rows, features), "[B, H, T, D]")
    arguments.shape("v", v, (batch, heads, rows, values), "[B, H, T, Dv]")
    arguments.shape("g", g, (batch, heads, rows), "[B, H, T]")
    arguments.shape("beta", beta, (batch, heads, rows), "[B, H, T]")
    arguments.like("k", k, "q", q)
    arguments.like("v", v, "q", q)
    arguments.dtype("g", g, torch.float32)
    arguments.device("g", g, q.device)
    arguments.like("beta", beta, "q", q)
    if initial_state is not None:
        state = arguments.dense("initial_state", initial_state, 4)
        arguments.shape("initial_state", state, (batch, heads, features, values), "[B, H, D, Dv]")
        arguments.dtype("initial_state", state, torch.float32)
        arguments.device("initial_state", state, q.device)
    arguments.boolean("return_state", return_state)
    factor = arguments.scale(scale, features)
    asked = arguments.one_of("precision", precision, PRECISIONS)
    dots = asked if q.dtype == torch.float32 else "ieee"
    given = _check_blocks(blocks)
    chosen = given or choose(q.dtype, dots, rows)
    chunks = triton.cdiv(rows, chosen.chunk)
    length = piece_chunks(chosen, chunks, batch * heads, values)
    return Problem(
        batch, heads, rows, features, values, factor, chosen, given is not None,
        chunks, length, triton.cdiv(chunks, length), q.dtype, dots, q.device,
    )  # fmt: skip


def check_cotangents(problem: Problem, do: object, dstate: object) -> None:
    """Check that the cotangents are do [B, H, T, Dv], in the dtype of q, and dstate [B, H, D, Dv], float32, or None.

    Raises:
        ValueError: naming the cotangent, the value given and what is expected.
    """
    sizes = (problem.batch, problem.heads, problem.rows, problem.value_features)
    for name, tensor, expected, letters, held in (
        ("do", do, sizes, "[B, H, T, Dv]", problem.dtype),
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
        raise ValueError(f"blocks is {blocks!r}: expected a gated_delta Blocks or None")
    if blocks.chunk not in CHUNKS or isinstance(blocks.chunk, bool):
        raise ValueError(f"blocks.chunk is {blocks.chunk!r}: expected 16, 32 or 64")
    for name in ("value", "feature"):
        arguments.block_size(f"blocks.{name}", getattr(blocks, name))
    if not isinstance(blocks.piece, int) or blocks.piece < 0 or blocks.piece % blocks.chunk:
        raise ValueError(f"blocks.piece is {blocks.piece!r}: expected a multiple of blocks.chunk, {blocks.chunk}, or 0")
    arguments.launchable(blocks.num_warps, blocks.num_stages)
    return blocks
