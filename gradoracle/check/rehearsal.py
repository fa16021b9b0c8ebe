"""Rehearsal: the properties of a case run without comparisons, to see which kernel calls they make."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from torch import Tensor

from gradoracle.cases.sample import Sample
from gradoracle.check.error_relation import Part
from gradoracle.check.evidence import Evidence
from gradoracle.execution.kernel_runner import KernelRunner, Tensors
from gradoracle.model.call_errors import Unavailable
from gradoracle.model.case import Case
from gradoracle.model.derivative import Derivative
from gradoracle.model.finding import Finding, Outcome
from gradoracle.model.property import Property, PropertyKind
from gradoracle.oracle.truth import Oracle

_UNREHEARSED = (PropertyKind.DEFINITION, PropertyKind.MEMORY, PropertyKind.COMPILATION)
"""Judged in the interpreter alone; large allocations and other devices; no calls."""
_HELD = Finding("", Outcome.HOLDS, "exact")


class _Rehearsed(Evidence):
    """Evidence of a kernel whose results mean nothing: there are no truths and budgets, and everything holds."""

    def budgets(self, derivative: Derivative, algorithm: str | None = None) -> Mapping[str, Any]:
        raise Unavailable("a rehearsal has no budgets")

    def truths(self, derivative: Derivative) -> Mapping[str, Any]:
        raise Unavailable("a rehearsal has no truths")

    def define(self, *args: Any, **kwargs: Any) -> list[Any]:
        raise Unavailable("a rehearsal has no truths")

    def compare(self, derivative: Derivative, got: Tensors | None = None) -> Iterator[Finding]:
        if got is None:
            self.tensors(derivative)
        yield _HELD

    def part(self, derivative: Derivative, name: str, algorithm: str | None = None) -> Part:
        self.tensors(derivative)
        raise Unavailable("a rehearsal has no budgets")

    def relate(
        self,
        name: str,
        expression: Callable[..., Tensor],
        parts: Sequence[Part | tuple[Evidence, Derivative, str]],
        **given: Any,
    ) -> Finding:
        for part in parts:
            if not isinstance(part, Part):
                part[0].tensors(part[1])
        return _HELD

    def explained(self, found: Callable[[str | None], Finding]) -> Finding:
        return _HELD


def rehearse(case: Case, sample: Sample, subject: KernelRunner, oracle: Oracle, properties: Sequence[Property]) -> None:
    """Make the kernel calls of the properties on a case, as far as they do not depend on what earlier calls returned.

    To be called where kernels are not launched: what they return is unwritten memory. Whatever a call or a property
    raises is left for when the case is judged.
    """
    evidence = _Rehearsed(case, sample, subject, oracle)
    for prop in properties:
        if prop.kind in _UNREHEARSED:
            continue
        with suppress(Exception):
            for _ in prop.judge(evidence.under(prop.needs)):
                pass
