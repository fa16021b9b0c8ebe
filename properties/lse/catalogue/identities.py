"""Properties of LSE on one sample: sums, bounds, sinks and convexity."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from gradoracle.properties.agreement import double, judged_by
from gradoracle.properties.applicability import all_of, small_enough
from gradoracle.properties.attention import with_ones_in_keys
from gradoracle.properties.lse.scores import (
    FORWARD,
    HVP,
    JVP,
    VJP,
    Scores,
    has_sinks,
    no_sinks,
    no_softcap,
    with_signless_cotangents,
    with_tangents_of,
)
from torch import Tensor

from gradoracle.cases.sample import Sample
from gradoracle.check.evidence import Evidence
from gradoracle.model.finding import Finding
from gradoracle.model.formats import FORMATS
from gradoracle.model.property import property


@property(needs=(FORWARD,), applies=small_enough, rank=3)
def lse_lies_between_the_largest_term_and_that_plus_log_n(evidence: Evidence) -> Iterator[Finding]:
    """Every lse lies between its row's largest term and that plus the log of the number of terms.

    Terms are the capped scores of the keys that a query sees, and the sink.
    Holds because: max_j e^S_j <= sum_j e^S_j <= n max_j e^S_j.
    Catches: a sum over keys other than those seen, a result in base 2, a score that is not capped, a sink left out.
    Cannot catch: wrong sums within the bounds; forward_matches_the_oracle does.
    """
    terms = Scores(evidence.sample).terms
    low = terms.amax(-1)
    high = low + terms.isfinite().sum(-1).clamp_min(1).double().log()
    got = double(evidence.tensors(FORWARD)["lse"])
    nearest = torch.where(got.isnan(), high, torch.minimum(torch.maximum(got, low), high))
    yield judged_by(evidence, "lse", got, nearest, "lse and its bounds", scale=low.abs() + (high - low))


@property(needs=(VJP,), rank=2)
def q_dq_of_a_group_equals_k_dk(evidence: Evidence) -> Iterator[Finding]:
    """The inner product <k, dk> is the sum of <q, dq> over the query heads that share the key head.

    Holds because: both are sum_ij dS_ij S_ij, since S is linear in q and in k; the softcap is part of dS.
    Catches: a scale that one of dq and dk lacks, a missing sum over the group, a tile dropped from one of them.
    Cannot catch: a factor that both share, such as a missing derivative of the softcap; vjp_matches_the_oracle does.
    """
    scores = Scores(evidence.sample)
    batch, groups = scores.k.shape[:2]

    def sides(dq: Tensor, dk: Tensor, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        return (q * dq).reshape(batch, groups, -1), (k * dk).reshape(batch, groups, -1)

    def difference(*tensors: Tensor) -> Tensor:
        left, right = sides(*tensors)
        return left.sum(-1) - right.sum(-1)

    def size(*tensors: Tensor) -> Tensor:
        left, right = sides(*tensors)
        return left.abs().sum(-1) + right.abs().sum(-1)

    yield evidence.relate(
        "<q, dq> - <k, dk>",
        difference,
        [(evidence, VJP, "dq"), (evidence, VJP, "dk")],
        scale=size,
        constants=[scores.q, scores.k],
    )


@property(needs=(VJP,), applies=all_of(small_enough, no_sinks, no_softcap), rank=4)
def the_sum_of_dk_is_that_of_g_q(evidence: Evidence) -> Iterator[Finding]:
    """The sum of dk over the keys equals scale times the sum of g q over the queries that see a key, group by group.

    Holds because: dk = scale dS^T q with dS = g P, and a row of P sums to 1 where there is neither sink nor softcap.
    Catches: P not normalised in backward, a tile dropped from dk, rows without a key that add to it, a lost scale.
    Cannot catch: parts of dk moved between keys; dk of vjp_matches_the_oracle does.
    """
    scores = Scores(evidence.sample)
    batch, groups, _, width = scores.k.shape
    terms = (scores.g * scores.sees)[..., None] * scores.q * scores.scale
    terms = terms.reshape(batch, groups, -1, width)  # [B, G, H/G T, D]
    yield evidence.relate(
        "1^T dk - scale g^T q",
        lambda dk, terms: dk.sum(2) - terms.sum(2),
        [(evidence, VJP, "dk")],
        scale=lambda dk, terms: terms.abs().sum(2),
        constants=[terms],
    )


@property(needs=(FORWARD, VJP), applies=all_of(small_enough, no_softcap), one_in=2, rank=5)
def the_shares_of_keys_and_sink_sum_to_one(evidence: Evidence) -> Iterator[Finding]:
    """With a column of ones in k and of zeros in q, that column of dq is scale g (1 - e^(sink - lse)); 0 without keys.

    Holds because: it is scale sum_j dS_ij with dS = g P, and the shares of the keys and the sink sum to 1.
    Catches: a backward whose P is not normalised or is not that of the forward, a stale lse, a sink left out of one.
    Cannot catch: a dS that is wrong and still sums to g; vjp_matches_the_oracle does.
    """
    variant = evidence.variant("ones in k", with_ones_in_keys)
    scores = Scores(variant.sample)
    weight = scores.g * scores.sees * scores.scale
    if scores.sinks is None:
        yield variant.relate(
            "rowsum of ds - g",
            lambda dq, weight: dq[..., -1] - weight,
            [(variant, VJP, "dq")],
            scale=lambda dq, weight: weight,
            constants=[weight],
        )
        return
    yield variant.relate(
        "rowsum of ds - g (1 - e^(sink - lse))",
        lambda dq, lse, weight, sinks: dq[..., -1] - weight * (1.0 - torch.exp(sinks - lse)),
        [(variant, VJP, "dq"), (variant, FORWARD, "lse")],
        scale=lambda dq, lse, weight, sinks: weight,
        constants=[weight, scores.sinks],
    )


@property(needs=(FORWARD, VJP), applies=has_sinks, rank=4)
def dsinks_is_the_sum_of_g_times_the_share_of_the_sink(evidence: Evidence) -> Iterator[Finding]:
    """The gradient of a sink is the sum of g e^(sink - lse) over batch and queries.

    Holds because: that is the derivative of log(e^sink + ...), one term for each row that the sink is part of.
    Catches: a batch or a tile left out of the sum, rows that see no key left out, a sign, dsinks of another head.
    Cannot catch: errors of lse that forward and backward share; forward_matches_the_oracle does.
    """
    scores = Scores(evidence.sample)
    yield evidence.relate(
        "dsinks - sum of g e^(sink - lse)",
        lambda dsinks, lse, g, sinks: dsinks - (g * torch.exp(sinks - lse)).sum((0, 2)),
        [(evidence, VJP, "dsinks"), (evidence, FORWARD, "lse")],
        scale=lambda dsinks, lse, g, sinks: (g * torch.exp(sinks - lse)).abs().sum((0, 2)),
        constants=[scores.g, scores.sinks],  # type: ignore[list-item]
    )


@property(needs=(VJP,), applies=all_of(small_enough, has_sinks), one_in=3, rank=3)
def a_sink_takes_between_none_and_all_of_g(evidence: Evidence) -> Iterator[Finding]:
    """Where no cotangent is negative, dsinks lies between 0 and the sum of the cotangents of its head.

    Holds because: the share e^(sink - lse) of a sink is between 0 and 1.
    Catches: a wrong sign, a sum over heads as well, a share taken before the sink is in lse.
    Cannot catch: wrong shares within the bounds; dsinks_is_the_sum_of_g_times_the_share_of_the_sink does.
    """
    variant = evidence.variant("no negative cotangents", with_signless_cotangents)
    whole = Scores(variant.sample).g.sum((0, 2))
    got = double(variant.tensors(VJP)["dsinks"])
    nearest = torch.where(got.isnan(), whole, torch.minimum(got.clamp_min(0.0), whole))
    largest = FORMATS[variant.dtype("dsinks")].largest
    yield judged_by(variant, "dsinks", got, nearest, "dsinks and its bounds", scale=whole, largest=largest)


@property(needs=(HVP,), applies=all_of(small_enough, no_softcap), one_in=2, rank=2)
def lse_is_convex_in_q(evidence: Evidence) -> Iterator[Finding]:
    """Where no cotangent is negative, t^T H t >= 0 for a tangent t of q, row by row.

    Holds because: the log of a sum of exponentials of linear functions is convex, and q enters each score linearly.
    Catches: a sign of the second derivative of P, a P' that is not centred, tangents crossed between q and k.
    Cannot catch: errors that leave it positive; hvp_matches_the_oracle does.
    """
    variant = evidence.variant("along q, no negative cotangents", lambda s: _along(s, "q"))
    yield _not_negative(variant, "q", (-1,))


@property(needs=(HVP,), applies=all_of(small_enough, no_softcap), one_in=2, rank=2)
def lse_is_convex_in_k(evidence: Evidence) -> Iterator[Finding]:
    """Where no cotangent is negative, t^T H t >= 0 for a tangent t of k, over all keys of a key head.

    Holds because: the log of a sum of exponentials of linear functions is convex, and k enters each score linearly.
    Catches: a sign of the second derivative of P, a P' that is not centred, a tile dropped from the Hessian product.
    Cannot catch: errors that leave it positive; hvp_matches_the_oracle does.
    """
    variant = evidence.variant("along k, no negative cotangents", lambda s: _along(s, "k"))
    yield _not_negative(variant, "k", (-1, -2))


def _along(sample: Sample, name: str) -> Sample:
    return with_tangents_of(with_signless_cotangents(sample), name)


def _not_negative(variant: Evidence, name: str, axes: tuple[int, ...]) -> Finding:
    """Judge <t, Ht> against the nearest number that is not negative."""
    tangent = double(variant.sample.tangents[name])
    product = double(variant.tensors(HVP)[f"hvp.{name}"])
    nearest = (tangent * product).sum(axes).clamp_min(0.0).nan_to_num()
    return variant.relate(
        f"negative part of t^T H t along {name}",
        lambda product, tangent, nearest: (tangent * product).sum(axes) - nearest,
        [(variant, HVP, f"hvp.{name}")],
        scale=lambda product, tangent, nearest: (tangent * product).abs().sum(axes),
        constants=[tangent, nearest],
    )


@property(needs=(JVP,), applies=all_of(small_enough, no_sinks, no_softcap), rank=4)
def a_common_tangent_of_all_keys_moves_lse_along_q(evidence: Evidence) -> Iterator[Finding]:
    """Along a common tangent c of all keys, the tangent of lse equals scale q . c where a query sees a key.

    Holds because: all scores of a row move by scale q_i . c, and the shares of the keys sum to 1.
    Catches: a P of the JVP that is not normalised, a dropped k', a lost scale, keys beyond the mask.
    Cannot catch: errors along q'; jvp_matches_the_oracle does.
    """
    variant = evidence.variant("all k' equal, alone", common_key_tangent)
    variant.continuous = False
    scores = Scores(variant.sample)
    moves = scores.q * _key_tangent(variant) * scores.scale * scores.sees[..., None]  # [B, H, T, D]
    yield variant.relate(
        "jvp.lse - scale q c",
        lambda tangent, moves: tangent - moves.sum(-1),
        [(variant, JVP, "jvp.lse")],
        scale=lambda tangent, moves: moves.abs().sum(-1),
        constants=[moves],
    )


@property(needs=(HVP,), applies=all_of(small_enough, no_sinks, no_softcap), one_in=2, rank=3)
def a_common_tangent_of_all_keys_moves_dq_by_itself(evidence: Evidence) -> Iterator[Finding]:
    """Along a common tangent c of all keys, the Hessian product of q equals scale g c where a query sees a key.

    Holds because: P is unchanged, so dq = scale g P k moves by scale g c times the row sum of P, which is 1.
    Catches: a P' that is not centred, a dropped term dS k', a sum over keys other than those seen.
    Cannot catch: errors along q'; hvp_matches_the_oracle does.
    """
    variant = evidence.variant("all k' equal, alone", common_key_tangent)
    variant.continuous = False
    scores = Scores(variant.sample)
    common = _key_tangent(variant)
    expected = (scores.g * scores.sees)[..., None] * common * scores.scale
    moved = (common * scores.q).sum(-1).abs() * scores.scale  # what cancels: P' before it is centred
    spread = (scores.p @ scores.k_of_heads.abs()) * (scores.g.abs() * moved)[..., None] * scores.scale
    yield variant.relate(
        "hvp.q - scale g c",
        lambda product, expected, size: product - expected,
        [(variant, HVP, "hvp.q")],
        scale=lambda product, expected, size: size,
        constants=[expected, expected.abs() + spread],
    )


def common_key_tangent(sample: Sample) -> Sample:
    """The sample with the tangent of the first key for all keys of a key head, and 0 for all other inputs."""
    first = sample.tangents["k"][:, :, :1].expand_as(sample.tangents["k"]).contiguous()
    return with_tangents_of(sample, "k").with_tangents(k=first)


def _key_tangent(variant: Evidence) -> Tensor:
    """[B, H, 1, D] the common tangent of the keys that each query head reads."""
    first = double(variant.sample.tangents["k"][:, :, :1])
    return first.repeat_interleave(Scores(variant.sample).share, 1)


IDENTITIES = (
    lse_lies_between_the_largest_term_and_that_plus_log_n,
    q_dq_of_a_group_equals_k_dk,
    the_sum_of_dk_is_that_of_g_q,
    the_shares_of_keys_and_sink_sum_to_one,
    dsinks_is_the_sum_of_g_times_the_share_of_the_sink,
    a_sink_takes_between_none_and_all_of_g,
    lse_is_convex_in_q,
    lse_is_convex_in_k,
    a_common_tangent_of_all_keys_moves_lse_along_q,
    a_common_tangent_of_all_keys_moves_dq_by_itself,
)
