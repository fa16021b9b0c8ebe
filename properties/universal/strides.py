"""Properties of layouts: results do not depend on where a tensor's elements lie in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import torch
from gradoracle.properties.agreement import agree
from gradoracle.properties.applicability import small_enough
from gradoracle.properties.members import kept_in_domains
from torch import Tensor

from gradoracle.cases.sample import Sample
from gradoracle.check.evidence import Evidence
from gradoracle.model import layouts
from gradoracle.model.finding import Finding
from gradoracle.model.property import PropertyKind, property

OTHERS = tuple(name for name in layouts.LAYOUTS if name != "contiguous")

Group = Callable[[Sample, Callable[[Tensor], Tensor]], Sample]


@property(applies=small_enough, one_in=3, kind=PropertyKind.LAYOUT)
def any_layout_of_inputs_is_right_or_refused(evidence: Evidence) -> Iterator[Finding]:
    """Inputs in any layout (transposed, sliced, strided, expanded, offset) give the same results as contiguous ones.

    Holds because: a layout moves values and changes none; a kernel may refuse it with an error, which counts
    as refused. All inputs take the same layout, one that their shapes have; which one changes from case to case.
    Between their elements lies NaN. Different bits are judged within the rounding of both runs, since a layout may
    choose another order of sums.
    Catches: a stride that is assumed, a swapped pair of strides, an ``.view`` of what is not contiguous, stride 0 read
    as a step, an address that must be aligned. The matching properties see it on cases that have the layout.
    Cannot catch: layouts of cotangents; any_layout_of_cotangents_is_right_or_refused does.
    """
    yield from _same_in_another_layout(evidence, "inputs", _inputs)


@property(applies=small_enough, one_in=2, kind=PropertyKind.LAYOUT)
def any_layout_of_cotangents_is_right_or_refused(evidence: Evidence) -> Iterator[Finding]:
    """Cotangents in any layout (transposed, sliced, strided, expanded, offset) give the results of contiguous ones.

    Holds because: a layout moves values and changes none. Autograd hands a backward whatever the next operation made:
    slices of a cat, transposed views, the stride-0 result of ``sum().backward()``.
    Catches: the strides of the output used for its cotangent, contiguity assumed, stride 0 read as a step: the most
    often reported fault of hand-written backwards. vjp_matches_the_oracle sees it on cases that have the layout.
    Cannot catch: layouts of inputs; any_layout_of_inputs_is_right_or_refused does.
    """
    yield from _same_in_another_layout(evidence, "cotangents", _cotangents)


def _same_in_another_layout(evidence: Evidence, what: str, change: Group) -> Iterator[Finding]:
    group = evidence.sample.inputs if what == "inputs" else evidence.sample.cotangents
    fitting = layouts_of(group)
    name = fitting[evidence.case.seed // 3 % len(fitting)]
    repeats = layouts.LAYOUTS[name].repeats
    laid = evidence.variant(
        f"{what} {name}", lambda sample: _within_domains(evidence, change(sample, lambda t: layouts.apply(t, name)))
    )
    if not repeats and _plain(evidence.sample):
        plain = evidence
    else:
        plain = evidence.variant(
            f"{what} contiguous, values as in {name}" if repeats else "contiguous",
            lambda sample: (laid.sample if repeats else sample).map(_contiguous),
        )
    if repeats:
        plain.continuous = False
    found, expected = (each.results() if what == "inputs" else each.vjp() for each in (laid, plain))
    yield from agree(plain, found, expected, label=f", {what} {name}")


def _within_domains(evidence: Evidence, laid: Sample) -> Sample:
    """The sample with those integers as they were that would leave their domain: offsets that repeat one value."""
    family, own = evidence.oracle.family, evidence.sample.inputs
    return laid.with_inputs(**kept_in_domains(family, laid.inputs, own, evidence.case.dims))


def layouts_of(group: Mapping[str, Tensor]) -> tuple[str, ...]:
    """The layouts in which some of the tensors lies otherwise than contiguous, in the order of a case's turn."""
    shapes = [tuple(tensor.shape) for tensor in group.values()]
    return tuple(name for name in OTHERS if any(layouts.LAYOUTS[name].fits(shape) for shape in shapes))


def _inputs(sample: Sample, change: Callable[[Tensor], Tensor]) -> Sample:
    return sample.with_inputs(**_each(sample.inputs, change))


def _cotangents(sample: Sample, change: Callable[[Tensor], Tensor]) -> Sample:
    return sample.with_cotangents(**_each(sample.cotangents, change))


def _each(group: Mapping[str, Tensor], change: Callable[[Tensor], Tensor]) -> dict[str, Tensor]:
    return {name: change(tensor) for name, tensor in group.items()}


def _contiguous(tensor: Tensor) -> Tensor:
    return tensor.detach().clone(memory_format=torch.contiguous_format)


def _plain(sample: Sample) -> bool:
    return all(t.is_contiguous() for group in (sample.inputs, sample.cotangents) for t in group.values())
