"""Properties of inputs for which the rule is another, simpler one."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from gradoracle.properties.agreement import double
from gradoracle.properties.applicability import small_enough
from gradoracle.properties.attention import scale_of
from gradoracle.properties.linear_attention import FORWARD, VJP, made, plain, same, tokens, zeros
from torch import Tensor

from gradoracle.cases.sample import Sample
from gradoracle.check.acceptance import not_checked
from gradoracle.check.evidence import Evidence
from gradoracle.model.finding import Finding
from gradoracle.model.property import property


def _without_state(sample: Sample, **changed: Tensor) -> Sample:
    """The sample without initial state, asked for o alone, with some inputs replaced."""
    own = plain(sample)
    return made(own, tokens(own) | changed, None, own.cotangents["o"], None)


def _constant(sample: Sample, name: str, value: float) -> Tensor:
    """An input of rows with one value."""
    return torch.full_like(sample.inputs[name], value, memory_format=torch.contiguous_format)


@property(needs=(FORWARD, VJP), applies=small_enough, one_in=3, rank=6)
def nothing_is_written_without_beta(evidence: Evidence) -> Iterator[Finding]:
    """With beta = 0 and no initial state, o, dq, dk, dv and dg are exactly 0.

    Holds because: every update is beta times something, and the state stays 0.
    Catches: a state or workspace that is not cleared, an update that beta does not multiply, padded rows that write.
    Cannot catch: a wrong dbeta, which is not 0; vjp_matches_the_oracle does.
    """
    variant = evidence.variant("beta 0", lambda s: _without_state(s, beta=_constant(s, "beta", 0.0)))
    for name in ("o", "dq", "dk", "dv", "dg"):
        yield zeros(variant, name, f"{name} at beta 0")


@property(needs=(FORWARD,), applies=small_enough, one_in=3, rank=5)
def what_is_forgotten_leaves_each_token_alone(evidence: Evidence) -> Iterator[Finding]:
    """With g = -1e4, o_t is scale beta_t (q_t . k_t) v_t.

    Holds because: e^g is 0, so that S_t = k_t (beta_t v_t)^T.
    Catches: an exponential of a positive difference that is infinite and masked afterwards, a decay of the row before,
    a state that is not forgotten across a chunk boundary.
    Cannot catch: errors of rows that remember; forward_matches_the_oracle does.
    """
    variant = evidence.variant("all forgotten", lambda s: _without_state(s, g=_constant(s, "g", -1e4)))
    q, k, v, _, beta = map(double, variant.sample.inputs.values())
    scale = scale_of(variant.sample)
    yield variant.relate(
        "o - scale beta (q . k) v",
        lambda o, expected, size: o - expected,
        [(variant, FORWARD, "o")],
        scale=lambda o, expected, size: size,
        constants=[
            scale * beta[..., None] * (q * k).sum(-1, keepdim=True) * v,
            scale * beta[..., None] * (q * k).abs().sum(-1, keepdim=True) * v.abs(),
        ],
    )


@property(needs=(FORWARD,), applies=small_enough, one_in=3, rank=5)
def orthonormal_keys_overwrite(evidence: Evidence) -> Iterator[Finding]:
    """With beta = 1, g = 0 and the unit vectors in turn as keys, o_t is scale times the sum of q_t[j mod D] v_j over
    the last D tokens j.

    Holds because: row i of the state is replaced by v_j whenever j mod D = i, and other rows are left.
    Catches: updates that are added to what should be replaced, an inverse of a chunk that lacks a block, tokens of the
    chunk before that are replaced too early or too late.
    Cannot catch: errors of beta or g; nothing_is_written_without_beta and forward_matches_the_oracle do.
    """

    def change(sample: Sample) -> Sample:
        k = sample.inputs["k"]
        length, width = k.shape[2:]
        turn = torch.eye(width, dtype=k.dtype, device=k.device)[torch.arange(length, device=k.device) % width]
        return _without_state(
            sample,
            k=turn.expand(k.shape).contiguous(),
            beta=_constant(sample, "beta", 1.0),
            g=_constant(sample, "g", 0.0),
        )

    variant = evidence.variant("unit vectors as keys", change)
    q, v = (double(variant.sample.inputs[name]) for name in ("q", "v"))
    length, width = q.shape[2:]
    scale = scale_of(variant.sample)
    at = torch.arange(length)
    seen = (at[None, :] <= at[:, None]) & (at[None, :] > at[:, None] - width)
    weights = scale * torch.where(seen, q[..., at % width], 0.0)  # [B H T T]
    yield variant.relate(
        "o - scale sum q[j mod D] v_j",
        lambda o, expected, size: o - expected,
        [(variant, FORWARD, "o")],
        scale=lambda o, expected, size: size,
        constants=[weights @ v, weights.abs() @ v.abs()],
    )


@property(needs=(FORWARD,), applies=small_enough, one_in=3, rank=5)
def without_decay_it_is_the_delta_rule(evidence: Evidence) -> Iterator[Finding]:
    """With g = 0 and no initial state, o is scale tril(q k^T) u, where (I + tril(beta k k^T, -1)) u = beta v.

    Holds because: e^g is 1, so that S_t is the sum of all k_j u_j^T up to t, and u_t is beta_t v_t less what the
    earlier ones have at k_t.
    Catches: a decay that is always below 1, keys that are taken for orthogonal, a coordinate of the state that is
    overwritten by its own part of a key, a chunk whose inverse lacks a block.
    Cannot catch: errors of the decay where g is not 0; forward_matches_the_oracle does.
    """
    variant = evidence.variant("no decay", lambda s: _without_state(s, g=_constant(s, "g", 0.0)))
    q, k, v, _, beta = map(double, variant.sample.inputs.values())
    scale = scale_of(variant.sample)
    coupled = (beta[..., None] * (k @ k.mT)).tril(-1)  # [B H T T]
    unit = torch.eye(k.shape[2], dtype=torch.float64)
    update = torch.linalg.solve_triangular(unit + coupled, beta[..., None] * v, upper=False, unitriangular=True)
    scores = scale * (q @ k.mT).tril()
    yield variant.relate(
        "o - scale tril(q k^T) u",
        lambda o, expected, size: o - expected,
        [(variant, FORWARD, "o")],
        scale=lambda o, expected, size: size,
        constants=[scores @ update, scores.abs() @ update.abs()],
    )


@property(needs=(FORWARD, VJP), applies=small_enough, one_in=3, rank=5)
def scaling_the_values_scales_all_but_their_gradient(evidence: Evidence) -> Iterator[Finding]:
    """Without initial state, twice the values give twice o, dq, dk, dg and dbeta, and the same dv, to the last bit.

    Holds because: o is linear in v; a factor of 2 changes no rounding short of overflow and underflow.
    Catches: a bound or clamp of the state, a constant that is added, values that are read from the wrong place.
    Cannot catch: a factor that all rows share; forward_matches_the_oracle does.
    """
    one = evidence.variant("no initial state", _without_state)
    two = evidence.variant("no initial state, values doubled", lambda s: _without_state(s, v=2 * plain(s).inputs["v"]))
    if _underflows(one):
        yield not_checked(
            "values doubled", "a result is small enough to be rounded to a multiple of the smallest number"
        )
        return
    yield from same(one, two, ("o", "dq", "dk", "dg", "dbeta"), "values doubled", times=2.0)
    yield from same(one, two, ("dv",), "values doubled")


def _underflows(evidence: Evidence) -> bool:
    """Whether a result is so small that it may have been rounded to a multiple of the smallest number.

    Not asked of dv, in which v is not read.
    """
    for name in ("o", "dq", "dk", "dg", "dbeta"):
        got = evidence.tensors(FORWARD if name == "o" else VJP)[name]
        least = torch.finfo(got.dtype).smallest_normal * 2.0**40 if got.dtype is not torch.float16 else 1e-2
        if bool(((got != 0) & (got.abs() < least)).any()):
            return True
    return False


SPECIAL_CASES = (
    nothing_is_written_without_beta,
    what_is_forgotten_leaves_each_token_alone,
    orthonormal_keys_overwrite,
    without_decay_it_is_the_delta_rule,
    scaling_the_values_scales_all_but_their_gradient,
)
