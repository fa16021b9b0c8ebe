"""Properties of the semi-CRF between samples of equal results: batch, lengths, cotangents, chunks and time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from gradoracle.properties.agreement import agree, differ, double
from gradoracle.properties.applicability import all_of, small_enough
from gradoracle.properties.exactness import smallest_exact
from gradoracle.properties.semicrf.problems import (
    FORWARD,
    LENGTHS,
    VJP,
    along,
    cut,
    drawn,
    equal,
    extents,
    of,
    one_table,
    same,
    several,
    shared,
    takes,
    with_lengths,
    zero,
)
from torch import Tensor

from gradoracle.cases.sample import Sample
from gradoracle.check.acceptance import exactly, not_checked
from gradoracle.check.evidence import Evidence
from gradoracle.model import layouts
from gradoracle.model.case import Case
from gradoracle.model.finding import Finding
from gradoracle.model.formats import FORMATS
from gradoracle.model.kernel import Kernel
from gradoracle.model.property import property

FACTOR = 4.0  # exact in every format
FEW = 160  # positions of samples on a path that takes them one by one


def _alone(case: Case) -> dict[str, int]:
    return {"B": 1}


@property(needs=(FORWARD, VJP), applies=all_of(small_enough, several("B"), takes(_alone)), one_in=6, rank=4)
def a_sequence_alone_gives_what_it_gives_in_a_batch(evidence: Evidence) -> Iterator[Finding]:
    """One sequence of a batch has the same log Z and gradients on its own.

    For gradients of shared parameters, the other sequences of the batch have a cotangent of 0.
    Holds because: no sequence's paths read another's scores, and shared gradients are sums over the sequences.
    Catches: a tile whose sequences share a maximum, a norm or a length, a faulty path or chunk chosen by the batch
    size, a shared gradient with a stray row.
    Cannot catch: errors within each sequence; vjp_matches_the_oracle does.
    """
    which = drawn(evidence.case, "alone", extents(evidence.sample).sequences)
    row = slice(which, which + 1)
    alone = evidence.variant("alone", lambda s: cut(s, sequences=row))
    silent = evidence.variant("other cotangents 0", lambda s: _of_cotangent(s, which))
    yield from same(evidence, alone, ["log_z", *along(evidence.sample)], "alone", lambda a, b: (a[row], b))
    yield from same(silent, alone, shared(evidence.sample), "alone")


def _of_cotangent(sample: Sample, which: int, factor: float | None = None) -> Sample:
    """The sample with the cotangent of one sequence alone, or with it times a factor."""
    g = sample.cotangents["log_z"].contiguous()
    at = torch.arange(len(g), device=g.device) == which
    return sample.with_cotangents(log_z=torch.where(at, g, 0.0) if factor is None else torch.where(at, factor * g, g))


@property(needs=(VJP,), applies=small_enough, one_in=5, rank=5)
def each_cotangent_scales_its_own_sequence_once(evidence: Evidence) -> Iterator[Finding]:
    """Four times the cotangent of one sequence gives four times its own gradients, bit for bit, and changes no others.

    A shared gradient changes by three times the contribution of that sequence. Elements below what is exact in the
    dtype may differ within rounding; so may all where no determinism is claimed.
    Holds because: the gradient of the sum of g_b log Z_b is linear in each g_b.
    Catches: a cotangent that is multiplied in twice or dropped, the mean or the first of the batch for all, one that is
    applied to shared gradients after the sum over the batch.
    Cannot catch: a wrong gradient that is linear in the cotangent; vjp_matches_the_oracle does.
    """
    sample = evidence.sample
    which = int(sample.inputs[LENGTHS].argmax())
    if abs(float(sample.cotangents["log_z"][which])) * FACTOR > FORMATS[evidence.dtype("log_z")].largest:
        yield not_checked("log_z", "four times the cotangent overflows")
        return
    scaled = evidence.variant("one cotangent times 4", lambda s: _of_cotangent(s, which, FACTOR))
    own = evidence.variant("one cotangent alone", lambda s: _of_cotangent(s, which))
    factors = torch.ones(len(sample.inputs[LENGTHS]), 1, 1, dtype=torch.float64)
    factors[which] = FACTOR
    for name in along(sample):
        once, got = evidence.tensors(VJP)[of(name)].cpu(), scaled.tensors(VJP)[of(name)].cpu()
        expected = double(once) * factors
        size = expected.abs()
        fine = (size >= smallest_exact(evidence.case.dtype)) & (size <= FORMATS[evidence.case.dtype].largest)
        wrong = differ(got, expected.to(got.dtype)) & fine
        if evidence.kernel.deterministic and wrong.any():
            yield exactly(of(name), wrong, f"{int(wrong.sum())} elements are not exactly scaled by their cotangent")
            continue
        yield equal(
            f"{of(name)}, one cotangent times 4",
            lambda a, b, factors: (a, b * factors),
            [(scaled, VJP, of(name)), (evidence, VJP, of(name))],
            [factors],
        )
    for name in shared(sample):
        yield equal(
            f"{of(name)}, one cotangent times 4",
            lambda a, b, one: (a, b + (FACTOR - 1.0) * one),
            [(each, VJP, of(name)) for each in (scaled, evidence, own)],
        )


def _doubled(case: Case) -> dict[str, int]:
    return {"B": 2 * case.dims["B"]}


@property(needs=(FORWARD, VJP), applies=all_of(small_enough, takes(_doubled)), one_in=6, rank=4)
def a_repeated_sequence_counts_twice(evidence: Evidence) -> Iterator[Finding]:
    """With every sequence twice, the results of each copy are unchanged, and gradients of shared parameters double.

    Holds because: shared gradients are sums over the sequences, and the copies' terms are equal.
    Catches: a mean over the batch, a shared gradient of only the first or last sequence, programs that overwrite
    each other's part of the sum, a batch index that wraps.
    Cannot catch: errors within each sequence; vjp_matches_the_oracle does.
    """
    count = extents(evidence.sample).sequences
    twice = evidence.variant("every sequence twice", _twice)
    names = ["log_z", *along(evidence.sample)]
    yield from same(evidence, twice, names, "first copies", lambda a, b: (a, b[:count]))
    yield from same(evidence, twice, names, "second copies", lambda a, b: (a, b[count:]))
    yield from same(evidence, twice, shared(evidence.sample), "copies", lambda a, b: (2.0 * a, b))


def _twice(sample: Sample) -> Sample:
    rows = (*along(sample), LENGTHS)
    inputs, tangents = (
        {name: torch.cat([t, t]) if name in rows else t for name, t in group.items()}
        for group in (sample.inputs, sample.tangents)
    )
    g = sample.cotangents["log_z"]
    return replace(sample, inputs=inputs, tangents=tangents, cotangents={"log_z": torch.cat([g, g])})


def _cut_at(case: Case) -> int:
    """Some number of positions from 1 to T - 1."""
    return 1 + drawn(case, "cut", max(case.dims["T"] - 1, 1))


def _some_of(case: Case) -> dict[str, int]:
    return {"T": _cut_at(case)}


@property(needs=(FORWARD, VJP), applies=all_of(small_enough, several("T"), takes(_some_of)), one_in=5, rank=4)
def a_shorter_sequence_is_the_sequence_cut(evidence: Evidence) -> Iterator[Finding]:
    """Sequences of lengths up to n have the same results as with T = n, and gradients of exactly 0 past n.

    Holds because: no segment of a sequence ends beyond its length.
    Catches: a length that is off by one or that of another sequence, T used instead of the length, gradients past the
    length, a chunk or a path that is wrong for one T only.
    Cannot catch: errors that depend on the length alone; forward_matches_the_oracle does.
    """
    most = _cut_at(evidence.case)
    whole = evidence.variant("lengths cut", lambda s: with_lengths(s, most))
    less = evidence.variant("positions cut", lambda s: cut(s, positions=most))
    yield from same(whole, less, ["log_z", *shared(evidence.sample)], "positions cut")
    for name in along(evidence.sample):
        rows = slice(0, most + (name == "cum_scores"))
        yield from same(whole, less, [name], "positions cut", lambda a, b, rows=rows: (a[:, rows], b))
        yield zero(whole, of(name), (slice(None), slice(rows.stop, None)), "past the length")


@property(needs=(FORWARD, VJP), applies=all_of(small_enough, several("T")), one_in=5, rank=5)
def what_lies_past_the_length_does_not_matter(evidence: Evidence) -> Iterator[Finding]:
    """NaN, or the largest numbers, past each sequence's length change no bit where determinism is claimed.

    Elsewhere they change nothing beyond rounding.
    Holds because: no segment reads scores past the length.
    Catches: rows past the length that are masked by multiplication, a maximum taken over them, a sum that runs on to T.
    Cannot catch: other errors in a length; a_shorter_sequence_is_the_sequence_cut does.
    """
    most = _cut_at(evidence.case)
    largest = FORMATS[evidence.case.dtype].largest
    value = (torch.nan, largest, -largest)[drawn(evidence.case, "past", 3)]
    before = evidence.variant("lengths cut", lambda s: with_lengths(s, most))
    after = evidence.variant("other numbers past the lengths", lambda s: _past(with_lengths(s, most), value))
    exact = evidence.kernel.deterministic
    yield from agree(before, after.vjp(), before.vjp(), exact=exact, label=", other numbers past the lengths")


def _past(sample: Sample, value: float) -> Sample:
    lengths = sample.inputs[LENGTHS]
    changed = {}
    for name in along(sample):
        tensor = sample.inputs[name]
        at = torch.arange(tensor.shape[1], device=tensor.device)
        past = at >= (lengths + int(name == "cum_scores"))[:, None]
        changed[name] = torch.where(past[:, :, None], value, tensor)
    return sample.with_inputs(**changed)


@property(needs=(FORWARD, VJP), applies=small_enough, one_in=8, rank=5)
def lengths_of_32_and_of_64_bits_give_the_same(evidence: Evidence) -> Iterator[Finding]:
    """Lengths in int32 give the same bits as in int64, where determinism is claimed, or are refused.

    Holds because: they are the same numbers.
    Catches: a pointer of another width, every second length read, upper halves read as lengths.
    Cannot catch: errors that both share; forward_matches_the_oracle does.
    """
    narrow = evidence.variant("lengths in int32", lambda s: s.with_inputs(lengths=s.inputs[LENGTHS].to(torch.int32)))
    wide = evidence.variant("lengths in int64", lambda s: s.with_inputs(lengths=s.inputs[LENGTHS].to(torch.int64)))
    exact = evidence.kernel.deterministic
    yield from agree(wide, narrow.vjp(), wide.vjp(), exact=exact, label=", lengths in int32")


def _fewer(case: Case) -> dict[str, int]:
    return {"T": min(case.dims["T"], FEW)}


def _few(sample: Sample) -> Sample:
    return cut(sample, positions=min(extents(sample).positions, FEW))


def _has_two_paths(case: Case, kernel: Kernel) -> str | None:
    which = kernel.extras["paths"](case.dims)
    return None if len(which) > 1 else f"the kernel runs these sizes on the path {which[0]!r} only"


def _scheme(evidence: Evidence, path: str, chunk: int | None = None) -> dict[str, Tensor]:
    """log Z and gradients on a path of the kernel, with a state kept every so many positions."""
    g = evidence.sample.cotangents["log_z"]
    return evidence.entry("scheme", evidence.shapes(FORWARD, VJP), g, path, chunk, key=f" {path} in chunks of {chunk}")


@property(needs=(FORWARD, VJP), extras=("paths", "scheme"), applies=all_of(_has_two_paths, takes(_fewer)), one_in=4)
def parallel_equals_sequential(evidence: Evidence) -> Iterator[Finding]:
    """The paths of a kernel give the same log Z and gradients, within the rounding of both.

    Holds because: they order one sum differently.
    Catches: errors on the path that the kernel does not choose, which no other property runs: an operator of a chunk
    applied on the wrong side, a checkpoint that is one position off.
    Cannot catch: errors on every path; vjp_matches_the_oracle does.
    """
    variant = evidence.variant("few positions", _few)
    first, *others = evidence.kernel.extras["paths"](evidence.case.dims)
    for path in others:
        yield from agree(variant, _scheme(variant, path), _scheme(variant, first), label=f", {path} and {first}")


@property(needs=(FORWARD, VJP), extras=("paths", "scheme"), applies=takes(_fewer), one_in=5)
def how_often_a_state_is_kept_does_not_matter(evidence: Evidence) -> Iterator[Finding]:
    """Chunks (checkpoint intervals) of any length give the same log Z and gradients, within the rounding of both.

    Holds because: chunks decide only what is recomputed, and the order of sums.
    Catches: a state that lacks its oldest position, norms of the wrong chunk, a last chunk that is not full, the same
    position added by two chunks.
    Cannot catch: errors in chunks of any length; vjp_matches_the_oracle does.
    """
    variant = evidence.variant("few positions", _few)
    positions = extents(variant.sample).positions
    some = max(1 + drawn(evidence.case, "chunk", max(positions // 2, 1)), positions // 32)
    paths = evidence.kernel.extras["paths"](evidence.case.dims)
    path = paths[drawn(evidence.case, "path of the chunks", len(paths))]
    if path == "sequential" and max(some, evidence.case.dims["K"]) >= positions:
        yield not_checked("chunks", f"a chunk of {path} has at least K positions, here all of them")
        return
    whole = _scheme(variant, path, positions)
    yield from agree(variant, _scheme(variant, path, some), whole, label=f", {path} in chunks of {some}")


@property(needs=(FORWARD, VJP), applies=all_of(small_enough, one_table), one_in=4, rank=3)
def time_may_be_reversed(evidence: Evidence) -> Iterator[Finding]:
    """With a transition that depends on c - c' modulo C alone, the reversed sequence has the same log Z.

    Reversed: cum_scores[t] is -cum_scores[len - t], starts and ends change places, and the transition is transposed.
    dcum changes sign and order, dproj_start and dproj_end change places; dduration_bias is unchanged.
    Holds because: the score of a path read backwards is the same but for the step from the label before the first
    segment. That label is summed over, and with such a transition the sum is the same for every label, as it is for its
    transpose.
    Catches: errors that one direction of time makes in alpha and the other in beta: a start read at the end, a duration
    of the neighbouring segment, a sequence aligned to T instead of its length.
    Cannot catch: errors that both directions share, or in dtransition, which changes at the first segment;
    vjp_matches_the_oracle does.
    """
    plain = evidence.variant("cyclic transition", _cyclic)
    back = evidence.variant("backwards", lambda s: _backwards(_cyclic(s)))
    for each in (plain, back):
        each.continuous = False
    names = along(plain.sample)
    index = {name: _reversed(plain.sample, name) for name in names}

    def turned(name: str, tensor: Tensor) -> Tensor:
        return tensor.gather(1, index[name].cpu()[:, :, None].expand_as(tensor))

    yield from same(plain, back, ["log_z", "duration_bias"], "backwards")
    for name in names:
        other, sign = _opposite(name), -1.0 if name == "cum_scores" else 1.0
        yield equal(
            f"{of(name)}, backwards",
            lambda a, b, name=name, sign=sign: (a, sign * turned(name, b)),
            [(plain, VJP, of(name)), (back, VJP, of(other))],
        )


def _opposite(name: str) -> str:
    return {"proj_start": "proj_end", "proj_end": "proj_start"}.get(name, name)


def _cyclic(sample: Sample) -> Sample:
    """The sample with both projections or none, and transition[c', c] its first row at c - c' modulo C."""
    first = sample.inputs["transition"][0]
    steps = torch.arange(len(first), device=first.device)
    cyclic = first[(steps[None, :] - steps[:, None]) % len(first)]
    inputs = {name: layouts.aligned(tensor) for name, tensor in sample.inputs.items()}
    if len(along(sample)) == 2:
        inputs = {name: tensor for name, tensor in inputs.items() if not name.startswith("proj")}
    tangents = {name: tensor for name, tensor in sample.tangents.items() if name in inputs}
    return replace(sample, inputs=inputs, tangents=tangents).with_inputs(transition=cyclic)


def _backwards(sample: Sample) -> Sample:
    """The sample read from the end of each sequence."""
    inputs = dict(sample.inputs)
    for name in along(sample):
        rows = _reversed(sample, name)
        given = sample.inputs[_opposite(name)]
        inputs[name] = given.gather(1, rows[:, :, None].expand_as(given)) * (-1.0 if name == "cum_scores" else 1.0)
    return replace(sample, inputs=inputs).with_inputs(transition=sample.inputs["transition"].T.contiguous())


def _reversed(sample: Sample, name: str) -> Tensor:
    """[B T+1] or [B T] rows of an input in the order of the sequence backwards; those past the length stay."""
    tensor, lengths = sample.inputs[name], sample.inputs[LENGTHS].to(torch.int64)[:, None]
    at = torch.arange(tensor.shape[1], device=tensor.device)[None, :]
    last = lengths if name == "cum_scores" else lengths - 1
    return torch.where(at <= last, last - at, at)


INVARIANCES = (
    a_sequence_alone_gives_what_it_gives_in_a_batch,
    each_cotangent_scales_its_own_sequence_once,
    a_repeated_sequence_counts_twice,
    a_shorter_sequence_is_the_sequence_cut,
    what_lies_past_the_length_does_not_matter,
    lengths_of_32_and_of_64_bits_give_the_same,
    parallel_equals_sequential,
    how_often_a_state_is_kept_does_not_matter,
    time_may_be_reversed,
)
