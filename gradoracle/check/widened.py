"""Widened: what a kernel gives with every float in float64, compared with the definition in float64.

An error that stays is in the formula, a mask or an index, however small it is against the rounding of the kernel's
dtype; what goes away is lost precision (DESIGN 2b).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch

from gradoracle.check.acceptance import Allowance, judge
from gradoracle.check.error_relation import PROBES
from gradoracle.check.evidence import Evidence
from gradoracle.execution.kernel_runner import Subject
from gradoracle.execution.widened import widen
from gradoracle.model.contract import LARGEST, PRESETS
from gradoracle.model.contract import widened as widened_contract
from gradoracle.model.derivative import Derivative
from gradoracle.model.finding import Finding
from gradoracle.oracle.rounding.reading import Budget


def widened(evidence: Evidence) -> Evidence:
    """Evidence of the kernel widened on the same sample, judged under the contract ``widened``."""

    def make() -> Evidence:
        own, dtype = evidence.subject, evidence.case.dtype
        kernel = replace(own.kernel, contracts={**own.kernel.contracts, dtype: widened_contract(evidence.contract)})
        subject = Subject(own.family, kernel, own.guard, f"{own.label}widened: ", records=False, wide=True)
        sample = evidence.sample.map(widen)
        return Evidence(evidence.case, sample, subject, evidence.oracle, evidence.blocks, evidence.root)

    return evidence.keep("widened", make)


def compare_widened(evidence: Evidence, derivative: Derivative) -> Iterator[Finding]:
    """One Finding for each tensor of a derivative: the kernel widened against the definition, both in float64.

    Both err by roundings in float64, and the kernel by those of its constants; the budget allows for both.
    """
    wide = widened(evidence)
    got = wide.tensors(derivative)
    budgets = wide.budgets(derivative)
    definition = evidence.keep(
        f"float64 {derivative.value}",
        lambda: evidence.oracle.budgets(
            evidence.sample, derivative, PRESETS["float64"], worst=not evidence.continuous, probes=PROBES
        ),
    )
    for name in wide.names(derivative):
        if name in got:
            yield judge(
                f"{name} widened",
                got[name].double(),
                definition[name].value,
                _of_both(budgets[name], definition[name]),
                continuous=evidence.continuous,
                largest=LARGEST["float64"],
                axes=evidence.axes(name),
                of=name,
            )


def _of_both(kernel: Budget, definition: Budget) -> Allowance:
    """What rounding explains of the difference of two float64 computations that err independently."""
    probes = min(len(kernel.errors), len(definition.errors))  # large graphs run fewer
    worst = None if kernel.worst is None or definition.worst is None else kernel.worst + definition.worst
    return Allowance(
        torch.hypot(kernel.sigma, definition.sigma),
        kernel.errors[:probes] - definition.errors[:probes].roll(1, 0),
        worst,
        torch.hypot(kernel.floor, definition.floor),
        kernel.overflow,
    )
