"""Integers: the integer outputs of a definition, and which of their elements rounding may change.

An index or a flag has no rounding error: it is right, or it belongs to other values. Where two values are closer than
rounding tells apart, a correct kernel may give either index; so the definition runs again with each result of an
operation off by up to a rounding, and elements that differ from run to run are not decided.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from gradoracle.cases.sample import Sample
from gradoracle.model.contract import UNIT_ROUNDOFF, Contract
from gradoracle.model.derivative import as_tuple
from gradoracle.model.family import Family
from gradoracle.oracle.exact.definition import evaluated

PROBES = 16


@dataclass(frozen=True)
class Integers:
    """One integer output.

    Attributes:
        value: of the definition on float64 inputs.
        undecided: True where rounding may change it.
    """

    value: Tensor
    undecided: Tensor


def integers(family: Family, sample: Sample, contract: Contract) -> dict[str, Integers]:
    """The integer outputs by name, under a contract's coarsest rounding.

    Raises:
        Raises: the definition raises.
    """
    given = {name: tensor.detach().to("cpu") for name, tensor in sample.inputs.items()}
    given = {name: x.double() if x.is_floating_point() else x for name, x in given.items()}
    formats = (contract.operand, contract.accumulate, contract.elementwise, contract.output, contract.constants)
    unit = max(UNIT_ROUNDOFF[each] for each in formats)
    exact = _returned(family, given, sample.options)
    undecided = {name: torch.zeros_like(value, dtype=torch.bool) for name, value in exact.items()}
    for probe in range(PROBES):
        rounding = _Rounding(unit, probe)
        moved = {name: rounding.off(x) if x.is_floating_point() else x for name, x in given.items()}
        with rounding:
            found = _returned(family, moved, sample.options)
        for name, value in found.items():
            undecided[name] |= value != exact[name]
    return {name: Integers(value, undecided[name]) for name, value in exact.items()}


def _returned(family: Family, inputs: Mapping[str, Tensor], options: Mapping[str, Any]) -> dict[str, Tensor]:
    found = evaluated(replace(family, definition=family), inputs, options)  # called, it gives its integers too
    by_name = dict(zip(family.signature.all_returned(options), as_tuple(found), strict=True))
    return {spec.name: by_name[spec.name] for spec in family.signature.whole if spec.name in by_name}


class _Rounding(TorchDispatchMode):
    """Each float result that an operation computes is off by up to a rounding; what only moves values is exact."""

    def __init__(self, unit: float, seed: int) -> None:
        super().__init__()
        self._unit, self._dice = unit, torch.Generator().manual_seed(seed)

    def off(self, values: Tensor) -> Tensor:
        """Each value off by its own factor, up to the unit roundoff."""
        shift = 2 * torch.rand(values.shape, generator=self._dice, dtype=values.dtype) - 1
        return values * (1 + self._unit * shift)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """What an operation gives, and its error."""
        found = func(*args, **kwargs or {})
        if any(each.alias_info is not None for each in func._schema.returns):  # a view, or in place
            return found
        given = [x.reshape(-1) for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor) and x.is_floating_point()]
        known = torch.cat(given) if given else None

        def rounded(value: Any) -> Any:
            if known is None or not isinstance(value, Tensor) or not value.is_floating_point():
                return value
            return torch.where(torch.isin(value, known), value, self.off(value))

        return tree_map(rounded, found)
