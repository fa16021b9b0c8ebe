"""LSE by splits of the keys, with its backward by hand, in eager PyTorch: the correct one, and released bugs.

All arithmetic is in float32 (float64 for float64); gradients are rounded once.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gradoracle.mutation.bugs import Bugs

LANES = 16  # keys of a split: the last one is padded to so many
PADDED_ROWS = 32  # the result is kept in rows of a multiple of so many queries


class LogSumExp:
    """The correct kernel, piece by piece; each bug overrides one piece."""

    def heads(self, k: Tensor, share: int) -> Tensor:
        """[B H M D]: the key head of each query head."""
        return k.repeat_interleave(share, 1)

    def capped(self, s: Tensor, cap: float) -> tuple[Tensor, Tensor]:
        """The capped scores, and their derivative."""
        t = torch.tanh(s / cap)
        return cap * t, 1 - t * t

    def masked(self, s: Tensor, cap: float | None, seen: Tensor, keys: int) -> tuple[Tensor, Tensor]:
        """Scores, capped and then masked with -inf, and their derivative; lanes from ``keys`` on are padding."""
        slope = torch.ones_like(s)
        if cap is not None:
            s, slope = self.capped(s, cap)
        return torch.where(seen, s, -torch.inf), slope

    def level(self, top: Tensor) -> Tensor:
        """What is subtracted before an exponential: the largest term, 0 where there is none."""
        return torch.where(top == -torch.inf, 0.0, top)

    def with_sink(self, total: Tensor, sink: Tensor, level: Tensor) -> Tensor:
        """The sum of exp(term - level) with the sink's term."""
        return total + torch.exp(sink - level)

    def seen_in_backward(self, seen: Tensor) -> Tensor:
        """[B 1 T M], which keys count in backward."""
        return seen

    def stored(self, found: Tensor, groups: int) -> Tensor:
        """lse [B H T] out of a buffer whose rows are padded."""
        rows = -(-found.shape[2] // PADDED_ROWS) * PADDED_ROWS
        held = torch.empty((*found.shape[:2], rows), dtype=found.dtype)
        held[..., : found.shape[2]] = found
        return held[..., : found.shape[2]].contiguous()

    def forward(self, s: Tensor, cap: float | None, seen: Tensor, sinks: Tensor | None, groups: int) -> Tensor:
        """lse of raw scores s [B H T M] over the keys that are seen, split by split, and of the sink."""
        missing = -s.shape[-1] % LANES
        s = torch.nn.functional.pad(s, (0, missing))
        terms, _ = self.masked(s, cap, torch.nn.functional.pad(seen, (0, missing)), seen.shape[-1])
        terms = terms.unflatten(-1, (-1, LANES))  # [B H T splits LANES]
        tops = terms.amax(-1, keepdim=True)
        tops = torch.where(tops == -torch.inf, 0.0, tops)
        partial = (tops + torch.log(torch.exp(terms - tops).sum(-1, keepdim=True)))[..., 0]  # [B H T splits]
        top = partial.amax(-1)
        if sinks is not None:
            top = torch.maximum(top, sinks[:, None])
        level = self.level(top)
        total = torch.exp(partial - level[..., None]).sum(-1)
        if sinks is not None:
            total = self.with_sink(total, sinks[:, None], level)
        return self.stored(level + torch.log(total), groups)


class _Lse(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, own: LogSumExp, q: Tensor, k: Tensor, sinks: Tensor | None, options: Any) -> Tensor:
        scale, causal, ctx.cap, *segments = options
        ctx.own, ctx.factor = own, q.shape[-1] ** -0.5 if scale is None else scale
        seen = torch.ones(1, 1, q.shape[2], k.shape[2], dtype=torch.bool)
        if causal:
            seen = seen.tril(k.shape[2] - q.shape[2])
        if segments[0] is not None:
            seen = seen & (segments[0][:, None, :, None] == segments[1][:, None, None, :])
        s = wide(q) @ own.heads(wide(k), q.shape[1] // k.shape[1]).mT * ctx.factor
        found = own.forward(s, ctx.cap, seen, None if sinks is None else wide(sinks), k.shape[1])
        ctx.save_for_backward(q, k, sinks, seen, found)
        return found

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Any, ...]:
        q, k, sinks, seen, found = ctx.saved_tensors
        own, share = ctx.own, q.shape[1] // k.shape[1]
        keys = own.heads(wide(k), share)
        level = torch.where(found == -torch.inf, torch.inf, found)[..., None]
        s = wide(q) @ keys.mT * ctx.factor
        terms, slope = own.masked(s, ctx.cap, own.seen_in_backward(seen), k.shape[2])
        ds = g[..., None] * torch.exp(terms - level) * slope * ctx.factor
        with torch.enable_grad():
            groups = wide(k).detach().requires_grad_()
            (dk,) = torch.autograd.grad(own.heads(groups, share), groups, ds.mT @ wide(q))  # the sum over each group
        dsinks = None
        if sinks is not None:
            dsinks = (g * torch.exp(wide(sinks)[:, None] - found)).sum((0, 2)).to(sinks.dtype)
        return None, (ds @ keys).to(q.dtype), dk.to(k.dtype), dsinks, None


def wide(x: Tensor) -> Tensor:
    """In float32, or in float64 where it is that already."""
    return x if x.dtype == torch.float64 else x.float()


def _lse(own, q, k, *, scale=None, causal=False, softcap=None, sinks=None, q_segments=None, kv_segments=None):
    return _Lse.apply(own, q, k, sinks, (scale, causal, softcap, q_segments, kv_segments))


def right(q, k, **options):
    """The correct kernel: -inf, and no gradient, where there is neither key nor sink."""
    return _lse(LogSumExp(), q, k, **options)


BUGS = Bugs(right, "lse")


class _SinkWithoutExponential(LogSumExp):
    def with_sink(self, total: Tensor, sink: Tensor, level: Tensor) -> Tensor:
        return total + sink


@BUGS.of("Dao-AILab/flash-attention@e81c237e", "a_sink_adds_one_term", "term")
def sink_without_exponential(q, k, **options):
    """Dao-AILab/flash-attention@e81c237e: a learnable sink was added to the sum of exponentials as it is.

    The sum must take the exponential of the sink less the row's maximum.
    """
    return _lse(_SinkWithoutExponential(), q, k, **options)


class _NoLevelOfItsOwn(LogSumExp):
    def level(self, top: Tensor) -> Tensor:
        return top


@BUGS.of("Dao-AILab/flash-attention@26d7d92f", "rows_without_a_term_are_minus_infinity", "range")
def empty_splits_combined(q, k, **options):
    """Dao-AILab/flash-attention@26d7d92f: combining splits of the keys gave NaN where every partial LSE was -inf.

    The largest of them was subtracted from each, -inf from -inf.
    """
    return _lse(_NoLevelOfItsOwn(), q, k, **options)


class _PaddingBeforeTheCap(LogSumExp):
    def masked(self, s: Tensor, cap: float | None, seen: Tensor, keys: int) -> tuple[Tensor, Tensor]:
        if cap is None:
            return super().masked(s, cap, seen, keys)
        padding = torch.arange(s.shape[-1]) >= keys
        capped, slope = self.capped(torch.where(padding, -torch.inf, s), cap)
        return torch.where(seen | padding, capped, -torch.inf), slope


@BUGS.of("unslothai/unsloth#10616", "queries_of_zero_count_the_keys", "tail")
def padding_capped(q, k, **options):
    """unslothai/unsloth#10616: padded lanes held -inf before the softcap, which made them -cap.

    They took up to 48 % of the probability where the logits lay near -cap.
    """
    return _lse(_PaddingBeforeTheCap(), q, k, **options)


class _CapTimesScore(LogSumExp):
    def capped(self, s: Tensor, cap: float) -> tuple[Tensor, Tensor]:
        t = torch.tanh(s / cap)
        return s * t, t + s / cap * (1 - t * t)


@BUGS.of("unslothai/unsloth-zoo#593", "a_softcap_far_above_is_no_softcap", "term")
def cap_times_score(q, k, **options):
    """unslothai/unsloth-zoo#593: the softcap was computed as x tanh(x / c), and not as c tanh(x / c)."""
    return _lse(_CapTimesScore(), q, k, **options)


class _HeadsInterleaved(LogSumExp):
    def heads(self, k: Tensor, share: int) -> Tensor:
        return k.repeat(1, share, 1, 1)


@BUGS.of(
    "XunhaoLai/native-sparse-attention-triton#27", "shared_key_heads_are_repeated_key_heads", "transpose", H="4", G="2"
)
def heads_split_by_the_wrong_count(q, k, **options):
    """XunhaoLai/native-sparse-attention-triton#27: query heads were split into groups by the wrong count.

    Head h read key head h % G, and not h // (H // G).
    """
    return _lse(_HeadsInterleaved(), q, k, **options)


class _PartialBlocksTakenForFull(LogSumExp):
    BLOCK = 8

    def seen_in_backward(self, seen: Tensor) -> Tensor:
        queries, keys = seen.shape[-2:]
        pad = (0, -keys % self.BLOCK, 0, -queries % self.BLOCK)
        tiles = torch.nn.functional.max_pool2d(torch.nn.functional.pad(seen.float(), pad), self.BLOCK)
        whole = tiles.repeat_interleave(self.BLOCK, -1).repeat_interleave(self.BLOCK, -2)
        return whole[..., :queries, :keys] > 0


@BUGS.of("pytorch/pytorch#158212", "keys_of_another_segment_have_no_gradient", "tail")
def partial_blocks_taken_for_full(q, k, **options):
    """pytorch/pytorch#158212: compiled flex attention gave wrong dK and dV, or NaN, for complicated masks.

    The report names no cause; by the corpus's the backward skips blocks without a visible pair, and masks none that
    it does not skip.
    """
    return _lse(_PartialBlocksTakenForFull(), q, k, **options)


class _RowsOfHeadsStoredAsBefore(LogSumExp):
    def stored(self, found: Tensor, groups: int) -> Tensor:
        b, heads, queries = found.shape
        held = torch.empty((b, heads, PADDED_ROWS), dtype=found.dtype)
        if queries > 1 or heads == groups or heads // groups > PADDED_ROWS:
            return super().stored(found, groups)
        held[:, :groups, : heads // groups] = found.reshape(b, groups, heads // groups)  # heads have become rows
        return held[..., :1].contiguous()


@BUGS.of("facebookresearch/xformers@fairinternal-850", "no_memory_is_left_unwritten", "stale", T="1")
def lse_of_swapped_heads(q, k, **options):
    """facebookresearch/xformers, fairinternal 850: with one query, heads that share keys are taken for queries.

    q was given its heads as rows; LSE kept its old index, so that the rows of a group were stored one beside the other
    and read one head after the other.
    """
    return _lse(_RowsOfHeadsStoredAsBefore(), q, k, **options)
