"""What the semi-CRF kernels accept, checked before any launch; errors name the argument and what is expected."""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton

from ..arguments import (
    LARGEST_ROWS,
    boolean,
    computable,
    dense,
    device,
    extents,
    integers,
    launchable,
    like,
    one_of,
    shape,
    tensor_of,
)
from .blocks import LARGEST_FORCED_STATES, PATHS, Blocks, choose, choose_path

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
LARGEST_LABELS, LARGEST_DURATIONS = 64, 1024
SMALLEST_TILE, LARGEST_TILE = 16, 1 << 20


class Problem(NamedTuple):
    """A checked problem: dims, path and blocks, as every kernel of the family takes them.

    `chunk` is how many positions lie between two states that are kept, and `chunks` how many chunks there are.
    """

    batch: int
    positions: int
    labels: int
    durations: int
    per_duration: bool
    path: str
    chunk: int
    chunks: int
    blocks: Blocks
    dtype: torch.dtype
    device: torch.device


def check(
    cum_scores: object,
    transition: object,
    duration_bias: object,
    lengths: object,
    proj_start: object = None,
    proj_end: object = None,
    path: object = "auto",
    blocks: object = None,
    validate: object = False,
) -> Problem:
    """Return the problem that the tensors and options pose; they are those of `semicrf`.

    Raises:
        ValueError: naming the argument, the value given and what is expected.
    """
    cum = dense("cum_scores", cum_scores, 3)
    computable("cum_scores", cum, DTYPES)
    batch, rows, labels = cum.shape
    extents(
        (
            ("cum_scores", cum, "B", batch, LARGEST_ROWS),
            ("cum_scores", cum, "T + 1", rows, LARGEST_ROWS),
            ("cum_scores", cum, "C", labels, LARGEST_LABELS),
        )
    )
    if rows < 2:
        raise ValueError(
            f"cum_scores has T + 1 = 1 (shape {tuple(cum.shape)}): expected T + 1 from 2, a leading 0 before T sums"
        )
    positions = rows - 1
    duration = dense("duration_bias", duration_bias, 2)
    durations = duration.shape[0]
    extents((("duration_bias", duration, "K", durations, LARGEST_DURATIONS),))
    shape("duration_bias", duration, (durations, labels), "[K, C]")
    like("duration_bias", duration, "cum_scores", cum)
    pairs = tensor_of("transition", transition)
    if pairs.dim() == 3:
        shape("transition", dense("transition", pairs, 3), (durations, labels, labels), "[C, C] or [K, C, C]")
    elif pairs.dim() == 2:
        shape("transition", dense("transition", pairs, 2), (labels, labels), "[C, C] or [K, C, C]")
    else:
        raise ValueError(
            f"transition has rank {pairs.dim()} (shape {tuple(pairs.shape)}): expected rank 2, [C, C], or 3, [K, C, C]"
        )
    like("transition", pairs, "cum_scores", cum)
    for name, value in (("proj_start", proj_start), ("proj_end", proj_end)):
        if value is not None:
            projection = dense(name, value, 3)
            _check_projection(name, projection, (batch, positions, labels))
            like(name, projection, "cum_scores", cum)
    counts = dense("lengths", lengths, 1)
    integers("lengths", counts)
    shape("lengths", counts, (batch,), "[B]")
    device("lengths", counts, cum.device, "cum_scores")
    boolean("validate", validate)
    if validate or cum.device.type == "cpu":
        _check_lengths(counts, positions)
    if validate:
        _check_values(cum, (("transition", pairs), ("duration_bias", duration)), proj_start, proj_end)
    chosen = one_of("path", path, ("auto", *PATHS))
    if chosen == "auto":
        chosen = choose_path(positions, durations, labels)
    if chosen == "parallel" and durations * labels > LARGEST_FORCED_STATES:
        raise ValueError(
            f"path is 'parallel' where K C = {durations * labels}: expected 'sequential', or K C at most "
            f"{LARGEST_FORCED_STATES}"
        )
    per_duration = pairs.dim() == 3
    given = _check_blocks(blocks) or choose(chosen, positions, durations, labels, per_duration)
    chunk = min(positions, given.chunk if chosen == "parallel" else max(given.chunk, durations))
    return Problem(
        batch, positions, labels, durations, per_duration, chosen, chunk, triton.cdiv(positions, chunk), given,
        cum.dtype, cum.device,
    )  # fmt: skip


def check_cotangent(problem: Problem, g: object) -> None:
    """Check that the cotangent is g [B], float32, on the device of cum_scores."""
    found = dense("g", g, 1)
    shape("g", found, (problem.batch,), "[B]")
    device("g", found, problem.device, "cum_scores")


def _padded(positions: int) -> str:
    """Return a hint for cum_scores of as many positions as T, which lack the leading 0."""
    return f"; if T is {positions}, cum_scores of {positions} positions lacks its leading 0, of a cumsum padded by one"


def _check_projection(name: str, projection: torch.Tensor, expected: tuple[int, int, int]) -> None:
    """Check that a projection is [B, T, C]."""
    batch, positions, labels = expected
    if tuple(projection.shape) != expected:
        given = tuple(projection.shape)
        hint = _padded(positions + 1) if given == (batch, positions + 1, labels) else ""
        raise ValueError(
            f"{name} has shape {given}: expected [B, T, C], where cum_scores is [B, T + 1, C], = {expected}{hint}"
        )


def _check_lengths(lengths: torch.Tensor, positions: int) -> None:
    """Check that every length is from 0 to T. Reads values."""
    wrong = (lengths < 0) | (lengths > positions)
    if bool(wrong.any()):
        at = int(wrong.int().argmax())
        hint = _padded(positions + 1) if int(lengths[at]) == int(lengths.max()) == positions + 1 else ""
        raise ValueError(f"lengths[{at}] is {int(lengths[at])}: expected lengths from 0 to T = {positions}{hint}")


def _check_values(cum: torch.Tensor, shared: tuple[tuple[str, torch.Tensor], ...], start: object, end: object) -> None:
    """Check that no score is NaN or +inf, nor cum_scores -inf. Reads values."""
    _check_each("cum_scores", cum, cum.isfinite(), "finite numbers")
    for name, tensor in (*shared, ("proj_start", start), ("proj_end", end)):
        if isinstance(tensor, torch.Tensor):
            _check_each(name, tensor, tensor < torch.inf, "finite numbers, or -inf where nothing is allowed")


def _check_each(name: str, tensor: torch.Tensor, allowed: torch.Tensor, expected: str) -> None:
    if not bool(allowed.all()):
        at = tuple((~allowed).nonzero()[0].tolist())
        raise ValueError(f"{name}[{', '.join(map(str, at))}] is {tensor[at].item()}: expected {expected}")


def _check_blocks(blocks: object) -> Blocks | None:
    if blocks is None:
        return None
    if not isinstance(blocks, Blocks):
        raise ValueError(f"blocks is {blocks!r}: expected a semicrf Blocks or None")
    if isinstance(blocks.chunk, bool) or not isinstance(blocks.chunk, int) or not 1 <= blocks.chunk <= LARGEST_ROWS:
        raise ValueError(f"blocks.chunk is {blocks.chunk!r}: expected a number of positions from 1 to {LARGEST_ROWS}")
    tile = blocks.tile
    integer = isinstance(tile, int) and not isinstance(tile, bool)
    if not integer or not SMALLEST_TILE <= tile <= LARGEST_TILE or tile & (tile - 1):
        raise ValueError(f"blocks.tile is {tile!r}: expected a power of two from {SMALLEST_TILE} to {LARGEST_TILE}")
    launchable(blocks.num_warps, blocks.num_stages)
    return blocks
