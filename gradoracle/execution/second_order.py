"""Second derivatives by the orders that mix forward and reverse mode, and of some inputs alone."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from gradoracle.cases.sample import Sample
from gradoracle.execution.autograd import accumulated, dense, or_zeros, pulled_back
from gradoracle.execution.call_errors import NoDerivative, needing
from gradoracle.execution.kernel_runner import KernelRunner, Tensors
from gradoracle.execution.widened import narrowed
from gradoracle.model.derivative import Derivative
from gradoracle.oracle.truth import names


def reverse_over_forward(subject: KernelRunner, sample: Sample, blocks: str) -> tuple[Tensors, Tensors]:
    """The gradients of <cotangents, J t>: in the inputs, which are the HVPs, and in the tangents, which are the VJP.

    Both by name of the tensor (``hvp.q``, ``dq``).

    Raises:
        Unavailable: the kernel has no forward mode that can be differentiated.
    """
    primals, order = subject.primals(sample), "reverse over forward"
    function = subject.of_primals(sample, primals, blocks)
    with subject.running(order, sample):
        values = [dense(sample.inputs[name]).detach().requires_grad_() for name in primals]
        tangents = [sample.tangents[name].detach().requires_grad_() for name in primals]
        with needing(order, order):
            moved = torch.func.jvp(function, tuple(values), tuple(tangents))[1]
            found = pulled_back(moved, list(sample.cotangents.values()), [*values, *tangents])
        if found is None:
            raise NoDerivative(f"no {order}: the tangents of the outputs do not require grad")
    own = or_zeros(found, [*values, *tangents])
    hvp, vjp = names(subject.family, Derivative.HVP, sample), names(subject.family, Derivative.VJP, sample)
    return _detached(hvp, own[: len(primals)]), dict(zip(vjp, own[len(primals) :], strict=True))


def forward_over_reverse(subject: KernelRunner, sample: Sample, blocks: str) -> Tensors:
    """The tangents of the gradients, which are the HVPs, by name of the tensor.

    Raises:
        Unavailable: the kernel has no backward that can be differentiated in forward mode.
    """
    primals, order = subject.primals(sample), "forward over reverse"
    cotangents = tuple(sample.cotangents.values())
    function = subject.of_primals(sample, primals, blocks)

    def gradients(*values: Tensor) -> Any:
        return torch.func.vjp(function, *values)[1](cotangents)

    with subject.running(order, sample):
        values = tuple(dense(sample.inputs[name]).detach() for name in primals)
        with needing(order, order):
            products = torch.func.jvp(gradients, values, tuple(sample.tangents[name] for name in primals))[1]
    return _detached(names(subject.family, Derivative.HVP, sample), products)


def of_some_inputs(subject: KernelRunner, sample: Sample, blocks: str, expected: Sequence[str]) -> Tensors:
    """The HVPs by double backward if only some inputs require grad, along their tangents, by name of the tensor.

    Raises:
        Unavailable: the kernel has no double backward.
    """
    primals = subject.primals(sample)
    with subject.running("hvp", sample):
        leaves = {name: sample.inputs[name].detach().requires_grad_(name in expected) for name in primals}
        own, along = [leaves[name] for name in expected], [sample.tangents[name] for name in expected]
        with needing("double backward", "hvp"):
            outputs = subject.outputs(sample, leaves, blocks)
            firsts = _gradients(outputs, list(sample.cotangents.values()), own)
            found = accumulated(firsts, along, own)
    by_name = dict(zip(primals, names(subject.family, Derivative.HVP, sample), strict=True))
    return _detached([by_name[name] for name in expected], or_zeros(found or [None] * len(own), own))


def in_the_cotangents(subject: KernelRunner, sample: Sample, blocks: str) -> Tensors:
    """The gradient of <J^T g, t> in the cotangents g, which is J t, by name of the tensor (``jvp.o``).

    Raises:
        Unavailable: the kernel's backward cannot be differentiated in its cotangents.
    """
    primals, order = subject.primals(sample), "double backward in the cotangents"
    with subject.running(order, sample):
        leaves = {name: sample.inputs[name].detach().requires_grad_() for name in primals}
        cotangents = [cotangent.detach().requires_grad_() for cotangent in sample.cotangents.values()]
        with needing(order, "double backward"):
            outputs = subject.outputs(sample, leaves, blocks)
            firsts = _gradients(outputs, cotangents, list(leaves.values()))
            along = [sample.tangents[name] for name in primals]
            found = accumulated(firsts, along, [*cotangents, *leaves.values()])
        if found is None:
            raise NoDerivative(f"no {order}: the gradients do not require grad")
    if all(product is None for product in found):
        raise NoDerivative(f"no {order}: the gradients do not depend on them in the autograd graph")
    # of several cotangents that a double backward knows, some may have no path: that is 0
    own = or_zeros(found[: len(cotangents)], cotangents)
    return _detached(names(subject.family, Derivative.JVP, sample), own)


def _gradients(
    outputs: Sequence[Tensor], cotangents: Sequence[Tensor], leaves: list[Tensor]
) -> Sequence[Tensor | None]:
    """J^T g of the leaves, to be differentiated again; None for a leaf that no output depends on."""
    return pulled_back(outputs, cotangents, leaves, create_graph=True) or [None] * len(leaves)


def _detached(keys: Sequence[str], products: Iterable[Tensor]) -> Tensors:
    return {key: narrowed(product.detach()) for key, product in zip(keys, products, strict=True)}
