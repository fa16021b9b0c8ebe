"""Roundings at random: the two neighbours of each value in a format, which of them a kernel gave, and how likely."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from gradoracle.properties.agreement import double
from gradoracle.properties.masks import randomness
from torch import Tensor

from gradoracle.check.evidence import Evidence
from gradoracle.model.call_errors import Unavailable
from gradoracle.model.derivative import as_tuple
from gradoracle.model.finding import LOCAL_SIGMA
from gradoracle.model.formats import FORMATS
from gradoracle.model.reason import Reason
from gradoracle.model.recipes import rounded as nearest

_SHARP = (
    1e-3  # how exactly a value is known, relative to the distance of its neighbours, whose rounding tells something
)


@dataclass(frozen=True)
class Rounded:
    """An output that is rounded at random; float64 and bool tensors of its shape.

    Attributes:
        name: of the output.
        got: what the kernel gave.
        value: of the definition.
        low, high: the neighbours of the value, as far as rounding before leaves it open; one where the format holds it.
        judged: where the value and its neighbours lie in the range of the format.
        up: where the upper neighbour was given.
        chance: the probability of that.
        tells: where the neighbours differ and the value is known well enough.
    """

    name: str
    got: Tensor
    value: Tensor
    low: Tensor
    high: Tensor
    judged: Tensor
    up: Tensor
    chance: Tensor
    tells: Tensor


def rounded(evidence: Evidence) -> Rounded:
    """The output of a family that is rounded at random.

    Raises:
        Unavailable: it declares none.
    """
    name = randomness(evidence).rounded
    if not name:
        raise Unavailable("the family declares that nothing is rounded at random", Reason.RANDOM)
    return evidence.keep(f"{name}, rounded", lambda: _rounded(evidence, name))


def _rounded(evidence: Evidence, name: str) -> Rounded:
    value, slack = _value(evidence, name)
    got, dtype = double(evidence.forward()[name]), evidence.dtype(name)
    low, high = lower(value - slack, dtype), -lower(-value - slack, dtype)
    below, above = lower(value, dtype), -lower(-value, dtype)
    form = FORMATS[dtype]
    judged = value.isfinite() & (value.abs() + slack <= form.largest) & (high.abs() <= form.largest)
    judged &= (value == 0) | (value.abs() - slack >= form.smallest_normal)  # subnormal numbers may be flushed
    gap = above - below
    tells = judged & (gap > 0) & (slack <= _SHARP * gap)
    chance = torch.where(gap > 0, (value - below) / torch.where(gap > 0, gap, 1.0), 0.0)
    return Rounded(name, got, value, low, high, judged, got >= above, chance, tells)


def _value(evidence: Evidence, name: str) -> tuple[Tensor, Tensor]:
    """The definition's value, and how far a kernel that computes it in float32 may be off before it rounds."""
    family, sample = evidence.oracle.family, evidence.sample
    names = [spec.name for spec in family.signature.returned(sample.options)]
    primals = [spec.name for spec in family.signature.primals if spec.name in sample.inputs]
    whole = {n: tensor.cpu() for n, tensor in sample.inputs.items() if n not in primals}

    def unrounded(*floats: Tensor) -> tuple[Tensor, ...]:
        given = dict(zip(primals, floats, strict=True)) | whole
        ordered = [given[spec.name] for spec in family.signature.inputs if spec.name in given and not spec.keyword]
        keyword = {
            spec.name: given[spec.name] for spec in family.signature.inputs if spec.keyword and spec.name in given
        }
        found = as_tuple(family.definition(*ordered, **keyword, **sample.options))
        return (found[names.index(name)],)  # type: ignore[return-value]

    floats = [sample.inputs[each] for each in primals]
    wide = "float64" if evidence.case.dtype == "float64" else "float32"
    ((truth, allowance),) = evidence.define(f"{name} before rounding", unrounded, floats, [wide])
    slack = LOCAL_SIGMA * allowance.sigma.expand_as(truth.value)
    return truth.value, slack if allowance.radius is None else slack + allowance.radius


def lower(value: Tensor, dtype: str) -> Tensor:
    """The largest number of a format that is at most a value; -inf below its range."""
    flat = value.reshape(-1)
    finite = torch.where(flat.isfinite(), flat, 0.0)
    found = nearest(finite.numpy(), dtype)
    down = torch.where(found.double() > finite, _before(found).double(), found.double())
    return torch.where(flat.isfinite(), down, flat).reshape(value.shape)


def _before(x: Tensor) -> Tensor:
    """The number of a format before each, by its bits: zeros of both signs are one."""
    integer = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[x.element_size()]
    bits = x.contiguous().view(integer)
    smallest = torch.full_like(bits, torch.iinfo(integer).min + 1)  # the negative number next to 0
    moved = torch.where(x == 0, smallest, torch.where(bits > 0, bits - 1, bits + 1))
    return moved.view(x.dtype)
