"""Properties of causal SDPA: which keys a query sees, and that it depends on no others."""

from __future__ import annotations

from collections.abc import Iterator

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

from gradoracle.cases.sample import Sample
from gradoracle.check.acceptance import exactly
from gradoracle.check.evidence import Evidence
from gradoracle.model.derivative import Derivative
from gradoracle.model.finding import Finding
from gradoracle.model.property import property

FORWARD, VJP = Derivative.FORWARD, Derivative.VJP
NAMES = ("o", "dq")


@property(needs=(FORWARD, VJP), applies=all_of(small_enough, causal, has_a_later_query), rank=5)
def causal_prefix(evidence: Evidence) -> Iterator[Finding]:
    """o and dq of the first queries depend neither on the values of later rows nor on whether there are any.

    Holds because: query i sees keys j <= i + M - T only; others have weight exactly 0. Without the later ones the truth
    is the same. Bits are compared where the kernel claims determinism.
    Catches: a mask that is off by one, masked weights that are not exactly 0, a leak of later keys through m or l.
    Cannot catch: keys that are masked and should not be; the_last_query_sees_every_key does.
    """
    rows, prefix = first_queries(evidence.case)
    first = slice(0, rows)
    later = evidence.variant("what comes later negated", lambda s: later_negated(s, rows, prefix))
    changed = rows_of(later, NAMES, first)
    if evidence.kernel.deterministic:
        same = rows_of(evidence.variant("contiguous", contiguous), NAMES, first)
        for name, tensor in changed.items():
            wrong = differ(tensor, same[name]).cpu()
            yield exactly(
                f"bits of {name}, later negated", wrong, "depends on what comes later", elements=wrong.numel(), of=name
            )
    yield from held_to_rows(evidence, changed, first, "what comes later negated")
    if prefix and supports(evidence.kernel, T=rows, M=prefix):
        cut = evidence.variant("without what comes later", lambda s: _cut(s, first, prefix))
        yield from held_to_rows(evidence, rows_of(cut, NAMES, first), first, "without what comes later")


@property(needs=(FORWARD, VJP), applies=all_of(small_enough, causal, bidirectional_too), one_in=2, rank=5)
def the_last_query_sees_every_key(evidence: Evidence) -> Iterator[Finding]:
    """o and dq of the last query equal those of that query alone without a mask.

    Holds because: causal aligns the last query with the last key, so it sees every key.
    Catches: top-left alignment, a diagonal tile that is skipped, a mask that is off by one.
    Cannot catch: masks of other rows; causal_prefix and forward_matches_the_oracle do.
    """
    last = slice(evidence.case.dims["T"] - 1, None)
    alone = evidence.variant(
        "last query alone: ", lambda s: _cut(s, last, evidence.case.dims["M"]).with_options(causal=False)
    )
    yield from last_query_equals(evidence, alone, NAMES)


def _cut(sample: Sample, rows: slice, keys: int) -> Sample:
    """Some of the queries, with their cotangents, and the first so many keys."""
    inputs = {"q": sample.inputs["q"][:, :, rows], **{n: sample.inputs[n][:, :, :keys] for n in ("k", "v")}}
    return sample.with_inputs(**inputs).with_cotangents(o=sample.cotangents["o"][:, :, rows])


MASKS = (causal_prefix, the_last_query_sees_every_key)
