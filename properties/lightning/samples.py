"""Samples: what lightning properties know of a sample in float64, and changes of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from gradoracle.properties.agreement import double
from gradoracle.properties.applicability import supports
from gradoracle.properties.linear_attention import INITIAL, tokens
from torch import Tensor

from gradoracle.cases.sample import Sample
from gradoracle.model.case import Case
from gradoracle.model.kernel import Kernel


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


def in_rows(change: Callable[[Tensor], Tensor], *names: str) -> Callable[[Sample], Sample]:
    """A change of some inputs of tokens, by default of all, by one function."""
    return lambda sample: sample.with_inputs(**{name: change(sample.inputs[name]) for name in names or tokens(sample)})


def instead(other: Sample) -> Callable[[Sample], Sample]:
    """The change of a sample into another one."""
    return lambda sample: other


def any_length(case: Case, kernel: Kernel) -> str | None:
    """Why properties that run the kernel on another number of rows do not apply; None where they do."""
    lengths = (1, case.dims["N"] - 1, case.dims["N"] + 1)
    fits = all(supports(kernel, N=length) for length in lengths if length > 0)
    return None if fits else "the kernel takes only some numbers of rows"


def has_initial_state(case: Case, kernel: Kernel) -> str | None:
    """Why properties of the initial state of a case do not apply; None where they do."""
    return None if INITIAL in case.draws else "the case has no initial state"
