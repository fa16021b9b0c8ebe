"""Properties of LSE between two samples: effects of a change of keys, heads, sinks or options."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator

import torch
from gradoracle.properties.agreement import balanced, compared, larger
from gradoracle.properties.applicability import (
    all_of,
    bidirectional,
    may_have_twice_the_keys,
    small_enough,
    supports,
    takes,
)
from gradoracle.properties.attention import coarse_keys
from gradoracle.properties.lse.scores import (
    DERIVATIVES,
    FORWARD,
    VJP,
    Scores,
    has_sinks,
    no_segments,
    no_sinks,
    no_softcap,
    without_inputs,
)

from gradoracle.cases.sample import Sample
from gradoracle.check.acceptance import exactly, not_checked
from gradoracle.check.evidence import Evidence
from gradoracle.model.case import Case
from gradoracle.model.finding import Finding
from gradoracle.model.formats import FORMATS
from gradoracle.model.kernel import Kernel
from gradoracle.model.property import property

FAR = 150.0  # e^-150 is lost next to 1 in every format


@property(needs=(FORWARD, VJP), applies=all_of(small_enough, no_sinks, no_softcap), rank=4)
def shifting_keys_by_a_constant_moves_lse_along_q(evidence: Evidence) -> Iterator[Finding]:
    """Adding one vector c to every key adds scale q . c to lse and scale g c to dq, and does not change dk.

    Holds because: all scores of a row move by scale q . c, and their shares are unchanged. The keys are first rounded
    to a coarser grid, so that both samples represent their keys exactly.
    Catches: a maximum that is not added back or is stale, a padded key of score 0 in the sum, a wrong base.
    Cannot catch: errors that do not depend on the level of the scores; forward_matches_the_oracle does.
    """
    coarse, shift = coarse_keys(evidence.sample.inputs["k"], evidence.case.dtype)
    if coarse is None:
        yield not_checked("lse", "the shifted keys would overflow")
        return
    before = evidence.variant("k on a grid", lambda s: s.with_inputs(k=coarse))
    after = evidence.variant("k on a grid, shifted", lambda s: s.with_inputs(k=coarse + shift))
    scores = Scores(before.sample)
    step = shift * scores.scale
    moves = {
        "lse": scores.q.sum(-1) * step * scores.sees,
        "dq": (scores.g * step * scores.sees)[..., None].expand_as(scores.q),
        "dk": torch.zeros_like(scores.k),
    }
    for name, move in moves.items():
        yield before.relate(
            f"{name} before and after the shift",
            lambda a, b, move: b - a - move,
            [(before, DERIVATIVES[name], name), (after, DERIVATIVES[name], name)],
            scale=larger,
            constants=[move],
        )


def _can_be_split(case: Case, kernel: Kernel) -> str | None:
    if case.dims["M"] < 2:
        return "a single key cannot be split"
    half = case.dims["M"] // 2
    fits = supports(kernel, M=half) and supports(kernel, M=case.dims["M"] - half)
    return None if fits else "the kernel does not take half as many keys"


def _some_keys(sample: Sample, keys: slice) -> Sample:
    return sample.with_inputs(k=sample.inputs["k"][:, :, keys])


@property(needs=(FORWARD,), applies=all_of(small_enough, bidirectional, no_sinks, no_segments, _can_be_split), rank=4)
def lse_of_split_keys_adds_up(evidence: Evidence) -> Iterator[Finding]:
    """The lse of all keys equals the logaddexp of those of its two halves.

    Holds because: the sum of exponentials is split in two.
    Catches: a loop over keys that ends too soon or runs too far, a stale maximum, a padded key, a result in base 2.
    Cannot catch: errors within each half; forward_matches_the_oracle does.
    """
    half = evidence.case.dims["M"] // 2
    first, second = (
        evidence.variant(key, functools.partial(_some_keys, keys=part))
        for key, part in (("first half of the keys", slice(half)), ("other half of the keys", slice(half, None)))
    )
    yield evidence.relate(
        "lse - logaddexp of the halves",
        lambda whole, a, b: whole - torch.logaddexp(a, b),
        [(evidence, FORWARD, "lse"), (first, FORWARD, "lse"), (second, FORWARD, "lse")],
        scale=lambda whole, a, b: torch.maximum(whole.abs(), torch.maximum(a.abs(), b.abs())),
    )


@property(
    needs=(FORWARD, VJP),
    applies=all_of(small_enough, bidirectional, no_sinks, may_have_twice_the_keys),
    one_in=3,
    rank=3,
)
def repeating_every_key_adds_log_2(evidence: Evidence) -> Iterator[Finding]:
    """With every key twice, lse grows by log 2, dq is unchanged, and both halves of dk sum to the original dk.

    Holds because: the sum of exponentials doubles, and each share is split in two equal halves.
    Catches: a loop over keys that ends too soon or runs too far, a padded key, a result in base 2.
    Cannot catch: errors that both lengths share; forward_matches_the_oracle does.
    """

    def change(sample: Sample) -> Sample:
        doubled = {"k": torch.cat([sample.inputs["k"]] * 2, 2)}
        if "kv_segments" in sample.inputs:
            doubled["kv_segments"] = torch.cat([sample.inputs["kv_segments"]] * 2, 1)
        return sample.with_inputs(**doubled)

    twice, keys = evidence.variant("keys twice", change), evidence.case.dims["M"]
    sees = Scores(evidence.sample).sees.double()
    yield evidence.relate(
        "lse with keys twice",
        lambda a, b, log2: b - a - log2,
        [(evidence, FORWARD, "lse"), (twice, FORWARD, "lse")],
        scale=larger,
        constants=[sees * math.log(2.0)],
    )
    yield balanced("dq with keys twice", [(evidence, VJP, "dq"), (twice, VJP, "dq")])
    yield evidence.relate(
        "dk with keys twice",
        lambda a, b: a - b[:, :, :keys] - b[:, :, keys:],
        [(evidence, VJP, "dk"), (twice, VJP, "dk")],
        scale=lambda a, b: larger(a, b[:, :, :keys]),
    )


@property(needs=(FORWARD, VJP), applies=all_of(small_enough, bidirectional), one_in=2, rank=3)
def the_order_of_the_keys_leaves_lse(evidence: Evidence) -> Iterator[Finding]:
    """Reversing the order of the keys, and of their segments, reverses dk and changes neither lse, dq nor dsinks.

    Holds because: lse is the log of a sum over keys; the true values are the same, so each run is compared with them.
    Catches: a tile whose tail is masked wrongly, a running maximum or sum that depends on which tile comes first.
    Cannot catch: anything that forward and VJP matching do not; this is their case with keys in another order.
    """

    def change(sample: Sample) -> Sample:
        axes = {"k": 2, "kv_segments": 1}
        return sample.with_inputs(**{n: t.flip(axes[n]) for n, t in sample.inputs.items() if n in axes})

    got = dict(evidence.variant("keys reversed", change).vjp())
    got["dk"] = got["dk"].flip(2)
    yield from compared(evidence, got, ", keys reversed", (FORWARD, VJP))


def _shares_keys(case: Case, kernel: Kernel) -> str | None:
    if case.dims["G"] == case.dims["H"]:
        return "every query head has a key head of its own"
    return None if supports(kernel, G=case.dims["H"]) else "the kernel does not take a key head for each query head"


@property(needs=(FORWARD, VJP), applies=all_of(small_enough, _shares_keys), one_in=2, rank=5)
def shared_key_heads_are_repeated_key_heads(evidence: Evidence) -> Iterator[Finding]:
    """With a copy of the key head for each query head, lse and dq are unchanged, and the copies' dk sum to dk.

    Holds because: query head h reads key head h // (H // G), and a gradient of a shared input is the sum over its uses.
    Catches: query heads that read another key head, a missing sum over the group in dk, only the last head kept.
    Cannot catch: errors within a head; vjp_matches_the_oracle does.
    """
    share = Scores(evidence.sample).share
    batch, groups, keys, width = evidence.sample.inputs["k"].shape
    copies = evidence.variant(
        "a key head for each query head", lambda s: s.with_inputs(k=s.inputs["k"].repeat_interleave(share, 1))
    )
    for name in ("lse", "dq"):
        parts = [(each, DERIVATIVES[name], name) for each in (evidence, copies)]
        yield balanced(f"{name} of shared and of repeated key heads", parts)
    yield evidence.relate(
        "dk of shared and of repeated key heads",
        lambda a, b: a - b.reshape(batch, groups, share, keys, width).sum(2),
        [(evidence, VJP, "dk"), (copies, VJP, "dk")],
        scale=lambda a, b: larger(a, b.reshape(batch, groups, share, keys, width).abs().sum(2)),
    )


@property(needs=(FORWARD,), applies=all_of(small_enough, has_sinks), one_in=2, rank=4)
def a_sink_adds_one_term(evidence: Evidence) -> Iterator[Finding]:
    """Where a query sees a key, lse equals the logaddexp of the sink and the lse without sinks.

    Holds because: the sink is one more term of the sum, and its score is neither scaled nor capped.
    Catches: a sink that is scaled, capped or in base 2, added once a tile, or read from another head.
    Cannot catch: rows that see no key; rows_that_see_no_key_give_the_sink does.
    """
    bare = evidence.variant("without sinks", lambda s: without_inputs(s, "sinks"))
    scores = Scores(evidence.sample)
    sees = scores.sees.double()
    yield evidence.relate(
        "lse - logaddexp(lse without sinks, sink)",
        lambda with_sink, bare, sees, sinks: (with_sink - torch.logaddexp(bare, sinks)) * sees,
        [(evidence, FORWARD, "lse"), (bare, FORWARD, "lse")],
        scale=lambda with_sink, bare, sees, sinks: larger(with_sink, bare) * sees,
        constants=[sees, scores.sinks],  # type: ignore[list-item]
    )


@property(needs=(FORWARD, VJP), applies=all_of(small_enough, has_sinks), one_in=3, rank=4)
def a_sink_far_below_is_no_sink(evidence: Evidence) -> Iterator[Finding]:
    """With sinks far below every score, rows that see a key have the same lse and dq as without sinks.

    Holds because: e^sink is then less than e^-150 of the sum, 0 next to it in every format.
    Catches: a maximum that starts at the sink and is not raised, a sink that is clamped, NaN from an underflow.
    Cannot catch: a wrong sink of ordinary size; a_sink_adds_one_term does.
    """
    bare = evidence.variant("without sinks", lambda s: without_inputs(s, "sinks"))
    capped = Scores(bare.sample).capped
    lowest = float(torch.where(capped.isfinite(), capped, 0.0).min()) - 2 * FAR
    level = torch.full_like(evidence.sample.inputs["sinks"], max(1.01 * lowest, -FORMATS[evidence.case.dtype].largest))
    if float(level[0]) > lowest + FAR:
        yield not_checked("lse", "no sink of this dtype is far below the scores")
        return
    far = evidence.variant("sinks far below", lambda s: s.with_inputs(sinks=level))
    sees = Scores(bare.sample).sees.double()
    for name, rows in (("lse", sees), ("dq", sees[..., None])):
        yield evidence.relate(
            f"{name} with sinks far below and without",
            lambda a, b, rows: (a - b) * rows,
            [(far, DERIVATIVES[name], name), (bare, DERIVATIVES[name], name)],
            scale=lambda a, b, rows: larger(a, b) * rows,
            constants=[rows],
        )


def _free_softcap(case: Case, kernel: Kernel) -> str | None:
    return None if "softcap" not in kernel.options else "the kernel takes only some values of softcap"


@property(needs=(FORWARD, VJP), applies=all_of(small_enough, _free_softcap), one_in=3, rank=4)
def a_softcap_far_above_is_no_softcap(evidence: Evidence) -> Iterator[Finding]:
    """With a softcap c far above every score, lse, dq and dk equal those without one.

    Holds because: c tanh(S / c) = S (1 - (S / c)^2 / 3 + ...), and c is so large that this is far below rounding.
    Catches: a cap that is not multiplied back, a cap after the mask, 1 - tanh^2 of another argument.
    Cannot catch: a wrong softcap of ordinary size; forward_matches_the_oracle does.
    """
    bare = evidence.variant("without softcap", lambda s: s.with_options(softcap=None))
    capped = Scores(bare.sample).capped
    largest = float(torch.where(capped.isfinite(), capped, 0.0).abs().max())
    bits = 30 if evidence.case.dtype == "float64" else 15
    cap = 2.0 ** (math.frexp(largest)[1] + bits) if largest > 0 else 1.0
    high = evidence.variant("softcap far above", lambda s: s.with_options(softcap=cap))
    for name in ("lse", "dq", "dk"):
        parts = [(each, DERIVATIVES[name], name) for each in (high, bare)]
        yield balanced(f"{name} with a softcap far above and without", parts)


@property(needs=(FORWARD, VJP), applies=all_of(small_enough, no_sinks), one_in=4, rank=3)
def queries_of_zero_count_the_keys(evidence: Evidence) -> Iterator[Finding]:
    """If every query is 0, lse equals the log of the number of keys that the query sees, and dk is exactly 0.

    Holds because: all scores are 0, capped or not; and dk = scale dS^T q is a sum of products with 0.
    Catches: padded or masked keys in the sum, a mask that is off by one, a result in base 2.
    Cannot catch: errors in the scores; forward_matches_the_oracle does.
    """
    variant = evidence.variant("q = 0", lambda s: s.with_inputs(q=torch.zeros_like(s.inputs["q"])))
    variant.continuous = False
    seen = Scores(variant.sample).visible.sum(-1).double().expand(variant.sample.inputs["q"].shape[:3])
    count = seen.clamp_min(1.0)
    yield variant.relate(
        "lse - log of the number of keys",
        lambda lse, count: lse - torch.log(count),
        [(variant, FORWARD, "lse")],
        scale=lambda lse, count: torch.log(count) + (count > 1),
        constants=[count],
    )
    wrong = variant.tensors(VJP)["dk"].cpu() != 0
    overflow = variant.allowance(VJP, "dk").overflow
    yield exactly("dk of q = 0", wrong if overflow is None else wrong & ~overflow, "an element is not 0", of="dk")


def _takes_both_scales(case: Case, kernel: Kernel) -> str | None:
    return None if takes(kernel, "scale", 1.0) and takes(kernel, "scale", 0.25) else "the kernel takes only some scales"


@property(needs=(FORWARD, VJP), applies=all_of(small_enough, _takes_both_scales), one_in=4, rank=4)
def scaling_q_is_scaling_the_scores(evidence: Evidence) -> Iterator[Finding]:
    """4 q at scale 1/4 gives the same lse and dk as q at scale 1, and a quarter of its dq.

    Holds because: S = scale q k^T is the same in both, and dq is the derivative along a step four times as long.
    Catches: a default scale instead of the one given, a scale that backward omits or applies twice, a scale after the
    cap.
    Cannot catch: errors that do not depend on the scale; forward_matches_the_oracle does.
    """
    folded = evidence.sample.inputs["q"] * 4
    if not bool((folded.double() == evidence.sample.inputs["q"].double() * 4).all()):
        yield not_checked("lse", "four times q is not exactly representable")
        return
    plain = evidence.variant("scale 1", lambda s: s.with_options(scale=1.0))
    inside = evidence.variant("4 q at scale 1/4", lambda s: s.with_inputs(q=folded).with_options(scale=0.25))
    for name, factor in (("lse", 1.0), ("dq", 4.0), ("dk", 1.0)):
        parts = [(each, DERIVATIVES[name], name) for each in (plain, inside)]
        constants = [torch.tensor(factor, dtype=torch.float64)]
        yield balanced(f"{name} with the scale in q", parts, lambda a, b, factor: (a, b * factor), constants)


SYMMETRIES = (
    shifting_keys_by_a_constant_moves_lse_along_q,
    lse_of_split_keys_adds_up,
    repeating_every_key_adds_log_2,
    the_order_of_the_keys_leaves_lse,
    shared_key_heads_are_repeated_key_heads,
    a_sink_adds_one_term,
    a_sink_far_below_is_no_sink,
    a_softcap_far_above_is_no_softcap,
    queries_of_zero_count_the_keys,
    scaling_q_is_scaling_the_scores,
)
