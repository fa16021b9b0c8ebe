"""Samples: what lightning properties know of a sample in float64, and the samples that they make of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from gradoracle.properties.agreement import Sides, balanced, differ, double
from gradoracle.properties.applicability import supports
from torch import Tensor

from gradoracle.cases.sample import Sample
from gradoracle.check.acceptance import exactly
from gradoracle.check.evidence import Evidence
from gradoracle.model import hashing, layouts
from gradoracle.model.case import Case
from gradoracle.model.derivative import Derivative
from gradoracle.model.finding import Finding
from gradoracle.model.kernel import Kernel

FORWARD, VJP, JVP, HVP = Derivative.FORWARD, Derivative.VJP, Derivative.JVP, Derivative.HVP
DERIVATIVES = {"o": FORWARD, "state": FORWARD, "dq": VJP, "dk": VJP, "dv": VJP, "dinitial_state": VJP}
INITIAL = "initial_state"
EVERY = slice(None)
ROWS = ("q", "k", "v")  # the inputs with a row for each token


@dataclass(frozen=True)
class Parts:
    """One sample's tensors in float64 on the CPU, for the constants of properties and the sizes of what they compare.

    Not a truth: truths come from the oracle.
    """

    sample: Sample

    @property
    def q(self) -> Tensor:
        """[B H N D]."""
        return double(self.sample.inputs["q"])

    @property
    def k(self) -> Tensor:
        """[B H N D]."""
        return double(self.sample.inputs["k"])

    @property
    def v(self) -> Tensor:
        """[B H N Dv]."""
        return double(self.sample.inputs["v"])

    @property
    def initial(self) -> Tensor:
        """[B H D Dv] the initial state, 0 where there is none."""
        given = self.sample.inputs.get(INITIAL)
        return self.k.transpose(-1, -2) @ self.v * 0 if given is None else double(given)

    @property
    def g(self) -> Tensor:
        """[B H N Dv] the cotangent of o."""
        return double(self.sample.cotangents["o"])

    @property
    def g_state(self) -> Tensor:
        """[B H D Dv] the cotangent of the state, 0 where it is not returned."""
        given = self.sample.cotangents.get("state")
        return torch.zeros_like(self.initial) if given is None else double(given)


def made(
    sample: Sample, rows: tuple[Tensor, Tensor, Tensor], initial: Tensor | None, g: Tensor, g_state: Tensor | None
) -> Sample:
    """Another sample: (q, k, v), an initial state or none, and cotangents; the state is asked for with ``g_state``.

    Its tangents are 0.
    """
    inputs = dict(zip(ROWS, rows, strict=True)) | ({} if initial is None else {INITIAL: initial})
    cotangents = {"o": g} | ({} if g_state is None else {"state": g_state})
    tangents = {name: torch.zeros_like(t, memory_format=torch.contiguous_format) for name, t in inputs.items()}
    options = {**sample.options, "return_state": g_state is not None}
    return replace(sample, inputs=inputs, tangents=tangents, cotangents=cotangents, options=options)


def plain(sample: Sample) -> Sample:
    """The sample with all tensors contiguous and aligned, as its changed forms have them."""
    return sample.map(layouts.aligned)


def in_rows(change: Callable[[Tensor], Tensor], *names: str) -> Callable[[Sample], Sample]:
    """A change of some inputs of rows, by one function."""
    return lambda sample: sample.with_inputs(**{name: change(sample.inputs[name]) for name in names or ROWS})


def instead(other: Sample) -> Callable[[Sample], Sample]:
    """The change of a sample into another one."""
    return lambda sample: other


def new_state(sample: Sample, name: str) -> Tensor:
    """[B H D Dv] float32 (float64 in float64) of hashed values in (-1, 1), on the device of the sample."""
    k, v = sample.inputs["k"], sample.inputs["v"]
    shape = (*k.shape[:2], k.shape[3], v.shape[3])
    values = hashing.uniform(1, f"lightning {name}", torch.Size(shape).numel())
    dtype = torch.float64 if k.dtype == torch.float64 else torch.float32
    return (2 * torch.from_numpy(values).reshape(shape) - 1).to(k.device, dtype)


def split(case: Case) -> int:
    """How many rows come before the split of a case with two rows or more: any from 1 to N - 1, by its seed."""
    return 1 + int(hashing.integers(case.seed, "split", 1, 0, case.dims["N"] - 1)[0])


def several_rows(case: Case, kernel: Kernel) -> str | None:
    """Why properties of what comes before and after do not apply; None where they do."""
    return None if case.dims["N"] > 1 else "the case has one row"


def any_length(case: Case, kernel: Kernel) -> str | None:
    """Why properties that run the kernel on another number of rows do not apply; None where they do."""
    lengths = (1, case.dims["N"] - 1, case.dims["N"] + 1)
    fits = all(supports(kernel, N=length) for length in lengths if length > 0)
    return None if fits else "the kernel takes only some numbers of rows"


def has_initial_state(case: Case, kernel: Kernel) -> str | None:
    """Why properties of the initial state of a case do not apply; None where they do."""
    return None if INITIAL in case.draws else "the case has no initial state"


def same(one: Evidence, other: Evidence, names: Sequence[str], label: str, rows: slice = EVERY) -> Iterator[Finding]:
    """Two runs give the same in some rows: values that are equal, or within rounding where no determinism is claimed.

    A sum to which exact zeros are added keeps its value; only the sign of a zero may change, and is not looked at.
    Where a declared intermediate overflows, products with 0 are NaN and are not judged.
    """
    for name in names:
        derivative, shown = DERIVATIVES[name], f"{name}, {label}"
        a, b = (of_rows(each.tensors(derivative)[name].cpu(), name, rows) for each in (one, other))
        if not one.kernel.deterministic:
            yield balanced(shown, [(one, derivative, name), (other, derivative, name)], both_of_rows(name, rows))
            continue
        wrong = differ(a, b)
        for each in (one, other) if bool(wrong.any()) else ():
            overflow = each.allowance(derivative, name).overflow
            wrong = wrong if overflow is None else wrong & ~of_rows(overflow, name, rows)
        message = f"{int(wrong.sum())} of {wrong.numel()} elements differ"
        yield exactly(shown, wrong, message, elements=wrong.numel(), of=name)


def of_rows(tensor: Tensor, name: str, rows: slice) -> Tensor:
    """Some rows of a tensor of a lightning kernel; all of a state."""
    return tensor if "state" in name else tensor[:, :, rows]


def both_of_rows(name: str, rows: slice) -> Sides:
    """Some rows of both sides."""
    return lambda a, b: (of_rows(a, name, rows), of_rows(b, name, rows))


def zeros(evidence: Evidence, derivative: Derivative, name: str, label: str, rows: slice = EVERY) -> Finding:
    """Some rows of a tensor are exactly 0."""
    wrong = of_rows(evidence.tensors(derivative)[name], name, rows).cpu() != 0
    return exactly(label, wrong, "must be exactly 0", elements=wrong.numel(), of=name)
