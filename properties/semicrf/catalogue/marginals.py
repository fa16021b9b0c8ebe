"""Properties of the semi-CRF's marginals: through gradients alone, and of the entry point that returns them.

A gradient of log Z by a score is the expected number of segments that the score is part of, times the cotangent. So
gradients alone show a kernel's probabilities of segments. Kernels that return those themselves (``Kernel.extras``)
have further properties; without the entry point these do not apply::

    marginals(inputs, options, blocks) -> (position [B T C], boundary [B T+1], segment [B T K C])
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from gradoracle.properties.applicability import all_of, small_enough
from gradoracle.properties.semicrf.paths import Paths, takes_projections, with_projections
from gradoracle.properties.semicrf.posteriors import across, marginals
from gradoracle.properties.semicrf.problems import VJP
from torch import Tensor
from torch.nn.functional import pad

from gradoracle.check.acceptance import exactly
from gradoracle.check.evidence import Evidence
from gradoracle.model.finding import Finding
from gradoracle.model.property import property


@property(needs=(VJP,), rank=4)
def every_position_is_covered_once(evidence: Evidence) -> Iterator[Finding]:
    """The sum of dcum_scores over labels and over places up to t is -g at each position t, and 0 from the length on.

    Holds because: dcum_scores[t] counts the segments that end at t less those that begin there, so its sums count those
    that are open, negated: one at each position, in any segmentation.
    Catches: probabilities that do not sum to 1 over the segments across a position, a checkpoint or chunk whose norm is
    wrong, segments counted twice at a chunk boundary, durations left out, a cotangent applied twice.
    Cannot catch: probability moved between labels, or between segments across the same positions;
    vjp_matches_the_oracle does.
    """
    paths = Paths(evidence)
    yield evidence.relate(
        "sum of dcum_scores up to t + g",
        lambda dcum, covered: dcum.sum(-1).cumsum(1) + covered,
        [(evidence, VJP, "dcum_scores")],
        scale=lambda dcum, covered: covered,
        constants=[paths.g[:, None] * paths.inside],
    )


@property(needs=(VJP,), rank=4)
def every_gradient_counts_the_same_segments(evidence: Evidence) -> Iterator[Finding]:
    """For each label the expected number of segments is the same counted by duration, transition, start and end.

    The sum of dduration_bias over durations equals that of dtransition over the labels before (duration by duration
    where the transition has durations), of dproj_start and of dproj_end over sequences and positions.
    Holds because: each segment has one duration, one label before it, one start and one end.
    Catches: a transition read or summed at the wrong index (transposed, another duration), the first segment's virtual
    label left out, a sequence or a chunk left out of one of the sums, a cotangent missing in one of them.
    Cannot catch: errors that all of them share; every_position_is_covered_once and vjp_matches_the_oracle do.
    """
    paths = Paths(evidence)
    by_duration = paths.table != "transition"
    yield evidence.relate(
        f"dduration_bias - d{paths.table} over labels before",
        (lambda duration, table: duration - table.sum(1))
        if by_duration
        else (lambda duration, table: duration.sum(0) - table.sum(0)),
        [(evidence, VJP, "dduration_bias"), (evidence, VJP, f"d{paths.table}")],
        scale=(lambda duration, table: duration.abs() + table.abs().sum(1))
        if by_duration
        else (lambda duration, table: duration.abs().sum(0) + table.abs().sum(0)),
    )
    for name in ("proj_start", "proj_end"):
        if name in evidence.sample.inputs:
            yield evidence.relate(
                f"dduration_bias - d{name} over positions",
                lambda duration, place: duration.sum(0) - place.sum((0, 1)),
                [(evidence, VJP, "dduration_bias"), (evidence, VJP, f"d{name}")],
                scale=lambda duration, place: duration.abs().sum(0) + place.abs().sum((0, 1)),
            )
    if "proj_start" in evidence.sample.inputs and "proj_end" in evidence.sample.inputs:
        yield evidence.relate(
            "dproj_start - dproj_end, sequence by sequence",
            lambda start, end: start.sum((1, 2)) - end.sum((1, 2)),
            [(evidence, VJP, "dproj_start"), (evidence, VJP, "dproj_end")],
            scale=lambda start, end: start.abs().sum((1, 2)) + end.abs().sum((1, 2)),
        )


@property(needs=(VJP,), rank=4)
def expected_lengths_add_up_to_the_length(evidence: Evidence) -> Iterator[Finding]:
    """The sum of k dduration_bias over durations k and labels is the sum of g len over sequences with a segmentation.

    Holds because: the lengths of the segments of any segmentation add up to that of its sequence.
    Catches: an index of durations that is off by one, durations beyond some K left out, T used instead of the length,
    a cotangent applied per segment or not at all.
    Cannot catch: lengths moved between segments; every_label_is_as_long_by_duration_as_by_place and
    vjp_matches_the_oracle do.
    """
    paths = Paths(evidence)
    spans = paths.g * paths.some * paths.lengths  # [B]
    yield evidence.relate(
        "sum of k dduration_bias - sum of g len",
        lambda duration, k, spans: (k * duration).sum() - spans.sum(),
        [(evidence, VJP, "dduration_bias")],
        scale=lambda duration, k, spans: spans.abs().sum(),
        constants=[_durations(evidence), spans],
    )


@property(needs=(VJP,), rank=3)
def every_label_is_as_long_by_duration_as_by_place(evidence: Evidence) -> Iterator[Finding]:
    """For each label k dduration_bias summed over durations k equals t dcum_scores summed over places and sequences.

    Holds because: the length of a segment is where it ends less where it begins.
    Catches: a duration or a place that is off by one in one of the two, segments of one label counted for another.
    Cannot catch: errors that both share; vjp_matches_the_oracle does.
    """
    paths = Paths(evidence)
    yield evidence.relate(
        "sum of k dduration_bias - sum of t dcum_scores, label by label",
        lambda duration, dcum, k, t: (k * duration).sum(0) - (t * dcum).sum((0, 1)),
        [(evidence, VJP, "dduration_bias"), (evidence, VJP, "dcum_scores")],
        scale=lambda duration, dcum, k, t: (k * duration).abs().sum(0) + dcum.cumsum(1).abs().sum((0, 1)),
        constants=[_durations(evidence), paths.at.double()[:, None]],
    )


def _durations(evidence: Evidence) -> Tensor:
    """[K 1] the durations 1 .. K."""
    longest = evidence.sample.inputs["duration_bias"].shape[0]
    return torch.arange(1, longest + 1, dtype=torch.float64)[:, None]


@property(needs=(VJP,), applies=all_of(small_enough, takes_projections), one_in=3, rank=5)
def dcum_is_what_ends_less_what_begins(evidence: Evidence) -> Iterator[Finding]:
    """dcum_scores at t equals dproj_end of the position before t less dproj_start at t.

    A case without projections gets zeros, which change no score.
    Holds because: a segment takes cum_scores with a plus where it ends and with a minus where it begins.
    Catches: gradients of projections that are one position off, the first or the last place left out of dcum_scores, a
    term that one of the three lacks.
    Cannot catch: errors that all three share; every_position_is_covered_once and vjp_matches_the_oracle do.
    """
    own = with_projections(evidence)
    yield own.relate(
        "dcum_scores - dproj_end before t + dproj_start at t",
        lambda dcum, start, end: dcum - pad(end, (0, 0, 1, 0)) + pad(start, (0, 0, 0, 1)),
        [(own, VJP, "dcum_scores"), (own, VJP, "dproj_start"), (own, VJP, "dproj_end")],
        scale=lambda dcum, start, end: pad(end.abs(), (0, 0, 1, 0)) + pad(start.abs(), (0, 0, 0, 1)),
    )


@property(needs=(VJP,), extras=("marginals",), applies=small_enough, one_in=3, rank=4)
def marginals_cover_every_position_once(evidence: Evidence) -> Iterator[Finding]:
    """The marginals of labels sum to 1 at each position, as those of the segments across it do; past the length they
    are exactly 0.

    Holds because: each segmentation covers a position by one segment.
    Catches: marginals that are not normalised, a segment at the wrong place or of the wrong duration, the last segment
    left out, values past the length.
    Cannot catch: probability moved between labels or segments across the same positions; marginals_are_the_gradients
    does.
    """
    paths, parts = Paths(evidence), marginals(evidence)
    inside = paths.inside[:, :-1]  # [B T]
    yield evidence.relate(
        "sum of position marginals - 1",
        lambda position, inside: position.sum(-1) - inside,
        [parts["position"]],
        scale=lambda position, inside: inside,
        constants=[inside],
    )
    yield evidence.relate(
        "sum of marginals of segments across a position - 1",
        lambda segment, inside: across(segment).sum(-1) - inside,
        [parts["segment"]],
        scale=lambda segment, inside: inside,
        constants=[inside],
    )
    for name, part in parts.items():
        places = paths.lengths[:, None] + (name == "boundary")
        past = paths.at[: part.got.shape[1]] >= places
        if not past.any():
            continue
        wrong = (part.got.cpu() != 0) & past.reshape(*past.shape, *[1] * (part.got.dim() - 2))
        yield exactly(
            f"{name} past the length", wrong, f"an element of {name} past the length of its sequence is not 0"
        )


@property(needs=(VJP,), extras=("marginals",), applies=small_enough, one_in=3, rank=4)
def marginals_are_the_gradients(evidence: Evidence) -> Iterator[Finding]:
    """Times g, segment marginals sum to dduration_bias, and to dproj_start and dproj_end where there are any; the open
    segments of a label by dcum_scores are its marginal at a position; segments from t on sum to the boundary's.

    Holds because: the gradient of log Z by a score is the probability of the segments that it is part of.
    Catches: marginals of scores other than those of log Z, an index that is off by one in one of the two, marginals
    of another sequence.
    Cannot catch: errors that marginals and gradients share; vjp_matches_the_oracle does.
    """
    paths, parts = Paths(evidence), marginals(evidence)
    g = paths.g[:, None, None]
    yield evidence.relate(
        "dduration_bias - g segment marginals",
        lambda duration, segment, g: duration - (g[..., None] * segment).sum((0, 1)),
        [(evidence, VJP, "dduration_bias"), parts["segment"]],
        scale=lambda duration, segment, g: (g[..., None] * segment).abs().sum((0, 1)),
        constants=[g],
    )
    yield evidence.relate(
        "sum of dcum_scores up to t + g position marginals",
        lambda dcum, position, g: dcum.cumsum(1)[:, :-1] + g * position,
        [(evidence, VJP, "dcum_scores"), parts["position"]],
        scale=lambda dcum, position, g: g * position,
        constants=[g],
    )
    yield evidence.relate(
        "boundary marginals - those of segments that begin there",
        lambda boundary, segment, begins: (boundary[:, :-1] - segment.sum((2, 3))) * begins,
        [parts["boundary"], parts["segment"]],
        scale=lambda boundary, segment, begins: boundary[:, :-1] * begins,
        constants=[paths.inside[:, :-1]],
    )
    for name, sums in (("proj_start", lambda segment: segment.sum(2)), ("proj_end", _ending)):
        if name in evidence.sample.inputs:
            yield evidence.relate(
                f"d{name} - g segment marginals",
                lambda place, segment, g, sums=sums: place - g * sums(segment),
                [(evidence, VJP, f"d{name}"), parts["segment"]],
                scale=lambda place, segment, g, sums=sums: g * sums(segment),
                constants=[g],
            )


def _ending(segment: Tensor) -> Tensor:
    """[B T C] sums of segment [B T K C] over those whose last position it is."""
    steps = segment.shape[1]
    each = [pad(segment[:, : steps - k, k], (0, 0, k, 0)) for k in range(min(segment.shape[2], steps))]
    return torch.stack(each).sum(0)


MARGINALS = (
    every_position_is_covered_once,
    every_gradient_counts_the_same_segments,
    expected_lengths_add_up_to_the_length,
    every_label_is_as_long_by_duration_as_by_place,
    dcum_is_what_ends_less_what_begins,
    marginals_cover_every_position_once,
    marginals_are_the_gradients,
)
