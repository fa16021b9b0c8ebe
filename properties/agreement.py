"""Agreement: two sides that must be equal, bit for bit or within rounding: runs of a kernel, or sums of its tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from gradoracle.check.acceptance import Allowance, exactly, judge
from gradoracle.check.evidence import Evidence
from gradoracle.model.derivative import Derivative
from gradoracle.model.finding import Finding
from gradoracle.model.formats import FORMATS

Named = tuple[Evidence, Derivative, str]
"""A tensor of the kernel: the evidence that it comes from, its derivative and its name."""

Sides = Callable[..., tuple[Tensor, Tensor]]
"""Both sides of an equation, of float64 tensors; traceable."""

_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def differing(one: Tensor, other: Tensor) -> Tensor:
    """True where the bits of two tensors of one shape and dtype differ; all NaN count as the same."""
    if one.is_complex():
        parts = (torch.view_as_real(each.resolve_conj()) for each in (one, other))
        return differing(*parts).any(-1)
    integer = _INTEGERS[one.element_size()]
    wrong = one.contiguous().view(integer) != other.contiguous().view(integer)
    return wrong & ~(one.isnan() & other.isnan())


def differ(got: Tensor, expected: Tensor) -> Tensor:
    """Where two tensors have other values; NaN equals NaN."""
    return (got != expected) & ~(got.isnan() & expected.isnan())


def double(tensor: Tensor) -> Tensor:
    """In float64 on the CPU."""
    return tensor.detach().to("cpu", torch.float64)


def larger(a: Tensor, b: Tensor, *_: Tensor) -> Tensor:
    """The size of the larger of two sides."""
    return torch.maximum(a.abs(), b.abs())


def as_they_are(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """The sides of an equation between two tensors."""
    return a, b


def balanced(
    name: str, parts: Sequence[Named], sides: Sides = as_they_are, constants: Sequence[Tensor] = ()
) -> Finding:
    """Judge that two sides are equal within the rounding of all parts.

    Args:
        name: the equation in words.
        parts: the tensors of the kernel.
        sides: both sides, of the parts' tensors and the constants.
        constants: exact float64 tensors.
    """

    def difference(*tensors: Tensor) -> Tensor:
        one, other = sides(*tensors)
        return one - other

    return parts[0][0].relate(
        name, difference, parts, scale=lambda *tensors: larger(*sides(*tensors)), constants=constants
    )


def agree(
    evidence: Evidence,
    got: Mapping[str, Tensor],
    expected: Mapping[str, Tensor],
    *,
    exact: bool = False,
    label: str = "",
    other: Evidence | None = None,
) -> Iterator[Finding]:
    """One Finding for each tensor of ``expected``: equal bits hold at once, others are judged.

    Args:
        evidence: whose budgets say what rounding explains of each tensor.
        got: tensors by the names that evidence knows (``o``, ``dq``, ``jvp.o``, ``hvp.q``).
        expected: what they must be equal to, from the same kernel, on ``evidence``'s sample or one with equal budgets.
        exact: whether different bits are wrong; else the errors of both runs are allowed for.
        label: of the run, put behind each tensor's name.
        other: whose budgets say it of the tensors that were got, where these are others.
    """
    for name, theirs in expected.items():
        mine = got[name].detach().to(theirs.device)
        wrong = differing(mine, theirs)
        shown = f"{name}{label}"
        if not wrong.any():
            yield exactly(shown, False, "", elements=theirs.numel(), of=name if label else "")
        elif exact:
            message = f"{int(wrong.sum())} of {wrong.numel()} elements differ in bits"
            yield exactly(shown, wrong.cpu(), message, of=name if label else "")
        else:
            true = theirs.detach().to("cpu", torch.float64)
            yield within_both(evidence, evidence, name, mine, true, shown, other)


def within_both(
    evidence: Evidence,
    other: Evidence,
    name: str,
    got: Tensor,
    expected: Tensor,
    label: str = "",
    of_got: Evidence | None = None,
) -> Finding:
    """Judge a tensor of ``evidence`` by what another run gave: the errors of both runs are allowed for.

    Args:
        evidence: whose case and axes are shown.
        other: whose budget both runs have.
        name: a tensor that evidence knows.
        got: what one run gave.
        expected: what the other gave, float64 on the CPU.
        label: how the tensor is shown; by default by its name.
        of_got: whose budget the run that gave ``got`` has, where it is another.
    """
    derivative = derivative_of(evidence, name)

    def of_both(algorithm: str | None) -> Allowance:
        theirs = None if of_got is None else of_got.allowance(derivative, name, algorithm)
        return of_two(other.allowance(derivative, name, algorithm), theirs)

    largest = FORMATS[evidence.dtype(name)].largest
    return judged_by(evidence, name, got, expected, label, of_both, largest=largest)


def compared(
    evidence: Evidence, got: Mapping[str, Tensor], label: str, derivatives: Sequence[Derivative]
) -> Iterator[Finding]:
    """As ``Evidence.compare`` of some derivatives, with a label behind each tensor's name."""
    for derivative in derivatives:
        for finding in evidence.compare(derivative, got):
            yield replace(finding, tensor=f"{finding.tensor}{label}", among=finding.named)


def judged_by(
    evidence: Evidence,
    name: str,
    got: Tensor,
    expected: Tensor,
    label: str = "",
    allowance: Callable[[str | None], Allowance] | None = None,
    *,
    scale: Tensor | None = None,
    largest: float | None = None,
) -> Finding:
    """Judge a tensor of ``evidence`` by other values than its truth.

    Args:
        evidence: whose case and axes are shown.
        name: a tensor that evidence knows.
        got: what the kernel gave.
        expected: what it is compared with, float64 on the CPU.
        label: how the tensor is shown; by default by its name.
        allowance: what rounding explains, by algorithm (``Evidence.explained``); by default that of the tensor.
        scale, largest: as of ``judge``.
    """
    derivative = derivative_of(evidence, name)
    explains = allowance or (lambda algorithm: evidence.allowance(derivative, name, algorithm))
    return evidence.explained(
        lambda algorithm: judge(
            label or name,
            got,
            expected,
            explains(algorithm),
            continuous=evidence.continuous,
            scale=scale,
            largest=largest,
            axes=evidence.axes(name),
            of=name if label else "",
        )
    )


def derivative_of(evidence: Evidence, name: str) -> Derivative:
    """The derivative that a tensor belongs to.

    Raises:
        KeyError: no derivative of the family has a tensor of that name.
    """
    if name not in evidence.derivatives:
        raise KeyError(f"{name} is not a tensor of family {evidence.oracle.family.name}")
    return evidence.derivatives[name]


def of_two(one: Allowance, other: Allowance | None = None) -> Allowance:
    """What rounding explains of the difference of two runs that err independently; the truth plays no part in it.

    Args:
        one: what it explains of one run.
        other: and of the other; None: the same.
    """
    two = one if other is None else other
    overflows = [each.overflow for each in (one, two) if each.overflow is not None]
    return replace(
        one,
        sigma=torch.hypot(one.sigma, two.sigma),
        errors=one.errors - two.errors.roll(1, 0),
        worst=None if one.worst is None or two.worst is None else one.worst + two.worst,
        floor=None if one.floor is None or two.floor is None else torch.hypot(one.floor, two.floor),
        overflow=overflows[0] | overflows[-1] if overflows else None,
        radius=None,
        undecided=None,
    )
