"""Linear attention of packed sequences, and a fault that a released one had in the partial sums of its backward.

gradoracle check tests/bugs/packed_linear.py:planes_of_one_length
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from jaxtyping import Float, Int
from torch import Tensor

import gradoracle
from gradoracle.mutation.bugs import Bugs

BLOCK = 16


@gradoracle.family(
    outputs=("o",),
    dims={
        "T": gradoracle.sizes(1, 40),
        "S": gradoracle.sizes(1, 4),
        "D": gradoracle.sizes(1, 16),
        "Dv": gradoracle.sizes(1, 40),
    },
    domains={"offsets": gradoracle.IndexDomain("T", kind="cu_seqlens")},
)
def packed(
    q: Float[Tensor, "T D"], k: Float[Tensor, "T D"], v: Float[Tensor, "T Dv"], offsets: Int[Tensor, "S+1"]
) -> Float[Tensor, "T Dv"]:
    """o_i = sum of (q_i . k_j) v_j over j <= i of the same sequence."""
    return (q @ k.transpose(0, 1) * _seen(offsets, q.shape[0])) @ v


def _seen(offsets: Tensor, rows: int) -> Tensor:
    """[T T]: 1 where j <= i and both are of one sequence, else 0."""
    entry = (offsets[None, 1:-1] <= torch.arange(rows)[:, None]).sum(-1)
    return ((entry[:, None] == entry[None, :]) & torch.ones(rows, rows, dtype=torch.bool).tril()).float()


@triton.jit
def dq_kernel(
    k, v, g, offsets, parts, T, D, DV,
    OWN_PLANE: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Write parts [NV T D] float32, whose sum is dq: by blocks of DV. A program has a sequence and a block."""
    part = tl.program_id(1)
    first = tl.load(offsets + tl.program_id(0))
    length = tl.load(offsets + tl.program_id(0) + 1) - first
    r, d, e = tl.arange(0, ROWS), tl.arange(0, WIDTH), part * BLOCK + tl.arange(0, BLOCK)
    rows, n = r < length, first + r
    of_v, of_k = rows[:, None] & (e < DV)[None, :], rows[:, None] & (d < D)[None, :]
    value = tl.load(v + n[:, None] * DV + e[None, :], mask=of_v, other=0.0)
    cotangent = tl.load(g + n[:, None] * DV + e[None, :], mask=of_v, other=0.0)
    key = tl.load(k + n[:, None] * D + d[None, :], mask=of_k, other=0.0)
    weights = tl.where(r[:, None] >= r[None, :], tl.dot(cotangent, tl.trans(value), input_precision="ieee"), 0.0)
    plane = part * (T if OWN_PLANE else length) * D
    tl.store(parts + plane + n[:, None] * D + d[None, :], tl.dot(weights, key, input_precision="ieee"), mask=of_k)


class _Packed(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, offsets, own_plane):
        if not (q.dtype == k.dtype == v.dtype) or q.dtype not in (torch.float32, torch.bfloat16, torch.float16):
            raise ValueError(f"q, k and v are of {q.dtype}, {k.dtype}, {v.dtype}; expected one of float32 and 16 bit")
        if q.dim() != 2 or k.shape != q.shape or v.shape[:1] != q.shape[:1] or q.is_meta:
            raise ValueError(
                f"q, k and v are {q.shape}, {k.shape}, {v.shape}; expected [T D] twice and [T Dv], not meta"
            )
        ctx.save_for_backward(q, k, v, offsets)
        ctx.own_plane = own_plane
        return ((q.float() @ k.float().mT * _seen(offsets, q.shape[0])) @ v.float()).to(q.dtype)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, g):
        *tensors, offsets = ctx.saved_tensors
        dtype, (q, k, v, g) = g.dtype, (x.float().contiguous() for x in (*tensors, g))
        (rows, d), dv, seen = q.shape, v.shape[1], _seen(offsets, q.shape[0])
        bounds = torch.cat([offsets.new_zeros(1), offsets[1:-1], offsets.new_full((1,), rows)])  # whatever a layout did
        parts = torch.empty((triton.cdiv(dv, BLOCK), rows, d), device=q.device)
        dq_kernel[(offsets.shape[0] - 1, parts.shape[0])](
            k, v, g, bounds, parts, rows, d, dv, OWN_PLANE=ctx.own_plane,
            ROWS=max(16, triton.next_power_of_2(rows)), WIDTH=max(16, triton.next_power_of_2(d)), BLOCK=BLOCK,
        )  # fmt: skip
        dk, dv = (g @ v.mT * seen).mT @ q, (q @ k.mT * seen).mT @ g
        return *(x.to(dtype) for x in (parts.sum(0), dk, dv)), None, None


@gradoracle.kernel(packed)
def right(q, k, v, offsets):
    """Each block of values has a plane of T rows."""
    return _Packed.apply(q, k, v, offsets, True)


BUGS = Bugs(right)


@BUGS.of("fla-org/flash-linear-attention@cf3aff73", "programs_of_a_launch_do_not_race", "access", S="2:4", Dv="17:40")
@gradoracle.kernel(packed)
def planes_of_one_length(q, k, v, offsets):
    """fla-org/flash-linear-attention: T became the length of a sequence before planes of partial sums were found.

    The partial sums of the second block of values then went to rows of other sequences.
    """
    return _Packed.apply(q, k, v, offsets, False)
