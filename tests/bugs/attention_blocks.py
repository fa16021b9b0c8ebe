"""Attention in blocks of queries and keys as in flash kernels, in eager PyTorch: the correct one, and released bugs.

Statistics, sums and products are in float32 (float64 for float64); outputs and gradients are rounded once.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gradoracle.mutation.bugs import Bugs

ROWS, COLUMNS = 16, 32  # queries and keys of a block


def blocks(size: int, step: int) -> list[slice]:
    """0 .. size in blocks of ``step``, the last one shorter."""
    return [slice(start, min(start + step, size)) for start in range(0, size, step)]


class Attention:
    """The correct kernel, piece by piece; each bug overrides one piece."""

    def visible(self, queries: int, keys: int, causal: bool) -> Tensor:
        """[T M], which keys each query sees; the last query sees the last key."""
        return torch.ones(queries, keys, dtype=torch.bool).tril(keys - queries if causal else keys)

    def key_blocks(self, queries: int, keys: int) -> list[slice]:
        return blocks(keys, COLUMNS)

    def leave_blind(self, o: Tensor) -> None:
        """What becomes of a block of o whose queries see no block of keys."""
        o.zero_()

    def probabilities(self, s: Tensor, m: Tensor, l: Tensor) -> Tensor:
        """P of the backward from the statistics of the forward; 0 where s is -inf."""
        return torch.exp(s - m) / l

    def statistics_block(self, block: slice, first: slice) -> slice:
        """From where the statistics of a block of queries are loaded; ``first``: the first block that the loop sees."""
        return block

    def backward_scores(self, q: Tensor, k: Tensor, factor: float, seen: Tensor) -> Tensor:
        """Scores once more, [B H rows columns], from q and k in their own dtype."""
        return torch.where(seen, wide(q) @ wide(k).mT * factor, -torch.inf)

    def forward(self, q: Tensor, k: Tensor, v: Tensor, factor: float, causal: bool) -> tuple[Tensor, Tensor, Tensor]:
        """(o [B H T Dv], m and l [B H T 1]), all wide; a row that sees no key has o = 0, m = 0, l = 1."""
        q, k, v = wide(q), wide(k), wide(v)
        visible = self.visible(q.shape[-2], k.shape[-2], causal)
        o = torch.empty((*q.shape[:-1], v.shape[-1]), dtype=q.dtype)
        m, l = torch.zeros((*q.shape[:-1], 1), dtype=q.dtype), torch.ones((*q.shape[:-1], 1), dtype=q.dtype)
        for rows in blocks(q.shape[-2], ROWS):
            seen = [cols for cols in self.key_blocks(q.shape[-2], k.shape[-2]) if visible[rows, cols].any()]
            if not seen:
                self.leave_blind(o[..., rows, :])
                continue
            top = torch.full_like(m[..., rows, :], -torch.inf)
            total, sums = torch.zeros_like(top), torch.zeros_like(o[..., rows, :])
            for cols in seen:
                s = torch.where(visible[rows, cols], q[..., rows, :] @ k[..., cols, :].mT * factor, -torch.inf)
                higher = torch.maximum(top, s.amax(-1, keepdim=True))
                level = torch.where(higher == -torch.inf, 0.0, higher)  # nothing seen so far: no -inf - -inf
                p, shrink = torch.exp(s - level), torch.exp(top - level)
                total = total * shrink + p.sum(-1, keepdim=True)
                sums = sums * shrink + p @ v[..., cols, :]
                top = higher
            m[..., rows, :] = torch.where(total == 0, 0.0, top)
            l[..., rows, :] = torch.where(total == 0, 1.0, total)
            o[..., rows, :] = sums / l[..., rows, :]
        return o, m, l

    def backward(
        self, q: Tensor, k: Tensor, v: Tensor, g: Tensor, statistics: tuple[Tensor, ...], factor: float, causal: bool
    ) -> tuple[Tensor, Tensor, Tensor]:
        """(dq, dk, dv), wide: keys in the outer loop, and in the inner one the blocks of queries that see them."""
        o, m, l = statistics
        delta = (wide(g) * o).sum(-1, keepdim=True)
        visible = self.visible(q.shape[-2], k.shape[-2], causal)
        dq, dk, dv = (torch.zeros(t.shape, dtype=o.dtype) for t in (q, k, v))
        for cols in self.key_blocks(q.shape[-2], k.shape[-2]):
            seeing = [rows for rows in blocks(q.shape[-2], ROWS) if visible[rows, cols].any()]
            for rows in seeing:
                at = self.statistics_block(rows, seeing[0])
                low, peak, share = (t[..., at, :][..., : rows.stop - rows.start, :] for t in (delta, m, l))
                s = self.backward_scores(q[..., rows, :], k[..., cols, :], factor, visible[rows, cols])
                p, gs = self.probabilities(s, peak, share), wide(g[..., rows, :])
                ds = p * (gs @ wide(v[..., cols, :]).mT - low) * factor
                dv[..., cols, :] += p.mT @ gs
                dk[..., cols, :] += ds.mT @ wide(q[..., rows, :])
                dq[..., rows, :] += ds @ wide(k[..., cols, :])
        return dq, dk, dv


def wide(x: Tensor) -> Tensor:
    """In float32, or in float64 where it is that already."""
    return x if x.dtype == torch.float64 else x.float()


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, own: Attention, q: Tensor, k: Tensor, v: Tensor, scale: float | None, causal: bool) -> Tensor:
        ctx.own, ctx.causal = own, causal
        ctx.factor = q.shape[-1] ** -0.5 if scale is None else scale
        o, m, l = own.forward(q, k, v, ctx.factor, causal)
        ctx.save_for_backward(q, k, v, o, m, l)
        return o.to(q.dtype)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Any, ...]:
        q, k, v, *statistics = ctx.saved_tensors
        found = ctx.own.backward(q, k, v, g, tuple(statistics), ctx.factor, ctx.causal)
        return None, *(d.to(q.dtype) for d in found), None, None


def right(q, k, v, *, scale=None, causal=False):
    """The correct kernel: causal aligned at the last key, o = 0 where no key is seen."""
    return _Attention.apply(Attention(), q, k, v, scale, causal)


BUGS = Bugs(right, "sdpa")


class _TwoExponentials(Attention):
    def probabilities(self, s: Tensor, m: Tensor, l: Tensor) -> Tensor:
        return torch.exp(s) / torch.exp(m + torch.log(l))


@BUGS.of("Dao-AILab/flash-attention#1052", "finite_where_the_truth_is_finite", "range")
def exponentials_divided(q, k, v, *, scale=None, causal=False):
    """Dao-AILab/flash-attention#1052: gradients were NaN for inputs three times as large.

    P as the quotient of two exponentials, each of which leaves its range, and not as one of the difference. The report
    names no cause; this is the one that the corpus gives for it.
    """
    return _Attention.apply(_TwoExponentials(), q, k, v, scale, causal)


class _StatisticsOfTheFirstBlock(Attention):
    def statistics_block(self, block: slice, first: slice) -> slice:
        return slice(first.start, first.start + block.stop - block.start)


@BUGS.of("Dao-AILab/flash-attention@b3f1b6a5", "vjp_matches_the_oracle", "stale")
def statistics_of_the_first_block(q, k, v, *, scale=None, causal=False):
    """Dao-AILab/flash-attention@b3f1b6a5: the backward loaded LSE and dPsum of the loop's first block of queries.

    Every later block of queries was given the statistics at ``m_block_min``.
    """
    return _Attention.apply(_StatisticsOfTheFirstBlock(), q, k, v, scale, causal)


class _KeysScaledInTheirDtype(Attention):
    def backward_scores(self, q: Tensor, k: Tensor, factor: float, seen: Tensor) -> Tensor:
        return torch.where(seen, wide(q) @ wide((k * factor).to(k.dtype)).mT, -torch.inf)


@BUGS.of("amorehead/jvp_flash_attention@arg_k", "vjp_matches_the_oracle", "dtype", D="24:96")
def keys_scaled_for_the_backward_alone(q, k, v, *, scale=None, causal=False):
    """amorehead/jvp_flash_attention, arg_k (and Triton's tutorial 06): K times scale, rounded to 16 bit, in backward.

    The forward scales the scores in float32, so that the P of the backward is another one, whose rows do not sum to 1.
    """
    return _Attention.apply(_KeysScaledInTheirDtype(), q, k, v, scale, causal)


class _FiniteMaskInBackward(Attention):
    def backward(self, q: Tensor, k: Tensor, v: Tensor, g: Tensor, statistics: Any, factor: float, causal: bool) -> Any:
        o, m, l = statistics
        blind = ~self.visible(q.shape[-2], k.shape[-2], causal).any(-1, keepdim=True)
        own = torch.where(blind, -1e6, m), torch.where(blind, float(k.shape[-2]), l)  # of a row of scores of -1e6
        return super().backward(q, k, v, g, (o, *own), factor, causal)

    def backward_scores(self, q: Tensor, k: Tensor, factor: float, seen: Tensor) -> Tensor:
        return torch.where(seen, wide(q) @ wide(k).mT * factor, -1e6)


@BUGS.of("amorehead/jvp_flash_attention@e8551bb", "rows_that_see_no_key_are_zero_in_every_derivative", "tail")
def finite_mask_in_backward(q, k, v, *, scale=None, causal=False):
    """amorehead/jvp_flash_attention@e8551bb: masked scores were -1e6, a finite number, in one pass alone.

    A row that sees no key has equal scores then, so that P spreads over the keys that it must not see.
    """
    return _Attention.apply(_FiniteMaskInBackward(), q, k, v, scale, causal)


class _AlignedAtTheFirstKey(Attention):
    def visible(self, queries: int, keys: int, causal: bool) -> Tensor:
        return torch.ones(queries, keys, dtype=torch.bool).tril(0 if causal else keys)


@BUGS.of("Dao-AILab/flash-attention#1778", "the_last_query_sees_every_key", "shift")
def aligned_at_the_first_key(q, k, v, *, scale=None, causal=False):
    """Dao-AILab/flash-attention#1778: with more queries than keys, who aligns causal where was another than assumed.

    A query was compared with a key by their own indices, with no offset of M - T.
    """
    return _Attention.apply(_AlignedAtTheFirstKey(), q, k, v, scale, causal)


class _KeysCountedByQueries(Attention):
    def key_blocks(self, queries: int, keys: int) -> list[slice]:
        return [block for block in blocks(keys, COLUMNS) if block.start < queries]


@BUGS.of("jax-ml/jax@bd9a10e4eb", "key_permutation", "tail")
def keys_counted_by_queries(q, k, v, *, scale=None, causal=False):
    """jax-ml/jax@bd9a10e4eb: blocks of keys and values were counted by the length of the queries."""
    return _Attention.apply(_KeysCountedByQueries(), q, k, v, scale, causal)


class _NothingStoredWithoutBlocks(Attention):
    def leave_blind(self, o: Tensor) -> None:
        pass


@BUGS.of("jax-ml/jax@55c9ed614c", "no_memory_is_left_unwritten", "stale")
def empty_list_of_blocks(q, k, v, *, scale=None, causal=False):
    """jax-ml/jax@55c9ed614c: the corner case of a mask that leaves a block of queries no block of keys was not handled.

    What is stored after the last block of keys is not stored where there is none.
    """
    return _Attention.apply(_NothingStoredWithoutBlocks(), q, k, v, scale, causal)
