"""What the LSE kernels accept, checked before any launch: a ValueError names the argument, its value and the want."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch

from ..faithfulness import interprets_bfloat16
from .blocks import Blocks, interpreted

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
BACKWARDS = ("auto", "fused", "separate")
INTEGERS = (torch.int32, torch.int64)
LARGEST_FEATURES = 256
LARGEST_ROWS = 2**30


class Problem(NamedTuple):
    """A checked problem: dims, options and dtype, as every kernel of the family takes them.

    `groups` is G, the number of key heads; `causal_offset` is M - T + 1 where causal and M elsewhere; `softcap` is 0.0
    where there is none; `blocks` is None where the choice is automatic.
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
    workspace_limit: int
    blocks: Blocks | None
    dtype: torch.dtype
    device: torch.device


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
    blocks: object,
) -> Problem:
    """Return the problem that the tensors and options pose; they are those of `lse`.

    Raises:
        ValueError: naming the argument, the value given and what is wanted.
    """
    q, k = _dense("q", q, 4), _dense("k", k, 4)
    _check_dtype_and_device(q)
    _check_like("k", k, q.dtype, q)
    (batch, heads, queries, features), (groups, keys) = q.shape, k.shape[1:3]
    if k.shape[0] != batch or k.shape[3] != features:
        raise ValueError(f"k has shape {tuple(k.shape)}: wanted [B, G, M, D] with the B and D of q, {tuple(q.shape)}")
    for name, letter, size, largest in (
        ("q", "B", batch, LARGEST_ROWS),
        ("q", "H", heads, LARGEST_ROWS),
        ("q", "T", queries, LARGEST_ROWS),
        ("k", "G", groups, LARGEST_ROWS),
        ("k", "M", keys, LARGEST_ROWS),
        ("q", "D", features, LARGEST_FEATURES),
    ):
        if not 1 <= size <= largest:
            shape = tuple((q if name == "q" else k).shape)
            raise ValueError(f"{name} has {letter} = {size} (shape {shape}): wanted {letter} from 1 to {largest}")
    if heads % groups:
        raise ValueError(f"k has G = {groups} (shape {tuple(k.shape)}): wanted a G that divides the H = {heads} of q")
    if sinks is not None:
        sinks = _dense("sinks", sinks, 1)
        _check_like("sinks", sinks, q.dtype, q)
        _check_shape("sinks", sinks, (heads,), "[H]")
    _check_segments(q_segments, kv_segments, q, (batch, queries), (batch, keys))
    if not isinstance(causal, bool):
        raise ValueError(f"causal is {causal!r}: wanted True or False")
    return Problem(
        batch,
        heads,
        groups,
        queries,
        keys,
        features,
        1.0 / math.sqrt(features) if scale is None else _positive("scale", scale, "1 / sqrt(D)"),
        keys - queries + 1 if causal else keys,
        0.0 if softcap is None else _positive("softcap", softcap, "no cap"),
        _check_backward(backward),
        _check_limit(workspace_limit),
        _check_blocks(blocks),
        q.dtype,
        q.device,
    )


def check_cotangent(problem: Problem, g: object) -> torch.Tensor:
    """Return the cotangent g [B, H, T], float32, on the device of q."""
    g = _dense("g", g, 3)
    _check_shape("g", g, (problem.batch, problem.heads, problem.queries), "[B, H, T]")
    if g.dtype != torch.float32:
        raise ValueError(f"g has dtype {g.dtype}: wanted torch.float32, that of lse")
    if g.device != problem.device:
        raise ValueError(f"g is on {g.device}: wanted the device of q, {problem.device}")
    return g


def _dense(name: str, tensor: object, rank: int) -> torch.Tensor:
    if not isinstance(tensor, torch.Tensor):
        raise ValueError(f"{name} is a {type(tensor).__name__}: wanted a torch.Tensor")
    if tensor.layout != torch.strided:
        raise ValueError(f"{name} has layout {tensor.layout}: wanted a dense (strided) tensor")
    if tensor.dim() != rank:
        raise ValueError(f"{name} has rank {tensor.dim()} (shape {tuple(tensor.shape)}): wanted rank {rank}")
    return tensor


def _check_dtype_and_device(q: torch.Tensor) -> None:
    """See that this machine's Triton computes in the dtype of q, on its device."""
    if q.dtype not in DTYPES:
        raise ValueError(f"q has dtype {q.dtype}: wanted float32, bfloat16 or float16")
    if interpreted():
        if q.device.type not in ("cpu", "cuda"):
            raise ValueError(f"q is on {q.device}: wanted cpu or cuda")
        if q.dtype == torch.bfloat16 and not interprets_bfloat16():
            raise ValueError(
                "q has dtype torch.bfloat16, which this Triton's interpreter multiplies as raw bits: wanted another "
                "dtype, or the corrected interpreter, activated before this package is imported"
            )
    elif q.device.type != "cuda":
        raise ValueError(f"q is on {q.device}: wanted cuda, or TRITON_INTERPRET=1 set before this package is imported")


def _check_like(name: str, tensor: torch.Tensor, dtype: torch.dtype, q: torch.Tensor) -> None:
    if tensor.dtype != dtype:
        raise ValueError(f"{name} has dtype {tensor.dtype}: wanted that of q, {dtype}")
    if tensor.device != q.device:
        raise ValueError(f"{name} is on {tensor.device}: wanted the device of q, {q.device}")


def _check_shape(name: str, tensor: torch.Tensor, shape: tuple[int, ...], letters: str) -> None:
    if tuple(tensor.shape) != shape:
        raise ValueError(f"{name} has shape {tuple(tensor.shape)}: wanted {letters} = {shape}")


def _check_segments(
    q_segments: object, kv_segments: object, q: torch.Tensor, own: tuple[int, int], others: tuple[int, int]
) -> None:
    """See that segment ids are given for both sides or for none, one integer a row."""
    if (q_segments is None) != (kv_segments is None):
        given, missing = ("q", "kv") if kv_segments is None else ("kv", "q")
        raise ValueError(
            f"{missing}_segments is None and {given}_segments is not: wanted segment ids of both sides, or of neither"
        )
    for name, ids, shape, letters in (
        ("q_segments", q_segments, own, "[B, T]"),
        ("kv_segments", kv_segments, others, "[B, M]"),
    ):
        if ids is None:
            continue
        tensor = _dense(name, ids, 2)
        _check_shape(name, tensor, shape, letters)
        if tensor.dtype not in INTEGERS:
            raise ValueError(f"{name} has dtype {tensor.dtype}: wanted int32 or int64")
        if tensor.device != q.device:
            raise ValueError(f"{name} is on {tensor.device}: wanted the device of q, {q.device}")


def _positive(name: str, value: object, default: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError(f"{name} is {value!r} of type {type(value).__name__}: wanted a number or None")
    if not math.isfinite(value) or value <= 0:
        raise ValueError(f"{name} is {value!r}: wanted a finite number above 0, or None for {default}")
    return float(value)


def _check_backward(backward: object) -> str:
    if backward not in BACKWARDS:
        raise ValueError(f"backward is {backward!r}: wanted 'auto', 'fused' or 'separate'")
    return str(backward)


def _check_limit(limit: object) -> int:
    if isinstance(limit, bool) or not isinstance(limit, int) or limit < 0:
        raise ValueError(f"workspace_limit is {limit!r}: wanted a number of bytes from 0")
    return limit


def _check_blocks(blocks: object) -> Blocks | None:
    if blocks is None:
        return None
    if not isinstance(blocks, Blocks):
        raise ValueError(f"blocks is {blocks!r}: wanted a Blocks or None")
    for name, size in (("query", blocks.query), ("key", blocks.key)):
        if not isinstance(size, int) or not 16 <= size <= 4096 or size & (size - 1):
            raise ValueError(f"blocks.{name} is {size!r}: wanted a power of two from 16 to 4096")
    return blocks
