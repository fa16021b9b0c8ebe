"""LSE in Triton, with buffers whose size a tile decides: the correct kernels, and released bugs of scratch and tuning.

The backward is eager PyTorch, all arithmetic is in float32.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from gradoracle.mutation.bugs import Bugs

ROWS, PADDED = 16, 16  # queries of a stage; queries to a multiple of which the tuned kernel's buffer is padded


@triton.jit
def _statistics(Q, K, head, at, H, G, T, M, D, factor, q_b, q_h, q_t, q_d, k_b, k_g, k_m, k_d,
                KEYS: tl.constexpr, WIDTH: tl.constexpr):  # fmt: skip
    """(largest score, sum of exponentials) of the queries ``at`` of a head."""
    n, width = tl.arange(0, KEYS), tl.arange(0, WIDTH)
    q = Q + head // H * q_b + head % H * q_h + at[:, None] * q_t + width[None, :] * q_d
    k = K + head // H * k_b + head % H // (H // G) * k_g + n[:, None] * k_m + width[None, :] * k_d
    q = tl.load(q, mask=(at < T)[:, None] & (width < D)[None, :], other=0.0).to(tl.float32)
    k = tl.load(k, mask=(n < M)[:, None] & (width < D)[None, :], other=0.0).to(tl.float32)
    s = tl.dot(q, tl.trans(k), input_precision="ieee") * factor
    s = tl.where((n < M)[None, :], s, float("-inf"))
    m = tl.max(s, 1)
    return m, tl.sum(tl.exp(s - m[:, None]), 1)


@triton.jit
def _staged(Q, K, Lse, Scratch, H, G, T, M, D, factor, q_b, q_h, q_t, q_d, k_b, k_g, k_m, k_d, sums_at,
            STAGES: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr, WIDTH: tl.constexpr):  # fmt: skip
    """STAGES blocks of queries a program; maxima go to the first slots of its scratch, sums to those from sums_at."""
    head = tl.program_id(1)
    i = tl.arange(0, ROWS)
    own = Scratch + (head * tl.num_programs(0) + tl.program_id(0)) * 2 * STAGES * ROWS
    for stage in range(STAGES):
        at = (tl.program_id(0) * STAGES + stage) * ROWS + i
        m, l = _statistics(Q, K, head, at, H, G, T, M, D, factor, q_b, q_h, q_t, q_d, k_b, k_g, k_m, k_d, KEYS, WIDTH)
        tl.store(own + stage * ROWS + i, m)
        tl.store(own + (sums_at + stage) * ROWS + i, l)
    tl.debug_barrier()
    for stage in range(STAGES):
        at = (tl.program_id(0) * STAGES + stage) * ROWS + i
        m, l = tl.load(own + stage * ROWS + i), tl.load(own + (sums_at + stage) * ROWS + i)
        tl.store(Lse + head * T + at, m + tl.log(l), mask=at < T)


def _whole_tiles(Q, K, Lse, H, G, T, M, D, factor, q_b, q_h, q_t, q_d, k_b, k_g, k_m, k_d, rows,
                 ROWS: tl.constexpr, KEYS: tl.constexpr, WIDTH: tl.constexpr):  # fmt: skip
    """One tile of queries a program; a row of Lse is padded to ``rows``, and tiles are stored whole."""
    head = tl.program_id(1)
    at = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    m, l = _statistics(Q, K, head, at, H, G, T, M, D, factor, q_b, q_h, q_t, q_d, k_b, k_g, k_m, k_d, KEYS, WIDTH)
    tl.store(Lse + head * rows + at, m + tl.log(l))


def _tuned(*tiles: int) -> Any:
    return triton.autotune([triton.Config({"ROWS": tile}) for tile in tiles], key=["T", "M"])(triton.jit(_whole_tiles))


_dividing, _not_dividing = _tuned(16, 8), _tuned(16, 32)


class _Lse(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, scale: float | None, launch: Callable[..., Tensor]) -> Tensor:
        ctx.factor = q.shape[-1] ** -0.5 if scale is None else scale
        (b, h, queries, d), (groups, keys) = q.shape, k.shape[1:3]
        found = launch(
            (b * h, queries), (q, k), (h, groups, queries, keys, d, ctx.factor, *q.stride(), *k.stride()),
            {"KEYS": max(16, triton.next_power_of_2(keys)), "WIDTH": max(16, triton.next_power_of_2(d))},
        ).view(b, h, queries)  # fmt: skip
        ctx.save_for_backward(q, k, found)
        return found

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Any, ...]:
        q, k, found = ctx.saved_tensors
        share = q.shape[1] // k.shape[1]
        keys = k.float().repeat_interleave(share, 1)
        ds = g[..., None] * torch.exp(q.float() @ keys.mT * ctx.factor - found[..., None]) * ctx.factor
        dk = (ds.mT @ q.float()).unflatten(1, (k.shape[1], share)).sum(2)
        return (ds @ keys).to(q.dtype), dk.to(k.dtype), None, None


def _in_stages(stages: int, sums_at: int) -> Callable[..., Tensor]:
    def launch(size: Any, tensors: Any, numbers: Any, tiles: Any) -> Tensor:
        heads, queries = size
        found = torch.empty((heads, queries), dtype=torch.float32)
        programs = triton.cdiv(queries, stages * ROWS)
        scratch = torch.empty((heads, programs, 2 * stages, ROWS), dtype=torch.float32)
        _staged[(programs, heads)](*tensors, found, scratch, *numbers, sums_at, STAGES=stages, ROWS=ROWS, **tiles)
        return found

    return launch


def _in_tiles(kernel: Any) -> Callable[..., Tensor]:
    def launch(size: Any, tensors: Any, numbers: Any, tiles: Any) -> Tensor:
        heads, queries = size
        rows = triton.cdiv(queries, PADDED) * PADDED
        found = torch.empty((heads, rows), dtype=torch.float32)
        kernel[lambda chosen: (triton.cdiv(queries, chosen["ROWS"]), heads)](*tensors, found, *numbers, rows, **tiles)
        return found[:, :queries].contiguous()

    return launch


def right(q, k, *, scale=None):
    """The correct kernel in one stage."""
    return _Lse.apply(q, k, scale, _in_stages(1, 1))


BUGS = Bugs(right, "lse")


@BUGS.of("Dao-AILab/flash-attention#2229", "programs_of_a_launch_do_not_race", "access")
def slots_for_two_stages(q, k, *, scale=None):
    """Dao-AILab/flash-attention#2229: the slots of row maxima began after 2 stages, however many there are.

    With one stage they lie in memory of somebody else; here it is the next program's scratch.
    """
    return _Lse.apply(q, k, scale, _in_stages(1, 2))


def tuned(q, k, *, scale=None):
    """The correct kernel with tiles that divide the padded buffer."""
    return _Lse.apply(q, k, scale, _in_tiles(_dividing))


@BUGS.of(
    "Dao-AILab/flash-attention@bedcbd6a", "every_autotuned_configuration_matches_the_oracle", "access", right=tuned
)
def tile_larger_than_the_padding(q, k, *, scale=None):
    """Dao-AILab/flash-attention@bedcbd6a: some configurations were wrong where the queries fill no whole tile.

    The buffer of LSE is padded before a configuration is chosen, and a tile that does not divide it runs over into the
    next head's rows.
    """
    return _Lse.apply(q, k, scale, _in_tiles(_not_dividing))
