"""Faults of a released semi-CRF in Triton whose last K positions are a ring in global memory, each a constexpr flag.

gradoracle check tests/bugs/semicrf_ring.py:no_barriers
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from gradoracle.properties.semicrf import FAMILY
from torch import Tensor
from torch.nn.functional import pad

import gradoracle
from gradoracle.model.kernel import Kernel
from gradoracle.mutation.bugs import Bugs

TILE = 2


@triton.jit
def log_sum(x, SLOTS: tl.constexpr, INNER: tl.constexpr, OUTER: tl.constexpr):
    """[OUTER]: the logarithm of the sum of exp(x) over the first two axes of x [SLOTS INNER OUTER]; -inf has none."""
    x = tl.reshape(x, (SLOTS * INNER, OUTER))
    top = tl.max(x, 0)
    top = tl.where(top == float("-inf"), 0.0, top)
    return tl.log(tl.sum(tl.exp(x - top[None, :]), 0)) + top


@triton.jit
def alpha_kernel(
    scores, tables, ring, alpha, T, K, C,
    SLOTS: tl.constexpr, LABELS: tl.constexpr, BARRIERS: tl.constexpr, MASK_LABELS: tl.constexpr,
):  # fmt: skip
    """Write alpha [B T+1 C] float64 of scores [B T K C] and tables [K C C]; ring [B K C]. A program has a sequence."""
    batch = tl.program_id(0).to(tl.int64)
    k, c = tl.arange(0, SLOTS), tl.arange(0, LABELS)
    known = c < C
    lanes = known if MASK_LABELS else c >= 0
    pairs = (k < K)[:, None, None] & lanes[None, :, None] & lanes[None, None, :]
    table = tl.load(tables + (k[:, None, None] * C + c[None, :, None]) * C + c[None, None, :], mask=pairs, other=0.0)
    ring += batch * K * C
    alpha += batch * (T + 1) * C
    tl.store(alpha + c, tl.zeros([LABELS], tl.float64), mask=known)
    tl.store(ring + c, tl.zeros([LABELS], tl.float64), mask=known)
    if BARRIERS:
        tl.debug_barrier()
    for t in range(1, T + 1):
        begin = t - 1 - k
        there = ((k < K) & (begin >= 0))[:, None]
        sent = tl.load(ring + (begin % K)[:, None] * C + c[None, :], mask=there & lanes[None, :], other=0.0)
        sent = tl.where(there & known[None, :], sent, float("-inf"))  # [SLOTS LABELS]
        score = tl.load(
            scores + ((batch * T + begin) * K + k)[:, None] * C + c[None, :],
            mask=there & known[None, :],
            other=float("-inf"),
        )
        found = log_sum(sent[:, :, None] + table + score[:, None, :], SLOTS, LABELS, LABELS)
        if BARRIERS:
            tl.debug_barrier()
        tl.store(ring + (t % K) * C + c, found, mask=known)
        tl.store(alpha + t * C + c, found, mask=known)
        if BARRIERS:
            tl.debug_barrier()


@triton.jit
def beta_kernel(
    scores, tables, lengths, beta, T, K, C,
    SLOTS: tl.constexpr, LABELS: tl.constexpr, TILE: tl.constexpr, BARRIER: tl.constexpr,
):  # fmt: skip
    """Write beta [B T+1 C] float64, tile after tile of labels; a position reads all labels of those after it."""
    batch = tl.program_id(0).to(tl.int64)
    length = tl.load(lengths + batch)
    k, c = tl.arange(0, SLOTS), tl.arange(0, LABELS)
    beta += batch * (T + 1) * C
    for back in range(0, T + 1):
        t = T - back
        end = t + 1 + k
        there = ((k < K) & (end <= T))[:, None] & (c < C)[None, :]
        ahead = tl.load(beta + end[:, None] * C + c[None, :], mask=there, other=float("-inf"))  # [SLOTS LABELS]
        score = tl.load(scores + ((batch * T + t) * K + k)[:, None] * C + c[None, :], mask=there, other=float("-inf"))
        for first in range(0, C, TILE):
            own = first + tl.arange(0, TILE)
            pairs = (k < K)[:, None, None] & (c < C)[None, :, None] & (own < C)[None, None, :]
            table = tl.load(
                tables + (k[:, None, None] * C + own[None, None, :]) * C + c[None, :, None], mask=pairs, other=0.0
            )
            found = log_sum((ahead + score)[:, :, None] + table, SLOTS, LABELS, TILE)
            found = tl.where(t == length, 0.0, found)
            tl.store(beta + t * C + own, found, mask=own < C)
        if BARRIER:
            tl.debug_barrier()


class Ring:
    """Right: float64, a barrier wherever what was stored is loaded or what was loaded is overwritten."""

    barriers = True
    beta_barrier = True
    mask_labels = True

    def __call__(self, cum_scores, transition, duration_bias, lengths, *, proj_start=None, proj_end=None) -> Tensor:
        """log Z [B] float32."""
        cum, durations = cum_scores.double(), duration_bias.shape[0]
        positions = cum.shape[1] - 1
        if cum.dim() != 3 or cum.device.type == "meta" or durations < 1:
            raise ValueError(f"cum_scores is {tuple(cum.shape)} on {cum.device}; expected [B T+1 C], and not meta")
        begin = torch.arange(positions)[:, None]
        ends = begin + torch.arange(1, durations + 1)  # [T K]
        inside = ends.clamp_max(positions)
        scores = cum[:, inside] - cum[:, :-1, None] + duration_bias.double()
        if proj_start is not None:
            scores = scores + proj_start.double()[:, :, None]
        if proj_end is not None:
            scores = scores + proj_end.double()[:, inside - 1]
        scores = torch.where((ends <= lengths[:, None, None])[..., None], scores, -torch.inf)
        tables = transition.double().expand(durations, *transition.shape[-2:])
        return _LogZ.apply(self, scores, tables, lengths.long().contiguous()).float()


class _LogZ(torch.autograd.Function):
    """log Z [B] float64 of scores [B T K C], tables [K C C] and lengths."""

    @staticmethod
    def forward(ctx, own, scores, tables, lengths):
        scores, tables = scores.contiguous(), tables.contiguous()
        batch, positions, durations, labels = scores.shape
        if tables.shape != (durations, labels, labels):
            raise ValueError(f"the transition by duration is {tuple(tables.shape)}; expected [K C C]")
        ring, alpha = scores.new_empty(batch, durations, labels), scores.new_empty(batch, positions + 1, labels)
        alpha_kernel[(batch,)](
            scores, tables, ring, alpha, positions, durations, labels, **_padded(durations, labels),
            BARRIERS=own.barriers, MASK_LABELS=own.mask_labels,
        )  # fmt: skip
        log_z = torch.logsumexp(alpha[torch.arange(batch), lengths], -1)
        ctx.save_for_backward(scores, tables, lengths, alpha, log_z)
        ctx.own = own
        return log_z

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, g):
        own, (scores, tables, lengths, alpha, log_z) = ctx.own, ctx.saved_tensors
        batch, positions, durations, labels = scores.shape
        beta = torch.empty_like(alpha)
        beta_kernel[(batch,)](
            scores, tables, lengths, beta, positions, durations, labels, **_padded(durations, labels),
            TILE=TILE, BARRIER=own.beta_barrier,
        )  # fmt: skip
        ahead = pad(beta, (0, 0, 0, durations), value=-torch.inf).unfold(1, durations, 1)[:, 1 : positions + 1]
        ahead = ahead.transpose(2, 3)  # [B T K C]
        weights = alpha[:, :-1, None, :, None] + tables + (scores + ahead)[:, :, :, None]
        p = (weights - log_z[:, None, None, None, None]).exp() * g[:, None, None, None, None]
        p = torch.where(log_z[:, None, None, None, None] == -torch.inf, 0.0, p)
        return None, p.sum(3), p.sum((0, 1)), None


def _padded(durations: int, labels: int) -> dict[str, int]:
    return {"SLOTS": max(2, triton.next_power_of_2(durations)), "LABELS": max(2, triton.next_power_of_2(labels))}


class NoBarriers(Ring):
    """flash-semicrf: three barriers around the ring and alpha were missing, and with 32 labels log Z was wrong."""

    barriers = False


class NoBarrierAfterBeta(Ring):
    """flash-semicrf: beta, stored tile by tile, was read by the next step with no barrier between.

    With more labels than a tile has, gradients differed by 36 to 350 percent from run to run.
    """

    beta_barrier = False


class UnmaskedLanes(Ring):
    """flash-semicrf: lanes of labels past C, whose values are masked afterwards, made addresses past the tensors."""

    mask_labels = False


def _declared(own: Ring, name: str) -> Kernel:
    dims = {"T": gradoracle.sizes(1, 16), "K": gradoracle.sizes(1, 6), "C": gradoracle.sizes(1, 6)}
    return gradoracle.kernel(FAMILY, name=name, dims=dims, dtypes=FAMILY.dtypes)(own)


right = _declared(Ring(), "right")
no_barriers = _declared(NoBarriers(), "no_barriers")
no_barrier_after_beta = _declared(NoBarrierAfterBeta(), "no_barrier_after_beta")
unmasked_lanes = _declared(UnmaskedLanes(), "unmasked_lanes")

CRF = "biobenkj/flash-semicrf"

BUGS = Bugs(right, "semicrf")
BUGS.add(no_barriers, f"{CRF}@a059ee7", "a_barrier_stands_between_a_store_and_a_load", "access")
BUGS.add(no_barrier_after_beta, f"{CRF}@1a6252e", "a_barrier_stands_between_a_store_and_a_load", "access", C="3:6")
BUGS.add(unmasked_lanes, f"{CRF}@e45c7f1", "every_access_stays_inside_its_tensor", "access", C="3")
