"""Faults of a released semi-CRF, each one line of a correct forward-backward in PyTorch.

gradoracle check tests/bugs/semicrf_recursion.py:last_segment_missing
"""

from __future__ import annotations

import torch
from gradoracle.properties.semicrf import FAMILY
from torch import Tensor

import gradoracle
from gradoracle.model.contract import Contract
from gradoracle.model.kernel import Kernel
from gradoracle.mutation.bugs import Bugs

FLOAT64_INSIDE = {
    dtype: Contract(
        f"float64 inside {dtype}", dtype, operand="float64", accumulate="float64", elementwise="float64", output=dtype,
        residuals="float64", constants="float64", flush_to_zero=False,
    )
    for dtype in ("float32", "bfloat16", "float16")
}  # fmt: skip


class Recursion:
    """Right: alpha and beta in the log domain and in float64, results rounded once."""

    alpha_dtype = torch.float64

    def __call__(self, cum_scores, transition, duration_bias, lengths, *, proj_start=None, proj_end=None) -> Tensor:
        """log Z [B] float32."""
        return _Recursion.apply(self, cum_scores, transition, duration_bias, lengths, proj_start, proj_end)

    def tables(self, transition: Tensor, durations: int) -> Tensor:
        """The transition by duration less 1, [K C C]."""
        return transition.double().expand(durations, *transition.shape[-2:])

    def of_tables(self, gradient: Tensor) -> Tensor:
        """The gradient of a transition [K C C] from that of the tables."""
        return gradient

    def ends(self, lengths: Tensor) -> Tensor:
        """[B]: where the last segment ends."""
        return lengths

    def slots(self, durations: int) -> int:
        """How many positions of beta are held; beta of t is stored before the segments from t are read."""
        return durations + 1

    def log_scale(self, of_alpha: Tensor, of_beta: Tensor, log_z: Tensor, t: int) -> Tensor:
        """[B K]: log norms of alpha [B T+1] at t, of beta [B K] behind each duration, less log Z."""
        return of_alpha[:, t, None] + of_beta - log_z[:, None]

    def own_channels(self, buffer: Tensor, labels: int) -> Tensor:
        """Where gradients [B T C] are added up in a buffer [B T C_PAD]."""
        return buffer[..., :labels]


class _Recursion(torch.autograd.Function):
    @staticmethod
    def forward(ctx, own, cum, transition, duration, lengths, start, end):
        lengths = lengths.long()
        scores, tables = _segments(cum, duration, lengths, start, end), own.tables(transition, duration.shape[0])
        batch, positions, durations, labels = scores.shape
        alpha = scores.new_full((batch, positions + 1, labels), -torch.inf)
        alpha[:, 0] = 0.0
        for t in range(1, positions + 1):
            k = torch.arange(1, min(durations, t) + 1)
            sent = alpha[:, t - k, :, None] + tables[k - 1] + scores[:, t - k, k - 1, None]  # [B k C C]
            alpha[:, t] = torch.logsumexp(sent, (1, 2))
        rows = torch.arange(batch)
        log_z = torch.logsumexp(alpha[rows, own.ends(lengths)], -1)
        ctx.save_for_backward(cum, transition, duration, lengths, start, end, alpha.to(own.alpha_dtype), log_z)
        ctx.own = own
        return log_z.float()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, g):
        own, (cum, transition, duration, lengths, start, end, alpha, log_z) = ctx.own, ctx.saved_tensors
        scores, tables = _segments(cum, duration, lengths, start, end), own.tables(transition, duration.shape[0])
        batch, positions, durations, labels = scores.shape
        ends, slots = own.ends(lengths)[:, None], own.slots(durations)
        alpha, norms = _normalised(alpha.double())
        ring = scores.new_full((batch, slots, labels), -torch.inf)
        ring[:, positions % slots] = torch.where(ends == positions, 0.0, -torch.inf)
        dcum, dtables = scores.new_zeros(cum.shape), torch.zeros_like(tables)
        padded = 1 << (labels - 1).bit_length()
        buffers = [scores.new_zeros(batch, positions, padded) for _ in range(2)]
        dstart, dend = (own.own_channels(buffer, labels) for buffer in buffers)
        for t in reversed(range(positions)):
            k = torch.arange(1, min(durations, positions - t) + 1)
            edges = scores[:, t, k - 1, None] + tables[k - 1]  # [B k C C]
            behind = (edges + ring[:, (t + k) % slots, None]).transpose(1, 2).flatten(2)
            ring[:, t % slots] = torch.where(ends == t, 0.0, torch.logsumexp(behind, 2))
            beta, norm = _normalised(ring[:, (t + k) % slots])
            scale = own.log_scale(norms, norm, log_z, t)
            p = (alpha[:, t, None, :, None] + edges + beta[:, :, None] + scale[..., None, None]).exp()
            p = torch.where(log_z[:, None, None, None] == -torch.inf, 0.0, p * g.double()[:, None, None, None])
            segments = p.sum(2)  # [B k C]
            dcum[:, t + k] += segments
            dcum[:, t] -= segments.sum(1)
            dtables[k - 1] += p.sum(0)
            dstart[:, t] += segments.sum(1)
            dend[:, t + k - 1] += segments
        ddur = dtables.sum(1)
        dtransition = dtables.sum(0) if transition.dim() == 2 else own.of_tables(dtables)
        found = zip((cum, transition, duration), (dcum, dtransition, ddur), strict=True)
        projections = zip((start, end), buffers, strict=True)
        return (
            None,
            *(gradient.to(x.dtype) for x, gradient in found),
            None,
            *(None if x is None else buffer[..., :labels].to(x.dtype) for x, buffer in projections),
        )


def _segments(cum: Tensor, duration: Tensor, lengths: Tensor, start: Tensor | None, end: Tensor | None) -> Tensor:
    """[B T K C] float64: scores of segments by begin, duration less 1 and label but for the transition.

    -inf where a segment would end past the length.
    """
    cum, duration = cum.double(), duration.double()
    positions, durations = cum.shape[1] - 1, duration.shape[0]
    begin = torch.arange(positions)[:, None]
    ends = begin + torch.arange(1, durations + 1)  # [T K]
    inside = ends.clamp_max(positions)
    score = cum[:, inside] - cum[:, :-1, None] + duration
    if start is not None:
        score = score + start.double()[:, :, None]
    if end is not None:
        score = score + end.double()[:, inside - 1]
    return torch.where((ends <= lengths[:, None, None])[..., None], score, -torch.inf)


def _normalised(x: Tensor) -> tuple[Tensor, Tensor]:
    """x [... C] less its largest entry, and that; 0 where all is -inf."""
    top = x.amax(-1)
    top = torch.where(top == -torch.inf, 0.0, top)
    return x - top[..., None], top


class NextTransition(Recursion):
    """flash-semicrf: the transition of a segment of duration k was read at k where its table begins with duration 1."""

    def tables(self, transition: Tensor, durations: int) -> Tensor:
        tables = super().tables(transition, durations)
        return tables[torch.arange(1, durations + 1).clamp_max(durations - 1)]

    def of_tables(self, gradient: Tensor) -> Tensor:
        read = torch.arange(1, len(gradient) + 1).clamp_max(len(gradient) - 1)
        return torch.zeros_like(gradient).index_add_(0, read, gradient)


class LastSegmentMissing(Recursion):
    """flash-semicrf: sequences ended at position length - 1, so that the last segment was left out."""

    def ends(self, lengths: Tensor) -> Tensor:
        return (lengths - 1).clamp_min(0)


class RingOfKSlots(Recursion):
    """flash-semicrf: beta was held in K slots; that of t went to where that of t + K stood.

    The segments from t of the longest duration then read beta of their own begin.
    """

    def slots(self, durations: int) -> int:
        return durations


class ClampedScale(Recursion):
    """flash-semicrf: log norms were added up and clamped to at most 0, which hides one of another position.

    With the norm of the checkpoint before, probabilities are wrong and look like probabilities.
    """

    def log_scale(self, of_alpha: Tensor, of_beta: Tensor, log_z: Tensor, t: int) -> Tensor:
        return super().log_scale(of_alpha, of_beta, log_z, max(t - 1, 0)).clamp(max=0.0)


class StridesOfTheInput(Recursion):
    """flash-semicrf: gradients of projections went into a buffer padded to C_PAD labels, addressed by strides for C."""

    def own_channels(self, buffer: Tensor, labels: int) -> Tensor:
        return buffer.as_strided((*buffer.shape[:2], labels), (buffer.shape[1] * labels, labels, 1))


class AlphaInFloat32(Recursion):
    """flash-semicrf: checkpoints were float64, and the workspace into which backward recomputed alpha float32."""

    alpha_dtype = torch.float32


def _declared(own: Recursion, name: str) -> Kernel:
    dims = {"T": gradoracle.sizes(1, 100)}
    return gradoracle.kernel(FAMILY, name=name, dims=dims, contracts=FLOAT64_INSIDE, dtypes=tuple(FLOAT64_INSIDE))(own)


right = _declared(Recursion(), "right")
next_transition = _declared(NextTransition(), "next_transition")
last_segment_missing = _declared(LastSegmentMissing(), "last_segment_missing")
ring_of_k_slots = _declared(RingOfKSlots(), "ring_of_k_slots")
clamped_scale = _declared(ClampedScale(), "clamped_scale")
strides_of_the_input = _declared(StridesOfTheInput(), "strides_of_the_input")
alpha_in_float32 = _declared(AlphaInFloat32(), "alpha_in_float32")

CRF = "biobenkj/flash-semicrf"

BUGS = Bugs(right, "semicrf")
BUGS.add(next_transition, f"{CRF}@09e86ed", "a_score_by_duration_may_stand_in_the_transition", "shift", K="2:6")
BUGS.add(last_segment_missing, f"{CRF}@3955ded", "every_position_is_covered_once", "shift")
BUGS.add(ring_of_k_slots, f"{CRF}@1e65993", "every_position_is_covered_once", "stale")
BUGS.add(clamped_scale, f"{CRF}@HEAD", "every_position_is_covered_once", "shift")
BUGS.add(strides_of_the_input, f"{CRF}@e75e1ee", "dcum_is_what_ends_less_what_begins", "layout", C="3")
BUGS.add(alpha_in_float32, f"{CRF}@9800b72", "vjp_matches_the_oracle", "dtype", T="40:100")
