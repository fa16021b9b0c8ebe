"""Faults of linear attention kernels in Triton, each a constexpr flag or one argument of a correct kernel.

gradoracle check tests/bugs/lightning_tiles.py:no_channel_mask --family lightning
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from gradoracle.mutation.bugs import Bugs

ROWS, BLOCK = 16, 16


@triton.jit
def states_kernel(
    k, v, first, states, k_h, k_n, k_d, v_h, v_n, v_d, N, D, DV, chunks,
    ROWS: tl.constexpr, BLOCK: tl.constexpr, TRANSPOSED_MASK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Write states [BH chunks+1 D DV] float32: the sum of k^T v of all rows before a chunk, and first [BH D DV].

    A program has one block of D, one of DV and one of the BH.
    """
    head = tl.program_id(0).to(tl.int64)
    d, e = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK), tl.program_id(2) * BLOCK + tl.arange(0, BLOCK)
    inside = (d < D)[:, None] & (e < DV)[None, :]  # [BLOCK BLOCK]
    if TRANSPOSED_MASK:
        inside = (d < D)[None, :] & (e < DV)[:, None]
    at = head * D * DV + d[:, None] * DV + e[None, :]
    state = tl.load(first + at, mask=inside, other=0.0)
    place = head * (chunks + 1) * D * DV + d[:, None] * DV + e[None, :]
    for chunk in range(chunks):
        tl.store(states + place + chunk * D * DV, state, mask=inside)
        n = chunk * ROWS + tl.arange(0, ROWS)
        kt = tl.load(
            k + head * k_h + d[:, None] * k_d + n[None, :] * k_n, mask=(d < D)[:, None] & (n < N)[None, :], other=0.0
        )
        rows = tl.load(
            v + head * v_h + n[:, None] * v_n + e[None, :] * v_d, mask=(n < N)[:, None] & (e < DV)[None, :], other=0.0
        )
        state += tl.dot(kt, rows, input_precision=PRECISION)
    tl.store(states + place + chunks * D * DV, state, mask=inside)


@triton.jit
def outputs_kernel(
    q, k, v, states, parts, q_h, q_n, q_d, k_h, k_n, k_d, v_h, v_n, v_d, N, D, DV, chunks, heads,
    ROWS: tl.constexpr, BLOCK: tl.constexpr, MASK_CHANNELS: tl.constexpr, ONE_SLOT: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Write parts [ND BH N DV] float32: by blocks of D, whose sum is o. A program has one block of D and DV, one chunk.

    Axis 0 of the grid is BH times chunks.
    """
    own = tl.program_id(0)
    head, chunk = (own // chunks).to(tl.int64), own % chunks
    part = tl.program_id(1)
    n = chunk * ROWS + tl.arange(0, ROWS)
    d, e = part * BLOCK + tl.arange(0, BLOCK), tl.program_id(2) * BLOCK + tl.arange(0, BLOCK)
    rows, channels = (n < N)[:, None] & (d < D)[None, :], (n < N)[:, None] & (e < DV)[None, :]
    if not MASK_CHANNELS:
        channels = (n < N)[:, None] & (e >= 0)[None, :]
    own_q = tl.load(q + head * q_h + n[:, None] * q_n + d[None, :] * q_d, mask=rows, other=0.0)  # [ROWS BLOCK]
    own_k = tl.load(k + head * k_h + n[:, None] * k_n + d[None, :] * k_d, mask=rows, other=0.0)
    own_v = tl.load(v + head * v_h + n[:, None] * v_n + e[None, :] * v_d, mask=channels, other=0.0)
    state = tl.load(
        states + (head * (chunks + 1) + chunk) * D * DV + d[:, None] * DV + e[None, :],
        mask=(d < D)[:, None] & (e < DV)[None, :],
        other=0.0,
    )
    scores = tl.dot(own_q, tl.trans(own_k), input_precision=PRECISION)
    scores = tl.where(n[:, None] >= n[None, :], scores, 0.0)
    total = tl.dot(scores, own_v.to(tl.float32), input_precision=PRECISION)
    total += tl.dot(own_q.to(tl.float32), state, input_precision=PRECISION)
    slot = 0 if ONE_SLOT else part
    place = parts + (slot * heads + head) * N * DV
    tl.store(place + n[:, None] * DV + e[None, :], total, mask=channels)


@triton.jit
def turned_kernel(x, workspace, y, ROWS: tl.constexpr, COLUMNS: tl.constexpr, BARRIER: tl.constexpr):
    """Y [BH COLUMNS ROWS] = X [BH ROWS COLUMNS] transposed, by way of a workspace like X; a program a head."""
    head = tl.program_id(0).to(tl.int64) * ROWS * COLUMNS
    r, c = tl.arange(0, ROWS), tl.arange(0, COLUMNS)
    tl.store(
        workspace + head + r[:, None] * COLUMNS + c[None, :], tl.load(x + head + r[:, None] * COLUMNS + c[None, :])
    )
    if BARRIER:
        tl.debug_barrier()
    turned = tl.load(workspace + head + r[None, :] * COLUMNS + c[:, None])  # [COLUMNS ROWS]
    tl.store(y + head + c[:, None] * ROWS + r[None, :], turned)


class Tiles:
    """Right: float32 inside, sums over blocks of D by partials, gradients by passes with other arguments."""

    transposed_mask = False
    mask_channels = True
    one_slot = False
    precision = "ieee"
    barrier = True

    def __call__(
        self, q: Tensor, k: Tensor, v: Tensor, *, initial_state: Tensor | None = None, return_state: bool = False
    ) -> Any:
        """o [B H N Dv] in the dtype of q, and on request the state [B H D Dv] in float32."""
        o, state = _Tiles.apply(self, q, k, v, initial_state)
        return (o, state) if return_state else o

    def strides(self, g: Tensor) -> tuple[int, ...]:
        """Those of a cotangent [BH N Dv], as the pass for dq is given them."""
        return g.stride()

    def run(self, q: Tensor, k: Tensor, v: Tensor, first: Tensor, q_strides: Any) -> tuple[Tensor, Tensor]:
        """o [BH N Dv] and the state [BH D Dv] in float32, of q and k [BH N D], v [BH N Dv] and first [BH D Dv]."""
        (heads, n, d), dv = q.shape, v.shape[2]
        chunks, blocks = triton.cdiv(n, ROWS), (triton.cdiv(d, BLOCK), triton.cdiv(dv, BLOCK))
        states = torch.empty((heads, chunks + 1, d, dv), dtype=torch.float32, device=q.device)
        parts = torch.empty((blocks[0], heads, n, dv), dtype=torch.float32, device=q.device)
        states_kernel[(heads, *blocks)](
            k, v, first, states, *k.stride(), *v.stride(), n, d, dv, chunks,
            ROWS=ROWS, BLOCK=BLOCK, TRANSPOSED_MASK=self.transposed_mask, PRECISION=self.precision,
        )  # fmt: skip
        outputs_kernel[(heads * chunks, *blocks)](
            q, k, v, states, parts, *q_strides, *k.stride(), *v.stride(), n, d, dv, chunks, heads,
            ROWS=ROWS, BLOCK=BLOCK, MASK_CHANNELS=self.mask_channels, ONE_SLOT=self.one_slot, PRECISION=self.precision,
        )  # fmt: skip
        return parts.sum(0), states[:, -1]

    def turned(self, state: Tensor) -> Tensor:
        """[BH Dv D] of [BH D Dv]."""
        heads, d, dv = state.shape
        rows, columns = (max(2, triton.next_power_of_2(size)) for size in (d, dv))
        full = torch.nn.functional.pad(state, (0, columns - dv, 0, rows - d))
        workspace, turned = torch.empty_like(full), torch.empty((heads, columns, rows), device=state.device)
        turned_kernel[(heads,)](full, workspace, turned, ROWS=rows, COLUMNS=columns, BARRIER=self.barrier)
        return turned[:, :dv, :d].contiguous()


class _Tiles(torch.autograd.Function):
    @staticmethod
    def forward(ctx, own, q, k, v, initial_state):
        _check(q, k, v)
        (batch, heads, _, d), dv = q.shape, v.shape[3]
        first = torch.zeros((batch, heads, d, dv), device=q.device) if initial_state is None else initial_state
        q, k, v, first = (x.flatten(0, 1) for x in (q, k, v, first.contiguous()))
        o, state = own.run(q, k, v, first, q.stride())
        ctx.save_for_backward(q, k, v, first)
        ctx.own, ctx.given = own, initial_state is not None
        return o.to(q.dtype).unflatten(0, (batch, heads)), state.unflatten(0, (batch, heads))

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, g, g_state):
        """dq is a pass with g for q; those of dk, dv and the initial state run from the last row to the first."""
        own, (q, k, v, first) = ctx.own, ctx.saved_tensors
        batch, dtype = g.shape[0], q.dtype
        g, g_state = g.flatten(0, 1), g_state.flatten(0, 1).contiguous()
        dq, _ = own.run(g, v, k, own.turned(first), own.strides(g))
        q, k, v, g = (x.flip(1).contiguous() for x in (q, k, v, g))
        dv, d_first = own.run(k, q, g, g_state, k.stride())
        dk, _ = own.run(v, g, q, own.turned(g_state), v.stride())
        dq, dk, dv = (x.to(dtype).unflatten(0, (batch, -1)) for x in (dq, dk.flip(1), dv.flip(1)))
        return None, dq, dk, dv, d_first.unflatten(0, (batch, -1)) if ctx.given else None


def _check(q: Tensor, k: Tensor, v: Tensor) -> None:
    for name, x in {"q": q, "k": k, "v": v}.items():
        if x.dtype not in (torch.float32, torch.bfloat16, torch.float16) or x.dtype != q.dtype:
            raise ValueError(f"{name} is of {x.dtype}; expected float32, bfloat16 or float16, and one for all")
        if x.dim() != 4 or x.shape[:3] != q.shape[:3] or x.device.type == "meta":
            raise ValueError(
                f"{name} is {tuple(x.shape)} on {x.device}; expected q, k [B H N D] and v [B H N Dv], not meta"
            )
    if k.shape != q.shape:
        raise ValueError(f"k is {tuple(k.shape)}; expected that of q, {tuple(q.shape)}")


class NoChannelMask(Tiles):
    """lightning-attention 2 without decay: rows were masked and channels were not, whose number was to be a multiple.

    Called directly with 48 channels and blocks of 32, the kernel wrote over what lay behind each row and the heap.
    """

    mask_channels = False


class TransposedMask(Tiles):
    """flash-linear-attention: the mask of a tile [K V] of the state was written [None, :] for K and [:, None] for V."""

    transposed_mask = True


class OneSlot(Tiles):
    """flash-linear-attention: partial sums over blocks of K were indexed by the block of V alone.

    All blocks of K then stored theirs to one place, and the last to come stayed.
    """

    one_slot = True


class Tf32(Tiles):
    """lightning-attention 2: float32 inputs were off by 8e-3, which products in tf32 explain."""

    precision = "tf32"


class AssumedStrides(Tiles):
    """flash-linear-attention: block pointers of the cotangent had strides (D, 1), whatever autograd handed over."""

    def strides(self, g: Tensor) -> tuple[int, ...]:
        return g.shape[1] * g.shape[2], g.shape[2], 1


class NoBarrier(Tiles):
    """Triton: one program stored a tile to global memory and loaded it back in another layout.

    Triton places barriers for shared memory and not for global memory, so a thread may load before another stored.
    """

    barrier = False


tiles = Tiles()
no_channel_mask = NoChannelMask()
transposed_mask = TransposedMask()
one_slot = OneSlot()
tf32 = Tf32()
assumed_strides = AssumedStrides()
no_barrier = NoBarrier()

FLA = "fla-org/flash-linear-attention"
LIGHTNING = "OpenNLPLab/lightning-attention"

BUGS = Bugs(tiles, "lightning")
BUGS.add(
    no_channel_mask,
    f"{LIGHTNING}@lightning_attn2_no_decay",
    "every_access_stays_inside_its_tensor",
    "access",
    name="no_channel_mask",
)
BUGS.add(
    transposed_mask, f"{FLA}@eb7c8baa", "every_access_stays_inside_its_tensor", "transpose", name="transposed_mask"
)
BUGS.add(one_slot, f"{FLA}@0a83fd3f", "programs_of_a_launch_do_not_race", "access", name="one_slot", D="17:40")
BUGS.add(tf32, f"{LIGHTNING}#23", "forward_matches_the_oracle", "dtype", name="tf32")
BUGS.add(
    assumed_strides, f"{FLA}#871", "any_layout_of_cotangents_is_right_or_refused", "layout", name="assumed_strides"
)
BUGS.add(
    no_barrier, "triton-lang/triton#10924", "a_barrier_stands_between_a_store_and_a_load", "access", name="no_barrier"
)
