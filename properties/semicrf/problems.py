"""Problems: what properties of the semi-CRF make of a sample, and how they hold two sides against one another."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from gradoracle.properties.agreement import Named, Sides, as_they_are, balanced, double, judged_by
from gradoracle.properties.applicability import Applies, supports
from torch import Tensor

from gradoracle.cases.sample import Sample
from gradoracle.check.acceptance import Allowance, exactly
from gradoracle.check.evidence import Evidence
from gradoracle.model import hashing, layouts
from gradoracle.model.case import Case
from gradoracle.model.derivative import Derivative
from gradoracle.model.finding import Finding
from gradoracle.model.formats import FORMATS
from gradoracle.model.kernel import Kernel

FORWARD, VJP, JVP, HVP = Derivative.FORWARD, Derivative.VJP, Derivative.JVP, Derivative.HVP
TABLES = ("transition", "transition_by_duration")
ALONG = ("cum_scores", "proj_start", "proj_end")  # the inputs with rows for each sequence
LENGTHS = "lengths"
SHORT = 512  # positions of the samples of properties that run a kernel on part of a long sequence


class Extents(NamedTuple):
    """B, T, C and K of a sample."""

    sequences: int
    positions: int
    labels: int
    durations: int


def extents(sample: Sample) -> Extents:
    """The sizes that a sample has, whatever those of its case."""
    sequences, places, labels = sample.inputs["cum_scores"].shape
    return Extents(sequences, places - 1, labels, len(sample.inputs["duration_bias"]))


def table_of(sample: Sample) -> str:
    """The name of the transition that a sample has."""
    return next(name for name in TABLES if name in sample.inputs)


def shared(sample: Sample) -> tuple[str, ...]:
    """The inputs that all sequences share."""
    return (table_of(sample), "duration_bias")


def along(sample: Sample) -> tuple[str, ...]:
    """The inputs of a sample that have rows for each sequence."""
    return tuple(name for name in ALONG if name in sample.inputs)


def cut(
    sample: Sample,
    *,
    sequences: slice = slice(None),
    positions: int | None = None,
    durations: int | None = None,
    labels: int | None = None,
) -> Sample:
    """Some sequences, and the first so many positions, durations and labels; no length is beyond the last position."""
    c = slice(labels)
    places = None if positions is None else positions + 1
    parts: dict[str, tuple[slice, ...]] = {
        "cum_scores": (sequences, slice(places), c),
        "proj_start": (sequences, slice(positions), c),
        "proj_end": (sequences, slice(positions), c),
        "duration_bias": (slice(durations), c),
        "transition": (c, c),
        "transition_by_duration": (slice(durations), c, c),
        LENGTHS: (sequences,),
    }
    inputs, tangents = ({n: t[parts[n]] for n, t in group.items()} for group in (sample.inputs, sample.tangents))
    if positions is not None:
        inputs[LENGTHS] = inputs[LENGTHS].clamp_max(positions)
    return replace(
        sample, inputs=inputs, tangents=tangents, cotangents={"log_z": sample.cotangents["log_z"][sequences]}
    )


def in_durations(
    sample: Sample, inputs: Callable[[Tensor], Tensor], tangents: Callable[[Tensor], Tensor] | None = None
) -> Sample:
    """The sample with what has durations along its first dim changed; tangents as inputs, by default."""

    def changed(own: Mapping[str, Tensor], change: Callable[[Tensor], Tensor]) -> dict[str, Tensor]:
        return {n: change(t) if n in ("duration_bias", TABLES[1]) else t for n, t in own.items()}

    return replace(sample, inputs=changed(sample.inputs, inputs), tangents=changed(sample.tangents, tangents or inputs))


def short(sample: Sample) -> Sample:
    """The first ``SHORT`` positions."""
    return cut(sample, positions=min(extents(sample).positions, SHORT))


def with_lengths(sample: Sample, most: int) -> Sample:
    """The sample with no length beyond ``most``, its tensors contiguous."""
    inputs = {name: layouts.aligned(tensor) for name, tensor in sample.inputs.items()}
    return replace(sample, inputs=inputs).with_inputs(lengths=inputs[LENGTHS].clamp_max(most))


def changed(tensor: Tensor, at: object, value: float) -> Tensor:
    """A contiguous copy with another value at some elements."""
    copy = layouts.aligned(tensor)
    copy[at] = value  # type: ignore[index]
    return copy


def drawn(case: Case, name: str, count: int) -> int:
    """A number from 0 to count - 1, by the seed of the case."""
    return int(hashing.integers(case.seed, f"semicrf {name}", 1, 0, count)[0])


def whole_numbers(case: Case, name: str, count: int, reach: int) -> Tensor:
    """[count] float64 whole numbers from -reach to reach, none of them 0, by the seed of the case."""
    found = torch.from_numpy(hashing.integers(case.seed, f"semicrf {name}", count, -reach, reach)).double()
    return found + (found >= 0)


def of(name: str) -> str:
    """The name of the gradient of an input."""
    return f"d{name}"


def equal(name: str, sides: Sides, parts: Sequence[Named], constants: Sequence[Tensor] = ()) -> Finding:
    """As ``balanced``, where equal values hold at once."""
    found = [double(evidence.tensors(derivative)[own]) for evidence, derivative, own in parts]
    left, right = sides(*found, *constants)
    if bool((left == right).all()):
        return exactly(name, False, "", elements=left.numel())
    return balanced(name, parts, sides, constants)


def same(
    one: Evidence, other: Evidence, names: Sequence[str], label: str, sides: Sides = as_they_are
) -> Iterator[Finding]:
    """Judge that two runs give the same: log Z ("log_z") and the gradients of the inputs named.

    ``sides`` makes the two tensors comparable.
    """
    for name in names:
        derivative, own = (FORWARD, name) if name == "log_z" else (VJP, of(name))
        yield equal(f"{own}, {label}", sides, [(one, derivative, own), (other, derivative, own)])


def zero(evidence: Evidence, name: str, at: object, label: str, derivative: Derivative = VJP) -> Finding:
    """Judge that a tensor of a derivative is exactly 0 at some elements; NaN is not."""
    got = evidence.tensors(derivative)[name].detach().cpu()[at]  # type: ignore[index]
    wrong = got != 0
    lost = bool(got.isnan().any())
    return exactly(f"{name} {label}", wrong, "is not exactly 0", elements=got.numel(), lost=lost, of=name)


class Known(NamedTuple):
    """A truth from elsewhere, float64, and how far it may be off."""

    value: Tensor
    radius: Tensor


def known(evidence: Evidence, label: str, truths: Mapping[str, Known]) -> Iterator[Finding]:
    """Judge log Z and gradients by truths from elsewhere, under the budgets of the evidence."""
    for name, truth in truths.items():
        derivative = FORWARD if name == "log_z" else VJP
        got = evidence.tensors(derivative)[name]

        def within(
            algorithm: str | None, derivative: Derivative = derivative, name: str = name, truth: Known = truth
        ) -> Allowance:
            return replace(evidence.allowance(derivative, name, algorithm), radius=truth.radius, undecided=None)

        largest = FORMATS[evidence.dtype(name)].largest
        yield judged_by(evidence, name, got, truth.value, f"{name}, {label}", within, largest=largest)


def several(dim: str) -> Applies:
    """Why properties of a dim of two or more do not apply; None where they do."""
    return lambda case, kernel: None if case.dims[dim] > 1 else f"{dim} is 1"


def one_table(case: Case, kernel: Kernel) -> str | None:
    """Why properties of a transition that is the same for each duration do not apply; None where they do."""
    return "the case has a transition for each duration" if "transition_by_duration" in case.draws else None


def takes(sizes: Callable[[Case], Mapping[str, int]]) -> Applies:
    """Why properties that run the kernel with other ``sizes`` do not apply; None where they do."""

    def applies(case: Case, kernel: Kernel) -> str | None:
        expected = sizes(case)
        if supports(kernel, **expected):
            return None
        return f"the kernel does not take {', '.join(f'{dim} = {size}' for dim, size in expected.items())}"

    return applies


takes_short = takes(lambda case: {"T": min(case.dims["T"], SHORT)})
