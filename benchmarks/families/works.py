"""Works of ``gradoracle bench``: calls that a row times, of a function of float tensors and of its derivatives.

``function`` comes first, so that rows share the rest by ``functools.partial``. What is set up here is not timed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from gradoracle.execution.bench import Work

HVP = "exact HVP (forward and backward included)"
Function = Callable[..., Tensor]
Tensors = Sequence[Tensor]


def forward(function: Function, inputs: Tensors) -> Work:
    def call() -> Tensor:
        with torch.no_grad():
            return function(*inputs)

    return call


def backward(function: Function, inputs: Tensors, g: Tensor) -> Work:
    """The VJP of ``g`` alone."""
    leaves = _leaves(inputs)
    out = function(*leaves)
    return lambda: torch.autograd.grad(out, leaves, g, retain_graph=True)


def forward_and_backward(function: Function, inputs: Tensors, g: Tensor) -> Work:
    leaves = _leaves(inputs)
    return lambda: torch.autograd.grad(function(*leaves), leaves, g)


def jvp(function: Function, inputs: Tensors, tangents: Tensors) -> Work:
    return partial(torch.func.jvp, function, tuple(inputs), tuple(tangents))


def hvp(function: Function, inputs: Tensors, g: Tensor, tangents: Tensors) -> Work:
    """The gradient of <tangents, VJP of ``g``>, with the forward and the backward that it needs."""
    leaves = _leaves(inputs)

    def call() -> object:
        first = torch.autograd.grad(function(*leaves), leaves, g, create_graph=True)
        return torch.autograd.grad(first, leaves, tangents)

    return call


def _leaves(inputs: Tensors) -> list[Tensor]:
    return [x.detach().requires_grad_() for x in inputs]
