"""Properties of causality, as exact independence: what a row does not depend on changes none of its bits."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch
from gradoracle.properties.applicability import all_of, small_enough
from gradoracle.properties.lightning.samples import in_rows
from gradoracle.properties.linear_attention import (
    FORWARD,
    VJP,
    plain,
    same,
    several_rows,
    split,
    zeros_of_what_is_not_asked_for,
)
from torch import Tensor

from gradoracle.cases.sample import Sample
from gradoracle.check.evidence import Evidence
from gradoracle.model.finding import Finding
from gradoracle.model.property import property


def _later_changed(tensor: Tensor, rows: int) -> Tensor:
    """The rows from ``rows`` on in reversed order and negated."""
    return torch.cat([tensor[:, :, :rows], -tensor[:, :, rows:].flip(2)], 2)


def _earlier_changed(tensor: Tensor, rows: int) -> Tensor:
    """The rows before ``rows`` in reversed order and negated."""
    return torch.cat([-tensor[:, :, :rows].flip(2), tensor[:, :, rows:]], 2)


@property(needs=(FORWARD, VJP), applies=all_of(small_enough, several_rows), one_in=2, rank=6)
def what_comes_later_leaves_o(evidence: Evidence) -> Iterator[Finding]:
    """Changing later rows of q, k and v changes no bit of the earlier rows of o and dq.

    Holds because: o_i and dq_i are sums over j <= i; within a tile the later scores are exactly 0 and add nothing.
    Catches: a mask that is off by one, later scores that are small but not 0, a state that contains a chunk before
    it is read, an order of summation of earlier rows that depends on the length.
    Cannot catch: earlier tokens that are left out; forward_matches_the_oracle does.
    """
    rows = split(evidence.case)
    before = evidence.variant("contiguous", plain)
    change = in_rows(partial(_later_changed, rows=rows))
    after = evidence.variant("later rows changed", lambda s: change(plain(s)))
    yield from same(before, after, ("o", "dq"), "later rows changed", slice(0, rows))


@property(needs=(VJP,), applies=all_of(small_enough, several_rows), one_in=2, rank=6)
def what_came_before_leaves_dk_and_dv(evidence: Evidence) -> Iterator[Finding]:
    """Changing earlier rows of q, k, v and the cotangent changes no bit of the later rows of dk and dv.

    Holds because: dk_j and dv_j are sums over i >= j, and over the cotangent of the state.
    Catches: a reversed mask that is off by one, a cotangent of the state that starts from the wrong end or is carried
    forwards, dk that reads the state.
    Cannot catch: later outputs that are left out; vjp_matches_the_oracle does.
    """
    rows = split(evidence.case)
    before = evidence.variant("contiguous", plain)

    def change(sample: Sample) -> Sample:
        changed = in_rows(partial(_earlier_changed, rows=rows))(plain(sample))
        return changed.with_cotangents(o=_earlier_changed(changed.cotangents["o"], rows))

    after = evidence.variant("earlier rows changed", change)
    yield from same(before, after, ("dk", "dv"), "earlier rows changed", slice(rows, None))


@property(needs=(VJP,), applies=all_of(small_enough, several_rows), one_in=2, rank=6)
def what_is_not_asked_for_gives_no_gradient(evidence: Evidence) -> Iterator[Finding]:
    """With a cotangent of 0 for the last rows of o and for the state, dq, dk and dv are exactly 0 in these rows.

    Holds because: dq_i is a multiple of g_i, and dk_j and dv_j are sums of multiples of g_i for i >= j.
    Catches: a gradient that leaks to later tokens, a workspace that is not cleared, a mask of backward that is off by
    one.
    Cannot catch: gradients that are missing where they should not be 0; vjp_matches_the_oracle does.
    """
    yield from zeros_of_what_is_not_asked_for(evidence)


@property(needs=(FORWARD, VJP), applies=all_of(small_enough, several_rows), one_in=3, rank=5)
def a_query_reaches_its_own_row_alone(evidence: Evidence) -> Iterator[Finding]:
    """Negating every other query changes no bit of the remaining rows of o, or of the state.

    Holds because: o_i reads q_i and no other query; the state reads none.
    Catches: rows of a tile that are mixed up, a query that is added to the state, a normalisation over queries.
    Cannot catch: effects of keys and values; what_comes_later_leaves_o and forward_matches_the_oracle do.
    """

    def change(q: Tensor) -> Tensor:
        signs = torch.ones(q.shape[2], 1, dtype=q.dtype, device=q.device)
        signs[1::2] = -1
        return q * signs

    before = evidence.variant("contiguous", plain)
    after = evidence.variant("every other query negated", lambda s: in_rows(change, "q")(plain(s)))
    kept = ("o", "state") if "state" in evidence.sample.cotangents else ("o",)
    yield from same(before, after, kept, "every other query negated", slice(0, None, 2))


CAUSALITY = (
    what_comes_later_leaves_o,
    what_came_before_leaves_dk_and_dv,
    what_is_not_asked_for_gives_no_gradient,
    a_query_reaches_its_own_row_alone,
)
