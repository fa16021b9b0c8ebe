"""Linear attention with a decay for each token and head, and faults that released kernels of it had.

gradoracle check tests/bugs/gated_attention.py:masked_after_exp
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from jaxtyping import Float, Float32
from torch import Tensor
from torch.nn.functional import pad

import gradoracle
from gradoracle.mutation.bugs import Bugs

ROWS = 16


@gradoracle.family(
    outputs=("o", "state"),
    dims={
        "B": gradoracle.sizes(1, 2),
        "H": gradoracle.sizes(1, 3),
        "N": gradoracle.sizes(1, 100),
        "D": gradoracle.sizes(1, 24),
        "Dv": gradoracle.sizes(1, 24),
    },
    joint={"strong decay": {"a": "normal:32"}},
)
def gated(
    q: Float[Tensor, "B H N D"],
    k: Float[Tensor, "B H N D"],
    v: Float[Tensor, "B H N Dv"],
    *,
    a: Float[Tensor, "B H N"] | None = None,
) -> tuple[Float[Tensor, "B H N Dv"], Float32[Tensor, "B H D Dv"]]:
    """o_i = sum over j <= i of exp(G_i - G_j) (q_i . k_j) v_j and the state, that of exp(G_N - G_j) k_j^T v_j.

    G is the sum of -a^2 / 64 up to a token; without a it is 0.
    """
    scores = q @ k.transpose(-1, -2)
    past = torch.ones(q.shape[2], q.shape[2], dtype=torch.bool).tril()
    if a is None:
        return torch.where(past, scores, 0.0) @ v, k.transpose(-1, -2) @ v
    total = -(a.square() / 64).cumsum(-1)
    decay = torch.where(past, total[..., :, None] - total[..., None, :], -torch.inf).exp()
    left = (total[..., -1:] - total).exp()
    return (decay * scores) @ v, (left[..., None] * k).transpose(-1, -2) @ v


@triton.jit
def carry_kernel(products, last, first, states, chunks, size, OWN_HEAD: tl.constexpr, BLOCK: tl.constexpr):
    """Write states [BH chunks+1 D Dv]: S of the next chunk is exp(last) S + products, and the first is first [BH D Dv].

    last [BH chunks] is the log decay across a chunk, products [BH chunks D Dv]; D Dv is the size. A program has a head.
    """
    head = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    state = tl.load(first + head * size + at, mask=at < size, other=0.0)
    for chunk in range(chunks):
        tl.store(states + (head * (chunks + 1) + chunk) * size + at, state, mask=at < size)
        decay = tl.load(last + (head * chunks if OWN_HEAD else 0) + chunk)
        product = tl.load(products + (head * chunks + chunk) * size + at, mask=at < size, other=0.0)
        state = tl.exp(decay) * state + product
    tl.store(states + (head * (chunks + 1) + chunks) * size + at, state, mask=at < size)


@triton.jit
def values_kernel(
    scores, total, g, dv, N, DV, chunks, MASK_FIRST: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr
):
    """Write dv [BH N DV]: of the rows of their own chunk, sum over i >= j of exp(G_i - G_j) scores_ij g_i.

    scores [BH chunks ROWS ROWS], total [BH N] is G from the start of the chunk, g [BH N DV]. A program has a chunk.
    """
    own = tl.program_id(0).to(tl.int64)
    head, chunk = own // chunks, own % chunks
    r, e = tl.arange(0, ROWS), tl.arange(0, WIDTH)
    n = chunk * ROWS + r
    score = tl.load(scores + own * ROWS * ROWS + r[None, :] * ROWS + r[:, None])  # [j i]
    sums = tl.load(total + head * N + n, mask=n < N, other=0.0)
    later = sums[None, :] - sums[:, None]
    past = r[None, :] >= r[:, None]
    if MASK_FIRST:
        past = past & (n < N)[None, :]
    weight = tl.exp(tl.where(past, later, float("-inf"))) * score
    inside = (n < N)[:, None] & (e < DV)[None, :]
    of_g = tl.load(g + head * N * DV + n[:, None] * DV + e[None, :], mask=inside, other=0.0)
    found = tl.sum(weight[:, :, None] * of_g[None, :, :], 1)
    tl.store(dv + head * N * DV + n[:, None] * DV + e[None, :], found, mask=inside)


class Gated:
    """Right: chunks of 16 rows in float32, a state before each, decay masked before its exponential."""

    own_head = True
    mask_first = True

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, *, a: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """o [B H N Dv] in the dtype of q and the state [B H D Dv] in float32."""
        return _Gated.apply(self, q, k, v, a)

    def decay(self, total: Tensor) -> Tensor:
        """exp(G_i - G_j) for j <= i, else 0: [BH chunks ROWS ROWS] of G from the start of the chunk."""
        later = total[..., :, None] - total[..., None, :]
        return torch.where(_past(total), later, -torch.inf).exp()

    def last_rows(self, length: int, chunks: int) -> Tensor:
        """[chunks]: the row of each chunk that takes the gradient of the decay across it."""
        rows = torch.full((chunks,), ROWS - 1)
        rows[-1] = (length - 1) % ROWS
        return rows

    def dk(self, near: Tensor, far: Tensor, a: Tensor | None) -> Tensor:
        """Of what comes from a row's own chunk and from those after it, [BH chunks ROWS D]."""
        return near + far

    def carried(self, products: Tensor, last: Tensor, first: Tensor) -> Tensor:
        """The states before each chunk and after the last, [BH chunks+1 D Dv]."""
        heads, chunks, *shape = products.shape
        states = products.new_empty((heads, chunks + 1, *shape))
        size = shape[0] * shape[1]
        carry_kernel[(heads,)](
            products.contiguous(), last.contiguous(), first.contiguous(), states, chunks, size,
            OWN_HEAD=self.own_head, BLOCK=triton.next_power_of_2(size),
        )  # fmt: skip
        return states

    def dv_near(self, scores: Tensor, total: Tensor, g: Tensor) -> Tensor:
        """dv [BH N Dv] of the rows of each row's own chunk; g [BH N Dv]."""
        (heads, n, dv), chunks = g.shape, scores.shape[1]
        found = torch.empty_like(g)
        values_kernel[(heads * chunks,)](
            scores.contiguous(), total.flatten(1)[:, :n].contiguous(), g, found, n, dv, chunks,
            MASK_FIRST=self.mask_first, ROWS=ROWS, WIDTH=triton.next_power_of_2(dv),
        )  # fmt: skip
        return found


class _Gated(torch.autograd.Function):
    @staticmethod
    def forward(ctx, own, q, k, v, a):
        _check(q, k, v, a)
        qc, kc, vc = (_chunks(x) for x in (q, k, v))
        total, last = _totals(a, qc)
        products = (kc * (last[..., None] - total).exp()[..., None]).mT @ vc
        first = products.new_zeros((qc.shape[0], q.shape[3], v.shape[3]))
        states = own.carried(products, last, first)
        o = (own.decay(total) * (qc @ kc.mT)) @ vc + (qc * total.exp()[..., None]) @ states[:, :-1]
        ctx.save_for_backward(q, k, v, a, states)
        ctx.own = own
        return _rows(o, q), states[:, -1].unflatten(0, q.shape[:2]).clone()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, g, g_state):
        own, (q, k, v, a, states) = ctx.own, ctx.saved_tensors
        qc, kc, vc, gc = (_chunks(x) for x in (q, k, v, g))
        n, chunks = q.shape[2], qc.shape[1]
        total, last = _totals(a, qc)
        left = (last[..., None] - total).exp()[..., None]
        products = (qc * total.exp()[..., None]).mT @ gc
        ends = own.carried(products.flip(1), last.flip(1), g_state.flatten(0, 1))
        after = ends[:, :-1].flip(1)
        decay, scores = own.decay(total), qc @ kc.mT
        d_scores = decay * (gc @ vc.mT)
        far_q, far_k = total.exp()[..., None] * (gc @ states[:, :-1].mT), left * (vc @ after.mT)
        dq = _rows(d_scores @ kc + far_q, q)
        dk = _rows(own.dk(d_scores.mT @ qc, far_k, a), k)
        near = own.dv_near(scores, total, gc.flatten(1, 2)[:, :n].contiguous())
        dv = _rows(_chunks(near.unflatten(0, q.shape[:2])) + left * (kc @ after), v)
        if a is None:
            return None, dq, dk, dv, None
        weights = d_scores * scores
        of_rows = weights.sum(-1) - weights.sum(-2) + (qc * far_q).sum(-1) - (kc * far_k).sum(-1)
        of_last = (states[:, 1:] * after).sum((-1, -2))  # [BH chunks]
        of_rows[:, torch.arange(chunks), own.last_rows(n, chunks)] += of_last
        stored = of_rows.flatten(1)[:, :n].unflatten(0, q.shape[:2])[..., None]
        dg = _chunks(stored)[..., 0].flip(-1).cumsum(-1).flip(-1).flatten(1)[:, :n]
        da = a.float() / -32 * dg.view(a.shape)
        return None, dq, dk, dv, da.to(a.dtype)


def _check(q: Tensor, k: Tensor, v: Tensor, a: Tensor | None) -> None:
    for name, x in {"q": q, "k": k, "v": v, "a": q if a is None else a}.items():
        if x.dtype not in (torch.float32, torch.bfloat16, torch.float16) or x.dtype != q.dtype:
            raise ValueError(f"{name} is of {x.dtype}; expected float32, bfloat16 or float16, and one for all")
        if x.shape[:3] != q.shape[:3] or x.device.type == "meta":
            raise ValueError(f"{name} is {tuple(x.shape)} on {x.device}; expected [B H N] as q, and not meta")
    if q.dim() != 4 or v.dim() != 4 or k.shape != q.shape:
        raise ValueError(
            f"q, k and v are of {q.shape}, {k.shape} and {v.shape}; expected two [B H N D] and a [B H N Dv]"
        )


def _past(total: Tensor) -> Tensor:
    return torch.ones(ROWS, ROWS, dtype=torch.bool, device=total.device).tril()


def _chunks(x: Tensor) -> Tensor:
    """[BH chunks ROWS .] float32 of [B H N .], the last chunk filled up with zeros."""
    return pad(x.float(), (0, 0, 0, -x.shape[2] % ROWS)).flatten(0, 1).unflatten(1, (-1, ROWS))


def _rows(x: Tensor, like: Tensor) -> Tensor:
    """[B H N .] of [BH chunks ROWS .], in the dtype of ``like``."""
    return x.flatten(1, 2)[:, : like.shape[2]].unflatten(0, like.shape[:2]).to(like.dtype).contiguous()


def _totals(a: Tensor | None, qc: Tensor) -> tuple[Tensor, Tensor]:
    """G from the start of each chunk [BH chunks ROWS], and across it [BH chunks]."""
    total = qc.new_zeros(qc.shape[:3]) if a is None else -_chunks(a[..., None])[..., 0].square().div(64).cumsum(-1)
    return total, total[..., -1]


class MaskedAfterExp(Gated):
    """flash-linear-attention: exp(g_i - g_j) was taken of all pairs and multiplied by the mask.

    Where j > i and the decay is strong that is inf times 0.
    """

    def decay(self, total: Tensor) -> Tensor:
        return (total[..., :, None] - total[..., None, :]).exp() * _past(total)


class PaddedRowsInExp(Gated):
    """mamba: the rows of a chunk past the end of the sequence, which load 0, were not masked before the exponential.

    exp(0 - G_j) is inf where the decay is strong, and inf times their scores of 0 is NaN; full chunks show nothing.
    """

    mask_first = False


class DecayOfHead0(Gated):
    """flash-linear-attention: the address of the decay across a chunk lacked the head's offset; all read head 0."""

    own_head = False


class LastRowOfAFullChunk(Gated):
    """flash-linear-attention: the gradient of the decay across a chunk was added at row BT - 1.

    In a partial chunk that row is past the end, and what is stored there nobody reads.
    """

    def last_rows(self, length: int, chunks: int) -> Tensor:
        return torch.full((chunks,), ROWS - 1)


class NoBranchWithoutDecay(Gated):
    """flash-linear-attention: dk was computed in the branch with a decay alone; without one it was as allocated."""

    def dk(self, near: Tensor, far: Tensor, a: Tensor | None) -> Tensor:
        return torch.empty_like(near) if a is None else near + far


right = gradoracle.kernel(gated, name="right")(Gated())
masked_after_exp = gradoracle.kernel(gated, name="masked_after_exp")(MaskedAfterExp())
padded_rows_in_exp = gradoracle.kernel(gated, name="padded_rows_in_exp")(PaddedRowsInExp())
decay_of_head_0 = gradoracle.kernel(gated, name="decay_of_head_0")(DecayOfHead0())
last_row_of_a_full_chunk = gradoracle.kernel(gated, name="last_row_of_a_full_chunk")(LastRowOfAFullChunk())
no_branch_without_decay = gradoracle.kernel(gated, name="no_branch_without_decay")(NoBranchWithoutDecay())

FLA = "fla-org/flash-linear-attention"

BUGS = Bugs(right)
BUGS.add(masked_after_exp, f"{FLA}@737550ff", "finite_where_the_truth_is_finite", "range")
BUGS.add(padded_rows_in_exp, "state-spaces/mamba@bb3a82a", "finite_where_the_truth_is_finite", "range")
BUGS.add(decay_of_head_0, f"{FLA}#781", "batch_and_head_permutation_equivariance", "slice", H="2:3", N="17:100")
BUGS.add(last_row_of_a_full_chunk, f"{FLA}#1143", "vjp_matches_the_oracle", "tail")
BUGS.add(no_branch_without_decay, f"{FLA}#863", "no_memory_is_left_unwritten", "stale")
