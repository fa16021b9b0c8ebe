"""Properties of lightning on one sample: inner products, and rows that are not sums."""

from __future__ import annotations

from collections.abc import Iterator

from gradoracle.properties.applicability import small_enough
from gradoracle.properties.lightning.samples import Parts
from gradoracle.properties.linear_attention import FORWARD, VJP
from torch import Tensor

from gradoracle.check.evidence import Evidence
from gradoracle.model.derivative import Derivative
from gradoracle.model.finding import Finding
from gradoracle.model.property import property


@property(needs=(FORWARD, VJP), applies=small_enough, rank=4)
def q_dq_equals_o_g_row_by_row(evidence: Evidence) -> Iterator[Finding]:
    """In each row the inner product <q_i, dq_i> is <o_i, g_i>; summed, <q, dq> = <o, g>.

    Holds because: o_i is linear in q_i and depends on no other query, so <g_i, o_i> is its own derivative along q_i.
    Catches: in o or dq alone: a missing factor, a missing initial state, a chunk added to the state before it is read.
    Cannot catch: errors that forward and dq share (one map and its transpose); forward_matches_the_oracle does.
    """
    parts = Parts(evidence.sample)

    def difference(o: Tensor, dq: Tensor, q: Tensor, g: Tensor) -> Tensor:
        return (q * dq).sum(-1) - (g * o).sum(-1)

    yield evidence.relate(
        "<q, dq> - <o, g>",
        difference,
        [(evidence, FORWARD, "o"), (evidence, VJP, "dq")],
        scale=lambda o, dq, q, g: (q * dq).abs().sum(-1) + (g * o).abs().sum(-1),
        constants=[parts.q, parts.g],
    )


@property(needs=(VJP,), applies=small_enough, rank=4)
def k_dk_equals_v_dv_row_by_row(evidence: Evidence) -> Iterator[Finding]:
    """In each row the inner product <k_j, dk_j> is <v_j, dv_j>.

    Holds because: a token acts through k_j^T v_j alone, so both are the derivative of <o, g> + <state, g_state> along
    that product.
    Catches: dk and dv that use different orientations of the state's cotangent, a cotangent that is updated before it
    is used in one of them, a chunk or a score left out of one of them.
    Cannot catch: tokens that reach the wrong outputs in both; the_initial_state_takes_what_tokens_leave does.
    """
    parts = Parts(evidence.sample)

    def difference(dk: Tensor, dv: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return (k * dk).sum(-1) - (v * dv).sum(-1)

    yield evidence.relate(
        "<k, dk> - <v, dv>",
        difference,
        [(evidence, VJP, "dk"), (evidence, VJP, "dv")],
        scale=lambda dk, dv, k, v: (k * dk).abs().sum(-1) + (v * dv).abs().sum(-1),
        constants=[parts.k, parts.v],
    )


@property(needs=(FORWARD, VJP), applies=small_enough, rank=3)
def the_initial_state_takes_what_tokens_leave(evidence: Evidence) -> Iterator[Finding]:
    """Head by head <k, dk> = <o, g> + <state, g_state> - <S0, dS0>; without states, <k, dk> = <o, g>.

    Holds because: o and the state are each the sum of a part linear in k and a part linear in S0; the inner products
    with the gradients are these parts.
    Catches: a state whose cotangent does not reach k and v, or reaches the outputs twice; a gradient of S0 that misses
    queries or the state's own cotangent.
    Cannot catch: values moved between rows; k_dk_equals_v_dv_row_by_row and vjp_matches_the_oracle do.
    """
    own = Parts(evidence.sample)
    terms: list[tuple[Derivative, str, Tensor, float]] = [(VJP, "dk", own.k, 1.0), (FORWARD, "o", own.g, -1.0)]
    if "state" in evidence.sample.cotangents:
        terms.append((FORWARD, "state", own.g_state, -1.0))
    if "initial_state" in evidence.sample.inputs:
        terms.append((VJP, "dinitial_state", own.initial, 1.0))
    count = len(terms)

    def products(*tensors: Tensor) -> list[Tensor]:
        pairs = zip(tensors[:count], tensors[count:], terms, strict=True)
        return [sign * (got * weight).sum((-1, -2)) for got, weight, (*_, sign) in pairs]

    def total(*tensors: Tensor) -> Tensor:
        first, *rest = products(*tensors)
        return sum(rest, first)

    def size(*tensors: Tensor) -> Tensor:
        squares = [(got * weight).square().sum((-1, -2)) for got, weight in zip(tensors[:count], tensors[count:])]  # noqa: B905
        return sum(squares[1:], squares[0]).sqrt()

    yield evidence.relate(
        "<k, dk> + <S0, dS0> - <o, g> - <state, g_state>",
        total,
        [(evidence, derivative, name) for derivative, name, *_ in terms],
        scale=size,
        constants=[weight for _, _, weight, _ in terms],
    )


@property(needs=(FORWARD,), applies=small_enough, rank=4)
def the_first_row_is_of_the_first_token(evidence: Evidence) -> Iterator[Finding]:
    """The first row of o equals (q_0 . k_0) v_0 + q_0 S0.

    Holds because: it sums over j <= 0, one token.
    Catches: a mask that leaves out the diagonal, a state that contains the first chunk before it is read, S0 left out
    or transposed.
    Cannot catch: errors after the first row; the_order_of_the_past_leaves_what_follows and
    forward_matches_the_oracle do.
    """
    own = Parts(evidence.sample)
    first = slice(0, 1)
    scores = (own.q[:, :, first] * own.k[:, :, first]).sum(-1, keepdim=True)
    yield evidence.relate(
        "o_0 - (q_0 . k_0) v_0 - q_0 S0",
        lambda o, alone, size: o[:, :, :1] - alone,
        [(evidence, FORWARD, "o")],
        scale=lambda o, alone, size: size,
        constants=[
            scores * own.v[:, :, first] + own.q[:, :, first] @ own.initial,
            (own.q[:, :, first] * own.k[:, :, first]).abs().sum(-1, keepdim=True) * own.v[:, :, first].abs()
            + own.q[:, :, first].abs() @ own.initial.abs(),
        ],
    )


@property(needs=(VJP,), applies=small_enough, rank=4)
def the_last_token_has_the_gradient_of_the_last_row(evidence: Evidence) -> Iterator[Finding]:
    """The last row of dk is (g_N . v_N) q_N + v_N g_state^T, and that of dv is (q_N . k_N) g_N + k_N g_state.

    Holds because: the last token reaches the last output and the state, nothing else.
    Catches: a cotangent of the state that is updated before it is used, or dropped or transposed; a reversed scan that
    starts one row or one chunk too late.
    Cannot catch: errors before the last row; vjp_matches_the_oracle does.
    """
    own = Parts(evidence.sample)
    q, k, v, g = (x[:, :, -1:] for x in (own.q, own.k, own.v, own.g))
    transposed = own.g_state.transpose(-1, -2)
    for name, alone, size in (
        (
            "dk",
            (g * v).sum(-1, keepdim=True) * q + v @ transposed,
            (g * v).abs().sum(-1, keepdim=True) * q.abs() + v.abs() @ transposed.abs(),
        ),
        (
            "dv",
            (q * k).sum(-1, keepdim=True) * g + k @ own.g_state,
            (q * k).abs().sum(-1, keepdim=True) * g.abs() + k.abs() @ own.g_state.abs(),
        ),
    ):
        yield evidence.relate(
            f"last row of {name}",
            lambda got, alone, size: got[:, :, -1:] - alone,
            [(evidence, VJP, name)],
            scale=lambda got, alone, size: size,
            constants=[alone, size],
        )


IDENTITIES = (
    q_dq_equals_o_g_row_by_row,
    k_dk_equals_v_dv_row_by_row,
    the_initial_state_takes_what_tokens_leave,
    the_first_row_is_of_the_first_token,
    the_last_token_has_the_gradient_of_the_last_row,
)
