"""State: inputs that a call of a kernel changes, such as running statistics, whose new values are outputs."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping

from torch import Tensor

from gradoracle.model.signature import Defined, TensorSpec


def returning_state(
    function: Callable[..., object], label: str, family: Defined, state: Mapping[str, str]
) -> Callable[..., object]:
    """A kernel's function that also returns what its state is after the call, at the places of these outputs.

    State takes part without a gradient: what a call writes to it autograd does not see.

    Args:
        function: called with the family's inputs in order; it changes state in place.
        label: the kernel's name.
        family: whose definition returns the new state.
        state: by input: the output that is its new value.

    Raises:
        ValueError: there is no such input or output, or they are not alike.
    """
    signature = family.signature
    places = [place[0].name for place in signature.places if len(place) == 1]
    inputs = {spec.name: spec for spec in signature.inputs if not spec.optional and spec.name in places}
    outputs = {spec.name: spec for spec in signature.all_outputs or signature.outputs}
    for name, after in state.items():
        _require(name, inputs, label, f"inputs of {family.name} that are always given, by position")
        _require(after, outputs, label, f"outputs of {family.name}")
        own, new = inputs[name], outputs[after]
        if (own.dims, own.kind, own.dtype) != (new.dims, new.kind, new.dtype):
            unlike = f"{name}[{' '.join(own.dims)}] and {after}[{' '.join(new.dims)}]"
            raise ValueError(f"kernel {label}: state has {unlike}; expected two of the same dims and dtype")
    positions = {place[0].name: position for position, place in enumerate(signature.places)}

    @functools.wraps(function)
    def call(*tensors: Tensor, **options: object) -> object:
        kept = {after: tensors[positions[name]].detach() for name, after in state.items()}
        given = list(tensors)
        for name, after in state.items():
            given[positions[name]] = kept[after]
        found = function(*given, **options)
        rest = list(found) if isinstance(found, (tuple, list)) else [] if found is None else [found]
        whole: list[object] = []
        for name in signature.all_returned(options):
            if name in kept:
                whole.append(kept[name])
            elif rest:
                whole.append(rest.pop(0))
        return (*whole, *rest)

    return call


def _require(name: str, known: Mapping[str, TensorSpec], label: str, what: str) -> None:
    if name not in known:
        raise ValueError(
            f"kernel {label}: state has {name!r}; expected one of the {what}: {', '.join(known) or 'none'}"
        )
