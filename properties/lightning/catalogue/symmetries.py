"""Properties of lightning between two samples: order of the past, time shifts and reversal, and split tokens."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from gradoracle.properties.agreement import as_they_are, balanced, derivative_of, larger
from gradoracle.properties.applicability import all_of, small_enough, starts_from_a_state, supports
from gradoracle.properties.lightning.samples import Parts, any_length, in_rows, instead
from gradoracle.properties.linear_attention import (
    FORWARD,
    INITIAL,
    VJP,
    both_of_rows,
    made,
    of_rows,
    plain,
    same,
    several_rows,
    split,
    tokens,
    zeros,
)
from torch import Tensor

from gradoracle.cases.sample import Sample
from gradoracle.check.evidence import Evidence
from gradoracle.model import hashing
from gradoracle.model.case import Case
from gradoracle.model.finding import Finding
from gradoracle.model.kernel import Kernel
from gradoracle.model.property import property


def _outputs(evidence: Evidence) -> tuple[str, ...]:
    return ("o", "state") if "state" in evidence.sample.cotangents else ("o",)


@property(needs=(FORWARD, VJP), applies=all_of(small_enough, several_rows), one_in=3, rank=4)
def the_order_of_the_past_leaves_what_follows(evidence: Evidence) -> Iterator[Finding]:
    """Reversing the order of the first tokens changes neither the later rows of o and dq nor the state.

    Holds because: later rows and the state sum over all of them.
    Catches: a decay or another weight by position, tokens at the end of a chunk that are dropped or counted twice, a
    tail that is masked wrongly.
    Cannot catch: a token that is dropped at any position; forward_matches_the_oracle does.
    """
    rows = split(evidence.case)

    def change(tensor: Tensor) -> Tensor:
        return torch.cat([tensor[:, :, :rows].flip(2), tensor[:, :, rows:]], 2)

    other = evidence.variant("the past reversed", in_rows(change, "k", "v"))
    later = slice(rows - 1, None)
    for name in (*_outputs(evidence), "dq"):
        parts = [(each, derivative_of(each, name), name) for each in (evidence, other)]
        yield balanced(f"{name} after the past reversed", parts, both_of_rows(name, later))


@property(needs=(FORWARD, VJP), applies=all_of(small_enough, any_length), one_in=4, rank=5)
def tokens_of_zero_in_front_move_the_sequence(evidence: Evidence) -> Iterator[Finding]:
    """1 to 15 rows of k = v = g = 0 in front change neither o, nor the state, nor gradients; in them dk = dv = 0.

    Holds because: k^T v = 0 adds nothing, and the new rows have a cotangent of 0. Every row then lies at another place
    in its chunk, so this is invariance under the size and the start of chunks.
    Catches: errors at the first or last row of a chunk: a state that contains a chunk before it is read, a mask
    that is off by one, a chunk boundary in the wrong place, a tail that is not masked.
    Cannot catch: errors that all rows share; forward_matches_the_oracle does.
    """
    moved = 1 + 2 * int(hashing.integers(evidence.case.seed, "moved", 1, 0, 8)[0])  # odd: no multiple of a chunk

    def behind(tensor: Tensor, rows: Tensor) -> Tensor:
        return torch.cat([rows.expand(*tensor.shape[:2], moved, tensor.shape[3]), tensor], 2)

    def change(sample: Sample) -> Sample:
        own = plain(sample)
        q, k, v = (own.inputs[name] for name in ("q", "k", "v"))
        g, zero = own.cotangents["o"], q.new_zeros(())
        rows = {"q": behind(q, q[:, :, :1]), "k": behind(k, zero), "v": behind(v, zero)}
        return made(own, rows, own.inputs.get(INITIAL), behind(g, zero), own.cotangents.get("state"))

    longer = evidence.variant(f"{moved} rows of 0 in front", change)
    gradients = ["dq", "dk", "dv", *(["dinitial_state"] if INITIAL in evidence.sample.inputs else [])]
    own = slice(moved, None)
    for name in (*_outputs(evidence), *gradients):
        parts = [(each, derivative_of(each, name), name) for each in (evidence, longer)]
        yield balanced(f"{name} behind rows of 0", parts, lambda a, b, name=name: (a, of_rows(b, name, own)))
    for name in ("dq", "dk", "dv"):
        yield zeros(longer, name, f"{name} of the rows of 0", slice(moved))


def _takes_swapped_widths(case: Case, kernel: Kernel) -> str | None:
    fits = supports(kernel, D=case.dims["Dv"], Dv=case.dims["D"])
    return None if fits else "the kernel does not take D and Dv exchanged"


def _states_can_be_given(case: Case, kernel: Kernel) -> str | None:
    needed = INITIAL in case.draws or case.options.get("return_state", False)
    return starts_from_a_state(case, kernel) if needed else None


@property(
    needs=(FORWARD, VJP),
    applies=all_of(small_enough, _takes_swapped_widths, _states_can_be_given),
    one_in=4,
    rank=4,
)
def gradients_are_outputs_of_the_same_kernel(evidence: Evidence) -> Iterator[Finding]:
    """dq = f(g, v, k; S0^T), and reversed in time dv = f(k, q, g; g_state) and dk = f(v, g, q; g_state^T).

    Holds because: <g, o> is the same sum of (q_i . k_j)(g_i . v_j) over j <= i from each input's side; seen from a
    token, time runs backwards and the state's cotangent is where it starts.
    Catches: a backward that does not belong to its forward: the orientation of the state, a cotangent that is updated
    before it is used, a scale in one of them.
    Cannot catch: errors that forward and backward share; forward_matches_the_oracle does.
    """
    own = plain(evidence.sample)
    q, k, v = (own.inputs[name] for name in ("q", "k", "v"))
    g, initial, g_state = own.cotangents["o"], own.inputs.get(INITIAL), own.cotangents.get("state")

    def transposed(state: Tensor | None) -> Tensor | None:
        return None if state is None else state.transpose(-1, -2).contiguous()

    def scanned(x: Tensor, y: Tensor, z: Tensor, start: Tensor | None) -> Sample:
        return made(own, {"q": x, "k": y, "v": z}, start, torch.zeros_like(z), None)

    calls = {
        "dq": scanned(g, v, k, transposed(initial)),
        "dk": scanned(v.flip(2), g.flip(2), q.flip(2), transposed(g_state)),
        "dv": scanned(k.flip(2), q.flip(2), g.flip(2), g_state),
    }
    for name, call in calls.items():
        other = evidence.variant(f"{name} as an output", instead(call))
        yield balanced(
            f"{name} and the output that it is",
            [(evidence, VJP, name), (other, FORWARD, "o")],
            as_they_are if name == "dq" else lambda a, b: (a, b.flip(2)),
        )


@property(needs=(FORWARD,), applies=small_enough, one_in=3, rank=4)
def past_and_future_add_up_to_the_whole(evidence: Evidence) -> Iterator[Finding]:
    """o and the o of the reversed sequence, reversed, sum to q K^T V + (q_i . k_i) v_i, and q S0 twice.

    Holds because: j <= i and j >= i cover every token, and j = i twice.
    Catches: a mask that is off by one or leaves out tiles, tokens at a chunk boundary that are counted twice or not.
    Cannot catch: a token counted in the wrong direction; what_comes_later_leaves_o does.
    """
    own = Parts(evidence.sample)
    other = evidence.variant("reversed in time", lambda s: in_rows(lambda t: t.flip(2))(plain(s)))
    diagonal = (own.q * own.k).sum(-1, keepdim=True) * own.v
    whole = own.q @ (own.k.transpose(-1, -2) @ own.v + 2 * own.initial) + diagonal
    size = own.q.abs() @ (own.k.abs().transpose(-1, -2) @ own.v.abs() + own.initial.abs())
    yield evidence.relate(
        "o + o reversed - q K^T V - diagonal",
        lambda a, b, whole, size: a + b.flip(2) - whole,
        [(evidence, FORWARD, "o"), (other, FORWARD, "o")],
        scale=lambda a, b, whole, size: size,
        constants=[whole, size],
    )


def _every_other(tensor: Tensor, kept: int) -> Tensor:
    """The tensor with rows of 0 for all but the tokens of even (0) or odd (1) number."""
    found = torch.zeros_like(tensor, memory_format=torch.contiguous_format)
    found[:, :, kept::2] = tensor[:, :, kept::2]
    return found


@property(needs=(FORWARD, VJP), applies=all_of(small_enough, several_rows), one_in=4, rank=4)
def o_of_two_halves_of_the_tokens_adds_up(evidence: Evidence) -> Iterator[Finding]:
    """o, the state and dq are the sums of those of the even and of the odd tokens.

    Holds because: all are sums over tokens; the initial state goes with the even ones.
    Catches: a normaliser, a threshold or a clamp on sums; a token that reads its neighbour; a padded row in the state.
    Cannot catch: anything linear in k^T v; forward_matches_the_oracle does.
    """

    def half(sample: Sample, kept: int) -> Sample:
        own = plain(sample)
        initial = own.inputs.get(INITIAL) if kept == 0 else None
        name = "v" if kept else "k"
        rows = tokens(own) | {name: _every_other(own.inputs[name], kept)}
        return made(own, rows, initial, own.cotangents["o"], own.cotangents.get("state"))

    even, odd = (
        evidence.variant(f"{which} tokens", instead(half(evidence.sample, kept)))
        for kept, which in enumerate(("even", "odd"))
    )
    for name in (*_outputs(evidence), "dq"):
        yield evidence.relate(
            f"{name} of even and of odd tokens",
            lambda whole, a, b: whole - a - b,
            [(each, derivative_of(each, name), name) for each in (evidence, even, odd)],
            scale=lambda whole, a, b: torch.maximum(whole.abs(), larger(a, b)),
        )


@property(needs=(FORWARD,), applies=all_of(small_enough, several_rows), one_in=3, rank=5)
def a_token_without_a_key_is_one_without_a_value(evidence: Evidence) -> Iterator[Finding]:
    """With k = 0 for every other token, o and the state equal those with v = 0 for these.

    Holds because: k_j^T v_j = 0 either way; sums to which exact zeros are added round alike.
    Catches: keys or values that have an effect on their own: a normaliser that sums keys, a bias, a row that is skipped
    for its key but not for its value.
    Cannot catch: anything that is a function of k_j^T v_j; forward_matches_the_oracle does.
    """
    keyless, worthless = (
        evidence.variant(
            f"every other {name} 0", instead(in_rows(lambda t: _every_other(t, 0), name)(plain(evidence.sample)))
        )
        for name in ("k", "v")
    )
    yield from same(keyless, worthless, _outputs(evidence), "no keys and no values")


SYMMETRIES = (
    the_order_of_the_past_leaves_what_follows,
    tokens_of_zero_in_front_move_the_sequence,
    gradients_are_outputs_of_the_same_kernel,
    past_and_future_add_up_to_the_whole,
    o_of_two_halves_of_the_tokens_adds_up,
    a_token_without_a_key_is_one_without_a_value,
)
