"""Which constant is wrong: one at a time is fitted to the truth in widened runs, until one explains the error."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace

import torch
from torch import Tensor

from gradoracle.check.diagnosis.known_numbers import known_numbers
from gradoracle.check.edited_definition import graph_of
from gradoracle.check.evidence import Evidence
from gradoracle.check.widened import OutOfBudget, WidenedRuns, widened
from gradoracle.execution.kernel_runner import Tensors
from gradoracle.model.call import Intervention, Kind, Site
from gradoracle.model.call_errors import Crashed, Refused, Unavailable, Wrong
from gradoracle.model.derivative import Derivative
from gradoracle.model.explanation import WrongConstant
from gradoracle.model.finding import LOCAL_SIGMA, Outcome
from gradoracle.model.formats import FORMATS
from gradoracle.model.wrong_accesses import SourceLine
from gradoracle.oracle.exact.definition import Undefined

STEP = FORMATS["float64"].unit_roundoff ** (1 / 3)  # relative: a central difference errs least at the cube root


def wrong_constant(
    evidence: Evidence,
    derivative: Derivative,
    names: Sequence[str],
    *,
    calls: int | None = None,
    seconds: float | None = None,
) -> WrongConstant | None:
    """The constant that explains why some tensors are wrong when widened.

    Each float of the source and of launches is fitted by Newton's method to the tensors, in units of their budgets.

    Args:
        evidence: evidence of a case on which the tensors are wrong when widened.
        derivative: the derivative that the tensors belong to.
        names: the names of the tensors.
        calls: the most calls of the kernel; None: any number.
        seconds: the most seconds that may pass; None: any number.

    Returns:
        A constant with whose fitted value every tensor of the derivative holds when widened, and every output that held
        before, and whose fitted value is a number that the definition has, 0 or 1. Where several constants would do,
        the first used, with the others.
        None: no constant alone explains the error, its fitted value is none of these numbers, one element depends on
        it, the kernel cannot be widened, or no call or time is left.
    """
    found: list[WrongConstant] = []
    try:
        fit = _Fit(evidence, derivative, names, WidenedRuns(evidence, derivative, calls, seconds))
        numbers = known_numbers(graph_of(evidence, derivative), evidence.case.dims, evidence.sample.options)
        numbers |= {"0": 0.0, "1": 1.0}  # of a term or a factor that the definition lacks
        found.extend(known for each in fit.explaining() if (known := each.recognised(numbers)) is not None)
    except OutOfBudget:  # what was found by then counts
        pass
    except (Unavailable, Undefined, Refused, Crashed, Wrong):
        return None
    return replace(found[0], others=tuple(found[1:])) if found else None


class _Fit:
    """The error of the widened kernel, and how it depends on its constants."""

    def __init__(self, evidence: Evidence, derivative: Derivative, names: Sequence[str], runs: WidenedRuns) -> None:
        self._wide, self._derivative, self._runs = widened(evidence), derivative, runs
        self._names = tuple(names)
        self._truths = self._wide.truths(derivative)
        sigmas = torch.cat([self._wide.allowance(derivative, name).sigma.reshape(-1) for name in self._names])
        truth = torch.cat([self._truths[name].value.reshape(-1) for name in self._names])
        self._wrong_outputs: set[str] = set()
        self._weights = torch.where((sigmas > 0) & truth.isfinite(), 1 / sigmas, torch.zeros_like(sigmas))

    def explaining(self) -> Iterator[WrongConstant]:
        """The constants that explain the error: first those with all their uses together, then single uses."""
        tensors, facts = self._runs.tensors(Intervention(Kind.NUMBER))
        self._wrong_outputs = self._violated(Derivative.FORWARD, tensors)
        by_value: dict[float, list[Site]] = {}
        for site in facts.sites:
            by_value.setdefault(site.value, []).append(site)
        found = False
        for sites in by_value.values():
            for each in self._explained(tensors, sites):
                found = True
                yield from list(self._apart(tensors, sites)) or [each]
        for sites in by_value.values():
            if not found and len(sites) > 1:
                for site in sites:
                    yield from self._explained(tensors, [site])

    def _apart(self, tensors: Tensors, sites: Sequence[Site]) -> Iterator[WrongConstant]:
        """What equal constants at different places explain, each place alone."""
        by_place: dict[SourceLine, list[Site]] = {}
        for site in sites:
            by_place.setdefault(site.place, []).append(site)
        with suppress(OutOfBudget):
            for own in by_place.values() if len(by_place) > 1 else ():
                yield from self._explained(tensors, own)

    def _explained(self, tensors: Tensors, sites: Sequence[Site]) -> Iterator[WrongConstant]:
        """What is fitted to the value at some sites, if that explains the error."""
        first, value, error = sites[0], sites[0].value, self._error(tensors)
        size = float(error.square().sum())
        while True:
            fitted, step = value, STEP * abs(value)
            above, below = (self._error(self._with(sites, fitted + sign * step)) for sign in (1, -1))
            slope = (above - below) / (2 * step)
            steep = float(slope.square().sum())
            if not 0 < steep < math.inf or int((slope != 0).sum()) < 2:  # one number explains one number
                return
            value = fitted - float((slope * error).sum()) / steep
            if not math.isfinite(value):
                return
            tensors = self._with(sites, value)
            error = self._error(tensors)
            left = float(error.square().sum())
            if self._holds(tensors):
                at, within = first.place, LOCAL_SIGMA * float(slope.abs().sum()) / steep  # all errors at once
                yield WrongConstant(
                    at.file, at.line, at.function, first.argument, first.value, value, within, len(sites)
                )
                return
            if not left < size / 2:  # Newton's method squares the error where it converges
                return
            size = left

    def _with(self, sites: Sequence[Site], value: float) -> Tensors:
        return self._runs.tensors(Intervention(Kind.REPLACE, sites=tuple(sites), by=value))[0]

    def _error(self, tensors: Tensors) -> Tensor:
        """The errors of all elements in units of their budgets, float64 [elements]; 0 where they are not compared."""
        errors = torch.cat([(tensors[name] - self._truths[name].value).reshape(-1) for name in self._names])
        return torch.where((self._weights > 0) & errors.isfinite(), errors * self._weights, torch.zeros_like(errors))

    def _holds(self, tensors: Tensors) -> bool:
        """Whether the derivative holds, and no output is wrong that was right: it may use the same constant."""
        outputs = self._violated(Derivative.FORWARD, tensors) if self._derivative is Derivative.VJP else set()
        return not self._violated(self._derivative, tensors) and outputs <= self._wrong_outputs

    def _violated(self, derivative: Derivative, tensors: Tensors) -> set[str]:
        return {each.tensor for each in self._wide.compare(derivative, tensors) if each.outcome is Outcome.VIOLATED}
