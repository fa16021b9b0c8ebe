"""Properties of causality: what a row does not depend on changes none of its bits."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from gradoracle.properties.applicability import all_of, small_enough
from gradoracle.properties.linear_attention import (
    FORWARD,
    VJP,
    plain,
    same,
    several_rows,
    split,
    tokens,
    zeros_of_what_is_not_asked_for,
)
from torch import Tensor

from gradoracle.cases.sample import Sample
from gradoracle.check.evidence import Evidence
from gradoracle.model.finding import Finding
from gradoracle.model.property import property


def _turned(tensor: Tensor, rows: slice) -> Tensor:
    """A tensor whose rows in a slice are in reversed order."""
    found = tensor.clone(memory_format=torch.contiguous_format)
    found[:, :, rows] = tensor[:, :, rows].flip(2)
    return found


@property(needs=(FORWARD,), applies=all_of(small_enough, several_rows), one_in=2, rank=6)
def what_comes_later_leaves_o(evidence: Evidence) -> Iterator[Finding]:
    """Reversing the order of later rows of all inputs changes no bit of the earlier rows of o.

    Holds because: o_t reads S_t, which tokens up to t make.
    Catches: a mask that is off by one, a chunk that is inverted as a whole, a decay of a later row in an earlier one.
    Cannot catch: earlier tokens that are left out; forward_matches_the_oracle does.
    """
    rows = split(evidence.case)

    def change(sample: Sample) -> Sample:
        own = plain(sample)
        return own.with_inputs(**{name: _turned(t, slice(rows, None)) for name, t in tokens(own).items()})

    before = evidence.variant("contiguous", plain)
    after = evidence.variant("later rows reversed", change)
    yield from same(before, after, ("o",), "later rows reversed", slice(0, rows))


@property(needs=(VJP,), applies=all_of(small_enough, several_rows), one_in=2, rank=6)
def what_is_not_asked_for_gives_no_gradient(evidence: Evidence) -> Iterator[Finding]:
    """With a cotangent of 0 for the last rows of o and for the state, every gradient is exactly 0 in these rows.

    Holds because: a token acts on outputs from its own row on.
    Catches: a gradient that leaks to later tokens, a workspace that is not cleared, a mask of backward that is off by
    one.
    Cannot catch: gradients that are missing where they should not be 0; vjp_matches_the_oracle does.
    """
    yield from zeros_of_what_is_not_asked_for(evidence)


CAUSALITY = (what_comes_later_leaves_o, what_is_not_asked_for_gives_no_gradient)
