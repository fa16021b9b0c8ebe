"""What the LSE kernels accept, checked before any launch; errors name the argument and what is expected."""

from __future__ import annotations

from typing import NamedTuple

import torch

from .. import arguments
from ..arguments import LARGEST_ROWS
from ..blocks import Blocks, capability_of, padded_rows
from ..launching import LOG2E, score_units
from .block_sizes import BlockSizes
from .blocks import choose, with_launch_options

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
BACKWARDS = ("auto", "fused", "separate")
LARGEST_FEATURES = 256


class Problem(NamedTuple):
    """A checked problem: dims, options and dtype, as every kernel of the family takes them.

    `groups` is G, the number of key heads; `causal_offset` is M - T + 1 where causal and M elsewhere; `softcap` is 0.0
    where there is none; `precision` is that of the dots of float32; `blocks` and `block_sizes` are None where the
    choice is automatic.
    """

    batch: int
    heads: int
    groups: int
    queries: int
    keys: int
    features: int
    scale: float
    causal_offset: int
    softcap: float
    backward: str
    workspace_limit: int | None
    precision: str
    blocks: Blocks | None
    block_sizes: BlockSizes | None
    dtype: torch.dtype
    device: torch.device

    @property
    def units(self) -> tuple[bool, float]:
        """What `launching.score_units` says of the scale; a cap needs scores in natural units."""
        return score_units(self.scale) if self.softcap == 0 else (False, LOG2E)

    @property
    def padded(self) -> int:
        """The rows of each plane of what derivatives keep of a row, T and zeros behind it."""
        forced = self.blocks
        if self.block_sizes is not None:
            forced = max((self.tile(step) for step in ("dq", "dkv", "hq", "hk")), key=lambda each: each.query)
        return padded_rows(self.queries, self.keys, forced)

    def tile(self, step: str) -> Blocks:
        """Return the blocks of a step: "forward", "dq", "dkv" (also the fused backward), "jvp", "hq" or "hk"."""
        if self.blocks is not None:
            return self.blocks
        sizes = None if self.block_sizes is None else self.block_sizes.tile(step)
        if sizes is not None:
            return with_launch_options(*sizes, self.dtype)
        return self.automatic(step)

    def automatic(self, step: str) -> Blocks:
        """Return the blocks of a step that nothing forces."""
        asked = self.dtype, self.precision, self.features, self.queries, self.keys
        return choose(step, *asked, capability_of(self.device))


def check(
    q: object,
    k: object,
    sinks: object,
    q_segments: object,
    kv_segments: object,
    *,
    scale: object,
    causal: object,
    softcap: object,
    backward: object,
    workspace_limit: object,
    precision: object,
    blocks: object,
    block_sizes: object,
) -> Problem:
    """Return the problem that the tensors and options pose; they are those of `lse`.

    Raises:
        ValueError: naming the argument, the value given and what is expected.
    """
    q, k = arguments.dense("q", q, 4), arguments.dense("k", k, 4)
    arguments.computable("q", q, DTYPES)
    arguments.like("k", k, "q", q)
    (batch, heads, queries, features), (groups, keys) = q.shape, k.shape[1:3]
    if k.shape[0] != batch or k.shape[3] != features:
        raise ValueError(f"k has shape {tuple(k.shape)}: expected [B, G, M, D] with the B and D of q, {tuple(q.shape)}")
    arguments.extents(
        (
            ("q", q, "B", batch, LARGEST_ROWS),
            ("q", q, "H", heads, LARGEST_ROWS),
            ("q", q, "T", queries, LARGEST_ROWS),
            ("k", k, "G", groups, LARGEST_ROWS),
            ("k", k, "M", keys, LARGEST_ROWS),
            ("q", q, "D", features, LARGEST_FEATURES),
        )
    )
    if heads % groups:
        raise ValueError(f"k has G = {groups} (shape {tuple(k.shape)}): expected a G that divides the H = {heads} of q")
    if sinks is not None:
        sinks = arguments.dense("sinks", sinks, 1)
        arguments.like("sinks", sinks, "q", q)
        arguments.shape("sinks", sinks, (heads,), "[H]")
    _check_segments(q_segments, kv_segments, q, (batch, queries), (batch, keys))
    is_causal = arguments.boolean("causal", causal)
    sizes = _check_block_sizes(block_sizes, blocks)
    return Problem(
        batch,
        heads,
        groups,
        queries,
        keys,
        features,
        arguments.scale(scale, features),
        keys - queries + 1 if is_causal else keys,
        0.0 if softcap is None else arguments.positive("softcap", softcap, "no cap"),
        _check_backward(backward, sizes),
        None if workspace_limit is None else arguments.whole("workspace_limit", workspace_limit, 0, "bytes"),
        arguments.precision(precision, q.dtype),
        arguments.blocks(blocks),
        sizes,
        q.dtype,
        q.device,
    )


def check_cotangent(problem: Problem, g: object) -> torch.Tensor:
    """Return the cotangent g [B, H, T], float32, on the device of q."""
    g = arguments.dense("g", g, 3)
    arguments.shape("g", g, (problem.batch, problem.heads, problem.queries), "[B, H, T]")
    arguments.dtype("g", g, torch.float32, "that of lse")
    arguments.device("g", g, problem.device)
    return g


def _check_segments(
    q_segments: object, kv_segments: object, q: torch.Tensor, own: tuple[int, int], others: tuple[int, int]
) -> None:
    """Check that segment ids are given for both sides or for none, one integer a row."""
    if (q_segments is None) != (kv_segments is None):
        given, missing = ("q", "kv") if kv_segments is None else ("kv", "q")
        raise ValueError(
            f"{missing}_segments is None and {given}_segments is not: expected segment ids of both sides, or of neither"
        )
    for name, ids, shape, letters in (
        ("q_segments", q_segments, own, "[B, T]"),
        ("kv_segments", kv_segments, others, "[B, M]"),
    ):
        if ids is None:
            continue
        tensor = arguments.dense(name, ids, 2)
        arguments.shape(name, tensor, shape, letters)
        arguments.integers(name, tensor)
        arguments.device(name, tensor, q.device)


def _check_block_sizes(block_sizes: object, blocks: object) -> BlockSizes | None:
    if block_sizes is None:
        return None
    if not isinstance(block_sizes, BlockSizes):
        raise ValueError(f"block_sizes is {block_sizes!r}: expected a BlockSizes or None")
    if blocks is not None:
        raise ValueError(
            f"blocks is {blocks!r} and block_sizes is {block_sizes!r}: expected one of them, as blocks= is for every "
            "pass"
        )
    return block_sizes


def _check_backward(backward: object, sizes: BlockSizes | None) -> str:
    """Return which backward is requested, by name or by the block sizes."""
    asked = arguments.one_of("backward", backward, BACKWARDS)
    sized = None if sizes is None else sizes.backward
    if sized is None or asked == sized:
        return asked
    if asked != "auto":
        raise ValueError(
            f"backward is {asked!r}: expected {sized!r} or 'auto', as block_sizes are those of the {sized} backward "
            f"(use_fused_bwd_kernel={sized == 'fused'})"
        )
    return sized
