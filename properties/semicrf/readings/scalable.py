"""Semi-CRF without a graph: the float64 recursion, balls and budgets, as the engine's oracle asks for them."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from gradoracle.properties.semicrf.readings import balls as balls
from gradoracle.properties.semicrf.readings import recursion as recursion
from gradoracle.properties.semicrf.readings.budgets import budgets, named
from torch import Tensor

from gradoracle.cases.sample import Sample
from gradoracle.model.contract import Contract
from gradoracle.model.derivative import Derivative
from gradoracle.oracle.exact.enclosure import Enclosure
from gradoracle.oracle.rounding.reading import Budget

PLAIN = "plain_recursion"  # alpha and beta in the log domain without norms, so that they grow as log Z does
LARGEST_SYSTEM = 128  # states of one sequence up to which the definition, with its square in numbers, is traced
LARGEST_LOGARITHM = 300.0  # of a partial sum over paths, up to which exp is far from float32's and float64's limits


class SemiCRF:
    """Serves what has more than ``LARGEST_SYSTEM`` states, or scores whose exponentials might leave float64."""

    algorithms = (PLAIN,)

    def outgrown(self, dims: Mapping[str, int]) -> bool:
        """Whether there are too many states (positions times labels)."""
        return (dims["T"] + 1) * dims["C"] > LARGEST_SYSTEM

    def serves(self, sample: Sample) -> bool:
        """Whether it is outgrown, or a path may score beyond ``LARGEST_LOGARITHM`` either way, or C = K = 1.

        There the Hessian is exactly 0, and a solve in float64 gives 1e-14, against which no budget is small.
        """
        cum, steps = sample.inputs["cum_scores"], sample.inputs["cum_scores"].shape[1] - 1
        if self.outgrown({"T": steps, "C": cum.shape[2]}) or sample.inputs["duration_bias"].numel() == 1:
            return True
        names = [name for name, t in sample.inputs.items() if t.is_floating_point() and name != "cum_scores"]
        sizes = [float(_largest(cum.diff(dim=1)))] + [float(_largest(sample.inputs[name])) for name in names]
        return steps * sum(sizes) > LARGEST_LOGARITHM

    def budgeted(self, contract: Contract) -> bool:
        """Whether budgets of any sample are its own: a kernel in float64 is explained in the log domain alone."""
        return contract.elementwise == "float64" and contract.rounds

    def values(self, sample: Sample, derivative: Derivative) -> dict[str, Tensor]:
        """By the recursion with exact exponents."""
        tangents = sample.tangents if derivative.takes_tangents else None
        if derivative is Derivative.FORWARD:
            return {"log_z": recursion.log_z(sample.inputs)}
        if derivative is Derivative.JVP:
            return {"jvp.log_z": recursion.jvp(sample.inputs, sample.tangents)}
        problem = recursion.Problem(sample.inputs, tangents)
        return named(recursion.run(problem, sample.cotangents["log_z"]), derivative)

    def certified(self, sample: Sample, derivative: Derivative) -> dict[str, Enclosure] | None:
        """By forward-backward in balls; of log Z and its gradients only."""
        if derivative.takes_tangents:
            return None
        found = balls.certify(sample.inputs, sample.cotangents["log_z"])
        gradients = {f"d{name}": ball for name, ball in found.gradients.items()}
        return {"log_z": found.log_z} | (gradients if derivative is Derivative.VJP else {})

    def budgets(
        self,
        sample: Sample,
        derivative: Derivative,
        contract: Contract,
        *,
        stored: Mapping[str, str],
        probes: int,
        worst: bool,
        algorithm: str = "definition",
    ) -> dict[str, Budget]:
        """By probes of the recursion and first-order sensitivities; ``PLAIN`` takes no norms."""
        return budgets(
            sample.inputs, sample.cotangents["log_z"], contract, derivative, tangents=sample.tangents, stored=stored,
            probes=probes, worst=worst, norms=algorithm != PLAIN,
        )  # fmt: skip


def _largest(x: Tensor) -> Tensor:
    """The largest finite magnitude."""
    return torch.where(x.isfinite(), x.abs(), 0.0).amax() if x.numel() else torch.zeros(())
