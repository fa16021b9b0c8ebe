"""Modules: an nn.Module as a function of its parameters, which become inputs of a kernel."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping, Sequence

from torch import Tensor, nn
from torch.func import functional_call

from gradoracle.model.signature import Signature


def input_names(callee: object) -> dict[str, tuple[str, Tensor]]:
    """The parameters of a module that require grad, by input name: (name in the module, value); none of a function."""
    if not isinstance(callee, nn.Module):
        return {}
    return {n.replace(".", "_"): (n, p) for n, p in callee.named_parameters() if p.requires_grad}


def of_parameters(module: nn.Module, signature: Signature, state: Collection[str] = ()) -> Callable[..., object]:
    """A module as a function of a family's inputs, those of its parameters' names included.

    Args:
        module: it keeps its own buffers: those in ``state`` are given by inputs, which a call changes.
        signature: of the family.
        state: names of inputs; ``inner.mean`` is the input ``inner_mean``.

    Raises:
        TypeError: no input has the name of a parameter, or no buffer that of state.
    """
    weights, label = input_names(module), type(module).__name__
    buffers = {n.replace(".", "_"): n for n, _ in module.named_buffers()}
    if unknown := [name for name in state if name not in buffers]:
        raise TypeError(f"the module {label} has no buffer {', '.join(unknown)}; it has {', '.join(buffers) or 'none'}")
    places = [spec.name for spec in signature.inputs if not spec.keyword]
    if missing := [name for name in weights if name not in places]:
        raise TypeError(
            f"the module {label} has the parameters {', '.join(missing)}, which are no inputs ({', '.join(places)}) of "
            "the family; expected an input for each parameter that requires grad"
        )

    def call(*tensors: Tensor, **options: object) -> object:
        given = dict(zip(places, tensors, strict=True))
        own = {name: given.pop(name) for name in weights}
        kept = {buffers[name]: given.pop(name) for name in state}
        return call_with(module, own, list(given.values()), options, state=kept)

    kinds = inspect.Parameter
    positional = [kinds(name, kinds.POSITIONAL_ONLY) for name in places]
    taken = inspect.signature(module.forward).parameters.values()
    others = [p for p in taken if p.kind in (p.KEYWORD_ONLY, p.VAR_KEYWORD) or p.default is not p.empty]
    keyword = [p if p.kind is p.VAR_KEYWORD else p.replace(kind=p.KEYWORD_ONLY) for p in others if p.name not in places]
    call.__signature__ = inspect.Signature([*positional, *keyword])  # type: ignore[attr-defined]
    call.__wrapped__ = type(module).forward  # type: ignore[attr-defined]
    call.__name__ = label
    return call


def call_with(
    callee: Callable[..., object],
    parameters: Mapping[str, Tensor],
    positional: Sequence[object],
    keyword: Mapping[str, object],
    *,
    wide: bool = False,
    state: Mapping[str, Tensor] | None = None,
) -> object:
    """Call a module with other parameters, by input name, or a function with them as keywords.

    ``wide``: the module's other float parameters and its float buffers take part as float64. ``state``: its buffers, by
    name in the module, which the call changes.
    """
    if not isinstance(callee, nn.Module):
        return callee(*positional, **keyword, **parameters)
    inside = {path: parameters[name] for name, (path, _) in input_names(callee).items() if name in parameters}
    if wide:
        held = (*callee.named_parameters(), *callee.named_buffers())
        inside = {n: t.detach().double() for n, t in held if n not in inside and t.is_floating_point()} | inside
    inside |= state or {}
    found = functional_call(callee, inside, tuple(positional), dict(keyword))
    for name, own in (state or {}).items():
        if inside[name] is not own:  # assigned anew, and not written in place
            own.copy_(inside[name])
    return found
