"""Properties of the semi-CRF's special cases: few paths, one position, linear chains, empty sums, forbidden paths."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import torch
from gradoracle.properties.agreement import agree
from gradoracle.properties.applicability import all_of, small_enough
from gradoracle.properties.semicrf.closed_forms import of_chains, of_one_position, of_paths, rounded
from gradoracle.properties.semicrf.problems import (
    FORWARD,
    LENGTHS,
    SHORT,
    VJP,
    along,
    changed,
    cut,
    drawn,
    equal,
    extents,
    in_durations,
    known,
    of,
    same,
    several,
    shared,
    short,
    table_of,
    takes,
    takes_short,
    zero,
)
from torch import Tensor

from gradoracle.cases.sample import Sample
from gradoracle.check.acceptance import exactly, not_checked
from gradoracle.check.evidence import Evidence
from gradoracle.model.case import Case
from gradoracle.model.finding import Finding
from gradoracle.model.kernel import Kernel
from gradoracle.model.property import property

MOST_PATHS = 700  # of a sequence that is enumerated: a tenth of a second
FAR = 30.0  # e^30 next to 1: what must not count would be all that counts


def _enumerable(case: Case) -> dict[str, int]:
    """At most 7 positions, 4 durations and 3 labels, with at most ``MOST_PATHS`` paths."""
    labels, durations = min(case.dims["C"], 3), min(case.dims["K"], 4)
    positions = min(case.dims["T"], 7)
    while _paths(positions, durations, labels) > MOST_PATHS:
        positions -= 1
    return {"B": min(case.dims["B"], 2), "T": positions, "C": labels, "K": durations}


@cache
def _paths(positions: int, durations: int, labels: int) -> int:
    """How many labelled segmentations there are, with the label before the first."""
    if positions == 0:
        return labels
    return labels * sum(_paths(positions - k, durations, labels) for k in range(1, min(positions, durations) + 1))


@property(needs=(FORWARD, VJP), applies=takes(_enumerable), one_in=3, rank=4)
def log_z_and_gradients_are_those_of_the_enumeration(evidence: Evidence) -> Iterator[Finding]:
    """On the first few positions, durations and labels, log Z and its gradients equal the sums over all paths.

    Holds because: by definition of Z; paths are listed one by one and summed with 50 digits, without any recursion.
    Catches: a recursion that drops, repeats or mislabels segments, in the kernel or in the definition.
    Cannot catch: errors that need long sequences or many labels; vjp_matches_the_oracle does.
    """
    sizes = _enumerable(evidence.case)

    def few(sample: Sample) -> Sample:
        return cut(sample, sequences=slice(sizes["B"]), positions=sizes["T"], durations=sizes["K"], labels=sizes["C"])

    variant = evidence.variant("few paths", few)
    yield from known(variant, "of the enumeration", of_paths(variant.sample))


@property(needs=(FORWARD, VJP), applies=takes(lambda case: {"T": 1}), one_in=3, rank=4)
def one_position_is_a_sum_over_pairs_of_labels(evidence: Evidence) -> Iterator[Finding]:
    """For the first position alone, log Z equals the lse, over all pairs of labels, of the one segment's score.

    Its gradients are the shares in that sum.
    Holds because: T = 1 leaves one segment, of duration 1, after any label.
    Catches: projections or a cumulative score read one place off, a transposed transition, a label before the first
    segment that is not summed over, durations beyond 1 that count.
    Cannot catch: errors that need a second position; log_z_and_gradients_are_those_of_the_enumeration does.
    """
    variant = evidence.variant("the first position", lambda s: cut(s, positions=1))
    yield from known(variant, "of one position", of_one_position(variant.sample))


@property(needs=(FORWARD, VJP), applies=takes(lambda case: {"K": 1, "T": _chained(case)}), one_in=5, rank=4)
def durations_of_one_are_a_linear_chain(evidence: Evidence) -> Iterator[Finding]:
    """With K = 1, log Z and its gradients equal those of a linear-chain CRF with the same scores.

    Holds because: every segment is one position, so a path is a chain of labels; the chain's forward algorithm is
    separate code, position by position.
    Catches: segments longer than K, a ring buffer that is one slot off, a label that enters its successor's score.
    Cannot catch: errors in longer segments; vjp_matches_the_oracle does.
    """
    positions = _chained(evidence.case)
    variant = evidence.variant("K = 1", lambda s: cut(s, positions=positions, durations=1))
    yield from known(variant, "of the linear chain", of_chains(variant.sample))


def _chained(case: Case) -> int:
    return min(case.dims["T"], 4 * SHORT)


def _beyond(case: Case) -> dict[str, int]:
    """T of a sample with few positions, and K of one with more durations than that."""
    positions = min(case.dims["T"], case.dims["K"], 8)
    return {"T": positions, "K": positions + 1 + drawn(case, "durations beyond", 4)}


@property(needs=(FORWARD, VJP), applies=takes(_beyond), one_in=4, rank=5)
def durations_beyond_the_sequence_do_nothing(evidence: Evidence) -> Iterator[Finding]:
    """Durations longer than T change neither log Z nor other gradients, and their own gradients are exactly 0.

    Holds because: no segment can be so long. They are given scores far above all others.
    Catches: a segment that begins before 0 or ends beyond T, a ring buffer that starts with anything but -inf, K
    clipped to T with gradients of the wrong shape or unwritten rows.
    Cannot catch: durations beyond a sequence that is shorter than T; a_shorter_sequence_is_the_sequence_cut does.
    """
    sizes = _beyond(evidence.case)
    positions, durations = sizes["T"], sizes["K"]
    few = evidence.variant("K = T", lambda s: cut(s, positions=positions, durations=positions))
    more = evidence.variant("K > T", lambda s: _longer(cut(s, positions=positions, durations=positions), durations))
    rows = ["duration_bias", *(["transition_by_duration"] if "transition_by_duration" in few.sample.inputs else [])]
    rest = [name for name in few.sample.tangents if name not in rows]
    yield from same(few, more, ["log_z", *rest], "K > T")
    yield from same(few, more, rows, "K > T", lambda a, b: (a, b[:positions]))
    for name in rows:
        yield zero(more, of(name), slice(positions, None), "beyond T")


def _longer(sample: Sample, durations: int) -> Sample:
    """The sample with further durations, of scores far above all others."""

    def more(tensor: Tensor, value: float) -> Tensor:
        return torch.cat([tensor, tensor.new_full((durations - len(tensor), *tensor.shape[1:]), value)])

    return in_durations(sample, lambda t: more(t, FAR), lambda t: more(t, 1.0))


@property(needs=(FORWARD, VJP), applies=takes_short, one_in=4, rank=5)
def a_sequence_of_length_0_gives_log_c(evidence: Evidence) -> Iterator[Finding]:
    """If every length is 0, log Z is log C and all gradients are exactly 0.

    Holds because: there is one path for each label before the first segment, and none has a score.
    Catches: 0 or -inf instead of log C, a sequence that takes one step at least, gradients that are left unwritten.
    Cannot catch: errors in sequences with a position; the matching properties do.
    """
    variant = evidence.variant("length 0", lambda s: short(s).with_inputs(lengths=torch.zeros_like(s.inputs[LENGTHS])))
    b, _, labels, _ = extents(variant.sample)
    yield from known(
        variant, "of length 0", {"log_z": rounded(torch.full((b,), float(labels), dtype=torch.float64).log())}
    )
    for name in variant.sample.tangents:
        yield zero(variant, of(name), ..., "of length 0")


def _some_position(case: Case, kernel: Kernel) -> str | None:
    lowest = "lengths" in case.draws and case.draws["lengths"].recipe == "lowest"
    return "every length is 0" if lowest else None


def _dead_end(sample: Sample, which: int) -> Sample:
    """The sample with every path forbidden: no duration, no transition, no start at 0 or no end at the length."""
    sample = short(sample)
    ways = ["duration_bias", table_of(sample), *along(sample)[1:]]
    name = ways[which % len(ways)]
    at: Any = ...
    if name == "proj_start":
        at = (slice(None), 0)
    elif name == "proj_end":
        last = (sample.inputs[LENGTHS] - 1).clamp_min(0)
        at = (torch.arange(len(last), device=last.device), last)
    return sample.with_inputs(**{name: changed(sample.inputs[name], at, -torch.inf)})


@property(needs=(FORWARD, VJP), applies=all_of(_some_position, takes_short), one_in=4, rank=5)
def where_every_path_is_forbidden_log_z_is_minus_infinity(evidence: Evidence) -> Iterator[Finding]:
    """With -inf on every path log Z is -inf, and all gradients are exactly 0, without NaN.

    Which scores forbid them changes from case to case: all durations, all transitions, every start at 0, every end at
    the length.
    Holds because: Z is a sum of zeros, so it does not depend on any score.
    Catches: NaN of -inf - -inf, a large negative number for -inf, alpha that is divided by a sum of 0, gradients of
    a beta that is finite where no path arrives.
    Cannot catch: errors in sequences with a path; forward_matches_the_oracle does.
    """
    which = drawn(evidence.case, "dead end", 12)
    variant = evidence.variant("every path forbidden", lambda s: _dead_end(s, which))
    full = variant.sample.inputs[LENGTHS].cpu() > 0
    got = variant.tensors(FORWARD)["log_z"].cpu()
    wrong = (got != -torch.inf) & full
    yield exactly(
        "log_z of no path", wrong, "is not -inf", elements=got.numel(), lost=bool(got[full].isnan().any()), of="log_z"
    )
    for name in variant.sample.tangents:
        yield zero(variant, of(name), ..., "of no path")


@property(needs=(FORWARD, VJP), applies=small_enough, one_in=4, rank=4)
def what_is_forbidden_has_no_gradient(evidence: Evidence) -> Iterator[Finding]:
    """A transition and a duration of -inf have gradients of exactly 0, and no gradient is NaN.

    Holds because: the paths that use them have probability 0.
    Catches: -inf replaced by a large number, NaN of -inf - -inf, a mask of one entry that hides its neighbours.
    Cannot catch: wrong gradients of what is allowed; vjp_matches_the_oracle does.
    """
    sample, case = evidence.sample, evidence.case
    _, _, labels, durations = extents(sample)
    table, longest = table_of(sample), drawn(case, "forbidden duration", durations)
    pair = (drawn(case, "forbidden from", labels), drawn(case, "forbidden to", labels))
    at: Any = pair if table == "transition" else (drawn(case, "forbidden kind", durations), *pair)
    one = (longest, drawn(case, "forbidden label", labels))

    def change(s: Sample) -> Sample:
        entries = {table: at, "duration_bias": one}
        return s.with_inputs(**{name: changed(s.inputs[name], entry, -torch.inf) for name, entry in entries.items()})

    variant = evidence.variant("some forbidden", change)
    yield from variant.compare(FORWARD)
    for name, entry in ((table, at), ("duration_bias", one)):
        yield zero(variant, of(name), entry, "where it is forbidden")
    for name in variant.sample.tangents:
        lost = variant.tensors(VJP)[of(name)].cpu().isnan()
        yield exactly(f"{of(name)} of the rest", lost, "is NaN", elements=lost.numel(), lost=True, of=of(name))


def _one_less(dim: str) -> Any:
    return all_of(small_enough, several(dim), takes(lambda case: {dim: max(case.dims[dim] - 1, 1)}))


@property(needs=(FORWARD, VJP), applies=_one_less("K"), one_in=6, rank=4)
def forbidding_the_longest_duration_is_not_having_it(evidence: Evidence) -> Iterator[Finding]:
    """With -inf for the longest duration, log Z and all gradients equal those of one duration less.

    Holds because: no path with a segment of that length is left.
    Catches: a ring buffer of the wrong size, durations padded with anything but -inf, a loop that ends one duration too
    soon.
    Cannot catch: errors that K and K - 1 share; vjp_matches_the_oracle does.
    """
    last = extents(evidence.sample).durations - 1
    barred = evidence.variant(
        "K forbidden", lambda s: s.with_inputs(duration_bias=changed(s.inputs["duration_bias"], last, -torch.inf))
    )
    without = evidence.variant("without K", lambda s: cut(s, durations=last))
    rows = [name for name in shared(evidence.sample) if name != "transition"]
    yield from same(barred, without, ["log_z", *(n for n in evidence.sample.tangents if n not in rows)], "without K")
    yield from same(barred, without, rows, "without K", lambda a, b: (a[:last], b))


@property(needs=(FORWARD, VJP), applies=_one_less("C"), one_in=6, rank=4)
def a_forbidden_label_is_none(evidence: Evidence) -> Iterator[Finding]:
    """With -inf for every segment of the last label and after it, everything else equals that of one label less.

    Holds because: no path through that label is left, nor one that begins after it. Sequences of length 0 are left out:
    there log Z counts labels.
    Catches: padded labels that count, a label before the first segment that is counted twice or not at all,
    strides of C where C is padded.
    Cannot catch: errors that C and C - 1 share; vjp_matches_the_oracle does.
    """
    last = extents(evidence.sample).labels - 1
    table = table_of(evidence.sample)
    full = (evidence.sample.inputs[LENGTHS].cpu() > 0).double()

    def bar(s: Sample) -> Sample:
        durations = changed(s.inputs["duration_bias"], (..., last), -torch.inf)
        pairs = changed(s.inputs[table], (..., last, slice(None)), -torch.inf)
        return s.with_inputs(**{"duration_bias": durations, table: pairs})

    barred = evidence.variant("a label forbidden", bar)
    without = evidence.variant("without a label", lambda s: cut(s, labels=last))
    yield equal(
        "log_z, without a label",
        lambda a, b, full: (torch.where(full > 0, a, 0.0), torch.where(full > 0, b, 0.0)),
        [(barred, FORWARD, "log_z"), (without, FORWARD, "log_z")],
        [full],
    )
    rest = [name for name in evidence.sample.tangents if name != table]
    yield from same(barred, without, rest, "without a label", lambda a, b: (a[..., :last], b))
    yield from same(barred, without, [table], "without a label", lambda a, b: (a[..., :last, :last], b))


def nan_read(case: Case, sample: Sample) -> str:
    """The input that has NaN in ``nan_in_gives_nan_out_for_its_sequence_alone``, by the seed of the case."""
    names = (*along(sample), *shared(sample))
    return names[drawn(case, "NaN", len(names))]


@property(needs=(FORWARD, VJP), applies=all_of(_some_position, takes_short), one_in=3, rank=4)
def nan_in_gives_nan_out_for_its_sequence_alone(evidence: Evidence) -> Iterator[Finding]:
    """NaN that every path of a sequence reads makes its log Z and gradients NaN, and changes those of no other.

    It is placed, changing from case to case, in cum_scores or proj_start at 0 or proj_end at the length, which one
    sequence reads, or in all of transition or duration_bias, which every sequence with a position reads; then only
    log Z of empty ones is compared. The gradients of what all sequences share are NaN too.
    Holds because: every path begins at 0, ends at the length, and takes a duration and a transition; no path of another
    sequence reads what is not shared, and 0 times NaN is NaN.
    Catches: a maximum that drops NaN, a clamp, a comparison that sends NaN to the branch of forbidden paths, sequences
    of one tile that share a maximum.
    Cannot catch: NaN that only some paths read; no property checks that.
    """
    plain = evidence.variant("at most 512 positions", short)
    sample = plain.sample
    name, lengths = nan_read(evidence.case, sample), sample.inputs[LENGTHS].cpu()
    which = int(lengths.argmax())
    reads = (torch.arange(len(lengths)) == which) if name in along(sample) else lengths > 0  # [B]
    if not bool(reads.any() and lengths[which] > 0):
        yield not_checked("log_z", "every length is 0")
        return
    judged = reads & plain.tensors(FORWARD)["log_z"].cpu().isfinite()
    if not bool(judged.any()):
        yield not_checked("log_z", "no sequence that reads it has a path")
        return
    at: Any = ... if name in shared(sample) else (which, int(lengths[which]) - 1 if name == "proj_end" else 0)
    wrong = changed(sample.inputs[name], at, torch.nan)
    variant = plain.variant(f"NaN in {name}", lambda s: s.with_inputs(**{name: wrong}))
    got = {"log_z": variant.tensors(FORWARD)["log_z"]}
    got |= {of(own): variant.tensors(VJP)[of(own)] for own in sample.tangents}
    live = judged & (sample.cotangents["log_z"].cpu() != 0)
    read = ~got["log_z"].cpu().isnan() & judged
    yield exactly(f"log_z of NaN in {name}", read, "is a number although NaN was read", of="log_z")
    for own in along(sample):
        none = ~got[of(own)].cpu().isnan().flatten(1).any(1)
        yield exactly(f"{of(own)} of NaN in {name}", none & live, "has no NaN in a sequence that read NaN", of=of(own))
    for own in shared(sample):
        none = live.any() & ~got[of(own)].cpu().isnan().any()
        yield exactly(f"{of(own)} of NaN in {name}", none, "has no NaN", of=of(own))
    if bool((~reads).any()):
        rows = map(of, along(sample) if name in along(sample) else ())
        before = {own: plain.vjp()[own] for own in ("log_z", *rows)}
        after = {own: changed(got[own], reads.to(got[own].device), 0.0) for own in before}
        for own, tensor in after.items():
            tensor[reads.to(tensor.device)] = before[own][reads.to(before[own].device)]
        yield from agree(plain, after, before, label=f", NaN in {name} of others")


SPECIAL_CASES = (
    log_z_and_gradients_are_those_of_the_enumeration,
    one_position_is_a_sum_over_pairs_of_labels,
    durations_of_one_are_a_linear_chain,
    durations_beyond_the_sequence_do_nothing,
    a_sequence_of_length_0_gives_log_c,
    where_every_path_is_forbidden_log_z_is_minus_infinity,
    what_is_forbidden_has_no_gradient,
    forbidding_the_longest_duration_is_not_having_it,
    a_forbidden_label_is_none,
    nan_in_gives_nan_out_for_its_sequence_alone,
)
