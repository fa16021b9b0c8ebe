"""Widened: a kernel with every float in float64, compared with the definition in float64.

An error that stays is in the formula, a mask or an index, however small it is against the rounding of the kernel's
dtype; what goes away is lost precision. What float64 cannot resolve in the kernel's own order of operations has not
gone away, but is lost precision, too (``Measured``).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

import torch
from torch import Tensor

from gradoracle.cases.sample import Sample
from gradoracle.check.error_relation import PROBES
from gradoracle.check.evidence import Evidence
from gradoracle.check.judge_property import judge_property
from gradoracle.execution.kernel_runner import KernelRunner, Tensors
from gradoracle.model import layouts
from gradoracle.model.call import Facts, Intervention, Kind
from gradoracle.model.call_errors import Crashed, Refused, Unavailable, Wrong
from gradoracle.model.contract import PRESETS, default_contract
from gradoracle.model.contract import widened as widened_contract
from gradoracle.model.derivative import Derivative
from gradoracle.model.finding import LOCAL_SIGMA, Finding, Outcome
from gradoracle.model.job import PropertyResult
from gradoracle.model.property import Property
from gradoracle.model.reason import Reason
from gradoracle.model.verdict import Status
from gradoracle.oracle.rounding.reading import Budget
from gradoracle.oracle.truth import TRUTH_SHARE, Truth, Unread

_LARGEST = 1 << 30  # bytes of storage of a tensor that is widened
_RUNS, _SECONDS = 8, 20.0  # of the kernel that measure its rounding, at most
_PLAIN = 1024  # an error as many times what two runs show is none of rounding
_BITS = 45  # that they round to: few enough to be seen, many enough for errors to be in proportion to the unit
_SCALE = 2.0 ** (_BITS - 53)
_SHOWS = "float32"  # the dtype whose rounding decides what can be seen of a formula


class Widened(Evidence):
    """Evidence of the kernel of other evidence, widened, on the same sample.

    The truth is the definition in float64, which rounds like the kernel: budgets allow for the errors of both.
    """

    def dtype(self, name: str) -> str:
        """That of the values, whatever dtype their tensor names."""
        return "float64"

    def variant(self, key: str, change: Callable[[Sample], Sample], blocks: str | None = None) -> Evidence:
        """Evidence on a sample whose float64 values are changed, with what the kernel gave of them."""
        return super().variant(key, lambda sample: change(sample).map(in_float64), blocks)

    def budgets(self, derivative: Derivative, algorithm: str | None = None) -> Mapping[str, Budget]:
        """What rounding explains of the difference of the kernel and the definition, which err independently."""
        kernel = super().budgets(derivative, algorithm)
        definition = self._definition(derivative)
        return {name: _of_both(budget, definition[name]) for name, budget in kernel.items()}

    def truths(self, derivative: Derivative) -> Mapping[str, Truth]:
        """The definition in float64, whose errors are in the budgets; where it leaves float64, what it is in truth.

        Raises:
            Unavailable: it leaves float64, and cannot be certified.
        """
        shared, definition = self._read_with(derivative), self._definition(derivative)

        def read() -> Mapping[str, Truth]:
            try:
                raised = self.oracle.raised(self.sample, shared, definition)
            except Unread as error:
                raise Unavailable(str(error), Reason.UNREAD) from None
            return raised or {n: Truth(b.value, torch.zeros_like(b.sigma), "float64") for n, b in definition.items()}

        return self.keep(f"truths in float64 {shared.value}", read)

    def _definition(self, derivative: Derivative) -> Mapping[str, Budget]:
        """The definition's values and budgets in float64."""
        shared = self._read_with(derivative)
        contract, worst = PRESETS["float64"], not self.continuous
        return self.keep(
            f"float64 {shared.value}",
            lambda: self.oracle.budgets(self.sample, shared, contract, worst=worst, probes=PROBES),
        )


class Measured(Widened):
    """Widened evidence whose budgets have the rounding of the kernel's own operations, too.

    A correct kernel may compute otherwise than the definition: log(1 + exp(x)) for a softplus loses in float64 what
    the definition does not, and so does exp(S - L) with the L that its forward saved. Runs of the kernel with every
    result rounded to fewer bits show how much, in proportion to the unit. An error of the formula does not change; one
    that is far below what a correct kernel in float32 is off by is reported, and breaks nothing.
    """

    def share(self, other: Evidence) -> None:
        """Take over what other evidence on the same sample has computed that does not depend on budgets."""
        derived = {derivative.value for derivative in Derivative}
        first = {"budgets", "keep float64", f"keep {_SHOWS}", "truths", *derived}
        self._kept.update({k: v for k, v in other._kept.items() if any(k == f or k.startswith(f"{f} ") for f in first)})

    def budgets(self, derivative: Derivative, algorithm: str | None = None) -> Mapping[str, Budget]:
        """What rounding explains of the difference, in the definition's operations and in the kernel's."""
        own = self._own_errors(derivative)
        both = super().budgets(derivative, algorithm)
        return {name: _with_own(budget, own[name]) if name in own else budget for name, budget in both.items()}

    def compare(self, derivative: Derivative, got: Tensors | None = None) -> Iterator[Finding]:
        """Compare each tensor with its truth; an error of the formula that float32 does not show breaks nothing."""
        tensors = self.tensors(derivative) if got is None else got
        for found in super().compare(derivative, tensors):
            hidden = found.outcome is Outcome.VIOLATED and found.rule != "exact"
            yield self._unless_unseen(derivative, found, tensors[found.tensor]) if hidden else found

    def _unless_unseen(self, derivative: Derivative, found: Finding, got: Tensor) -> Finding:
        """A violation; it holds where every error is far below what a correct kernel in float32 is off by."""
        if found.worst is None or "float64" in (self.kernel.dtypes or self.oracle.family.dtypes):
            return found
        truth, allowance = self.truths(derivative)[found.tensor], self.allowance(derivative, found.tensor)
        size = torch.where(truth.value.isfinite(), truth.error(got).abs(), 0.0)
        shown = self._shown(derivative)[found.tensor].sigma * TRUTH_SHARE
        if not bool((size <= LOCAL_SIGMA * allowance.sigma + shown).all()):
            return found
        off = abs(found.worst.got - found.worst.true) / (abs(found.worst.true) or 1.0)
        ratio = torch.where(size > 0, size / shown, 0.0)
        return replace(
            found,
            outcome=Outcome.HOLDS,
            error=min(float(ratio.max()), 1.0),
            error_in_sigma=LOCAL_SIGMA * min(float(ratio.max()), 1.0),
            message=f"the formula is off by {off:.2g} of the value, less than {_SHOWS} shows",
            off=off,
            pattern="",
            map=None,
            pool=None,
        )

    def _shown(self, derivative: Derivative) -> Mapping[str, Budget]:
        """The budgets of a correct kernel in float32."""
        shared = self._read_with(derivative)
        contract = default_contract(_SHOWS)
        return self.keep(
            f"{_SHOWS} {shared.value}", lambda: self.oracle.budgets(self.sample, shared, contract, probes=PROBES)
        )

    def _own_errors(self, derivative: Derivative) -> Mapping[str, Tensor]:
        """By tensor: [R, *shape] errors of float64 in the kernel's own operations; none if it cannot be run so."""
        subjects = [self.subject.labelled("rounding to fewer bits")]
        if derivative is not Derivative.FORWARD:
            with suppress(Unavailable, Refused):
                subjects += [subjects[0].by_autograd()] if self.by_autograd(derivative) else []

        def measure() -> Mapping[str, Tensor]:
            try:
                exact, until = self._run(subjects, derivative), time.monotonic() + _SECONDS
                runs: list[Tensors] = []
                for run in range(_RUNS):
                    coarse = Intervention(Kind.COARSEN, bits=_BITS, run=run)
                    runs.extend(self._run([each.made(intervention=coarse) for each in subjects], derivative))
                    if time.monotonic() > until or (run == 1 and self._is_plain(derivative, exact, runs)):
                        break
            except (Unavailable, Refused, Crashed, Wrong):
                return {}
            return {name: torch.stack(errors) for name, errors in _differences(exact, runs).items()}

        return self.keep(f"own errors {derivative.value}", measure)

    def _is_plain(self, derivative: Derivative, exact: Sequence[Tensors], runs: Sequence[Tensors]) -> bool:
        """Whether an error is so far beyond what two runs show that no further run would explain it.

        What runs show only grows with their number: asked again after more of them, the answer could only become no.
        """
        own, truths, budgets = _differences(exact, runs), self.truths(derivative), super().budgets(derivative)
        for name in own.keys() & truths.keys():
            size = torch.nan_to_num(truths[name].error(exact[0][name])).abs()
            shown = torch.stack(own[name]).abs().amax(0) + budgets[name].sigma
            if bool((size > _PLAIN * shown).any()):
                return True
        return False

    def _run(self, subjects: list[KernelRunner], derivative: Derivative) -> list[Tensors]:
        return [getattr(each, derivative.value)(self.sample, self.blocks)[0] for each in subjects]


def _differences(exact: Sequence[Tensors], runs: Sequence[Tensors]) -> dict[str, list[Tensor]]:
    """By tensor: how far each run is off, in float64's units; an explicit JVP gives outputs that others do not."""
    pairs = list(zip(runs, [*exact] * (len(runs) // len(exact)), strict=True))
    floats = [name for name, tensor in exact[0].items() if tensor.is_floating_point()]
    return {name: [torch.nan_to_num(r[name] - e[name]) * _SCALE for r, e in pairs if name in e] for name in floats}


def judged_widened(prop: Property, wide: Widened) -> PropertyResult:
    """A property judged on the widened kernel; where it is violated, with the kernel's own rounding."""
    found = judge_property(prop, wide)
    return with_left(found, judge_property(prop, measured(wide))) if found.status is Status.VIOLATED else found


def with_left(found: PropertyResult, again: PropertyResult) -> PropertyResult:
    """``again``, the result with the kernel's own rounding, with what it explains that ``found`` does not."""
    wrong = {each.tensor for each in found.findings if each.outcome is Outcome.VIOLATED}

    def left(each: Finding) -> Finding:
        if each.outcome is Outcome.VIOLATED or each.off or each.tensor not in wrong or each.worst is None:
            return each
        return replace(each, left=abs(each.worst.got - each.worst.true) / (abs(each.worst.true) or 1.0))

    return replace(again, findings=tuple(map(left, again.findings)))


def measured(wide: Widened) -> Measured:
    """The same evidence with the kernel's own rounding, kept with it."""

    def make() -> Measured:
        made = Measured(wide.case, wide.sample, wide.subject, wide.oracle, wide.blocks)
        made.share(wide)
        return made

    return wide if isinstance(wide, Measured) else wide.keep("measured", make)


def widened(evidence: Evidence) -> Widened:
    """The kernel of some evidence widened, kept with it."""

    def make() -> Widened:
        own, dtype = evidence.subject, evidence.case.dtype
        kernel = replace(own.kernel, contracts={**own.kernel.contracts, dtype: widened_contract(evidence.contract)})
        subject = own.widened(dtype, kernel)
        return Widened(evidence.case, evidence.sample.map(in_float64), subject, evidence.oracle, evidence.blocks)

    return evidence.keep("widened", make)


class OutOfBudget(Exception):
    """No call or no time is left."""


class WidenedRuns:
    """A derivative of a kernel, widened, on the sample of some evidence.

    Args:
        evidence: evidence of the kernel as it is written.
        derivative: the derivative that is run.
        calls: the most calls of the kernel; None: any number.
        seconds: the most seconds that may pass; None: any number.
    """

    def __init__(self, evidence: Evidence, derivative: Derivative, calls: int | None, seconds: float | None) -> None:
        self._wide, self._derivative = widened(evidence), derivative
        self._subject = self._wide.subject.labelled("at one statement")
        self._calls = math.inf if calls is None else calls
        self._until = math.inf if seconds is None else time.monotonic() + seconds

    def tensors(self, intervention: Intervention) -> tuple[Tensors, Facts]:
        """The tensors of the derivative by name, float64, and of a VJP the outputs, too; and what was noted.

        Raises:
            OutOfBudget: no call or no time is left.
            Unavailable, Refused, Crashed, Wrong: as the kernel's runner does.
        """
        if self._calls < 1 or time.monotonic() >= self._until:
            raise OutOfBudget
        self._calls -= 1
        run = getattr(self._subject.made(intervention=intervention), self._derivative.value)
        found, facts = run(self._wide.sample, self._wide.blocks)
        names = self._wide.oracle.outputs(self._wide.sample, self._derivative)
        return {name: found[name] for name in names if name in found}, facts


def in_float64(tensor: Tensor) -> Tensor:
    """A float tensor in float64, with its layout; one that is mostly gaps stays, since the gaps would be filled."""
    if not tensor.is_floating_point() or tensor.dtype is torch.float64 or tensor.untyped_storage().nbytes() > _LARGEST:
        return tensor
    return layouts.pointwise(tensor, Tensor.double)


def _with_own(budget: Budget, own: Tensor) -> Budget:
    """A budget and the errors of the kernel's own operations."""
    size = own.square().mean(0).sqrt()
    size = torch.where(budget.value.isfinite(), size, 0.0)
    turned = own[torch.arange(len(budget.errors)) % len(own)]
    return replace(
        budget,
        sigma=torch.hypot(budget.sigma, size),
        independent=torch.hypot(budget.independent, size),
        errors=budget.errors + torch.where(budget.value.isfinite(), turned, 0.0),
        worst=None if budget.worst is None else budget.worst + LOCAL_SIGMA * size,
        before=None,
    )


def _of_both(kernel: Budget, definition: Budget) -> Budget:
    """The budget of the difference of two float64 computations that err independently."""
    probes = min(len(kernel.errors), len(definition.errors))  # large graphs run fewer
    return replace(
        kernel,
        sigma=torch.hypot(kernel.sigma, definition.sigma),
        independent=torch.hypot(kernel.independent, definition.independent),
        errors=kernel.errors[:probes] - definition.errors[:probes].roll(1, 0),
        worst=None if kernel.worst is None or definition.worst is None else kernel.worst + definition.worst,
        floor=torch.hypot(kernel.floor, definition.floor),
        before=None,
    )
