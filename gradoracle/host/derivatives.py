"""Derivatives: what a host computes for each entry of a call, by the kernel's own functions or by autograd."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from gradoracle.host.autograd import accumulated, dense, or_zeros, pulled_back, pushed_forward
from gradoracle.host.raised import needing
from gradoracle.host.widened import narrowed
from gradoracle.model.call import Call, Entry
from gradoracle.model.call_errors import Detached, NoDerivative, Severed, wrong
from gradoracle.model.derivative import Derivative, as_tuple
from gradoracle.model.kernel import Kernel
from gradoracle.model.wording import counted

Tensors = tuple[Tensor | None, ...]
Parts = dict[str, Tensors]


class Bound:
    """A kernel with the arguments of one call, in the form and on the device that it is given them."""

    def __init__(self, kernel: Kernel, call: Call) -> None:
        self.kernel, self.asked = kernel, call
        self.inputs, self.tangents, self.cotangents = dict(call.inputs), dict(call.tangents), dict(call.cotangents)
        self.label = call.how.label
        self._blocks = kernel.blocks[call.blocks] if call.blocks else None
        self.state: list[Tensor] = []  # what calls may change, and have no gradient for

    @property
    def primals(self) -> list[str]:
        """The names of the float inputs."""
        return list(self.tangents)

    def returned(self, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """All that the kernel returns.

        Raises:
            Wrong: some of it is no tensor.
        """
        options = dict(self.asked.options)
        if self._blocks is not None:
            options["blocks"] = self._blocks
        named = dict(zip(self.inputs, inputs, strict=True))
        named |= {name: named[name].clone() for name in self.kernel.mutates if name in named}  # the arguments stay
        self.state += [named[name] for name in self.kernel.mutates if name in named and name in self.kernel.no_gradient]
        positional = [tensor for name, tensor in named.items() if name not in self.asked.keyword]
        by_keyword = {name: tensor for name, tensor in named.items() if name in self.asked.keyword}
        returned = self.kernel.call(*positional, **by_keyword, **options)
        found = returned if isinstance(returned, (tuple, list)) else (returned,)
        tensors = tuple(each for each in found if isinstance(each, Tensor))
        if len(tensors) < len(found):
            others = [type(each).__name__ for each in found if not isinstance(each, Tensor)]
            raise wrong("output", f"the kernel returned {', '.join(others)}, expected {self._expected()}")
        return tensors

    def _expected(self) -> str:
        return ", ".join(self.asked.returned.values())

    def outputs(self, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """The float tensors of what it returns.

        Raises:
            Wrong: there are integer outputs, and another number of tensors was returned.
        """
        return tuple(tensor for name, tensor in self.named(inputs) if name not in self.asked.whole)

    def named(self, inputs: Sequence[Tensor]) -> list[tuple[str, Tensor]]:
        """What it returns, by name where there are integer outputs."""
        returned, names = self.returned(inputs), tuple(self.asked.returned)
        if not self.asked.whole:
            return [("", tensor) for tensor in returned]
        if len(returned) != len(names):
            text = f"the kernel returned {counted(len(returned), 'tensor')}, expected {len(names)}: {names}"
            raise wrong(names[0], text)
        return list(zip(names, returned, strict=True))

    def of_primals(self, primals: Sequence[str]) -> Callable[..., tuple[Tensor, ...]]:
        """The kernel as a function of some inputs; the others are those of the call."""
        return lambda *values: self.outputs(list((self.inputs | dict(zip(primals, values, strict=True))).values()))

    def explicit(self, derivative: Derivative, *groups: Mapping[str, Tensor]) -> Any:
        """What the kernel's own function of a derivative returns."""
        with torch.no_grad():
            own = getattr(self.kernel, derivative.value)
            return own(*map(dict, groups), dict(self.asked.options), self._blocks)

    def has_its_own(self, derivative: Derivative) -> bool:
        """Whether the kernel's own function of a derivative is asked for, and there is one."""
        return derivative in self.asked.explicit and getattr(self.kernel, derivative.value) is not None

    def leaves(self, expected: Sequence[str] | None) -> dict[str, Tensor]:
        """Inputs that require grad, with their own layout (a detached view keeps strides and storage)."""
        return {
            name: tensor.detach().requires_grad_()
            if tensor.is_floating_point() and (expected is None or name in expected)
            else tensor.detach()
            for name, tensor in self.inputs.items()
        }

    def fits(self, outputs: Sequence[Tensor]) -> bool:
        """Whether outputs have the shapes of the cotangents: of others a backward says nothing."""
        own = [tuple(cotangent.shape) for cotangent in self.cotangents.values()]
        return [tuple(output.shape) for output in outputs] == own

    def backward(
        self,
        outputs: Sequence[Tensor],
        leaves: Mapping[str, Tensor],
        upstream: Sequence[str] | None = None,
        **how: bool,
    ) -> Tensors:
        """The gradients of the leaves.

        Raises:
            Wrong, Detached: no output requires grad.
        """
        targets = [leaf for leaf in leaves.values() if leaf.requires_grad]
        pairs = zip(outputs, self.cotangents.items(), strict=True)
        given = [(o, g) for o, (name, g) in pairs if upstream is None or name in upstream]
        gradients = pulled_back([o for o, _ in given], [g for _, g in given], targets, **how)
        if gradients is None and not any(output.requires_grad for output in outputs):
            text = self._detached()
            raise wrong("gradient", text) if self.asked.how.needs_gradients else Detached(text)
        if upstream is None and gradients is not None:
            return tuple(gradients)
        # an input that these outputs do not depend on, or outputs marked non-differentiable, have none: that is 0
        return tuple(or_zeros(gradients or [None] * len(targets), targets))

    def _detached(self) -> str:
        return f"the output {', '.join(self.cotangents)} has no gradient: it does not require grad"

    def double_backward(self) -> Parts:
        """By a backward whose cotangents need no gradient; where that has no graph, by one whose cotangents do.

        Raises:
            NoDerivative: one of them raises.
            Severed: neither has a graph.
        """
        call = f"{self.label}hvp"
        for through in (False, True):
            leaves = self.leaves(None)
            targets = [leaf for leaf in leaves.values() if leaf.requires_grad]
            cotangents = [g.detach().requires_grad_(through) for g in self.cotangents.values()]
            with needing("double backward", call):
                outputs = self.outputs(list(leaves.values()))
            if not self.fits(outputs):
                return {"outputs": outputs}
            if not any(output.requires_grad for output in outputs):
                raise Detached(self._detached())
            with needing("double backward", call, (Exception,)):  # the backward, run to be differentiated
                firsts = pulled_back(outputs, cotangents, targets, create_graph=True) or ()
            along = list(self.tangents.values())[: len(firsts)]
            with needing("double backward", call):
                seconds = accumulated(firsts, along, targets)
            if seconds is not None:
                zeros = [torch.zeros_like(t, memory_format=torch.contiguous_format) for t in targets]
                own = tuple(zero if s is None else s for s, zero in zip(seconds, zeros, strict=True))
                return {"outputs": outputs, "products": own}
        raise Severed("no double backward: the gradients do not require grad, even where a cotangent does")


def forward(bound: Bound) -> Parts:
    """The outputs."""
    with torch.no_grad():
        return {"outputs": bound.outputs(list(bound.inputs.values()))}


def integers(bound: Bound) -> Parts:
    """The integer outputs."""
    with torch.no_grad():
        named = bound.named(list(bound.inputs.values()))
    return {"integers": tuple(tensor for name, tensor in named if name in bound.asked.whole)}


def vjp(bound: Bound) -> Parts:
    """Outputs and gradients, from one forward and one backward."""
    expected, upstream = bound.asked.expected, bound.asked.upstream
    if bound.has_its_own(Derivative.VJP) and expected is None and upstream is None:
        outputs = forward(bound)["outputs"]
        own = bound.explicit(Derivative.VJP, bound.inputs, bound.cotangents)
        return {"outputs": outputs, "gradients": as_tuple(own)}
    leaves = bound.leaves(expected)
    found = bound.outputs(list(leaves.values()))
    if not bound.fits(found):
        return {"outputs": found}
    return {"outputs": found, "gradients": bound.backward(found, leaves, upstream)}


def vjp_twice(bound: Bound) -> Parts:
    """The gradients of two backward passes over one retained graph."""
    leaves = bound.leaves(None)
    outputs = bound.outputs(list(leaves.values()))
    if not bound.fits(outputs):
        return {"outputs": outputs}
    given = bound.backward(outputs, leaves, retain_graph=True)
    first = tuple(None if g is None else g.clone() for g in given)  # the second may write into what was returned
    return {"outputs": outputs, "first": first, "second": bound.backward(outputs, leaves, retain_graph=True)}


def vjp_in_the_same_memory(bound: Bound) -> Parts:
    """Outputs and gradients of two calls, the second with other inputs in the same memory; and the first after it.

    They are two steps of a training: inputs have a grad_fn, and lead to the same leaves, which are changed in place.
    """
    leaves = bound.leaves(None)
    first = _step(bound, leaves)
    if "gradients" not in first:
        return first
    kept = {f"{part} at once": tuple(None if t is None else t.clone() for t in own) for part, own in first.items()}
    mine = {_memory(tensor) for tensor in bound.inputs.values()}
    for name, tensor in bound.asked.later.items():
        _storage(bound.inputs[name]).copy_(_storage(tensor))
    second = _step(bound, leaves)
    for part, own in first.items():  # what a call returned of its arguments is these: x of x
        same = kept[f"{part} at once"]
        first[part] = tuple(s if t is not None and _memory(t) in mine else t for s, t in zip(same, own, strict=True))
    return first | kept | {f"{part} later": own for part, own in second.items()}


def _step(bound: Bound, leaves: Mapping[str, Tensor]) -> Parts:
    """Outputs and gradients in leaves, of which the inputs are views."""
    if bound.has_its_own(Derivative.VJP):
        return vjp(bound)
    found = bound.outputs([leaf.view_as(leaf) if leaf.requires_grad else leaf for leaf in leaves.values()])
    if not bound.fits(found):
        return {"outputs": found}
    return {"outputs": found, "gradients": bound.backward(found, leaves)}


def _memory(tensor: Tensor) -> int:
    return narrowed(tensor.detach()).untyped_storage().data_ptr()


def _storage(tensor: Tensor) -> Tensor:
    own = narrowed(tensor.detach())
    return torch.as_strided(own, (own.untyped_storage().nbytes() // own.element_size(),), (1,), 0)


def jvp(bound: Bound) -> Parts:
    """The outputs' tangents, by forward mode along some inputs only; with an explicit JVP the outputs too."""
    if bound.has_its_own(Derivative.JVP):
        outputs, tangents = bound.explicit(Derivative.JVP, bound.inputs, bound.tangents)
        found: Parts = {"tangents": as_tuple(tangents)}
        return found if outputs is None else found | {"outputs": as_tuple(outputs)}
    primals = list(bound.asked.along or bound.primals)
    values = tuple(dense(bound.inputs[name]) for name in primals)
    along = tuple(bound.tangents[name] for name in primals)
    with needing("forward mode", f"{bound.label}jvp"):
        duals = not bound.has_its_own(Derivative.VJP)
        return {"tangents": pushed_forward(bound.of_primals(primals), values, along, duals=duals)}


def hvp(bound: Bound) -> Parts:
    """The Hessian of <cotangent, f> times the tangents."""
    if bound.has_its_own(Derivative.HVP):
        own = bound.explicit(Derivative.HVP, bound.inputs, bound.tangents, bound.cotangents)
        return {"products": as_tuple(own)}
    return bound.double_backward()


def reverse_over_forward(bound: Bound) -> Parts:
    """The gradients of <cotangents, J t>: in the inputs, which are the HVPs, and in the tangents, which are the VJP.

    Raises:
        NoDerivative: the kernel has no forward mode that can be differentiated.
    """
    primals, order = bound.primals, Entry.REVERSE_OVER_FORWARD.value
    values = [dense(bound.inputs[name]).detach().requires_grad_() for name in primals]
    tangents = [bound.tangents[name].detach().requires_grad_() for name in primals]
    with needing(order, order):
        moved = torch.func.jvp(bound.of_primals(primals), tuple(values), tuple(tangents))[1]
        found = pulled_back(moved, list(bound.cotangents.values()), [*values, *tangents])
    if found is None:
        raise NoDerivative(f"no {order}: the tangents of the outputs do not require grad")
    own = or_zeros(found, [*values, *tangents])
    return {"products": tuple(own[: len(primals)]), "gradients": tuple(own[len(primals) :])}


def forward_over_reverse(bound: Bound) -> Parts:
    """The tangents of the gradients, which are the HVPs.

    Raises:
        NoDerivative: the kernel has no backward that can be differentiated in forward mode.
    """
    primals, order, cotangents = bound.primals, Entry.FORWARD_OVER_REVERSE.value, tuple(bound.cotangents.values())
    function = bound.of_primals(primals)

    def gradients(*values: Tensor) -> Any:
        return torch.func.vjp(function, *values)[1](cotangents)

    values = tuple(dense(bound.inputs[name]).detach() for name in primals)
    with needing(order, order):
        products = torch.func.jvp(gradients, values, tuple(bound.tangents[name] for name in primals))[1]
    return {"products": tuple(products)}


def hvp_of_some_inputs(bound: Bound) -> Parts:
    """The HVPs by double backward if only some inputs require grad, along their tangents.

    Raises:
        NoDerivative: the kernel has no double backward.
    """
    expected = bound.asked.expected or ()
    leaves = {name: bound.inputs[name].detach().requires_grad_(name in expected) for name in bound.primals}
    own, along = [leaves[name] for name in expected], [bound.tangents[name] for name in expected]
    with needing("double backward", "hvp"):
        firsts = _gradients(_on(bound, leaves), list(bound.cotangents.values()), own)
        found = accumulated(firsts, along, own)
    return {"products": tuple(or_zeros(found or [None] * len(own), own))}


def jvp_by_cotangents(bound: Bound) -> Parts:
    """The gradient of <J^T g, t> in the cotangents g, which is J t.

    Raises:
        NoDerivative: the kernel's backward cannot be differentiated in its cotangents.
    """
    primals, order = bound.primals, Entry.JVP_BY_COTANGENTS.value
    leaves = {name: bound.inputs[name].detach().requires_grad_() for name in primals}
    cotangents = [cotangent.detach().requires_grad_() for cotangent in bound.cotangents.values()]
    with needing(order, "double backward"):
        firsts = _gradients(_on(bound, leaves), cotangents, list(leaves.values()))
        along = [bound.tangents[name] for name in primals]
        found = accumulated(firsts, along, [*cotangents, *leaves.values()])
    if found is None:
        raise NoDerivative(f"no {order}: the gradients do not require grad")
    if all(product is None for product in found):
        raise NoDerivative(f"no {order}: the gradients do not depend on them in the autograd graph")
    # of several cotangents that a double backward knows, some may have no path: that is 0
    return {"tangents": tuple(or_zeros(found[: len(cotangents)], cotangents))}


def _on(bound: Bound, leaves: Mapping[str, Tensor]) -> tuple[Tensor, ...]:
    return bound.outputs(list((bound.inputs | dict(leaves)).values()))


def _gradients(
    outputs: Sequence[Tensor], cotangents: Sequence[Tensor], leaves: list[Tensor]
) -> Sequence[Tensor | None]:
    """J^T g of the leaves, to be differentiated again; None where no output depends on one."""
    return pulled_back(outputs, cotangents, leaves, create_graph=True) or [None] * len(leaves)


ENTRIES: Mapping[str, Callable[[Bound], Parts]] = {
    Entry.FORWARD.value: forward,
    Entry.VJP.value: vjp,
    Entry.JVP.value: jvp,
    Entry.HVP.value: hvp,
    Entry.INTEGERS.value: integers,
    Entry.VJP_TWICE.value: vjp_twice,
    Entry.VJP_IN_THE_SAME_MEMORY.value: vjp_in_the_same_memory,
    Entry.REVERSE_OVER_FORWARD.value: reverse_over_forward,
    Entry.FORWARD_OVER_REVERSE.value: forward_over_reverse,
    Entry.HVP_OF_SOME_INPUTS.value: hvp_of_some_inputs,
    Entry.JVP_BY_COTANGENTS.value: jvp_by_cotangents,
}
