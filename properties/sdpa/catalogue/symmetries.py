"""Properties of SDPA between two samples: effects of a change of the inputs on the results."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from gradoracle.properties.agreement import balanced, compared, larger
from gradoracle.properties.applicability import all_of, bidirectional, may_have_twice_the_keys, small_enough
from gradoracle.properties.attention import coarse_keys
from gradoracle.properties.sdpa.scores import Scores
from torch import Tensor

from gradoracle.cases.sample import Sample
from gradoracle.check.acceptance import exactly, not_checked
from gradoracle.check.evidence import Evidence
from gradoracle.model.derivative import Derivative
from gradoracle.model.finding import Finding
from gradoracle.model.property import property

FORWARD, VJP, JVP = Derivative.FORWARD, Derivative.VJP, Derivative.JVP
DERIVATIVES = {"o": FORWARD, "dq": VJP, "dk": VJP, "dv": VJP}


@property(needs=(FORWARD,), applies=small_enough, one_in=4, rank=4)
def values_of_one_give_outputs_of_one(evidence: Evidence) -> Iterator[Finding]:
    """If every value is 1, every output of a query that sees a key is 1.

    Holds because: o is then the row sum of P, which the softmax makes 1.
    Catches: l summed over keys other than those weighted, a padded key in l, P not normalised, a tile dropped after l
    was summed.
    Cannot catch: wrong weights that still sum to 1; forward_matches_the_oracle does.
    """
    variant = values_of_one(evidence)
    scores = Scores(variant.sample)
    one = (scores.seen > 0).double()[:, None].expand(scores.queries, scores.v.shape[-1])
    yield variant.relate(
        "o - 1",
        lambda o, one: o - one,
        [(variant, FORWARD, "o")],
        scale=lambda o, one: one.expand_as(o),
        constants=[one],
    )


@property(needs=(VJP,), applies=small_enough, one_in=5, rank=4)
def equal_values_leave_q_and_k_no_gradient(evidence: Evidence) -> Iterator[Finding]:
    """If every value is 1, dq and dk are 0.

    Holds because: all dP_ij of a row are equal then, so dS = P (dP - z) = 0.
    Catches: a missing z, a z over keys other than those that the query sees, P not normalised in backward.
    Cannot catch: a dS that is wrong by a factor; vjp_matches_the_oracle does.
    """
    variant = values_of_one(evidence)
    scores = Scores(variant.sample)
    weights = scores.p * scores.g.sum(-1, keepdim=True).abs() * scores.scale  # [B, H, T, M], |P dP|
    sizes = {"dq": weights @ scores.k.abs(), "dk": weights.transpose(-1, -2) @ scores.q.abs()}
    for name, size in sizes.items():
        yield variant.relate(
            f"{name} of equal values",
            lambda gradient, size: gradient + 0.0,
            [(variant, VJP, name)],
            scale=lambda gradient, size: size,
            constants=[size],
        )


def values_of_one(evidence: Evidence) -> Evidence:
    """The variant with v = 1 and v' = 0; its values repeat, so the worst case decides."""

    def change(sample: Sample) -> Sample:
        v = torch.ones_like(sample.inputs["v"])
        return sample.with_inputs(v=v).with_tangents(v=torch.zeros_like(v))

    variant = evidence.variant("v = 1", change)
    variant.continuous = False
    return variant


@property(needs=(JVP,), applies=small_enough, one_in=5, rank=4)
def rows_of_the_tangent_of_p_sum_to_zero(evidence: Evidence) -> Iterator[Finding]:
    """If every value is 1 and their tangent is 0, the tangent of the outputs is 0.

    Holds because: o is then the row sum of P, which is 1 whatever q and k are.
    Catches: m and l treated as constants in the JVP (P' not centred), a tile dropped from the mean of S'.
    Cannot catch: a P' that is wrong and still sums to 0; jvp_matches_the_oracle does.
    """
    variant = values_of_one(evidence)
    scores = Scores(variant.sample)
    size = (scores.p * scores.s_tangent.abs()).sum(-1, keepdim=True)
    yield _vanishing_tangent(variant, "rowsum of P'", size)


@property(needs=(JVP,), applies=small_enough, one_in=5, rank=4)
def a_common_tangent_of_all_keys_leaves_o(evidence: Evidence) -> Iterator[Finding]:
    """Along a tangent that moves every key by the same vector, the tangent of the outputs is 0.

    Holds because: it adds the same number to all scores of a row, and the softmax does not depend on that.
    Catches: m and l treated as constants in the JVP (P' not centred), a mean of S' over keys other than those seen.
    Cannot catch: errors along q' and v'; jvp_matches_the_oracle does.
    """

    def change(sample: Sample) -> Sample:
        tangents = sample.tangents
        common = tangents["k"][:, :, :1].expand_as(tangents["k"]).contiguous()
        zeros = {name: torch.zeros_like(tangents[name]) for name in ("q", "v")}
        return sample.with_tangents(k=common, **zeros)

    variant = evidence.variant("all k' equal", change)
    variant.continuous = False
    scores = Scores(variant.sample)
    size = (scores.p * scores.s_tangent.abs()) @ scores.v.abs()
    yield _vanishing_tangent(variant, "jvp.o of equal k'", size)


def _vanishing_tangent(variant: Evidence, name: str, size: Tensor) -> Finding:
    return variant.relate(
        name,
        lambda tangent, size: tangent + 0.0,
        [(variant, JVP, "jvp.o")],
        scale=lambda tangent, size: size.expand_as(tangent),
        constants=[size],
    )


@property(needs=(FORWARD, JVP), applies=small_enough, one_in=5, rank=3)
def the_tangent_along_v_is_the_attention_of_the_tangent(evidence: Evidence) -> Iterator[Finding]:
    """Along (0, 0, v') the tangent of the outputs equals the kernel's outputs for the values v'.

    Holds because: o is linear in v.
    Catches: a dropped v', a P of the JVP that differs from that of the forward, tangents of another head.
    Cannot catch: errors along q' and k'; jvp_matches_the_oracle does.
    """

    def along_v(sample: Sample) -> Sample:
        return sample.with_tangents(**{name: torch.zeros_like(sample.tangents[name]) for name in ("q", "k")})

    alone = evidence.variant("along v' alone", along_v)
    values = evidence.variant("v' as values", lambda s: s.with_inputs(v=s.tangents["v"]))
    yield balanced("jvp.o - o(v')", [(alone, JVP, "jvp.o"), (values, FORWARD, "o")])


@property(needs=(FORWARD, VJP), applies=small_enough, one_in=5, rank=3)
def queries_of_zero_average_the_values(evidence: Evidence) -> Iterator[Finding]:
    """If every query is 0, each output is the mean of the values that the query sees, and dk is exactly 0.

    Holds because: all scores are 0, so all weights are equal; and dk = scale dS^T q is a sum of products with 0.
    Catches: padded or masked keys in the mean, a running maximum that starts at another score than -inf.
    Cannot catch: errors in the scores; forward_matches_the_oracle does.
    """
    variant = evidence.variant("q = 0", lambda s: s.with_inputs(q=torch.zeros_like(s.inputs["q"])))
    variant.continuous = False
    scores = Scores(variant.sample)
    visible, count = scores.visible.double(), scores.seen.clamp_min(1).double()[:, None]
    yield variant.relate(
        "o - mean of v",
        lambda o, v, visible, count: o - (visible @ v) / count,
        [(variant, FORWARD, "o")],
        scale=lambda o, v, visible, count: (visible @ v.abs()) / count,
        constants=[scores.v, visible, count],
    )
    wrong = variant.tensors(VJP)["dk"].cpu() != 0
    overflow = variant.allowance(VJP, "dk").overflow
    yield exactly("dk of q = 0", wrong if overflow is None else wrong & ~overflow, "an element is not 0", of="dk")


@property(needs=(FORWARD, VJP), applies=small_enough, one_in=6, rank=4)
def shifting_keys_by_a_constant_leaves_o(evidence: Evidence) -> Iterator[Finding]:
    """Adding one vector to every key changes neither o nor any gradient.

    Holds because: row i of S moves by scale q_i . c as a whole; P does not depend on it, and dq = scale dS k moves by
    rowsum(dS) c = 0. The keys are first rounded to a coarser grid, so that both samples represent their keys exactly.
    Catches: a maximum that is not subtracted or is stale, a padded key of score 0 in l, a z that does not centre dS.
    Cannot catch: errors that do not depend on the level of the scores; vjp_matches_the_oracle does.
    """
    coarse, shift = coarse_keys(evidence.sample.inputs["k"], evidence.case.dtype)
    if coarse is None:
        yield not_checked("o", "the shifted keys would overflow")
        return
    before = evidence.variant("k on a grid", lambda s: s.with_inputs(k=coarse))
    after = evidence.variant("k on a grid, shifted", lambda s: s.with_inputs(k=coarse + shift))
    for name in ("o", "dq", "dk", "dv"):
        parts = [(each, DERIVATIVES[name], name) for each in (before, after)]
        yield balanced(f"{name} before and after the shift", parts)


@property(needs=(FORWARD, VJP), applies=all_of(small_enough, bidirectional), one_in=2, rank=3)
def key_permutation(evidence: Evidence) -> Iterator[Finding]:
    """Reversing the order of keys and values reverses dk and dv and changes neither o nor dq.

    Holds because: o_i is a sum over the keys; the true values are the same, so each run is compared with them.
    Catches: a tile whose tail is masked wrongly, a running maximum or sum that depends on which tile comes first.
    Cannot catch: anything that forward and VJP matching do not; this is their case with keys in another order.
    """

    def change(sample: Sample) -> Sample:
        return sample.with_inputs(k=sample.inputs["k"].flip(2), v=sample.inputs["v"].flip(2))

    got = dict(evidence.variant("keys reversed", change).vjp())
    got["dk"], got["dv"] = got["dk"].flip(2), got["dv"].flip(2)
    yield from compared(evidence, got, ", keys reversed", (FORWARD, VJP))


@property(needs=(FORWARD, VJP), applies=all_of(small_enough, bidirectional, may_have_twice_the_keys), one_in=3, rank=3)
def repeating_every_key_leaves_o(evidence: Evidence) -> Iterator[Finding]:
    """With every key and value twice, o and dq are unchanged, and both halves of dk and dv sum to the originals.

    Holds because: each weight is split in two equal halves.
    Catches: a loop over keys that ends too soon or runs too far, tiles past the first with a stale maximum.
    Cannot catch: errors that both lengths share; forward_matches_the_oracle does.
    """

    def change(sample: Sample) -> Sample:
        return sample.with_inputs(**{name: torch.cat([sample.inputs[name]] * 2, 2) for name in ("k", "v")})

    twice, keys = evidence.variant("keys twice", change), evidence.case.dims["M"]
    for name in ("o", "dq"):
        yield balanced(f"{name} with keys twice", [(each, DERIVATIVES[name], name) for each in (evidence, twice)])
    for name in ("dk", "dv"):
        yield evidence.relate(
            f"{name} with keys twice",
            lambda a, b: a - b[:, :, :keys] - b[:, :, keys:],
            [(evidence, VJP, name), (twice, VJP, name)],
            scale=lambda a, b: larger(a, b[:, :, :keys]),
        )


SYMMETRIES = (
    values_of_one_give_outputs_of_one,
    equal_values_leave_q_and_k_no_gradient,
    rows_of_the_tangent_of_p_sum_to_zero,
    a_common_tangent_of_all_keys_leaves_o,
    the_tangent_along_v_is_the_attention_of_the_tangent,
    queries_of_zero_average_the_values,
    shifting_keys_by_a_constant_leaves_o,
    key_permutation,
    repeating_every_key_leaves_o,
)
