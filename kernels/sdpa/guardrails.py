"""What the SDPA kernels accept, checked before any launch: a ValueError names the argument, its value and the want."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import torch

from ..faithfulness import interprets_bfloat16
from .blocks import Blocks, interpreted

DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
Triple = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
Gradients = tuple[torch.Tensor | None, torch.Tensor | None, torch.Tensor | None]

PRECISIONS = ("ieee", "tf32")
LARGEST_FEATURES = 128
LARGEST_ROWS = 2**30
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
        precision: "ieee" or "tf32", for the dots of float32.
        blocks: Blocks, or None for the automatic choice.

    Raises:
        ValueError: naming the argument, the value given and what is wanted.
    """
    primals = {"q": q, "k": k, "v": v}
    for name, tensor in primals.items():
        check_tensor(name, tensor)
    check_dtype_and_device(q)
    check_alike(primals)
    sizes = {name: tuple(tensor.shape) for name, tensor in primals.items()}
    if k.shape[:2] != q.shape[:2] or k.shape[3] != q.shape[3]:
        raise ValueError(f"k has shape {sizes['k']}: wanted [B, H, M, D] with the B, H and D of q, {sizes['q']}")
    if v.shape[:3] != k.shape[:3]:
        raise ValueError(f"v has shape {sizes['v']}: wanted [B, H, M, Dv] with the B, H and M of k, {sizes['k']}")
    (batch, heads, queries, features), (keys, value_features) = q.shape, v.shape[2:]
    for name, letter, size, largest in (
        ("q", "B", batch, LARGEST_ROWS),
        ("q", "H", heads, LARGEST_ROWS),
        ("q", "T", queries, LARGEST_ROWS),
        ("k", "M", keys, LARGEST_ROWS),
        ("q", "D", features, LARGEST_FEATURES),
        ("v", "Dv", value_features, LARGEST_FEATURES),
    ):
        if not 1 <= size <= largest:
            raise ValueError(f"{name} has {letter} = {size} (shape {sizes[name]}): wanted {letter} from 1 to {largest}")
    if not isinstance(causal, bool):
        raise ValueError(f"causal is {causal!r}: wanted True or False")
    if precision not in PRECISIONS:
        raise ValueError(f"precision is {precision!r}: wanted 'ieee' or 'tf32'")
    return Problem(
        batch,
        heads,
        queries,
        keys,
        features,
        value_features,
        check_scale(scale, features),
        keys - queries + 1 if causal else keys,
        str(precision),
        check_blocks(blocks, q.dtype, str(precision)),
        q.dtype,
        q.device,
    )


def check_tensor(name: str, tensor: object) -> None:
    """Raise ValueError where an argument is no dense tensor of rank 4."""
    if not isinstance(tensor, torch.Tensor):
        raise ValueError(f"{name} is a {type(tensor).__name__}: wanted a torch.Tensor")
    if tensor.layout != torch.strided:
        raise ValueError(f"{name} has layout {tensor.layout}: wanted a dense (strided) tensor")
    if tensor.dim() != 4:
        raise ValueError(f"{name} has rank {tensor.dim()} (shape {tuple(tensor.shape)}): wanted rank 4")


def check_dtype_and_device(q: torch.Tensor) -> None:
    """Raise ValueError where the dtype of q is not one that this machine's Triton computes, or its device no GPU."""
    if q.dtype not in DTYPES:
        raise ValueError(f"q has dtype {q.dtype}: wanted float32, bfloat16, float16, or float64 in the interpreter")
    if interpreted():
        if q.device.type not in ("cpu", "cuda"):
            raise ValueError(f"q is on {q.device}: wanted cpu or cuda")
        if q.dtype == torch.bfloat16 and not interprets_bfloat16():
            raise ValueError(
                "q has dtype torch.bfloat16, which this Triton's interpreter multiplies as raw bits: wanted another "
                "dtype, or the corrected interpreter, activated before this package is imported"
            )
        return
    if q.device.type != "cuda":
        raise ValueError(f"q is on {q.device}: wanted cuda, or TRITON_INTERPRET=1 set before this package is imported")
    if q.dtype == torch.float64:
        raise ValueError("q has dtype torch.float64: wanted float32, bfloat16 or float16 on a GPU")


def check_alike(tensors: Mapping[str, torch.Tensor]) -> None:
    """Raise ValueError where a tensor's dtype or device is not that of the first."""
    (first, pattern), *others = tensors.items()
    for name, tensor in others:
        if tensor.dtype != pattern.dtype:
            raise ValueError(f"{name} has dtype {tensor.dtype}: wanted that of {first}, {pattern.dtype}")
        if tensor.device != pattern.device:
            raise ValueError(f"{name} is on {tensor.device}: wanted the device of {first}, {pattern.device}")


def check_like(name: str, tensor: object, pattern_name: str, pattern: torch.Tensor, shape: tuple[int, ...]) -> None:
    """Raise ValueError where a cotangent or tangent has not the shape, dtype and device that its primal asks for."""
    check_tensor(name, tensor)
    assert isinstance(tensor, torch.Tensor)
    if tuple(tensor.shape) != shape:
        raise ValueError(f"{name} has shape {tuple(tensor.shape)}: wanted {shape}")
    check_alike({pattern_name: pattern, name: tensor})


def check_statistics(problem: Problem, m: object, l: object) -> None:
    """Raise ValueError where m or l is not [B, H, T] of the dtype and device that `forward` gives."""
    shape = (problem.batch, problem.heads, problem.queries)
    for name, tensor in (("m", m), ("l", l)):
        if not isinstance(tensor, torch.Tensor):
            raise ValueError(f"{name} is a {type(tensor).__name__}: wanted a torch.Tensor, as forward gives it")
        if tuple(tensor.shape) != shape:
            raise ValueError(f"{name} has shape {tuple(tensor.shape)}: wanted [B, H, T] = {shape}")
        if tensor.dtype != problem.statistics_dtype:
            raise ValueError(f"{name} has dtype {tensor.dtype}: wanted {problem.statistics_dtype}")
        if tensor.device != problem.device:
            raise ValueError(f"{name} is on {tensor.device}: wanted the device of q, {problem.device}")


def check_scale(scale: object, features: int) -> float:
    """Return the scale as a float: a finite number above 0, or 1 / sqrt(D) for None."""
    if scale is None:
        return 1.0 / math.sqrt(features)
    if isinstance(scale, bool) or not isinstance(scale, (int, float)):
        raise ValueError(f"scale is {scale!r} of type {type(scale).__name__}: wanted a number or None")
    if not math.isfinite(scale) or scale <= 0:
        raise ValueError(f"scale is {scale!r}: wanted a finite number above 0, or None for 1 / sqrt(D)")
    return float(scale)


def check_blocks(blocks: object, dtype: torch.dtype, precision: str) -> Blocks | None:
    """Return the blocks as given: rows that are powers of two from 16 to 4096, or None.

    On a GPU an IEEE float32 tile has at most LARGEST_FLOAT32_TILE scores: past it a compilation takes minutes and the
    kernel spills thousands of registers. What else is too large for a GPU, `launch` finds out.
    """
    if blocks is None:
        return None
    if not isinstance(blocks, Blocks):
        raise ValueError(f"blocks is {blocks!r}: wanted a Blocks or None")
    for name, size in (("query", blocks.query), ("key", blocks.key)):
        if not isinstance(size, int) or not 16 <= size <= 4096 or size & (size - 1):
            raise ValueError(f"blocks.{name} is {size!r}: wanted a power of two from 16 to 4096")
    if blocks.num_warps not in (1, 2, 4, 8, 16):
        raise ValueError(f"blocks.num_warps is {blocks.num_warps!r}: wanted 1, 2, 4, 8 or 16")
    if not isinstance(blocks.num_stages, int) or not 1 <= blocks.num_stages <= 8:
        raise ValueError(f"blocks.num_stages is {blocks.num_stages!r}: wanted a number of stages from 1 to 8")
    compiled_ieee = dtype == torch.float32 and precision == "ieee" and not interpreted()
    if compiled_ieee and blocks.query * blocks.key > LARGEST_FLOAT32_TILE:
        raise ValueError(
            f"blocks is {blocks}: wanted blocks.query * blocks.key of at most {LARGEST_FLOAT32_TILE} for float32 "
            "dots in IEEE precision on a GPU"
        )
    return blocks


def check_needs(needs: object) -> tuple[bool, bool, bool]:
    """Return which of three gradients are asked for, at least one."""
    if not isinstance(needs, (tuple, list)) or len(needs) != 3 or not all(isinstance(need, bool) for need in needs):
        raise ValueError(f"needs is {needs!r}: wanted three booleans, for q, k and v")
    if not any(needs):
        raise ValueError(f"needs is {needs!r}: wanted at least one True")
    return needs[0], needs[1], needs[2]
