"""Properties of masks: causal LSE, segments, and rows that see no key."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from gradoracle.properties.agreement import differ
from gradoracle.properties.applicability import (
    all_of,
    bidirectional_too,
    causal,
    has_a_later_query,
    small_enough,
    supports,
)
from gradoracle.properties.attention import (
    contiguous,
    first_queries,
    held_to_rows,
    last_query_equals,
    later_negated,
    rows_of,
)
from gradoracle.properties.lse.scores import (
    FORWARD,
    HVP,
    JVP,
    SEGMENTS,
    VJP,
    Scores,
    has_segments,
    has_sinks,
    no_sinks,
)
from torch import Tensor

from gradoracle.cases.sample import Sample
from gradoracle.check.acceptance import exactly
from gradoracle.check.evidence import Evidence
from gradoracle.model import layouts
from gradoracle.model.case import Case
from gradoracle.model.finding import Finding
from gradoracle.model.kernel import Kernel
from gradoracle.model.property import property

NAMES = ("lse", "dq")


def _some_row_sees_no_key(case: Case, kernel: Kernel) -> str | None:
    if SEGMENTS[0] in case.draws or (case.options.get("causal", False) and case.dims["T"] > case.dims["M"]):
        return None
    return "every query sees a key"


def _without_keys(evidence: Evidence) -> Evidence:
    """The evidence, or where there are segments its variant whose every third query is of a segment without keys."""
    if SEGMENTS[0] not in evidence.sample.inputs:
        return evidence

    def change(sample: Sample) -> Sample:
        own, keys = (sample.inputs[name].clone() for name in SEGMENTS)
        own[:, ::3] = 2
        return sample.with_inputs(q_segments=own, kv_segments=keys % 2)

    return evidence.variant("a segment without keys", change)


@property(needs=(FORWARD, VJP), applies=all_of(small_enough, no_sinks, _some_row_sees_no_key), rank=6)
def rows_without_a_term_are_minus_infinity(evidence: Evidence) -> Iterator[Finding]:
    """A query that sees neither key nor sink has lse = -inf, and dq, tangent and Hessian product exactly 0.

    Holds because: the sum is empty and its log is the constant -inf; derivatives of a constant are 0.
    Catches: NaN from -inf - -inf, log 0 of a finite mask value (-1e9), top-left alignment, P of equal masked scores.
    Cannot catch: errors in rows that see a key.
    """
    variant = _without_keys(evidence)
    blind = ~Scores(variant.sample).sees
    got = variant.tensors(FORWARD)["lse"].cpu()
    yield exactly(
        "lse of rows without a term",
        (got != -torch.inf) & blind,
        "is not -inf",
        lost=bool(got[blind].isnan().any()),
        of="lse",
    )
    yield from _zeros(variant, blind)


@property(needs=(FORWARD, VJP), applies=all_of(small_enough, has_sinks, _some_row_sees_no_key), rank=6)
def rows_that_see_no_key_give_the_sink(evidence: Evidence) -> Iterator[Finding]:
    """A query that sees no key has lse = sink, and dq and the Hessian product of q exactly 0.

    Holds because: the sink is the only term, log(e^sink) = sink, and q does not enter it.
    Catches: a sink that such rows skip, -inf instead of the sink, a result in base 2, top-left alignment.
    Cannot catch: errors in rows that see a key, or in dsinks, which has its own property.
    """
    variant = _without_keys(evidence)
    scores = Scores(variant.sample)
    blind = (~scores.sees).double()
    yield variant.relate(
        "lse - sink of rows that see no key",
        lambda lse, blind, sinks: (lse - sinks) * blind,
        [(variant, FORWARD, "lse")],
        scale=lambda lse, blind, sinks: sinks.abs() * blind,
        constants=[blind, scores.sinks],  # type: ignore[list-item]
    )
    yield from _zeros(variant, ~scores.sees, tangent=False)


def _zeros(variant: Evidence, blind: Tensor, tangent: bool = True) -> Iterator[Finding]:
    """Exact zeros of dq, hvp.q and, without a sink, of the tangent of lse in rows that see no key."""
    expected = [(VJP, "dq"), (HVP, "hvp.q"), *([(JVP, "jvp.lse")] if tangent else [])]
    for name, got in variant.available(expected):
        rows = got.cpu()[blind]
        lost = bool(rows.isnan().any())
        yield exactly(
            f"{name} of rows that see no key", rows != 0, "is not 0 where the query sees no key", lost=lost, of=name
        )


def _of_no_query(sample: Sample) -> tuple[Sample, Tensor]:
    """Every second key put in a segment that no query is in, and which keys those are [M]."""
    own, keys = (sample.inputs[name].clone() for name in SEGMENTS)
    hidden = torch.arange(keys.shape[1], device=keys.device) % 2 == 0
    keys[:, hidden] = 2
    return sample.with_inputs(q_segments=own % 2, kv_segments=keys), hidden


@property(needs=(FORWARD, VJP), applies=all_of(small_enough, has_segments), one_in=2, rank=5)
def keys_of_another_segment_have_no_gradient(evidence: Evidence) -> Iterator[Finding]:
    """Keys in a segment without queries have dk and Hessian product of exactly 0.

    Holds because: no lse depends on them.
    Catches: segments that backward does not mask, masked shares that are not exactly 0, an unwritten tile of dk.
    Cannot catch: keys that some query sees; vjp_matches_the_oracle does.
    """
    variant = evidence.variant("keys of no query", lambda s: _of_no_query(s)[0])
    hidden = _of_no_query(evidence.sample)[1].cpu()
    for name, got in variant.available([(VJP, "dk"), (HVP, "hvp.k")]):
        rows = got.cpu()[:, :, hidden]
        lost = bool(rows.isnan().any())
        yield exactly(
            f"{name} of another segment", rows != 0, "is not 0 where no query sees the key", lost=lost, of=name
        )


@property(needs=(FORWARD, VJP), applies=all_of(small_enough, has_segments), one_in=2, rank=5)
def keys_of_another_segment_do_not_matter(evidence: Evidence) -> Iterator[Finding]:
    """Negating keys that no query sees changes neither lse nor dq, not by a bit where determinism is claimed.

    Holds because: no lse depends on them.
    Catches: segments that forward does not mask, a maximum over masked scores, a large negative number for -inf.
    Cannot catch: keys that are masked and should not be; forward_matches_the_oracle does.
    """

    def changed(sample: Sample) -> Sample:
        apart, hidden = _of_no_query(sample)
        k = layouts.aligned(apart.inputs["k"])
        k[:, :, hidden] = -k[:, :, hidden]
        return apart.with_inputs(k=k)

    def plain(sample: Sample) -> Sample:
        apart = _of_no_query(sample)[0]
        return apart.with_inputs(k=layouts.aligned(apart.inputs["k"]))

    before = evidence.variant("keys of no query, contiguous", plain)
    after = evidence.variant("keys of no query negated", changed)
    yield from _same(evidence, before, after, slice(None), "keys of no query negated")


@property(needs=(FORWARD, VJP), applies=all_of(small_enough, causal, has_a_later_query), rank=5)
def what_comes_later_leaves_lse(evidence: Evidence) -> Iterator[Finding]:
    """lse and dq of the first queries depend neither on the values of later rows nor on whether there are any.

    Holds because: query i sees keys j <= i + M - T only; others add nothing. Without the later ones the truth is the
    same. Bits are compared where the kernel claims determinism.
    Catches: a mask that is off by one, masked shares that are not exactly 0, a maximum over later keys.
    Cannot catch: keys that are masked and should not be; lse_of_the_last_query_is_that_of_it_alone does.
    """
    rows, prefix = first_queries(evidence.case)
    first = slice(0, rows)
    before = evidence.variant("contiguous", contiguous)
    after = evidence.variant("what comes later negated", lambda s: later_negated(s, rows, prefix))
    yield from _same(evidence, before, after, first, "what comes later negated")
    if prefix and supports(evidence.kernel, T=rows, M=prefix):
        cut = evidence.variant("without what comes later", lambda s: _cut(s, first, prefix))
        yield from held_to_rows(before, rows_of(cut, NAMES, first), first, "without what comes later")


@property(needs=(FORWARD, VJP), applies=all_of(small_enough, causal, bidirectional_too), one_in=2, rank=5)
def lse_of_the_last_query_is_that_of_it_alone(evidence: Evidence) -> Iterator[Finding]:
    """lse and dq of the last query equal those of that query alone without a causal mask.

    Holds because: causal aligns the last query with the last key, so it sees every key of its segment.
    Catches: top-left alignment, a diagonal tile that is skipped, a mask that is off by one.
    Cannot catch: masks of other rows; what_comes_later_leaves_lse and forward_matches_the_oracle do.
    """
    last = slice(evidence.case.dims["T"] - 1, None)
    alone = evidence.variant(
        "last query alone: ", lambda s: _cut(s, last, evidence.case.dims["M"]).with_options(causal=False)
    )
    yield from last_query_equals(evidence, alone, NAMES)


def _cut(sample: Sample, rows: slice, keys: int) -> Sample:
    """Some of the queries, with their cotangents, and the first so many keys."""
    cuts: dict[str, Callable[[Tensor], Tensor]] = {
        "q": lambda t: t[:, :, rows],
        "k": lambda t: t[:, :, :keys],
        "q_segments": lambda t: t[:, rows],
        "kv_segments": lambda t: t[:, :keys],
    }
    inputs = {name: cuts[name](tensor) for name, tensor in sample.inputs.items() if name in cuts}
    return sample.with_inputs(**inputs).with_cotangents(lse=sample.cotangents["lse"][:, :, rows])


def _same(evidence: Evidence, before: Evidence, after: Evidence, rows: slice, label: str) -> Iterator[Finding]:
    """Judge lse and dq of some queries after a change that they must not see: bits, and the truth before it."""
    changed = rows_of(after, NAMES, rows)
    if evidence.kernel.deterministic:
        same = rows_of(before, NAMES, rows)
        for name, tensor in changed.items():
            wrong = differ(tensor, same[name]).cpu()
            message = "depends on keys that it does not see"
            yield exactly(f"bits of {name}, {label}", wrong, message, elements=wrong.numel(), of=name)
    yield from held_to_rows(before, changed, rows, label)


MASKS = (
    rows_without_a_term_are_minus_infinity,
    rows_that_see_no_key_give_the_sink,
    keys_of_another_segment_have_no_gradient,
    keys_of_another_segment_do_not_matter,
    what_comes_later_leaves_lse,
    lse_of_the_last_query_is_that_of_it_alone,
)
