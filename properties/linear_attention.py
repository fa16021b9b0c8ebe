"""Linear attention: what properties of a state [B, H, D, Dv] share: tokens before and after a split, samples with other
tokens and states, and results that are the same in some rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import torch
from gradoracle.properties.agreement import Sides, balanced, derivative_of, differ
from torch import Tensor

from gradoracle.cases.sample import Sample
from gradoracle.check.acceptance import exactly
from gradoracle.check.evidence import Evidence
from gradoracle.model import hashing, layouts
from gradoracle.model.case import Case
from gradoracle.model.derivative import Derivative
from gradoracle.model.finding import Finding
from gradoracle.model.kernel import Kernel
from gradoracle.model.signature import cotangent_name

FORWARD, VJP, JVP, HVP = Derivative.FORWARD, Derivative.VJP, Derivative.JVP, Derivative.HVP
INITIAL = "initial_state"
EVERY = slice(None)


def plain(sample: Sample) -> Sample:
    """The sample with all tensors contiguous and aligned, as its changed forms have them."""
    return sample.map(layouts.aligned)


def tokens(sample: Sample, rows: slice = EVERY) -> dict[str, Tensor]:
    """Some rows of every input but the initial state, all of which have a row for each token along dim 2."""
    return {name: tensor[:, :, rows] for name, tensor in sample.inputs.items() if name != INITIAL}


def made(
    sample: Sample, inputs: Mapping[str, Tensor], initial: Tensor | None, g: Tensor, g_state: Tensor | None
) -> Sample:
    """Another sample: inputs of tokens, an initial state or none, and cotangents; ``g_state`` asks for the state.

    Its tangents are 0.
    """
    given = {**inputs, **({} if initial is None else {INITIAL: initial})}
    cotangents = {"o": g} | ({} if g_state is None else {"state": g_state})
    tangents = {name: torch.zeros_like(t, memory_format=torch.contiguous_format) for name, t in given.items()}
    options = {**sample.options, "return_state": g_state is not None}
    return replace(sample, inputs=given, tangents=tangents, cotangents=cotangents, options=options)


def with_the_state(sample: Sample) -> Sample:
    """The sample, asked for the state too; with a cotangent of hashed values where it was not."""
    own = plain(sample)
    g_state = own.cotangents.get("state", new_state(own, "cotangent"))
    return made(own, tokens(own), own.inputs.get(INITIAL), own.cotangents["o"], g_state)


def new_state(sample: Sample, name: str) -> Tensor:
    """[B H D Dv] float32 (float64 in float64) of hashed values in (-1, 1), on the device of the sample."""
    k, v = sample.inputs["k"], sample.inputs["v"]
    shape = torch.Size((*k.shape[:2], k.shape[3], v.shape[3]))
    values = hashing.uniform(1, f"state {name}", shape.numel())
    dtype = torch.float64 if k.dtype == torch.float64 else torch.float32
    return (2 * torch.from_numpy(values).reshape(shape) - 1).to(k.device, dtype)


def split(case: Case) -> int:
    """How many tokens come before the split of a case with two tokens or more: any but none and all, by its seed."""
    return 1 + int(hashing.integers(case.seed, "split", 1, 0, _length(case) - 1)[0])


def several_rows(case: Case, kernel: Kernel) -> str | None:
    """Why properties of what comes before and after do not apply; None where they do."""
    return None if _length(case) > 1 else "the case has one row"


def _length(case: Case) -> int:
    """The number of tokens, N of lightning attention and else T."""
    return case.dims["N"] if "N" in case.dims else case.dims["T"]


def of_rows(tensor: Tensor, name: str, rows: slice) -> Tensor:
    """Some rows of a tensor of the kernel's; all of a state."""
    return tensor if "state" in name else tensor[:, :, rows]


def both_of_rows(name: str, rows: slice, times: float = 1.0) -> Sides:
    """Some rows of both sides, the first one ``times`` as much."""
    return lambda a, b: (times * of_rows(a, name, rows), of_rows(b, name, rows))


def same(
    one: Evidence, other: Evidence, names: Sequence[str], label: str, rows: slice = EVERY, times: float = 1.0
) -> Iterator[Finding]:
    """Two runs give the same in some rows, the other ``times`` as much, a power of two: values that are equal, or
    within rounding where no determinism is claimed.

    A sum to which exact zeros are added keeps its value; only the sign of a zero may change, and is not looked at.
    Where a declared intermediate overflows, products with 0 are NaN and are not judged.
    """
    for name in names:
        derivative, shown = derivative_of(one, name), f"{name}, {label}"
        sides = both_of_rows(name, rows, times)
        if not one.kernel.deterministic:
            yield balanced(shown, [(one, derivative, name), (other, derivative, name)], sides)
            continue
        wrong = differ(*sides(*(each.tensors(derivative)[name].cpu() for each in (one, other))))
        for each in (one, other) if bool(wrong.any()) else ():
            overflow = each.allowance(derivative, name).overflow
            wrong = wrong if overflow is None else wrong & ~of_rows(overflow, name, rows)
        message = f"{int(wrong.sum())} of {wrong.numel()} elements differ"
        yield exactly(shown, wrong, message, elements=wrong.numel(), of=name)


def zeros(evidence: Evidence, name: str, label: str, rows: slice = EVERY) -> Finding:
    """Some rows of a tensor are exactly 0."""
    wrong = of_rows(evidence.tensors(derivative_of(evidence, name))[name], name, rows).cpu() != 0
    return exactly(label, wrong, "must be exactly 0", elements=wrong.numel(), of=name)


def zeros_of_what_is_not_asked_for(evidence: Evidence) -> Iterator[Finding]:
    """With a cotangent of 0 for o behind a split and for the state, the gradients of tokens are exactly 0 there."""
    rows = split(evidence.case)

    def change(sample: Sample) -> Sample:
        none = {name: torch.zeros_like(g) for name, g in sample.cotangents.items() if name == "state"}
        own = sample.cotangents["o"].clone(memory_format=torch.contiguous_format)
        own[:, :, rows:] = 0
        return sample.with_cotangents(o=own, **none)

    variant = evidence.variant("no cotangent of later rows", change)
    for name in map(cotangent_name, tokens(variant.sample)):
        yield zeros(variant, name, f"later rows of {name}", slice(rows, None))
