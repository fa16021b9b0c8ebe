"""Error relation: a property among tensors that a kernel gave, each with the error that its own budget allows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from gradoracle.check.acceptance import Allowance, exactly, judge, not_checked
from gradoracle.model.contract import EXACT, PRESETS
from gradoracle.model.finding import Finding
from gradoracle.oracle.exact.graph import Graph
from gradoracle.oracle.exact.trace import trace
from gradoracle.oracle.rounding import reading

PROBES = 16
NEGLIGIBLE = 1e-12  # of the size of a property's sides: what stands for an infinity has no part in them


@dataclass(frozen=True)
class Part:
    """One tensor of a kernel: what it gave, what is true (float64, same shape), and what rounding explains."""

    name: str
    got: Tensor
    true: Tensor
    allowance: Allowance

    def carried(self, turn: int) -> tuple[Tensor, Tensor | None, Tensor]:
        """Its error as the rounding reading expects the errors of an input: variance, worst case, probes.

        Args:
            turn: the shift of the probes: the errors of parts with different turns are independent.
        """
        own = self.allowance
        radius = torch.zeros_like(own.sigma) if own.radius is None else own.radius
        worst = None if own.worst is None else own.worst + radius
        return own.sigma.square() + radius.square(), worst, own.errors.roll(turn, 0)

    @property
    def unequal(self) -> Tensor:
        """Where the truth is infinite and the kernel gave anything else, and no correct kernel may."""
        wrong = self.true.isinf() & (self.got.detach().to("cpu", torch.float64) != self.true)
        for excused in (self.allowance.overflow, self.allowance.undecided):
            wrong = wrong if excused is None else wrong & ~excused
        return wrong

    def finite(self) -> Part:
        """The part with its infinite true values replaced by an exact 0."""
        infinite, own = self.true.isinf(), self.allowance

        def kept(tensor: Tensor) -> Tensor:
            return torch.where(infinite, torch.zeros((), dtype=tensor.dtype), tensor.detach().cpu())

        fields = {name: getattr(own, name) for name in ("sigma", "errors", "worst", "floor", "radius")}
        zeroed = {name: kept(tensor) for name, tensor in fields.items() if tensor is not None}
        return Part(self.name, kept(self.got), kept(self.true), replace(own, **zeroed))


def related(
    name: str,
    expression: Callable[..., Tensor],
    parts: Sequence[Part],
    *,
    scale: Callable[..., Tensor],
    constants: Sequence[Tensor] = (),
    continuous: bool,
) -> Finding:
    """Judge ``expression(*tensors, *constants)``, which is 0 in exact arithmetic.

    Its budget: the errors of the parts carried through the expression, and the roundings of the expression itself,
    which is evaluated in float64. An error that is shared within a part stays shared (that is what its probes are for);
    two parts err independently: a kernel need not round P alike in forward and in backward, nor dS in the programs of
    dQ and of dK, so that nothing may cancel between them.

    An element that is infinite in truth agrees where the kernel gave the same infinity, and anything else there is
    wrong. The elements of the property that such an element enters are not checked further; the others are.

    Args:
        name: the two sides in symbols.
        expression: of float64 tensors; must be traceable.
        parts: the kernel's tensors, in the order of the expression's arguments.
        scale: the size of either side, for the sensitivity; same arguments.
        constants: exact float64 tensors that the expression takes after the parts.
        continuous: whether the local rule applies; else the worst case.
    """
    among = tuple(dict.fromkeys(part.name for part in parts))
    for part in parts:
        if part.unequal.any():
            found = exactly(name, part.unequal, f"{part.name} differs from an infinite truth")
            return replace(found, among=among)
    infinite = [part.true.isinf() for part in parts]
    parts = [part.finite() if any_.any() else part for part, any_ in zip(parts, infinite, strict=True)]
    got = [part.got.detach().to("cpu", torch.float64) for part in parts]
    true = [part.true for part in parts]
    exact = [constant.detach().to("cpu", torch.float64) for constant in constants]
    lost = [part for part, tensor in zip(parts, got, strict=True) if not tensor.isfinite().all()]
    if lost:
        names = ", ".join(part.name for part in lost)
        excused = any(part.allowance.overflow is not None or _too_large(part) for part in lost)
        if excused or not all(tensor.isfinite().all() for tensor in true):
            return not_checked(name, f"{names} is not finite")
        found = exactly(name, True, f"{names} holds non-finite values where the truth is finite", lost=True)
        return replace(found, among=among)
    if not all(tensor.isfinite().all() for tensor in true):
        return not_checked(name, "the truth is not finite")
    graph = trace(lambda *tensors: (expression(*tensors),), *true, *exact)
    carried = [part.carried(turn) for turn, part in enumerate(parts)]
    allowance = _allowance(graph, true, exact, carried, worst=not continuous)
    residual = expression(*got, *exact)
    if any(mask.any() for mask in infinite):
        other = [torch.where(mask, 1.0, tensor) for mask, tensor in zip(infinite, true, strict=True)]
        size = scale(*true, *exact).abs().clamp(min=1.0)
        moved = (expression(*other, *exact) - expression(*true, *exact)).abs()
        allowance = replace(allowance, undecided=~(moved <= NEGLIGIBLE * size))
    found = judge(
        name,
        residual,
        torch.zeros_like(residual),
        allowance,
        continuous=continuous,
        scale=scale(*got, *exact),
    )
    return replace(found, among=among)


def _too_large(part: Part) -> bool:
    """Whether some of a part's true values are larger than its dtype holds."""
    return bool((part.true.abs() > torch.finfo(part.got.dtype).max).any())


def _allowance(
    graph: Graph, true: list[Tensor], exact: list[Tensor], carried: Sequence[reading.InputError], *, worst: bool
) -> Allowance:
    args = [*true, *exact]
    errors = [*carried, *([None] * len(exact))]
    (budget,) = reading.budgets(graph, args, EXACT, probes=PROBES, worst=worst, input_errors=errors)
    (own,) = reading.budgets(graph, args, PRESETS["float64"], probes=0, worst=worst)
    sigma = torch.hypot(budget.sigma, own.sigma)
    bound = budget.worst + own.worst if budget.worst is not None and own.worst is not None else None
    return Allowance(sigma, budget.errors, bound, budget.floor)
