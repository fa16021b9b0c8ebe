"""Samples: the changed samples that properties of the gated delta rule compare."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import torch
from gradoracle.properties.agreement import differ
from torch import Tensor

from gradoracle.cases.sample import Sample
from gradoracle.check.acceptance import exactly
from gradoracle.check.evidence import Evidence
from gradoracle.model import hashing, layouts
from gradoracle.model.case import Case
from gradoracle.model.derivative import Derivative
from gradoracle.model.finding import Finding
from gradoracle.model.kernel import Kernel

FORWARD, VJP = Derivative.FORWARD, Derivative.VJP
INITIAL = "initial_state"
ROWS = ("q", "k", "v", "g", "beta")  # the inputs with a row for each token, along dim 2
OF = {"o": FORWARD, "state": FORWARD}  # the derivative of each tensor; of others the VJP
ALL = slice(None)


def plain(sample: Sample) -> Sample:
    """The sample with all tensors contiguous and aligned, as its changed forms have them."""
    return sample.map(layouts.aligned)


def rows_of(sample: Sample, rows: slice) -> dict[str, Tensor]:
    """Some rows of every input that has them."""
    return {name: sample.inputs[name][:, :, rows] for name in ROWS}


def made(
    sample: Sample, inputs: Mapping[str, Tensor], initial: Tensor | None, g: Tensor, g_state: Tensor | None
) -> Sample:
    """Another sample: inputs of rows, an initial state or none, and cotangents; ``g_state`` asks for the state.

    Its tangents are 0.
    """
    given = {**inputs, **({} if initial is None else {INITIAL: initial})}
    cotangents = {"o": g} | ({} if g_state is None else {"state": g_state})
    tangents = {name: torch.zeros_like(t, memory_format=torch.contiguous_format) for name, t in given.items()}
    options = {**sample.options, "return_state": g_state is not None}
    return replace(sample, inputs=given, tangents=tangents, cotangents=cotangents, options=options)


def new_state(sample: Sample, name: str) -> Tensor:
    """[B H D Dv] float32 (float64 in float64) of hashed values in (-1, 1), on the device of the sample."""
    k, v = sample.inputs["k"], sample.inputs["v"]
    shape = torch.Size((*k.shape[:2], k.shape[3], v.shape[3]))
    values = hashing.uniform(1, f"gated delta {name}", shape.numel())
    dtype = torch.float64 if k.dtype == torch.float64 else torch.float32
    return (2 * torch.from_numpy(values).reshape(shape) - 1).to(k.device, dtype)


def split(case: Case) -> int:
    """How many rows come before the split of a case with two rows or more: any from 1 to T - 1, by its seed."""
    return 1 + int(hashing.integers(case.seed, "split", 1, 0, case.dims["T"] - 1)[0])


def several_rows(case: Case, kernel: Kernel) -> str | None:
    """Why properties of what comes before and after do not apply; None where they do."""
    return None if case.dims["T"] > 1 else "the case has one row"


def in_rows(tensor: Tensor, name: str, rows: slice) -> Tensor:
    """Some rows of a tensor; all of a state."""
    return tensor if "state" in name else tensor[:, :, rows]


def same(
    one: Evidence, other: Evidence, names: Sequence[str], label: str, rows: slice = ALL, times: float = 1.0
) -> Iterator[Finding]:
    """Two runs of a deterministic kernel give the same in some rows, the other ``times`` as much, to the last bit.

    Only the sign of a zero may differ. Where a declared intermediate overflows nothing is judged.
    """
    for name in names:
        derivative = OF.get(name, VJP)
        a, b = (in_rows(each.tensors(derivative)[name].cpu(), name, rows) for each in (one, other))
        wrong = differ(a * times if times != 1 else a, b)
        for each in (one, other) if bool(wrong.any()) else ():
            overflow = each.allowance(derivative, name).overflow
            wrong = wrong if overflow is None else wrong & ~in_rows(overflow, name, rows)
        message = f"{int(wrong.sum())} of {wrong.numel()} elements differ"
        yield exactly(f"{name}, {label}", wrong, message, elements=wrong.numel(), of=name)


def zeros(evidence: Evidence, name: str, label: str) -> Finding:
    """A tensor is exactly 0."""
    wrong = evidence.tensors(OF.get(name, VJP))[name].cpu() != 0
    return exactly(label, wrong, "must be exactly 0", elements=wrong.numel(), of=name)


def deterministic(case: Case, kernel: Kernel) -> str | None:
    """Why properties of bits do not apply; None where they do."""
    return None if kernel.deterministic else "the kernel claims no determinism"
