"""What the SDPA kernels accept, checked before any launch; errors name the argument and what is expected."""

from __future__ import annotations

from typing import NamedTuple

import torch

from .. import arguments
from ..arguments import LARGEST_ROWS
from ..blocks import Blocks, interpreted, padded_rows
from .blocks import padded_features

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
Triple = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
Gradients = tuple[torch.Tensor | None, torch.Tensor | None, torch.Tensor | None]

LARGEST_FEATURES = 128
LARGEST_FLOAT32_TILE = 1024


class Problem(NamedTuple):
    """A checked problem: dims, options and dtype, as every kernel of the family takes them.

    `scale` is a plain number, `causal_offset` is M - T + 1 where causal and M elsewhere (tiles.visible_keys says why),
    `blocks` is None where the choice is automatic.
    """

    batch: int
    heads: int
    queries: int
    keys: int
    features: int
    value_features: int
    scale: float
    causal_offset: int
    precision: str
    blocks: Blocks | None
    dtype: torch.dtype
    device: torch.device

    @property
    def statistics_dtype(self) -> torch.dtype:
        """The dtype of m, l and every other row statistic: float32, or float64 for float64."""
        return torch.float64 if self.dtype == torch.float64 else torch.float32

    @property
    def width(self) -> int:
        """The width of a tile's rows."""
        return padded_features(self.features, self.value_features)

    @property
    def padded(self) -> int:
        """The rows of each plane of what derivatives keep of a row, T and zeros behind it."""
        return padded_rows(self.queries, self.keys, self.blocks)


def check(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    scale: object,
    causal: object,
    precision: object,
    blocks: object,
) -> Problem:
    """Return the problem that q, k, v and the options pose.

    Args:
        q: [B, H, T, D]. k: [B, H, M, D]. v: [B, H, M, Dv]. One dtype of float32, bfloat16, float16 (float64 in the
            interpreter), one device, T and M from 1 to 2^30, D and Dv from 1 to 128, any strides.
        scale: a finite number above 0, or None for 1 / sqrt(D).
        causal: True or False.
        precision: "ieee", "bf16x6" or "tf32", for the dots of float32.
        blocks: Blocks, or None for the automatic choice.

    Raises:
        ValueError: naming the argument, the value given and what is expected.
    """
    for name, tensor in (("q", q), ("k", k), ("v", v)):
        arguments.dense(name, tensor, 4)
    arguments.computable("q", q, DTYPES, interpreted_only=(torch.float64,))
    arguments.like("k", k, "q", q)
    arguments.like("v", v, "q", q)
    sizes = {name: tuple(tensor.shape) for name, tensor in (("q", q), ("k", k), ("v", v))}
    if k.shape[:2] != q.shape[:2] or k.shape[3] != q.shape[3]:
        raise ValueError(f"k has shape {sizes['k']}: expected [B, H, M, D] with the B, H and D of q, {sizes['q']}")
    if v.shape[:3] != k.shape[:3]:
        raise ValueError(f"v has shape {sizes['v']}: expected [B, H, M, Dv] with the B, H and M of k, {sizes['k']}")
    (batch, heads, queries, features), (keys, value_features) = q.shape, v.shape[2:]
    arguments.extents(
        (
            ("q", q, "B", batch, LARGEST_ROWS),
            ("q", q, "H", heads, LARGEST_ROWS),
            ("q", q, "T", queries, LARGEST_ROWS),
            ("k", k, "M", keys, LARGEST_ROWS),
            ("q", q, "D", features, LARGEST_FEATURES),
            ("v", v, "Dv", value_features, LARGEST_FEATURES),
        )
    )
    is_causal = arguments.boolean("causal", causal)
    dots = arguments.precision(precision, q.dtype)
    return Problem(
        batch,
        heads,
        queries,
        keys,
        features,
        value_features,
        arguments.scale(scale, features),
        keys - queries + 1 if is_causal else keys,
        dots,
        check_blocks(blocks, q.dtype, dots),
        q.dtype,
        q.device,
    )


def check_like(name: str, tensor: object, of: str, primal: torch.Tensor, shape: tuple[int, ...]) -> None:
    """Raise ValueError where a cotangent or tangent has not the shape, dtype and device that its primal asks for."""
    given = arguments.dense(name, tensor, 4)
    arguments.shape(name, given, shape)
    arguments.like(name, given, of, primal)


def check_statistics(problem: Problem, m: object, l: object) -> None:
    """Raise ValueError where m or l is not [B, H, T] of the dtype and device that `forward` gives."""
    shape = (problem.batch, problem.heads, problem.queries)
    for name, value in (("m", m), ("l", l)):
        tensor = arguments.tensor_of(name, value)
        arguments.shape(name, tensor, shape, "[B, H, T]")
        arguments.dtype(name, tensor, problem.statistics_dtype)
        arguments.device(name, tensor, problem.device)


def check_blocks(blocks: object, dtype: torch.dtype, precision: str) -> Blocks | None:
    """Return the blocks as given: rows that are powers of two from 16 to 4096, or None.

    On a GPU an IEEE float32 tile has at most LARGEST_FLOAT32_TILE scores: past it a compilation takes minutes and the
    kernel spills thousands of registers. What else is too large for a GPU, `launch` finds out.
    """
    checked = arguments.blocks(blocks)
    compiled_ieee = dtype == torch.float32 and precision == "ieee" and not interpreted()
    if checked is not None and compiled_ieee and checked.query * checked.key > LARGEST_FLOAT32_TILE:
        raise ValueError(
            f"blocks is {checked}: expected blocks.query * blocks.key of at most {LARGEST_FLOAT32_TILE} for float32 "
            "dots in IEEE precision on a GPU"
        )
    return checked


def check_needs(needs: object) -> tuple[bool, bool, bool]:
    """Return which of three gradients are needed, at least one."""
    if not isinstance(needs, (tuple, list)) or len(needs) != 3 or not all(isinstance(need, bool) for need in needs):
        raise ValueError(f"needs is {needs!r}: expected three booleans, for q, k and v")
    if not any(needs):
        raise ValueError(f"needs is {needs!r}: expected at least one True")
    return needs[0], needs[1], needs[2]
