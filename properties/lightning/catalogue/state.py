"""Properties of lightning's state: its value, queries of it, the initial state, and splitting a sequence at it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
from gradoracle.properties.agreement import derivative_of, double, larger
from gradoracle.properties.applicability import all_of, gives_the_state, small_enough, starts_from_a_state
from gradoracle.properties.lightning.samples import Parts, any_length, has_initial_state, in_rows
from gradoracle.properties.linear_attention import (
    FORWARD,
    INITIAL,
    VJP,
    made,
    new_state,
    of_rows,
    plain,
    same,
    several_rows,
    split,
    tokens,
    with_the_state,
    zeros,
)
from torch import Tensor

from gradoracle.cases.sample import Sample
from gradoracle.check.acceptance import not_checked
from gradoracle.check.error_relation import Part
from gradoracle.check.evidence import Evidence
from gradoracle.model.finding import Finding
from gradoracle.model.property import property


@property(needs=(FORWARD, VJP), applies=all_of(small_enough, gives_the_state), one_in=2, rank=5)
def the_state_ignores_the_queries(evidence: Evidence) -> Iterator[Finding]:
    """Changing the queries changes no bit of the state; with a cotangent of the state alone, dq is exactly 0.

    Holds because: the state is S0 + sum of k_j^T v_j; no query is in it.
    Catches: a state of q and v, a cotangent of the state that reaches dq, a state that is stored after it was scaled.
    Cannot catch: a wrong sum of keys and values; the_state_answers_a_query_after_the_last_token and
    forward_matches_the_oracle do.
    """
    before = evidence.variant("with its state", with_the_state)
    after = evidence.variant("with its state, queries negated", lambda s: in_rows(torch.neg, "q")(with_the_state(s)))
    yield from same(before, after, ("state",), "queries negated")

    def alone(sample: Sample) -> Sample:
        asked = with_the_state(sample)
        return asked.with_cotangents(o=torch.zeros_like(asked.cotangents["o"]))

    yield zeros(evidence.variant("cotangent of the state alone", alone), "dq", "dq of the state")


@property(needs=(FORWARD,), applies=all_of(small_enough, gives_the_state), one_in=2, rank=4)
def the_state_answers_a_query_after_the_last_token(evidence: Evidence) -> Iterator[Finding]:
    """The last row of o equals q_N times the returned state.

    Holds because: o_N sums (q_N . k_j) v_j over all j, and so does q_N (S0 + sum of k_j^T v_j).
    Catches: a state without its last chunk or its S0, one with a chunk twice, one that is transposed or of the wrong
    head, padded rows in it.
    Cannot catch: errors that o and the state share; forward_matches_the_oracle does.
    """
    variant = evidence.variant("with its state", with_the_state)
    own = Parts(variant.sample)
    last = own.q[:, :, -1:]
    size = (last.abs() * own.k.abs()).sum(-1).unsqueeze(-2) @ own.v.abs() + last.abs() @ own.initial.abs()
    yield variant.relate(
        "o_N - q_N state",
        lambda o, state, last, size: o[:, :, -1:] - last @ state,
        [(variant, FORWARD, "o"), (variant, FORWARD, "state")],
        scale=lambda o, state, last, size: size,
        constants=[last, size],
    )


@property(needs=(FORWARD, VJP), applies=all_of(small_enough, starts_from_a_state), one_in=3, rank=5)
def an_initial_state_of_zero_is_none(evidence: Evidence) -> Iterator[Finding]:
    """With an initial state of zeros, o, the state, dq, dk and dv equal those without one.

    Holds because: q 0 = 0, and adding 0 changes no sum; no rounding is changed by it.
    Catches: an initial state that is read where there is none, or ignored where there is one; another order of sums in
    one of the two; a state that starts from uninitialised memory.
    Cannot catch: effects of an initial state that is not 0; the_first_row_is_of_the_first_token does.
    """

    def change(sample: Sample, initial: Tensor | None) -> Sample:
        return made(plain(sample), tokens(plain(sample)), initial, plain(sample).cotangents["o"], _state_g(sample))

    none = evidence.variant("without initial state", lambda s: change(s, None))
    zeros = evidence.variant(
        "an initial state of zeros", lambda s: change(s, torch.zeros_like(new_state(s, "initial state")))
    )
    kept = ["o", "dq", "dk", "dv", *(["state"] if "state" in evidence.sample.cotangents else [])]
    yield from same(none, zeros, kept, "an initial state of zeros")


def _state_g(sample: Sample) -> Tensor | None:
    return plain(sample).cotangents.get("state")


@property(needs=(VJP,), applies=all_of(small_enough, has_initial_state), rank=4)
def the_gradient_of_the_initial_state_is_q_g(evidence: Evidence) -> Iterator[Finding]:
    """dS0 is the sum of q_i^T g_i, plus the cotangent of the state.

    Holds because: S0 reaches each output as q_i S0, and the state as it is.
    Catches: a chunk left out or added twice, a cotangent of the state left out, gradients of keys in it, a sum that is
    kept in 16 bit.
    Cannot catch: effects of S0 in forward; q_dq_equals_o_g_row_by_row does.
    """
    own = Parts(evidence.sample)
    yield evidence.relate(
        "dS0 - q^T g - g_state",
        lambda got, expected, size: got - expected,
        [(evidence, VJP, "dinitial_state")],
        scale=lambda got, expected, size: size,
        constants=[
            own.q.transpose(-1, -2) @ own.g + own.g_state,
            own.q.abs().transpose(-1, -2) @ own.g.abs() + own.g_state.abs(),
        ],
    )


@property(
    needs=(FORWARD, VJP),
    applies=all_of(small_enough, several_rows, any_length, starts_from_a_state, gives_the_state),
    one_in=4,
    rank=5,
)
def a_sequence_may_be_split_anywhere(evidence: Evidence) -> Iterator[Finding]:
    """A sequence run in two parts, the second from the state of the first, has the same o, state and gradients.

    Holds because: later outputs depend on earlier tokens only through the state; backwards, earlier tokens depend on
    later outputs only through its cotangent (the gradient of the second part's initial state). Errors of the state at
    the split, and of its cotangent, are propagated into the budgets.
    Catches: a state that lacks rows, contains padded ones or is rounded to 16 bit, a chunk boundary in the wrong place,
    a cotangent of the state that is dropped, used after it was updated, or added twice.
    Cannot catch: errors within each part; forward_matches_the_oracle and vjp_matches_the_oracle do.
    """
    own, rows = plain(evidence.sample), split(evidence.case)
    early, late = slice(0, rows), slice(rows, None)
    initial, g = own.inputs.get(INITIAL), own.cotangents["o"]
    start = evidence.variant(
        "first part", lambda s: made(own, tokens(own, early), initial, g[:, :, early], new_state(own, "cotangent"))
    )
    handed = start.tensors(FORWARD)["state"]
    if not bool(handed.isfinite().all()):
        yield not_checked("state", "the state at the split is not finite")
        return
    second = evidence.variant(
        "second part", lambda s: made(own, tokens(own, late), handed, g[:, :, late], own.cotangents.get("state"))
    )
    returned = second.tensors(VJP)["dinitial_state"]
    if not bool(returned.isfinite().all()):
        yield not_checked("state", "the cotangent of the state at the split is not finite")
        return
    first = evidence.variant(
        "first part, with the cotangent of its state",
        lambda s: made(own, tokens(own, early), initial, g[:, :, early], returned),
    )
    state, cotangent = _known(start, "state"), _known(second, "dinitial_state")
    knows = {name: double(tensor) for name, tensor in own.inputs.items()}
    weights = double(g)
    one = torch.ones((), dtype=torch.float64)
    yield _part_of_the_whole(evidence, first, "o", early)
    yield _part_of_the_whole(evidence, second, "o", late, state, knows["q"][:, :, late])
    yield _part_of_the_whole(evidence, first, "dq", early)
    yield _part_of_the_whole(evidence, second, "dq", late, state, weights[:, :, late], transposed=True)
    for name, other in (("dk", "v"), ("dv", "k")):
        yield _part_of_the_whole(evidence, second, name, late)
        known = knows[other][:, :, early]
        yield _part_of_the_whole(evidence, first, name, early, cotangent, known, transposed=name == "dk")
    if "state" in own.cotangents:
        yield _part_of_the_whole(evidence, second, "state", late, state, one)
    if initial is not None:
        yield _part_of_the_whole(evidence, first, "dinitial_state", early, cotangent, one)


def _known(evidence: Evidence, name: str) -> Part:
    """A tensor that one part hands to the other, as its truth with the error that the kernel's has."""
    part = evidence.part(derivative_of(evidence, name), name)
    return replace(part, got=part.true)


def _part_of_the_whole(
    evidence: Evidence,
    part: Evidence,
    name: str,
    rows: slice,
    handed: Part | None = None,
    weight: Tensor | None = None,
    transposed: bool = False,
) -> Finding:
    """Judge some rows of the whole by what a part gave; ``weight`` times the error of what it was handed is allowed."""

    def carried(state: Tensor, true: Tensor, weight: Tensor) -> Tensor:
        error = (state - true).transpose(-1, -2) if transposed else state - true
        return weight @ error if weight.dim() else weight * error

    def difference(whole: Tensor, alone: Tensor, *handed: Tensor) -> Tensor:
        found = of_rows(whole, name, rows) - alone
        return found - carried(*handed) if handed else found

    derivative = derivative_of(evidence, name)
    parts: list[Part | tuple[Evidence, object, str]] = [(evidence, derivative, name), (part, derivative, name)]
    constants: Sequence[Tensor] = []
    if handed is not None and weight is not None:
        parts, constants = [*parts, handed], [handed.true, weight]
    return evidence.relate(
        f"{name} of the {'first' if rows.start == 0 else 'second'} part",
        difference,
        parts,  # type: ignore[arg-type]
        scale=lambda whole, alone, *_: larger(of_rows(whole, name, rows), alone),
        constants=constants,
    )


STATE = (
    the_state_ignores_the_queries,
    the_state_answers_a_query_after_the_last_token,
    an_initial_state_of_zero_is_none,
    the_gradient_of_the_initial_state_is_q_g,
    a_sequence_may_be_split_anywhere,
)
