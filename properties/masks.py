"""Masks: which elements a kernel keeps, as a tensor that its family declares shows them, and under other seeds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from gradoracle.cases.sample import Sample
from gradoracle.check.evidence import Evidence
from gradoracle.model.call_errors import Unavailable
from gradoracle.model.derivative import as_tuple
from gradoracle.model.randomness import Randomness
from gradoracle.model.reason import Reason
from gradoracle.oracle.truth import Oracle

SEEDS = 7  # further ones
_TRIED = 64


def randomness(evidence: Evidence) -> Randomness:
    """What the family declares.

    Raises:
        Unavailable: nothing.
    """
    found = evidence.oracle.family.random
    if found is None:
        raise Unavailable("the family declares no random numbers", Reason.RANDOM)
    return found


def dropping(evidence: Evidence) -> Randomness:
    """What the family declares, with a tensor that shows what is dropped.

    Raises:
        Unavailable: there is none.
    """
    found = randomness(evidence)
    if not found.drop:
        raise Unavailable("the family declares that nothing is dropped", Reason.RANDOM)
    if not found.shown:
        raise Unavailable("the family declares no tensor that shows what is dropped", Reason.RANDOM)
    if found.shown in evidence.oracle.family.domains and found.shown not in evidence.kernel.revealed:
        raise Unavailable(f"{found.shown} is given to the kernel, which does not make it", Reason.RANDOM)
    return found


def is_elementwise(evidence: Evidence) -> bool:
    """Whether an output shows what is dropped; else the kernel reveals it."""
    return dropping(evidence).shown not in evidence.kernel.revealed


def probability(evidence: Evidence) -> float:
    """That with which an element is dropped."""
    return float(evidence.sample.options[dropping(evidence).drop])


def of_ones(sample: Sample, value: float = 1.0) -> Sample:
    """The sample with one number throughout each float input, and 1 throughout each cotangent, contiguous."""
    inputs = {name: _filled(x, value) for name, x in sample.inputs.items() if x.is_floating_point()}
    cotangents = {name: _filled(g, 1.0) for name, g in sample.cotangents.items()}
    return sample.with_inputs(**inputs).with_cotangents(**cotangents)


def _filled(tensor: Tensor, value: float) -> Tensor:
    return torch.full_like(tensor, value, memory_format=torch.contiguous_format)


def ones(evidence: Evidence) -> Evidence:
    """The same kernel where every float input is 1, so that an output is 0 only where it was dropped."""
    return evidence.variant("every float input 1", of_ones)


def kept(evidence: Evidence) -> Tensor:
    """True where an element is kept, of the shape of the tensor that shows it.

    Raises:
        Unavailable: none does.
    """
    shown = dropping(evidence).shown
    if shown in evidence.sample.inputs:
        return evidence.sample.inputs[shown].cpu() != 0
    return ones(evidence).forward()[shown].detach().cpu() != 0


def seeded(evidence: Evidence, count: int = SEEDS) -> Iterator[Evidence]:
    """The same kernel with other seeds, the nearest first: they differ from the case's in few bits.

    Raises:
        Unavailable: its domain has no other ones.
    """
    name, sample = randomness(evidence).seed, evidence.sample
    family, found = evidence.oracle.family, 0
    for bits in range(1, _TRIED):
        if name in sample.options:
            option = int(sample.options[name]) ^ bits
            made = evidence.variant(
                f"seed {option}", lambda sample, option=option: sample.with_options(**{name: option})
            )
        else:
            tensor = sample.inputs[name] ^ bits
            if family.domains[name].fault(tensor, evidence.case.dims):
                continue
            made = evidence.variant(
                f"seed bits {bits}", lambda sample, tensor=tensor: sample.with_inputs(**{name: tensor})
            )
        found += 1
        yield made
        if found == count:
            return
    if not found:
        raise Unavailable(f"the domain of {name} has no other seed", Reason.RANDOM)


def given_what_is_kept(evidence: Evidence) -> Evidence:
    """Evidence that is judged by the definition over 1 - p where the kernel keeps an element, and by 0 elsewhere.

    Raises:
        Unavailable: the definition itself knows what is kept, or no output shows it.
    """
    random = dropping(evidence)
    if not (random.mean and is_elementwise(evidence)):
        raise Unavailable("the definition knows what is dropped, and is compared itself", Reason.RANDOM)

    def make() -> Evidence:
        family, mask, share = evidence.oracle.family, kept(evidence), 1.0 - probability(evidence)
        names = [spec.name for spec in family.signature.returned(evidence.sample.options)]

        def definition(*inputs: Any, **options: Any) -> tuple[Tensor, ...]:
            found = as_tuple(family.definition(*inputs, **options))
            return tuple(
                torch.where(mask, each / share, 0.0) if name == random.shown and each is not None else each
                for name, each in zip(names, found, strict=True)
            )  # type: ignore[arg-type]

        known = replace(family, definition=definition, everything=None, random=replace(random, mean=False))
        oracle = Oracle(known, evidence.oracle.reading)
        return type(evidence)(
            evidence.case, evidence.sample, evidence.subject, oracle, evidence.blocks, evidence.is_variant
        )

    return evidence.keep("given what is kept", make)
