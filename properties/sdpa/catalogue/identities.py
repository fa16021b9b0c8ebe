"""Properties of SDPA on one sample: sums, hull, masked rows, and the tangent of P."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from gradoracle.properties.agreement import differ, judged_by
from gradoracle.properties.applicability import all_of, causal, exact_operands, small_enough, supports
from gradoracle.properties.attention import with_ones_in_keys
from gradoracle.properties.sdpa.scores import Scores, scores_overflow

from gradoracle.check.acceptance import exactly, not_checked
from gradoracle.check.evidence import Evidence
from gradoracle.model.case import Case
from gradoracle.model.derivative import Derivative
from gradoracle.model.finding import Finding
from gradoracle.model.formats import FORMATS
from gradoracle.model.kernel import Kernel
from gradoracle.model.property import property

FORWARD, VJP, JVP, HVP = Derivative.FORWARD, Derivative.VJP, Derivative.JVP, Derivative.HVP


@property(needs=(FORWARD,), rank=3)
def outputs_lie_in_the_hull_of_the_values(evidence: Evidence) -> Iterator[Finding]:
    """Every output lies between the smallest and the largest value, feature by feature, of the keys that it sees.

    Holds because: a row of P consists of non-negative weights that sum to 1.
    Catches: rows of P that sum to more than 1, negative weights, keys beyond the mask, padding read as a value.
    Cannot catch: wrong weights that still sum to 1; forward_matches_the_oracle does.
    """
    scores = Scores(evidence.sample)
    last = (scores.seen - 1).clamp_min(0)
    low = scores.v.cummin(2).values[:, :, last]  # [B, H, T, Dv]
    high = scores.v.cummax(2).values[:, :, last]
    low[:, :, : scores.first] = high[:, :, : scores.first] = 0.0
    got = evidence.tensors(FORWARD)["o"].to("cpu", torch.float64)
    nearest = torch.where(got.isfinite(), got.clamp(low, high), high)
    yield judged_by(evidence, "o", got, nearest, "o and the hull of v")


@property(needs=(VJP,), rank=4)
def ones_transposed_dv_equals_ones_transposed_g(evidence: Evidence) -> Iterator[Finding]:
    """The sum of dV over the keys equals the sum of the cotangent over the queries that see a key.

    Holds because: 1^T dV = 1^T P^T G = (P 1)^T G, and P 1 = 1 in rows that see a key, 0 in others.
    Catches: a dropped or doubled tile, P not normalised in backward, dV of another head, the cotangent counted twice.
    Cannot catch: parts of dV moved between keys; dv of vjp_matches_the_oracle does.
    """
    scores = Scores(evidence.sample)
    yield evidence.relate(
        "1^T dv - 1^T g",
        lambda dv, g: dv.sum(-2) - g.sum(-2),
        [(evidence, VJP, "dv")],
        scale=lambda dv, g: g.abs().sum(-2),
        constants=[scores.g[:, :, scores.first :]],
    )


@property(needs=(VJP,), rank=2)
def q_dq_equals_k_dk(evidence: Evidence) -> Iterator[Finding]:
    """The inner products <q, dq> and <k, dk> are equal, for each batch and head.

    Holds because: both are sum_ij dS_ij S_ij, since S is linear in q and in k.
    Catches: a scale that one of dq and dk lacks, a tile dropped from one of them, a transposed dS.
    Cannot catch: a factor that both share, such as a wrong z; rows_of_ds_sum_to_zero and vjp_matches_the_oracle do.
    """
    scores = Scores(evidence.sample)
    yield evidence.relate(
        "<q, dq> - <k, dk>",
        lambda dq, dk, q, k: (q * dq).sum((-1, -2)) - (k * dk).sum((-1, -2)),
        [(evidence, VJP, "dq"), (evidence, VJP, "dk")],
        scale=lambda dq, dk, q, k: (q * dq).abs().sum((-1, -2)) + (k * dk).abs().sum((-1, -2)),
        constants=[scores.q, scores.k],
    )


@property(needs=(FORWARD, VJP), rank=2)
def v_dv_equals_o_g(evidence: Evidence) -> Iterator[Finding]:
    """The inner products <v, dv> and <o, g> are equal, for each batch and head.

    Holds because: both are sum_ij G_i . V_j P_ij.
    Catches: a backward whose P differs from that of the forward: stale m and l, another scale, another mask.
    Cannot catch: an error that forward and backward share; forward_matches_the_oracle does.
    """
    scores = Scores(evidence.sample)
    yield evidence.relate(
        "<v, dv> - <o, g>",
        lambda dv, o, v, g: (v * dv).sum((-1, -2)) - (o * g).sum((-1, -2)),
        [(evidence, VJP, "dv"), (evidence, FORWARD, "o")],
        scale=lambda dv, o, v, g: (v * dv).abs().sum((-1, -2)) + (o * g).abs().sum((-1, -2)),
        constants=[scores.v, scores.g],
    )


def _masked_rows(case: Case, kernel: Kernel) -> str | None:
    return None if case.dims["T"] > case.dims["M"] else "every query sees a key"


@property(needs=(FORWARD, VJP), applies=all_of(causal, _masked_rows), rank=6)
def rows_that_see_no_key_are_zero_in_every_derivative(evidence: Evidence) -> Iterator[Finding]:
    """A query that sees no key has o, dq, tangent and Hessian product of exactly 0.

    Holds because: by definition (causal, T > M) o is the constant 0 there, and derivatives of a constant are 0.
    Catches: NaN from exp(-inf - -inf) or 0/0, a mean over all keys (softmax of equal -inf), top-left alignment.
    Cannot catch: errors in rows that see a key.
    """
    first = Scores(evidence.sample).first
    expected = [(FORWARD, "o"), (VJP, "dq")]
    if small_enough(evidence.case, evidence.kernel) is None:
        expected += [(JVP, "jvp.o"), (HVP, "hvp.q")]
    for name, got in evidence.available(expected):
        rows = got[:, :, :first]
        shown, lost = f"{name} of rows that see no key", bool(rows.isnan().any())
        yield exactly(shown, rows.cpu() != 0, "is not 0 where the query sees no key", lost=lost, of=name)


@property(needs=(FORWARD,), applies=all_of(small_enough, exact_operands), one_in=3, rank=5)
def a_query_that_sees_one_key_gives_its_value(evidence: Evidence) -> Iterator[Finding]:
    """Where a query sees a single key, o equals that key's value, bit for bit.

    Holds because: its one weight is exp(0) / 1 = 1 exactly, and 1 * v is exact in every format that holds v.
    Catches: an alignment that is off by one, a maximum of another row, l with a padded key in it.
    Cannot catch: errors that need a second key; forward_matches_the_oracle does.
    """
    name = "o of a query that sees one key"
    scores = Scores(evidence.sample)
    if scores_overflow(scores, evidence.contract):
        yield not_checked(name, "a score overflows")
        return
    if evidence.sample.options["causal"] and scores.keys <= scores.queries:
        got = evidence.tensors(FORWARD)["o"][:, :, scores.first]
    elif supports(evidence.kernel, M=1):
        alone = evidence.variant(
            "first key alone: ",
            lambda s: s.with_inputs(k=s.inputs["k"][:, :, :1], v=s.inputs["v"][:, :, :1]),
        )
        got = alone.tensors(FORWARD)["o"][:, :, -1]
    else:
        yield not_checked(name, "the kernel does not take M = 1")
        return
    value = evidence.sample.inputs["v"][:, :, 0].to(got.device)
    flushed = (value.abs() < FORMATS[evidence.case.dtype].smallest_normal) & (got.abs() <= value.abs())
    wrong = differ(got, value) & ~flushed
    yield exactly(name, wrong, "differs from the value of the only key that the query sees", of="o")


@property(needs=(HVP,), applies=small_enough, one_in=4, rank=2)
def ones_transposed_hvp_v_is_zero(evidence: Evidence) -> Iterator[Finding]:
    """The Hessian product of v sums to 0 over the keys.

    Holds because: Hv = P'^T G, and the rows of P', the tangent of P, sum to 0.
    Catches: P' that is not centred (m and l treated as constants), a tile dropped from Hv or from the mean of S'.
    Cannot catch: errors of hvp.q and hvp.k; hvp_matches_the_oracle does.
    """
    scores = Scores(evidence.sample)
    size = (scores.p_tangent.abs().sum(-1, keepdim=True) * scores.g.abs()).sum(-2)  # [B, H, Dv]
    yield evidence.relate(
        "1^T hvp.v",
        lambda hv, size: hv.sum(-2),
        [(evidence, HVP, "hvp.v")],
        scale=lambda hv, size: size,
        constants=[size],
    )


@property(needs=(VJP,), applies=small_enough, one_in=4, rank=5)
def rows_of_ds_sum_to_zero(evidence: Evidence) -> Iterator[Finding]:
    """The rows of dS sum to 0: with a column of ones in k, and of zeros in q, that column of dq is 0.

    Holds because: dS_i = P_i (dP_i - z_i) with z_i = sum_j P_ij dP_ij; the column of dq is scale sum_j dS_ij.
    Catches: a missing or stale z, z from an o that is already rounded, P not normalised in backward.
    Cannot catch: a dS that is wrong and still sums to 0; vjp_matches_the_oracle does.
    """
    variant = evidence.variant("ones in k", with_ones_in_keys)
    scores = Scores(variant.sample)
    size = scores.ds.abs().sum(-1) * scores.scale  # [B, H, T]
    yield variant.relate(
        "rowsum of ds",
        lambda dq, size: dq[..., -1],
        [(variant, VJP, "dq")],
        scale=lambda dq, size: size,
        constants=[size],
    )


IDENTITIES = (
    outputs_lie_in_the_hull_of_the_values,
    ones_transposed_dv_equals_ones_transposed_g,
    q_dq_equals_k_dk,
    v_dv_equals_o_g,
    rows_that_see_no_key_are_zero_in_every_derivative,
    a_query_that_sees_one_key_gives_its_value,
    ones_transposed_hvp_v_is_zero,
    rows_of_ds_sum_to_zero,
)
