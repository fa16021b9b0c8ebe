"""Modules: an nn.Module as a function of its parameters, which become inputs of a kernel."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor


def input_names(callee: Any) -> dict[str, tuple[str, Tensor]]:
    """The parameters of a module that require grad, by input name: (name in the module, value); none of a function."""
    from torch import nn

    if not isinstance(callee, nn.Module):
        return {}
    return {n.replace(".", "_"): (n, p) for n, p in callee.named_parameters() if p.requires_grad}


def call_with(
    callee: Callable[..., Any],
    parameters: Mapping[str, Tensor],
    positional: Sequence[Any],
    keyword: Mapping[str, Any],
    *,
    wide: bool = False,
) -> Any:
    """Call a module with other parameters, by input name, or a function with them as keywords.

    ``wide``: the module's other float parameters and its float buffers take part as float64.
    """
    from torch import nn
    from torch.func import functional_call

    if not isinstance(callee, nn.Module):
        return callee(*positional, **keyword, **parameters)
    inside = {path: parameters[name] for name, (path, _) in input_names(callee).items() if name in parameters}
    if wide:
        held = (*callee.named_parameters(), *callee.named_buffers())
        inside = {n: t.detach().double() for n, t in held if n not in inside and t.is_floating_point()} | inside
    return functional_call(callee, inside, tuple(positional), dict(keyword))
