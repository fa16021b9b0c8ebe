"""Properties of the state: a sequence may be split at it, and a query after the last token reads it."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from gradoracle.properties.agreement import double, larger
from gradoracle.properties.applicability import all_of, gives_the_state, small_enough, starts_from_a_state
from gradoracle.properties.attention import scale_of
from gradoracle.properties.linear_attention import (
    FORWARD,
    INITIAL,
    made,
    new_state,
    of_rows,
    plain,
    several_rows,
    split,
    tokens,
    with_the_state,
)
from torch import Tensor

from gradoracle.check.acceptance import not_checked
from gradoracle.check.evidence import Evidence
from gradoracle.model.finding import Finding
from gradoracle.model.property import property


@property(needs=(FORWARD,), applies=all_of(small_enough, gives_the_state), one_in=2, rank=4)
def the_state_answers_a_query_after_the_last_token(evidence: Evidence) -> Iterator[Finding]:
    """The last row of o equals scale times q_T times the returned state.

    Holds because: o_T reads the state that is returned.
    Catches: a state without its last chunk, or before its last token; one that is transposed or of the wrong head.
    Cannot catch: errors that o and the state share; forward_matches_the_oracle does.
    """
    variant = evidence.variant("with its state", with_the_state)
    last = double(variant.sample.inputs["q"])[:, :, -1:]
    scale = scale_of(variant.sample)
    yield variant.relate(
        "o_T - scale q_T state",
        lambda o, state, last: o[:, :, -1:] - last @ state,
        [(variant, FORWARD, "o"), (variant, FORWARD, "state")],
        scale=lambda o, state, last: last.abs() @ state.abs(),
        constants=[scale * last],
    )


@property(
    needs=(FORWARD,),
    applies=all_of(small_enough, several_rows, starts_from_a_state, gives_the_state),
    one_in=3,
    rank=5,
)
def a_sequence_may_be_split_anywhere(evidence: Evidence) -> Iterator[Finding]:
    """A sequence run in two parts, the second from the state of the first, has the same o and the same state.

    Holds because: later outputs depend on earlier tokens only through the state. The second part's truth is that of
    the state that it was handed.
    Catches: a state that lacks rows, contains padded ones or is rounded to 16 bit; a chunk boundary in the wrong place;
    a decay that is applied once too often where a sequence starts from a state.
    Cannot catch: errors within each part; forward_matches_the_oracle does.
    """
    own, rows = plain(evidence.sample), split(evidence.case)
    early, late = slice(0, rows), slice(rows, None)
    g = own.cotangents["o"]
    state_g = own.cotangents.get("state", new_state(own, "cotangent"))
    first = evidence.variant(
        "first part", lambda s: made(own, tokens(own, early), own.inputs.get(INITIAL), g[:, :, early], state_g)
    )
    handed = first.tensors(FORWARD)["state"]
    if not bool(handed.isfinite().all()):
        yield not_checked("state", "the state at the split is not finite")
        return
    second = evidence.variant("second part", lambda s: made(own, tokens(own, late), handed, g[:, :, late], state_g))
    yield _of_the_whole(evidence, first, "o", early)
    yield _of_the_whole(evidence, second, "o", late)
    if "state" in own.cotangents:
        yield _of_the_whole(evidence, second, "state", late)


def _of_the_whole(evidence: Evidence, part: Evidence, name: str, rows: slice) -> Finding:
    """Judge some rows of the whole by what a part gave; their truths differ by the error of what it was handed."""
    true = [each.truths(FORWARD)[name].value for each in (evidence, part)]
    apart = of_rows(true[0], name, rows) - true[1]

    def difference(whole: Tensor, alone: Tensor, apart: Tensor) -> Tensor:
        return of_rows(whole, name, rows) - alone - apart

    return evidence.relate(
        f"{name} of the {'first' if rows.start == 0 else 'second'} part",
        difference,
        [(evidence, FORWARD, name), (part, FORWARD, name)],
        scale=lambda whole, alone, _: larger(of_rows(whole, name, rows), alone),
        constants=[torch.nan_to_num(apart)],
    )


STATE = (the_state_answers_a_query_after_the_last_token, a_sequence_may_be_split_anywhere)
