"""Mixed: second derivatives of a kernel in the orders that mix forward and reverse mode, and of some inputs alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from gradoracle.cases.sample import Sample
from gradoracle.execution.endings import NoDerivative, raise_if_lost
from gradoracle.execution.kernel_runner import Subject, Tensors, dense, first_line
from gradoracle.model.derivative import Derivative
from gradoracle.oracle.truth import names


def reverse_over_forward(subject: Subject, sample: Sample, blocks: str) -> tuple[Tensors, Tensors]:
    """The gradients of <cotangents, J t>: in the inputs, which are the HVPs, and in the tangents, which are the VJP.

    Both by name of the tensor (``hvp.q``, ``dq``).

    Raises:
        Unavailable: the kernel has no forward mode that can be differentiated.
    """
    primals = subject.primals(sample)

    function = subject.of_primals(sample, primals, blocks)
    with subject.running("reverse over forward", sample):
        values = [dense(sample.inputs[name]).detach().requires_grad_() for name in primals]
        tangents = [sample.tangents[name].detach().requires_grad_() for name in primals]
        with _needed("reverse over forward", "reverse over forward"):
            moved = torch.func.jvp(function, tuple(values), tuple(tangents))[1]
            live = [(m, g) for m, g in zip(moved, sample.cotangents.values(), strict=True) if m.requires_grad]
            if not live:
                raise NoDerivative("no reverse over forward: the tangents of the outputs do not require grad")
            found = torch.autograd.grad(
                [m for m, _ in live], [*values, *tangents], [g for _, g in live], allow_unused=True
            )
    own = [torch.zeros_like(x) if g is None else g for g, x in zip(found, [*values, *tangents], strict=True)]
    return _named(subject, sample, own[: len(primals)]), dict(
        zip(names(subject.family, Derivative.VJP, sample), own[len(primals) :], strict=True)
    )


def forward_over_reverse(subject: Subject, sample: Sample, blocks: str) -> Tensors:
    """The tangents of the gradients, which are the HVPs, by name of the tensor.

    Raises:
        Unavailable: the kernel has no backward that can be differentiated in forward mode.
    """
    primals = subject.primals(sample)
    cotangents = tuple(sample.cotangents.values())

    function = subject.of_primals(sample, primals, blocks)

    def gradients(*values: Tensor) -> Any:
        return torch.func.vjp(function, *values)[1](cotangents)

    with subject.running("forward over reverse", sample):
        values = tuple(dense(sample.inputs[name]).detach() for name in primals)
        with _needed("forward over reverse", "forward over reverse"):
            products = torch.func.jvp(gradients, values, tuple(sample.tangents[name] for name in primals))[1]
    return _named(subject, sample, list(products))


def of_some_inputs(subject: Subject, sample: Sample, blocks: str, expected: Sequence[str]) -> Tensors:
    """The HVPs by double backward where only some inputs require grad, along their tangents, by name of the tensor.

    Raises:
        Unavailable: the kernel has no double backward.
    """
    primals = subject.primals(sample)
    with subject.running("hvp", sample):
        leaves = {name: sample.inputs[name].detach().requires_grad_(name in expected) for name in primals}
        own, along = [leaves[name] for name in expected], [sample.tangents[name] for name in expected]
        with _needed("double backward", "hvp"):
            outputs = subject.outputs(sample, leaves, blocks)
            firsts = _gradients(outputs, list(sample.cotangents.values()), own)
            live = [(f, t) for f, t in zip(firsts, along, strict=True) if f is not None and f.requires_grad]
            found: Sequence[Tensor | None] = [None] * len(own)
            if live:
                found = torch.autograd.grad([f for f, _ in live], own, [t for _, t in live], allow_unused=True)
    by_name = dict(zip(primals, names(subject.family, Derivative.HVP, sample), strict=True))
    return {
        by_name[name]: torch.zeros_like(leaf) if product is None else product.detach()
        for name, leaf, product in zip(expected, own, found, strict=True)
    }


def in_the_cotangents(subject: Subject, sample: Sample, blocks: str) -> Tensors:
    """The gradient of <J^T g, t> in the cotangents g, which is J t, by name of the tensor (``jvp.o``).

    Raises:
        Unavailable: the kernel's backward cannot be differentiated in its cotangents.
    """
    primals = subject.primals(sample)
    with subject.running("double backward in the cotangents", sample):
        leaves = {name: sample.inputs[name].detach().requires_grad_() for name in primals}
        cotangents = [cotangent.detach().requires_grad_() for cotangent in sample.cotangents.values()]
        with _needed("double backward in the cotangents", "double backward"):
            outputs = subject.outputs(sample, leaves, blocks)
            firsts = _gradients(outputs, cotangents, list(leaves.values()))
            live = [
                (f, sample.tangents[name])
                for f, name in zip(firsts, primals, strict=True)
                if f is not None and f.requires_grad
            ]
            if not live:
                raise NoDerivative("no double backward in the cotangents: the gradients do not require grad")
            targets = [*cotangents, *leaves.values()]
            found = torch.autograd.grad([f for f, _ in live], targets, [t for _, t in live], allow_unused=True)
    if all(product is None for product in found):
        raise NoDerivative("no double backward in the cotangents: nothing leads from the gradients to them")
    own = found[: len(cotangents)]  # of several that a double backward knows of some may lead nowhere: that is 0
    return {
        name: torch.zeros_like(g) if product is None else product.detach()
        for name, g, product in zip(names(subject.family, Derivative.JVP, sample), cotangents, own, strict=True)
    }


def _gradients(outputs: Sequence[Tensor], cotangents: Sequence[Tensor], leaves: list[Tensor]) -> tuple[Any, ...]:
    """J^T g of the leaves, to be differentiated again; None where an output does not depend on one."""
    given = [(o, g) for o, g in zip(outputs, cotangents, strict=True) if o.requires_grad]
    return torch.autograd.grad(
        [o for o, _ in given], leaves, [g for _, g in given], create_graph=True, allow_unused=True
    )


@contextmanager
def _needed(what: str, call: str) -> Iterator[None]:
    """A kernel that refuses has no such derivative."""
    try:
        yield
    except (NotImplementedError, RuntimeError) as error:
        raise_if_lost(error, call)
        raise NoDerivative(f"no {what}: {first_line(error)}") from None


def _named(subject: Subject, sample: Sample, products: list[Tensor]) -> Tensors:
    return {
        name: product.detach()
        for name, product in zip(names(subject.family, Derivative.HVP, sample), products, strict=True)
    }
