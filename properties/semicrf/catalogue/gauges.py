"""Properties of the semi-CRF's gauges: changes of several scores that move every path's score alike, or none.

Both runs use samples rounded to a grid so coarse that scores and moved scores are representable exactly.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace

import torch
from gradoracle.properties.agreement import as_they_are, compared, double
from gradoracle.properties.applicability import all_of, small_enough
from gradoracle.properties.semicrf.paths import PROJECTIONS, Paths, by_duration, projected, takes_projections
from gradoracle.properties.semicrf.problems import (
    ALONG,
    FORWARD,
    HVP,
    JVP,
    TABLES,
    VJP,
    cut,
    equal,
    in_durations,
    one_table,
    same,
    several,
    takes,
    whole_numbers,
)
from torch import Tensor

from gradoracle.cases.sample import Sample
from gradoracle.check.acceptance import exactly, not_checked
from gradoracle.check.evidence import Evidence
from gradoracle.model.call_errors import Refused, Unavailable
from gradoracle.model.case import Case
from gradoracle.model.finding import Finding
from gradoracle.model.formats import FORMATS
from gradoracle.model.property import property

_STEEPEST = 31  # 1024 times it is far from float16's largest and held exactly in every dtype


@property(needs=(VJP,), rank=5)
def dcum_sums_to_zero_for_each_label(evidence: Evidence) -> Iterator[Finding]:
    """The sum of dcum_scores over all places is 0 for each sequence and label.

    Holds because: a constant added to cum_scores of a label changes no difference; as many segments end as begin.
    Catches: the last segment's end or the first one's start left out, a place dropped at a chunk boundary, a place past
    the length that is counted, ends of one label counted for another.
    Cannot catch: probability moved between places of one label; vjp_matches_the_oracle does.
    """
    yield evidence.relate(
        "sum of dcum_scores over places",
        lambda dcum: dcum.sum(1),
        [(evidence, VJP, "dcum_scores")],
        scale=lambda dcum: dcum.abs().sum(1),
    )


@property(needs=(VJP,), rank=6)
def nothing_past_the_length_has_a_gradient(evidence: Evidence) -> Iterator[Finding]:
    """dcum_scores past the length, and dproj_start and dproj_end from the length on, are exactly 0.

    Holds because: no segment of the sequence reads them.
    Catches: T used instead of the length, a length that is off by one, memory that is not written past the length.
    Cannot catch: a length that is too short; every_position_is_covered_once does.
    """
    paths, found = Paths(evidence), evidence.tensors(VJP)
    for name in ALONG:
        if f"d{name}" in found:
            got = found[f"d{name}"]
            past = paths.at[: got.shape[1]] >= paths.lengths[:, None] + (name == "cum_scores")
            if not past.any():
                yield not_checked(f"d{name} past the length", "the length of every sequence is T")
                continue
            wrong = (got.cpu() != 0) & past[:, :, None]
            yield exactly(
                f"d{name} past the length",
                wrong,
                f"d{name} is not 0 past the length of its sequence",
                of=f"d{name}",
                axes=evidence.axes(f"d{name}"),
            )


@property(needs=(VJP,), rank=4)
def as_much_ends_at_a_place_as_begins_there(evidence: Evidence) -> Iterator[Finding]:
    """The sum of dcum_scores over labels is 0 at every place but the first, where it is -g, and the length, where it
    is g.

    Holds because: cum_scores + a_t at all labels moves every path by a at the length less a_0, and nothing else.
    Catches: a boundary whose two sides differ in probability (alpha and beta of different norms, a chunk boundary), the
    first or the last boundary left out, a cotangent applied twice.
    Cannot catch: probability moved between labels; vjp_matches_the_oracle does.
    """
    paths = Paths(evidence)
    yield evidence.relate(
        "sum of dcum_scores over labels, less g at the length and -g at 0",
        lambda dcum, ends, size: dcum.sum(-1) - ends,
        [(evidence, VJP, "dcum_scores")],
        scale=lambda dcum, ends, size: size,
        constants=[paths.g[:, None] * each for each in (paths.ends, paths.inside + paths.ends.clamp_min(0.0))],
    )


@property(needs=(HVP,), applies=small_enough, rank=3)
def hessian_products_do_not_move_the_gauges(evidence: Evidence) -> Iterator[Finding]:
    """The Hessian product of cum_scores sums to 0 over places and over labels; those of duration_bias, transition and
    projections have equal sums, label by label.

    Holds because: along a gauge the gradient is constant, so its derivative along any tangent is 0 there.
    Catches: a tangent left out of one of the terms, of one side of a boundary, or of the first or last segment.
    Cannot catch: a tangent left out of all terms; hvp_matches_the_oracle does.
    """
    by_places = evidence.sample.inputs.keys() & set(PROJECTIONS)
    (table,) = evidence.sample.inputs.keys() & set(TABLES)
    dims = (0, 1) if table == TABLES[1] else (0,)
    for axis, name in ((1, "places"), (2, "labels")):
        yield evidence.relate(
            f"sum of hvp.cum_scores over {name}",
            lambda product, axis=axis: product.sum(axis),
            [(evidence, HVP, "hvp.cum_scores")],
            scale=lambda product, axis=axis: product.abs().sum(axis),
        )
    for name, over in {table: dims, **dict.fromkeys(sorted(by_places), (0, 1))}.items():
        yield evidence.relate(
            f"hvp.duration_bias over durations - hvp.{name}",
            lambda duration, other, over=over: duration.sum(0) - other.sum(over),
            [(evidence, HVP, "hvp.duration_bias"), (evidence, HVP, f"hvp.{name}")],
            scale=lambda duration, other, over=over: duration.abs().sum(0) + other.abs().sum(over),
        )


@property(needs=(FORWARD, VJP), applies=small_enough, one_in=6, rank=4)
def a_shift_of_all_labels_moves_log_z_by_its_ends(evidence: Evidence) -> Iterator[Finding]:
    """Adding any a_t to cum_scores at place t for all labels moves log Z by a at the length less a at 0, and changes
    no gradient.

    Holds because: a segment gains a at its end less a at its start; along a path this telescopes.
    Catches: cum_scores read at the wrong place in one of the terms, rows past the length that are read, log norms that
    depend on the size of cum_scores, scores that are clamped.
    Cannot catch: errors that do not depend on cum_scores; forward_matches_the_oracle does.
    """
    paths, cum = Paths(evidence), evidence.sample.inputs["cum_scores"]
    reach = 2 ** (FORMATS[evidence.case.dtype].bits - 3)
    a = whole_numbers(evidence.case, "a", cum.shape[0] * cum.shape[1], reach).reshape(*cum.shape[:2], 1)
    last = _telescoped(paths, a)
    yield from _left(evidence, "all labels shifted", {"cum_scores": a}, last * paths.possible)


def _telescoped(paths: Paths, a: Tensor) -> Tensor:
    """[B] what a_t of a place [B T+1 1], added at all labels, adds up to along every path."""
    return a[:, :, 0].gather(1, paths.lengths[:, None])[:, 0] - a[:, 0, 0]


def _steep(case: Case) -> dict[str, int]:
    return {"T": min(case.dims["T"], 16), "K": max(case.dims["K"], 20)}


@property(needs=(FORWARD, VJP), applies=all_of(takes(_steep), several("T")), one_in=6, rank=4)
def steps_between_places_may_leave_the_range_of_exp(evidence: Evidence) -> Iterator[Finding]:
    """With cum_scores of 1024 n_t on the first positions, any whole n_t at place t for all labels, log Z is that of
    cum_scores 0 moved by its ends, and no derivative changes; with the durations' scores repeated up to 20 durations.

    Holds because: along a path the scores telescope; e to the power of a part of them must not be formed, since it
    leaves float64's range within one step. A kernel that treats many durations separately does so here too.
    Catches: a sum of exponentials without its maximum subtracted, over a block's own and earlier positions, over
    chunks, or over states and what follows them, in any derivative.
    Cannot catch: errors that do not depend on cum_scores; forward_matches_the_oracle does.
    """
    sizes = _steep(evidence.case)
    again = torch.arange(sizes["K"]) % evidence.case.dims["K"]
    few = evidence.variant("long ring", lambda s: in_durations(cut(s, positions=sizes["T"]), lambda t: t[again]))
    paths, cum = Paths(few), few.sample.inputs["cum_scores"]
    n = whole_numbers(evidence.case, "n", cum.shape[0] * cum.shape[1], _STEEPEST).reshape(*cum.shape[:2], 1)
    level, steep = cum.new_zeros(cum.shape), (1024 * n).expand(cum.shape).to(cum.device, cum.dtype).contiguous()
    before = few.variant("level", lambda s: s.with_inputs(cum_scores=level))
    after = few.variant("steep", lambda s: s.with_inputs(cum_scores=steep))
    yield from _as_before(before, after, "level and steep", 1024 * _telescoped(paths, n) * paths.possible)
    for derivative in (JVP, HVP):
        try:
            found = before.tensors(derivative)
        except (Refused, Unavailable):
            continue  # the property of that derivative says so
        for name in found:
            pair = [(each, derivative, name) for each in (before, after)]
            yield equal(f"{name}, level and steep", as_they_are, pair)


@property(needs=(FORWARD, VJP), applies=small_enough, one_in=6, rank=4)
def a_score_for_each_position_may_stand_in_either_term(evidence: Evidence) -> Iterator[Finding]:
    """cum_scores less n_c t and duration_bias plus n_c k, for any n_c of a label, change neither log Z nor gradients.

    Holds because: a segment of k positions loses n_c k by the first and gains it by the second.
    Catches: a duration index that is off by one, durations and places that disagree, T used instead of the length.
    Cannot catch: errors that do not depend on the scores; forward_matches_the_oracle does.
    """
    steps, (longest, labels) = evidence.case.dims["T"], evidence.sample.inputs["duration_bias"].shape
    reach = max(2 ** (FORMATS[evidence.case.dtype].bits - 3) // max(steps, longest), 1)
    n = whole_numbers(evidence.case, "n", labels, reach)
    moves = {
        "cum_scores": -n * torch.arange(steps + 1)[:, None],
        "duration_bias": n * torch.arange(1, longest + 1)[:, None],
    }
    yield from _left(evidence, "a score for each position moved", moves, torch.zeros(()))


@property(needs=(FORWARD, VJP), applies=small_enough, one_in=6, rank=4)
def a_score_of_a_label_may_stand_in_any_term(evidence: Evidence) -> Iterator[Finding]:
    """Moving b_c to duration_bias from transition into c, proj_start or proj_end changes neither log Z nor gradients.

    Holds because: each segment takes each of these terms once, with its own label.
    Catches: a transposed transition, a term that the first or the last segment lacks, a projection of the wrong place
    or label.
    Cannot catch: errors that do not depend on the scores; forward_matches_the_oracle does.
    """
    labels = evidence.sample.inputs["duration_bias"].shape[1]
    b = whole_numbers(evidence.case, "b", labels, 2 ** (FORMATS[evidence.case.dtype].bits - 3))
    places = [*(name for name in TABLES if name in evidence.sample.inputs)]
    places += [] if takes_projections(evidence.case, evidence.kernel) else PROJECTIONS
    turn = evidence.case.seed % len(places)
    yield from _left(
        evidence, f"a score of a label moved to {places[turn]}", {"duration_bias": b, places[turn]: -b}, torch.zeros(())
    )


@property(needs=(FORWARD, VJP), applies=all_of(small_enough, one_table), one_in=6, rank=4)
def a_score_by_duration_may_stand_in_the_transition(evidence: Evidence) -> Iterator[Finding]:
    """With a transition for each duration, transition + b_kc, and duration_bias less b_kc, log Z and every gradient
    are unchanged; the new gradient sums over durations to dtransition, and over labels before to dduration_bias.

    Holds because: a segment of duration k and label c takes both terms once.
    Catches: a wrong duration index in one of the two forms of the transition, forms that are computed differently.
    Cannot catch: errors that both forms share; forward_matches_the_oracle does.
    """
    table, duration = evidence.sample.inputs["transition"], evidence.sample.inputs["duration_bias"]
    b = whole_numbers(evidence.case, "b by duration", duration.numel(), 2 ** (FORMATS[evidence.case.dtype].bits - 3))
    b = b.reshape(duration.shape)
    pair = on_a_grid(evidence.sample, {"duration_bias": -b, "transition": torch.zeros(())}, evidence.case.dtype, b)
    if pair is None:
        yield not_checked("log_z", "the moved scores are not exactly representable")
        return
    own, moved, unit = pair
    tables = double(own.inputs["transition"]) + (unit * b)[:, None, :]
    forms = by_duration(moved, tables.to(table.device, table.dtype))
    before = evidence.variant("duration_bias and transition on a grid", lambda s: own)
    after = evidence.variant("transition by duration", lambda s: forms)
    yield from _as_before(before, after, "a transition by duration", torch.zeros(()), without="transition")
    yield before.relate(
        "dtransition and its sum over durations",
        lambda a, b: a - b.sum(0),
        [(before, VJP, "dtransition"), (after, VJP, "dtransition_by_duration")],
        scale=lambda a, b: a.abs() + b.abs().sum(0),
    )
    yield after.relate(
        "dduration_bias and dtransition by duration, summed over labels before",
        lambda a, b: a - b.sum(1),
        [(before, VJP, "dduration_bias"), (after, VJP, "dtransition_by_duration")],
        scale=lambda a, b: a.abs() + b.abs().sum(1),
    )


@property(needs=(FORWARD, VJP), applies=all_of(small_enough, several("C")), one_in=3, rank=4)
def the_names_of_labels_do_not_matter(evidence: Evidence) -> Iterator[Finding]:
    """Reordering the labels in every input reorders them in every gradient and does not change log Z.

    Holds because: log Z sums over all labels; the true values are the same, so each run is compared with them.
    Catches: a padded label that takes part, a transposed transition, a virtual label before the first segment that is
    one of the labels.
    Cannot catch: anything that forward and VJP matching do not; this is their case with labels in another order.
    """

    def rolled(name: str, tensor: Tensor, by: int) -> Tensor:
        return tensor.roll((by, by), (-2, -1)) if name in TABLES else tensor.roll(by, -1)

    def change(sample: Sample) -> Sample:
        inputs = {n: rolled(n, t, 1) if t.is_floating_point() else t for n, t in sample.inputs.items()}
        return replace(sample, inputs=inputs, tangents={n: rolled(n, t, 1) for n, t in sample.tangents.items()})

    got = dict(evidence.variant("labels in another order", change).vjp())
    got = {n: t if n == "log_z" else rolled(n[1:], t, -1) for n, t in got.items()}
    yield from compared(evidence, got, ", labels in another order", (FORWARD, VJP))


@property(needs=(VJP, JVP, HVP), applies=small_enough, one_in=6, rank=4)
def tangents_along_gauges_move_log_z_by_its_ends(evidence: Evidence) -> Iterator[Finding]:
    """Along a_t in cum_scores, b_c in duration_bias and -b_c in the transition into c, log Z moves by a at the length
    less a at 0, and no gradient changes.

    Holds because: that is the derivative of every path's score, the same for all.
    Catches: a tangent left out of a term, or of one side of a difference; a virtual label without a tangent.
    Cannot catch: tangents left out of all terms; jvp_matches_the_oracle does.
    """
    paths, cum = Paths(evidence), evidence.sample.inputs["cum_scores"]
    a = whole_numbers(evidence.case, "a", cum.shape[0] * cum.shape[1], 8).reshape(*cum.shape[:2], 1)
    b = whole_numbers(evidence.case, "b", cum.shape[2], 8)
    along = {"cum_scores": a, "duration_bias": b, paths.table: -b}

    def change(sample: Sample) -> Sample:
        tangents = {
            n: along.get(n, torch.zeros(())).expand(t.shape).to(t.device, t.dtype).contiguous()
            for n, t in sample.tangents.items()
        }
        return sample.with_tangents(**tangents)

    variant = evidence.variant("along gauges", change)
    variant.continuous = False
    last = _telescoped(paths, a)
    yield variant.relate(
        "jvp.log_z - a at the length + a at 0",
        lambda tangent, moved: tangent - moved,
        [(variant, JVP, "jvp.log_z")],
        scale=lambda tangent, moved: moved,
        constants=[last * paths.some],
    )
    masses = {n: double(t).abs() for n, t in evidence.tensors(VJP).items()}
    for name, mass in masses.items():
        yield variant.relate(
            f"hvp.{name[1:]} along gauges",
            lambda product, mass: product,
            [(variant, HVP, f"hvp.{name[1:]}")],
            scale=lambda product, mass: mass,
            constants=[8.0 * mass],
        )


def _left(evidence: Evidence, key: str, moves: Mapping[str, Tensor], last: Tensor) -> Iterator[Finding]:
    """Judge that whole numbers added to some inputs, in units of a grid, leave gradients and move log Z by ``last``."""
    sample = evidence.sample
    if any(name not in sample.inputs for name in moves):
        sample = projected(sample)
    pair = on_a_grid(sample, moves, evidence.case.dtype)
    if pair is None:
        yield not_checked("log_z", "the moved scores are not exactly representable")
        return
    own, changed, unit = pair
    before = evidence.variant(f"{key}: before, on a grid", lambda s: own)
    after = evidence.variant(f"{key}: after", lambda s: changed)
    yield from _as_before(before, after, key, last * unit)


def on_a_grid(
    sample: Sample, moves: Mapping[str, Tensor], dtype: str, further: Tensor | None = None
) -> tuple[Sample, Sample, float] | None:
    """The sample with some inputs on a grid, the same with whole numbers of its unit added, and the unit; None where
    no unit holds both exactly. ``further``: whole numbers that are added elsewhere."""
    most = max(
        [float(move.abs().max()) for move in moves.values()] + ([] if further is None else [float(further.abs().max())])
    )
    given = {name: double(sample.inputs[name]) for name in moves}
    largest = max(float(torch.where(t.isfinite(), t.abs(), 0.0).max()) for t in given.values())
    room = 2.0 ** FORMATS[dtype].bits - most - 1.0
    if room < 8:
        return None
    unit = 2.0 ** math.ceil(math.log2((largest if largest > 0 else 1.0) / room))
    unit = max(unit, FORMATS[dtype].smallest_subnormal)
    if largest + (most + 1.0) * unit > FORMATS[dtype].largest:
        return None
    before = {name: (t / unit).round() * unit for name, t in given.items()}
    after = {name: t + moves[name] * unit for name, t in before.items()}

    def held(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        like = sample.inputs
        return {name: t.to(like[name].device, like[name].dtype).contiguous() for name, t in tensors.items()}

    own, moved = held(before), held(after)
    for rounded, exact in ((own, before), (moved, after)):
        if not all(bool((double(rounded[name]) == exact[name]).all()) for name in exact):
            return None
    return sample.with_inputs(**own), sample.with_inputs(**moved), unit


def _as_before(before: Evidence, after: Evidence, key: str, last: Tensor, without: str = "") -> Iterator[Finding]:
    """Judge that two runs have the same gradients, and log Z that differ by ``last``."""
    pair = [(each, FORWARD, "log_z") for each in (before, after)]
    yield equal(f"log_z, {key}", lambda a, b, last: (a + last, b), pair, [last])
    names = [name.removeprefix("d") for name in before.names(VJP)]
    yield from same(before, after, [name for name in names if name != without], key)


GAUGES = (
    dcum_sums_to_zero_for_each_label,
    nothing_past_the_length_has_a_gradient,
    as_much_ends_at_a_place_as_begins_there,
    hessian_products_do_not_move_the_gauges,
    a_shift_of_all_labels_moves_log_z_by_its_ends,
    steps_between_places_may_leave_the_range_of_exp,
    a_score_for_each_position_may_stand_in_either_term,
    a_score_of_a_label_may_stand_in_any_term,
    a_score_by_duration_may_stand_in_the_transition,
    the_names_of_labels_do_not_matter,
    tangents_along_gauges_move_log_z_by_its_ends,
)
