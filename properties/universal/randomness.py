"""Laws of random numbers in a kernel: of what is dropped, of what is rounded at random, and of seeds."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import replace

import torch
from gradoracle.properties.agreement import differing, double
from gradoracle.properties.applicability import has_block_configurations, small_enough
from gradoracle.properties.chance import LEAST, binomial, decides, mixed_binomial, weighted, within
from gradoracle.properties.masks import (
    dropping,
    given_what_is_kept,
    is_elementwise,
    kept,
    of_ones,
    ones,
    probability,
    randomness,
    seeded,
)
from gradoracle.properties.roundings import rounded
from torch import Tensor

from gradoracle.cases.sample import Sample
from gradoracle.check.acceptance import exactly, not_checked
from gradoracle.check.evidence import Evidence
from gradoracle.model import layouts
from gradoracle.model.call_errors import Refused, Unavailable
from gradoracle.model.derivative import Derivative
from gradoracle.model.finding import Finding
from gradoracle.model.property import Families, PropertyKind, property
from gradoracle.model.reason import Reason
from gradoracle.model.severity import Severity
from gradoracle.model.signature import cotangent_name

OF_RANDOM = Families("every family that declares random numbers", lambda family: family.random is not None)
_FEW = "too few for chance to be told from a fault"


@property(needs=(Derivative.FORWARD,), applies=small_enough, decisive=True, families=OF_RANDOM)
def outputs_are_those_of_the_kept_elements(evidence: Evidence) -> Iterator[Finding]:
    """Each output is 0 where the kernel drops an element, and elsewhere the definition's over 1 - p, within rounding.

    Holds because: that is what dropout computes, and its mean over seeds is the definition. Which elements are dropped
    is read from a call in which every float input is 1.
    Catches: a scale by 1 / p or none, an element that is neither dropped nor scaled, a mask that depends on the values
    of an input, values that are kept where the mask is 0.
    Cannot catch: which elements are dropped; the_share_of_kept_elements_is_that_of_the_option and
    another_seed_gives_another_mask look at that.
    """
    yield from given_what_is_kept(evidence).compare(Derivative.FORWARD, evidence.tensors(Derivative.FORWARD))


@property(needs=(Derivative.VJP,), applies=small_enough, decisive=True, families=OF_RANDOM)
def gradients_are_those_of_the_kept_elements(evidence: Evidence) -> Iterator[Finding]:
    """Each gradient is that of the definition of what the forward keeps, within rounding.

    Holds because: with a mask given, dropout is a product with 0 or 1 / (1 - p), and its VJP follows by torch.func.
    Catches: a backward with another mask than the forward's, with a scale of its own, or with none.
    Cannot catch: a mask that is wrong in both; the laws of masks look at that.
    """
    yield from given_what_is_kept(evidence).compare(Derivative.VJP, evidence.tensors(Derivative.VJP))


@property(needs=(Derivative.VJP,), applies=small_enough, one_in=2, families=OF_RANDOM, severity=Severity.WRONG, rank=1)
def the_mask_of_backward_is_that_of_forward(evidence: Evidence) -> Iterator[Finding]:
    """With inputs and cotangents of 1, the gradient of elementwise dropout is 0 exactly where the output is.

    Holds because: an element that is dropped passes nothing on in either direction, and one that is kept passes
    something.
    Catches: a backward that makes its mask again from another offset or seed, or in another order of elements; one that
    passes dropped elements on.
    Cannot catch: a wrong scale; gradients_are_those_of_the_kept_elements and vjp_matches_the_oracle do.
    """
    random = dropping(evidence)
    if not is_elementwise(evidence):
        raise Unavailable("the definition is given the mask, and gradients are compared with it", Reason.RANDOM)
    family = evidence.oracle.family
    dims = {spec.name: spec.dims for spec in family.signature.outputs}[random.shown]
    alike = [
        spec.name for spec in family.signature.primals if spec.dims == dims and spec.name in evidence.sample.inputs
    ]
    alike = [name for name in alike if name not in evidence.kernel.no_gradient]
    if not alike:
        raise Unavailable(f"no input has the dims of {random.shown}", Reason.RANDOM)
    plain = ones(evidence)
    found, mask = plain.vjp(), kept(evidence)
    for name in map(cotangent_name, alike):
        wrong = (double(found[name]) != 0) != mask
        message = f"{int(wrong.sum())} of {wrong.numel()} elements are 0 in one of {name} and {random.shown} alone"
        yield exactly(name, wrong, message, axes=dims, values=(double(found[name]), double(mask)))


@property(applies=small_enough, one_in=2, families=OF_RANDOM, severity=Severity.WRONG, rank=2)
def the_share_of_kept_elements_is_that_of_the_option(evidence: Evidence) -> Iterator[Finding]:
    """As many elements are kept, over eight seeds, as independent draws of probability 1 - p may give.

    Holds because: their number is binomial. A count is a fault where one at least as far out, on either side, has a
    probability below 1e-9, for every rate within one level of the kernel's random numbers of the declared one.
    Catches: a mask of p in place of 1 - p, a rate that is rounded, a comparison on the wrong side, one number used for
    several elements, numbers that are not uniform.
    Cannot catch: a rate that is off by less than chance at the sizes of a run, or dependence among elements that keeps
    their number.
    """
    random, rate = dropping(evidence), 1.0 - probability(evidence)
    masks = [kept(each) for each in (evidence, *seeded(evidence))]
    count, trials = sum(int(mask.sum()) for mask in masks), sum(mask.numel() for mask in masks)

    def tail(k: int) -> float:
        return binomial(k, trials, within(rate, random.levels, k / trials))

    if not decides(tail, trials):
        yield replace(not_checked(random.shown, f"elements are {_FEW}"), why=Reason.RANDOM)
        return
    found = tail(count)
    message = (
        f"{count} of {trials} elements are kept, {count / trials:.4g} of them, where {rate:.4g} are declared: the "
        f"probability is {found:.1e}"
    )
    yield exactly(random.shown, found < LEAST, message, elements=trials)


@property(applies=small_enough, one_in=2, families=OF_RANDOM, severity=Severity.WRONG)
def another_seed_gives_another_mask(evidence: Evidence) -> Iterator[Finding]:
    """Under other seeds as many elements are dropped, or rounded, alike as independent numbers may give.

    Holds because: given one mask, each element of an independent one agrees with probability 1 - p where it was kept
    and p where it was dropped; the number of those that agree has the bound of Chernoff. So have roundings.
    Catches: a seed that is ignored, of which only some bits are used, or that reaches a part of the elements alone; a
    seed that shifts every mask by no element; rounding that is not random.
    Cannot catch: masks of two seeds that are shifted copies of one another.
    """
    random = randomness(evidence)
    if not random.rounded:
        dropping(evidence)
    if random.shown and (random.shown in evidence.kernel.revealed or random.shown not in evidence.sample.inputs):
        share, mask = 1.0 - probability(evidence), kept(evidence)
        yield _alike(
            random.shown,
            [kept(each) == mask for each in seeded(evidence)],
            torch.where(mask, share, 1.0 - share).to(torch.float64),
            random.levels,
        )
    if random.rounded:
        own = rounded(evidence)
        others = [rounded(each) for each in seeded(evidence)]
        agreeing = [own.up[own.tells] == each.up[own.tells] for each in others]
        chances = torch.where(own.up, own.chance, 1.0 - own.chance)[own.tells]
        yield _alike(random.rounded, agreeing, chances, random.levels)


def _alike(name: str, agreeing: list[Tensor], chances: Tensor, levels: int) -> Finding:
    """Judge how many elements are alike under other seeds, by the probability of each."""
    trials, count = sum(each.numel() for each in agreeing), sum(int(each.sum()) for each in agreeing)
    mean = float(chances.mean()) if chances.numel() else 1.0

    def tail(k: int) -> float:
        return mixed_binomial(k, trials, within(mean, levels, k / trials))

    if not trials or mean in (0.0, 1.0) or tail(trials) >= LEAST:
        return replace(not_checked(name, f"elements are {_FEW}"), why=Reason.RANDOM)
    found = tail(count)
    message = (
        f"{count} of {trials} elements are alike under another seed, where {mean * trials:.4g} are expected: the "
        f"probability is at most {found:.1e}"
    )
    return exactly(name, found < LEAST, message, elements=trials)


@property(
    applies=small_enough, one_in=2, families=OF_RANDOM, kind=PropertyKind.REPETITION, severity=Severity.WRONG, rank=1
)
def the_same_seed_gives_the_same_numbers(evidence: Evidence) -> Iterator[Finding]:
    """A second call with one seed drops, and rounds, the same elements, and so does a forward whose backward follows.

    Holds because: the numbers are a function of the seed. Where determinism is claimed all bits are equal; elsewhere
    the zeros of the output that shows what is dropped.
    Catches: numbers of a state that calls advance, of a clock or of an address; a forward that draws otherwise where it
    saves for backward.
    Cannot catch: numbers that are the same in every call and wrong; the_share_of_kept_elements_is_that_of_the_option
    does.
    """
    random, first, compared = randomness(evidence), evidence.forward(), 0
    calls = {", again": evidence.variant("the same seed", lambda sample: sample).forward()}
    if evidence.kernel.is_judged(Derivative.VJP):
        calls[", with its backward"] = evidence.vjp()
    if random.shown in evidence.kernel.revealed:
        mask = kept(evidence.variant("the same seed", lambda sample: sample))
        compared += 1
        yield exactly(random.shown, mask != kept(evidence), "the mask of a second call is another", of=random.shown)
    for label, found in calls.items():
        for name, tensor in first.items():
            if evidence.kernel.deterministic:
                wrong = differing(found[name], tensor).cpu()
            elif name == random.shown:
                wrong = ((found[name] == 0) != (tensor == 0)).cpu()
            else:
                continue
            compared += 1
            message = f"{int(wrong.sum())} of {wrong.numel()} elements are others under the same seed"
            yield exactly(f"{name}{label}", wrong, message, axes=evidence.axes(name), of=name)
    if not compared:
        raise Unavailable("no determinism is claimed, and no tensor shows what is dropped", Reason.RANDOM)


@property(applies=small_enough, one_in=3, families=OF_RANDOM, severity=Severity.WRONG)
def the_mask_depends_on_the_seed_alone(evidence: Evidence) -> Iterator[Finding]:
    """Other values and another layout of the inputs, and each block configuration, leave what is dropped as it is.

    Holds because: the random number of an element is a function of the seed and of the element's place in the tensor.
    Catches: numbers that are counted by place in memory or in a tile, so that a transposed input or other blocks drop
    other elements than a backward remakes; a mask that is derived from values.
    Cannot catch: a mask that is wrong in every layout and configuration.
    """
    random, mask = dropping(evidence), kept(evidence)
    changes = {"other values": functools.partial(of_ones, value=2.0), "another layout": _transposed}
    for label, change in changes.items():
        changed = evidence.variant(label, change)
        try:
            mine = _shown(changed, random.shown)
        except Refused:
            continue
        yield _same(random.shown, label, mine, mask)
    if has_block_configurations(evidence.case, evidence.kernel) is None:
        for name in evidence.kernel.blocks:
            forced = evidence.variant(f"ones in blocks {name}", of_ones, blocks=name)
            try:
                mine = _shown(forced, random.shown)
            except Refused:
                continue
            yield _same(random.shown, f"blocks {name}", mine, mask)


def _shown(evidence: Evidence, name: str) -> Tensor:
    """What is kept, by the sample as it is."""
    if name in evidence.sample.inputs:
        return evidence.sample.inputs[name].cpu() != 0
    return evidence.forward()[name].detach().cpu() != 0


def _same(name: str, label: str, mine: Tensor, mask: Tensor) -> Finding:
    wrong = mine != mask
    message = f"{int(wrong.sum())} of {wrong.numel()} elements are dropped otherwise"
    return exactly(f"{name}, {label}", wrong, message, of=name)


def _transposed(sample: Sample) -> Sample:
    """Ones in another layout, where the shape has one."""
    filled = of_ones(sample)
    floats = {name: x for name, x in filled.inputs.items() if x.is_floating_point()}
    fits = layouts.LAYOUTS["transposed"].fits
    return filled.with_inputs(
        **{name: layouts.apply(x, "transposed") for name, x in floats.items() if fits(tuple(x.shape))}
    )


@property(needs=(Derivative.FORWARD,), applies=small_enough, decisive=True, families=OF_RANDOM, severity=Severity.WRONG)
def a_rounded_value_is_one_of_its_neighbours(evidence: Evidence) -> Iterator[Finding]:
    """A value that is rounded at random is one of the two neighbours of the definition's in its format.

    Holds because: stochastic rounding chooses between them, and a value that the format holds has one. What rounding
    before it explains, as if the output were in float32, widens the interval.
    Catches: a carry into the exponent that is lost, bits added to the wrong part of a word, negative numbers rounded
    away from zero twice, an exact value that moves.
    Cannot catch: a bias between the two; rounding_at_random_has_the_mean_of_the_value does.
    """
    own = rounded(evidence)
    outside = own.judged & ((own.got < own.low) | (own.got > own.high))
    count = int(own.judged.sum())
    if not count:
        yield replace(not_checked(own.name, "no value lies in the range of its format"), why=Reason.RANDOM)
        return
    message = f"{int(outside.sum())} of {count} elements are none of their neighbours"
    yield exactly(own.name, outside, message, elements=count, axes=evidence.axes(own.name), values=(own.got, own.value))


@property(applies=small_enough, families=OF_RANDOM, severity=Severity.WRONG, rank=2)
def rounding_at_random_has_the_mean_of_the_value(evidence: Evidence) -> Iterator[Finding]:
    """Over eight seeds, values are rounded up as often as their distance to the lower neighbour says.

    Holds because: the mean over seeds is the value exactly if it goes up with a probability that is its distance to
    the lower neighbour over that between the two. The number of those that go up, and of those that go away from 0,
    has the bound of Chernoff; a sum that weights each with its distance from the middle has that of Hoeffding.
    Catches: truncation, rounding to nearest, a bias of half an ulp, random bits that are shifted or too few.
    Cannot catch: numbers that neighbouring elements share; another_seed_gives_another_mask sees one that all seeds
    share.
    """
    levels = randomness(evidence).levels
    every = [rounded(each) for each in (evidence, *seeded(evidence))]
    name, tells = every[0].name, every[0].tells
    chance, positive = every[0].chance[tells], every[0].value[tells] > 0
    ups = torch.stack([each.up[tells] for each in every]).to(torch.float64)
    away, to_away = torch.where(positive, ups, 1.0 - ups), torch.where(positive, chance, 1.0 - chance)
    trials, weights = ups.numel(), 2.0 * chance - 1.0

    def tail(count: float, chances: Tensor) -> float:
        return mixed_binomial(count, trials, within(float(chances.mean()), levels, count / trials))

    if not trials or max(tail(0, chance), tail(trials, chance)) >= LEAST:
        yield replace(not_checked(name, f"elements are {_FEW}"), why=Reason.RANDOM)
        return
    apart = float(((ups - chance) * weights).sum().abs()) - len(every) * float(weights.abs().sum()) / levels
    improbable: dict[str, float] = {}
    for where, went, own in (("up", ups, chance), ("away from 0", away, to_away)):
        count, expected = float(went.sum()), float(own.mean()) * trials
        said = f"{count:.0f} of {trials} elements go {where}, where {expected:.5g} are expected"
        improbable[said] = tail(count, own)
    squares = len(every) * float(weights.square().sum())
    improbable["elements near a neighbour go to it too often, or too rarely"] = weighted(max(apart, 0.0), squares)
    said, found = min(improbable.items(), key=lambda each: each[1])
    yield exactly(name, found < LEAST, f"{said}: the probability is at most {found:.1e}", elements=trials)
