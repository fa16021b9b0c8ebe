"""What kernels by hand have in common: one named fault, or none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

CORRECT = ""


class _Changed(torch.autograd.Function):
    """The identity whose gradient is changed by a function."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, change: Callable[[Tensor], Tensor]) -> Tensor:
        ctx.change = change
        return tensor.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return ctx.change(gradient), None


def edited(tensor: Tensor, change: Callable[[Tensor], Tensor]) -> Tensor:
    """``tensor`` with a gradient that goes through ``change``: a fault of backward alone."""
    return _Changed.apply(tensor, change)


class ByHand:
    """A correct implementation; ``fault`` names what is wrong with it."""

    def __init__(self, fault: str = CORRECT) -> None:
        self.fault = fault

    def has(self, fault: str) -> bool:
        return self.fault == fault

    def backward_changed(self, fault: str, tensor: Tensor, change: Callable[[Tensor], Tensor]) -> Tensor:
        return edited(tensor, change) if self.has(fault) else tensor
