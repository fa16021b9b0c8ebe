"""Properties of the semi-CRF's alpha and beta, which a kernel shows by an extra entry point (``Kernel.extras``)::

    forward_backward(inputs, options, blocks) -> (alpha, beta [B T+1 C], alpha_norm, beta_norm [B T+1], log_z [B])

alpha + alpha_norm sums in natural logarithms over what ends at t with a label (0 at t = 0), beta + beta_norm over what
follows; norms and log Z are float64. Without the entry point properties of alpha and beta do not apply; what gradients
say of boundaries is judged always.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from gradoracle.properties.agreement import double, larger
from gradoracle.properties.applicability import all_of, small_enough
from gradoracle.properties.semicrf.paths import Paths, takes_projections, with_projections
from gradoracle.properties.semicrf.posteriors import alpha_and_beta, marginals, meetings, reached, totals
from gradoracle.properties.semicrf.problems import FORWARD, VJP, cut, takes
from torch import Tensor
from torch.nn.functional import pad

from gradoracle.check.acceptance import exactly
from gradoracle.check.evidence import Evidence
from gradoracle.model.finding import Finding
from gradoracle.model.property import property


@property(needs=(FORWARD,), extras=("forward_backward",), rank=5)
def alpha_and_beta_meet_at_log_z_at_both_ends(evidence: Evidence) -> Iterator[Finding]:
    """At t = 0 and at the length the sum of exp(alpha_t + beta_t) over labels equals Z: that of forward, and the
    float64 value returned with alpha and beta.

    Holds because: every segmentation has a boundary there; alpha_0 is 0 for each label before the first segment, and
    beta at the length is 0 for each last label.
    Catches: log norms that drift (in float32 over many steps), belong to another checkpoint, or are missing in one of
    the two; a beta that begins at T instead of the length; a virtual label left out.
    Cannot catch: errors that alpha and log Z share; forward_matches_the_oracle does.
    """
    ends, own = totals(evidence)
    yield evidence.relate(
        "log sum of exp(alpha + beta) - log Z, at 0 and at the length",
        lambda ends, log_z: ends - log_z[:, None],
        [ends, (evidence, FORWARD, "log_z")],
        scale=lambda ends, log_z: larger(ends, log_z[:, None]),
    )
    yield evidence.relate(
        "log sum of exp(alpha + beta) - its log Z in float64, at 0 and at the length",
        lambda ends, log_z: ends - log_z,
        [ends, own],
        scale=larger,
    )


@property(
    needs=(FORWARD, VJP),
    extras=("forward_backward", "marginals"),
    applies=all_of(small_enough, takes_projections),
    one_in=3,
    rank=4,
)
def alpha_and_beta_give_the_boundaries(evidence: Evidence) -> Iterator[Finding]:
    """At every t the sum of exp(alpha_t + beta_t - log Z) over labels equals the probability of a boundary at t.

    The probability is that of ``marginals`` and, times g, that of gradients: dproj_end before t summed over labels,
    dproj_start at t. alpha and beta are -inf exactly where no path arrives or continues, and past the length.
    Holds because: alpha_t beta_t sums over the segmentations with a boundary at t, of Z.
    Catches: alpha or beta one position off, a norm of the wrong checkpoint, labels that no path has, values past the
    length, boundaries that differ from those of alpha and beta.
    Cannot catch: a factor between alpha and beta that cancels; forward_matches_the_oracle sees it in log Z.
    """
    paths, part, own = Paths(evidence), meetings(evidence), with_projections(evidence)
    yield evidence.relate(
        "sum of exp(alpha + beta - log Z) - boundary marginals",
        lambda meeting, boundary: meeting.sum(-1) - boundary,
        [part, marginals(evidence)["boundary"]],
        scale=lambda meeting, boundary: boundary,
    )
    after_0 = (paths.at > 0).double()[None, :, None]
    yield own.relate(
        "g exp(alpha + beta - log Z) - dproj_end",
        lambda meeting, end, g, after: g * meeting * after - pad(end, (0, 0, 1, 0)),
        [part, (own, VJP, "dproj_end")],
        scale=lambda meeting, end, g, after: g * meeting * after,
        constants=[_weights(paths), after_0],
    )
    yield own.relate(
        "sum of g exp(alpha + beta - log Z) - sum of dproj_start",
        lambda meeting, start, g, inside: ((g * meeting).sum(-1) * inside)[:, :-1] - start.sum(-1),
        [part, (own, VJP, "dproj_start")],
        scale=lambda meeting, start, g, inside: ((g * meeting).sum(-1) * inside)[:, :-1],
        constants=[_weights(paths), paths.inside],
    )
    tables = alpha_and_beta(evidence)
    for name, comes in zip(("alpha", "beta"), reached(evidence), strict=True):
        wrong = (double(tables[name]) > -torch.inf) != comes
        yield exactly(f"{name} where no path is", wrong, f"{name} is not -inf exactly where there is no path")


def _weights(paths: Paths) -> Tensor:
    """[B 1 1] the cotangents; 0 for sequences without a segment, whose gradients are 0."""
    return (paths.g * paths.some)[:, None, None]


@property(
    needs=(FORWARD, VJP),
    applies=all_of(small_enough, takes(lambda case: {"K": 1}), takes_projections),
    one_in=5,
    rank=4,
)
def with_one_duration_every_place_is_a_boundary(evidence: Evidence) -> Iterator[Finding]:
    """If 1 is the only duration, dproj_start and dproj_end sum to g over labels at each position, and alpha_t + beta_t
    to log Z at every t.

    Holds because: the one segmentation has a segment for each position (the linear-chain CRF).
    Catches: a ring buffer of more or fewer positions than K, durations beyond K, a recursion that skips a step, norms
    of another position.
    Cannot catch: labels exchanged within a position; vjp_matches_the_oracle does.
    """
    chain = with_projections(evidence.variant("K = 1", lambda s: cut(s, durations=1)))
    paths = Paths(chain)
    for name in ("proj_start", "proj_end"):
        yield chain.relate(
            f"sum of d{name} over labels - g, K = 1",
            lambda place, expected: place.sum(-1) - expected,
            [(chain, VJP, f"d{name}")],
            scale=lambda place, expected: expected,
            constants=[(paths.g[:, None] * paths.inside)[:, :-1]],
        )
    if "forward_backward" in chain.kernel.extras:
        everywhere = paths.possible[:, None] & (paths.at <= paths.lengths[:, None])
        yield chain.relate(
            "sum of exp(alpha + beta - log Z) - 1, K = 1",
            lambda meeting, expected: meeting.sum(-1) - expected,
            [meetings(chain)],
            scale=lambda meeting, expected: expected,
            constants=[everywhere.double()],
        )


BOUNDARIES = (
    alpha_and_beta_meet_at_log_z_at_both_ends,
    alpha_and_beta_give_the_boundaries,
    with_one_duration_every_place_is_a_boundary,
)
