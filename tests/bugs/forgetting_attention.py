"""Attention that forgets, by a decay for each token, and faults that a released one had in its backward.

gradoracle check tests/bugs/forgetting_attention.py:prefix_added
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import pad

import gradoracle
from gradoracle.model.kernel import Kernel
from gradoracle.mutation.bugs import Bugs

ROWS = 16


@gradoracle.family(
    outputs=("o",),
    dims={
        "B": gradoracle.sizes(1, 2),
        "H": gradoracle.sizes(1, 2),
        "T": gradoracle.sizes(1, 50),
        "D": gradoracle.sizes(1, 16),
        "Dv": gradoracle.sizes(1, 16),
    },
)
def forgetting(
    q: Float[Tensor, "B H T D"],
    k: Float[Tensor, "B H T D"],
    v: Float[Tensor, "B H T Dv"],
    f: Float[Tensor, "B H T"],
) -> Float[Tensor, "B H T Dv"]:
    """softmax(q_i . k_j + F_i - F_j) v over j <= i, where F is the sum of -f^2 / 64 up to a token."""
    total = -(f.square() / 64).cumsum(-1)
    s = q @ k.transpose(-1, -2) + total[..., :, None] - total[..., None, :]
    past = torch.ones(q.shape[2], q.shape[2], dtype=torch.bool).tril()
    return torch.softmax(torch.where(past, s, -torch.inf), -1) @ v


@triton.jit
def dq_kernel(ds, k, dq, T, D, MASK_ROWS: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr):
    """Add ds [BH T T] @ k [BH T D] to dq [BH T D] float32. A program has a head, a block of queries and one of keys."""
    head = tl.program_id(0).to(tl.int64)
    i, j = tl.program_id(1) * ROWS + tl.arange(0, ROWS), tl.program_id(2) * ROWS + tl.arange(0, ROWS)
    d = tl.arange(0, WIDTH)
    of_ds = (i < T)[:, None] & (j < T)[None, :]
    weight = tl.load(ds + head * T * T + i[:, None] * T + j[None, :], mask=of_ds, other=0.0)
    key = tl.load(k + head * T * D + j[:, None] * D + d[None, :], mask=(j < T)[:, None] & (d < D)[None, :], other=0.0)
    inside = (d < D)[None, :] & ((i < T)[:, None] if MASK_ROWS else (i >= 0)[:, None])
    found = tl.dot(weight, key, input_precision="ieee")
    tl.atomic_add(dq + head * T * D + i[:, None] * D + d[None, :], found, mask=inside)


class Forgetting:
    """Right: float32; dq by atomic sums over blocks of keys, dk and dv from probabilities made again."""

    mask_rows = True

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, f: Tensor) -> Tensor:
        """o [B H T Dv] in the dtype of q."""
        for name, x in {"q": q, "k": k, "v": v, "f": f}.items():
            if x.dtype not in (torch.float32, torch.bfloat16, torch.float16) or x.dtype != q.dtype or x.is_meta:
                raise ValueError(
                    f"{name} is of {x.dtype} on {x.device}; expected one of float32 and 16 bit for all, not meta"
                )
        if q.dim() != 4 or q.shape != k.shape or v.shape[:3] != q.shape[:3] or f.shape != q.shape[:3]:
            raise ValueError(
                f"got {q.shape}, {k.shape}, {v.shape}, {f.shape}; expected [B H T D] twice, [B H T .], [B H T]"
            )
        return _Forgetting.apply(self, q, k, v, f)

    def of_keys(self, before: Tensor, within: Tensor) -> Tensor:
        """What scores are added of a key's decay, from the sums before its block and within it, both [BH T]."""
        return -(within + before)


class _Forgetting(torch.autograd.Function):
    @staticmethod
    def forward(ctx, own, q, k, v, f):
        s, total = _scores(q, k, f)
        p = torch.softmax(s + total[:, :, None] - total[:, None, :], -1)
        ctx.save_for_backward(q, k, v, f)
        ctx.own = own
        return (p @ v.flatten(0, 1).float()).to(q.dtype).unflatten(0, q.shape[:2])

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, g):
        own, (q, k, v, f) = ctx.own, ctx.saved_tensors
        s, total = _scores(q, k, f)
        right = s + total[:, :, None] - total[:, None, :]
        top = right.amax(-1, keepdim=True)  # m and l apart: their logarithm has the error of a score
        l = (right - top).exp().sum(-1, keepdim=True)
        p = (right - top).exp() / l
        g, values, queries, keys = (x.flatten(0, 1).float().contiguous() for x in (g, v, q, k))
        dp = g @ values.mT
        z = (p * dp).sum(-1, keepdim=True)
        ds = p * (dp - z)
        dq = torch.zeros_like(queries)
        blocks, width = triton.cdiv(q.shape[2], ROWS), max(16, triton.next_power_of_2(q.shape[3]))
        dq_kernel[(len(ds), blocks, blocks)](
            ds, keys, dq, *queries.shape[1:], MASK_ROWS=own.mask_rows, ROWS=ROWS, WIDTH=width
        )
        again = (s + total[:, :, None] + own.of_keys(*_parts(total))[:, None, :] - top).exp() / l
        of_keys = again * (dp - z)
        dk, dv = of_keys.mT @ queries, again.mT @ g
        moved = (ds.sum(-1) - ds.sum(-2)).flip(-1).cumsum(-1).flip(-1)  # the gradient of a step of F
        df = (f.float() / -32 * moved.view(f.shape)).to(f.dtype)
        return None, *(x.view(q.shape[:2] + x.shape[1:]).to(q.dtype) for x in (dq, dk, dv)), df


def _scores(q: Tensor, k: Tensor, f: Tensor) -> tuple[Tensor, Tensor]:
    """q k^T [BH T T], -inf where j > i, and F [BH T], float32."""
    q, k, f = (x.flatten(0, 1).float() for x in (q, k, f))
    past = torch.ones(q.shape[1], q.shape[1], dtype=torch.bool).tril()
    return (q @ k.mT).masked_fill(~past, -torch.inf), -(f.square() / 64).cumsum(-1)


def _parts(total: Tensor) -> tuple[Tensor, Tensor]:
    """F at the end of the block before a token's, and what its own block adds up to it, both [BH T]."""
    blocks = pad(total, (0, -total.shape[1] % ROWS)).unflatten(1, (-1, ROWS))
    before = pad(blocks[:, :-1, -1], (1, 0)).repeat_interleave(ROWS, 1)[:, : total.shape[1]]
    return before, total - before


class PrefixAdded(Forgetting):
    """flash-linear-attention: the kernel of dk and dv added the decay before a block of keys, to be subtracted.

    Forward and the kernel of dq grouped the two parts of the decay rightly.
    """

    def of_keys(self, before: Tensor, within: Tensor) -> Tensor:
        return before - within


class AtomicAddWithoutTail(Forgetting):
    """flash-linear-attention: an atomic_add had no mask for the rows of the last block past the sequence."""

    mask_rows = False


def _declared(own: Forgetting, name: str) -> Kernel:
    return gradoracle.kernel(forgetting, name=name)(own)


right = _declared(Forgetting(), "right")
prefix_added = _declared(PrefixAdded(), "prefix_added")
atomic_add_without_tail = _declared(AtomicAddWithoutTail(), "atomic_add_without_tail")

FLA = "fla-org/flash-linear-attention"

BUGS = Bugs(right)
BUGS.add(prefix_added, f"{FLA}@7362d874", "vjp_matches_the_oracle", "sign", T="17:50")
BUGS.add(atomic_add_without_tail, f"{FLA}@a9dac8b1", "every_access_stays_inside_its_tensor", "tail")
