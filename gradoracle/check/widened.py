"""Widened evidence: a kernel with every float in float64, compared with the definition in float64.

An error that stays is in the formula, a mask or an index, however small it is against the rounding of the kernel's
dtype; what goes away is lost precision.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import torch
from torch import Tensor

from gradoracle.cases.sample import Sample
from gradoracle.check.error_relation import PROBES
from gradoracle.check.evidence import Evidence
from gradoracle.execution.kernel_runner import KernelRunner
from gradoracle.execution.widened import Wide, narrowed, renamed, widen
from gradoracle.model.contract import PRESETS
from gradoracle.model.contract import widened as widened_contract
from gradoracle.model.derivative import Derivative
from gradoracle.oracle.rounding.reading import Budget
from gradoracle.oracle.truth import Truth

_LARGEST = 1 << 30  # bytes of storage of a tensor that is widened


class Widened(Evidence):
    """Evidence of the kernel of other evidence, widened, on the same sample.

    The truth is the definition in float64, which rounds like the kernel: budgets allow for the errors of both.
    """

    def dtype(self, name: str) -> str:
        """That of the values, whatever dtype their tensor names."""
        return "float64"

    def variant(self, key: str, change: Callable[[Sample], Sample], blocks: str | None = None) -> Evidence:
        """Evidence on a sample whose float64 values are changed, with what the kernel gave of them."""
        return super().variant(key, lambda sample: self._wide(change(sample.map(narrowed))), blocks)

    def _wide(self, sample: Sample) -> Sample:
        """The sample widened; tensors in their own dtype that are mostly gaps stay, since the gaps would be filled."""

        def each(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
            return {name: self._wide_tensor(name, tensor) for name, tensor in tensors.items()}

        inputs, tangents, cotangents = map(each, (sample.inputs, sample.tangents, sample.cotangents))
        return replace(sample, inputs=inputs, tangents=tangents, cotangents=cotangents)

    def _wide_tensor(self, name: str, tensor: Tensor) -> Tensor:
        if isinstance(tensor, Wide):
            return tensor
        if tensor.dtype is not torch.float64 and tensor.untyped_storage().nbytes() > _LARGEST:
            return tensor
        return renamed(tensor, getattr(torch, super().dtype(name)))

    def budgets(self, derivative: Derivative, algorithm: str | None = None) -> Mapping[str, Budget]:
        """What rounding explains of the difference of the kernel and the definition, which err independently."""
        kernel = super().budgets(derivative, algorithm)
        definition = self._definition(derivative)
        return {name: _of_both(budget, definition[name]) for name, budget in kernel.items()}

    def truths(self, derivative: Derivative) -> Mapping[str, Truth]:
        """The definition in float64, whose errors are in the budgets."""
        definition = self._definition(derivative)
        return {name: Truth(each.value, torch.zeros_like(each.sigma), "float64") for name, each in definition.items()}

    def _definition(self, derivative: Derivative) -> Mapping[str, Budget]:
        """The definition's values and budgets in float64."""
        shared = self._read_with(derivative)
        contract, worst = PRESETS["float64"], not self.continuous
        return self.keep(
            f"float64 {shared.value}",
            lambda: self.oracle.budgets(self.sample, shared, contract, worst=worst, probes=PROBES),
        )


def widened(evidence: Evidence) -> Widened:
    """The kernel of some evidence widened, kept with it."""

    def make() -> Widened:
        own, dtype = evidence.subject, evidence.case.dtype
        kernel = replace(own.kernel, contracts={**own.kernel.contracts, dtype: widened_contract(evidence.contract)})
        subject = KernelRunner(own.family, kernel, own.guard, own.label, wide=True)
        return Widened(evidence.case, evidence.sample.map(widen), subject, evidence.oracle, evidence.blocks)

    return evidence.keep("widened", make)


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
    )
