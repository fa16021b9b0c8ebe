"""An nn.Module whose buffer changes with each call: activations divided by a running maximum.

gradoracle check examples/modern/module_with_buffers.py:right --dtype float32
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

import gradoracle


@gradoracle.family(dims={"B": gradoracle.sizes(1, 9), "C": gradoracle.sizes(1, 9)}, outputs=("y", "next_power"))
def normalised(
    x: Float[Tensor, "B C"], weight: Float[Tensor, "C"], power: Float[Tensor, "C"]
) -> tuple[Float[Tensor, "B C"], Float[Tensor, "C"]]:
    """x weight / sqrt(power + 1/1000), where power is first moved to the mean square of x by a quarter."""
    power = (power.square() * 0.75 + x.square().mean(0) * 0.25).detach()
    return x * weight * torch.rsqrt(power + 1e-3), power


class _Normalised(nn.Module):
    def __init__(self, bug):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))
        self.register_buffer("power", torch.ones(3))
        self.bug = bug

    def forward(self, x):
        self.power.square_().mul_(0.75).add_(x.detach().square().mean(0), alpha=0.25)
        y = x * self.weight * torch.rsqrt(self.power + 1e-3)
        if self.bug:
            self.power.mul_(0.75)  # decays once more after it was used
        return y


_declared = gradoracle.kernel(normalised, state={"power": "next_power"})
right = _declared(_Normalised(bug=False))
wrong = _declared(_Normalised(bug=True))
