"""Integers: the integer outputs of a definition, and which of their elements rounding may change.

An index or a flag has no rounding error: it is right, or it belongs to other values. Where two values are closer than
rounding tells apart, a correct kernel may give either index. The definition runs again with each result of an operation
off by up to a rounding. That shows how far the values are off among which an output chooses (sort, topk, max, argmax),
so that any other index can be judged by its value; other outputs are not decided where they differ from run to run.
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
from gradoracle.model.contract import Contract
from gradoracle.model.derivative import as_tuple
from gradoracle.model.family import Family
from gradoracle.model.finding import LOCAL_SIGMA
from gradoracle.model.formats import FORMATS
from gradoracle.oracle.exact.definition import evaluated
from gradoracle.oracle.rounding import effects

PROBES = 16
_CHOOSING = effects.names("sort topk max min argmax argmin")
_WHOLE = effects.names("floor ceil round trunc add sub rsub mul neg abs sum")
"""Operations that round no integer: floats hold those up to one over the unit roundoff."""
_MOVING = (effects.MOVE | effects.VIEW | effects.names("detach contiguous")) - effects.names("gather index cat scatter")


@dataclass(frozen=True)
class Choice:
    """Indices that order values along a dim.

    Attributes:
        values: float64, [*, n], among which is chosen.
        room: of the same shape, how far rounding may move each of them.
        index: [*, k], the choice in truth.
        stable: whether equal values keep their order.
    """

    values: Tensor
    room: Tensor
    index: Tensor
    stable: bool

    def wrong(self, found: Tensor, at: Tensor) -> Tensor:
        """Which elements of ``found`` are no choice of a correct kernel; ``at`` places them in the flat ``index``.

        The index at a rank must be one of the line, whose value is that of the rank within what rounding may move both,
        and must have no other rank.
        """
        count, ranks = self.values.shape[-1], self.index.shape[-1]
        inside = (found >= 0) & (found < count)
        line, own = at // ranks * count, found.clamp(0, count - 1)
        true = line + self.index.reshape(-1)[at]
        given = line + own
        values, room = self.values.reshape(-1), self.room.reshape(-1)
        equal = (values[given] == values[true]) | (values[given].isnan() & values[true].isnan())
        allowed = room[given] + room[true]
        near = equal | ((values[given] - values[true]).abs() <= allowed)
        if self.stable:
            near &= (allowed > 0) | (given == true)
        taken = torch.zeros(self.index.shape, dtype=torch.int64).reshape(-1) - 1
        taken[at.reshape(-1)] = own.reshape(-1)
        lines = taken.view(-1, ranks)
        again = (lines[:, :, None] == lines[:, None, :]) & (lines[:, :, None] >= 0)
        twice = again.sum(-1).reshape(-1)[at] > 1
        return ~inside | ~near | twice


@dataclass(frozen=True)
class Integers:
    """One integer output.

    Attributes:
        value: of the definition on float64 inputs.
        undecided: True where rounding may change it; False throughout where it is a choice.
        choice: the choice that its elements are, and their places in it; None where they are computed otherwise.
    """

    value: Tensor
    undecided: Tensor
    choice: tuple[Choice, Tensor] | None = None

    def wrong(self, found: Tensor) -> Tensor:
        """Which elements of what a kernel gave, int64 of the same shape, are wrong."""
        differs = (found != self.value.to(torch.int64)) & ~self.undecided
        if self.choice is None or not differs.any():
            return differs
        choice, at = self.choice
        return choice.wrong(found, at)


def integers(family: Family, sample: Sample, contract: Contract) -> dict[str, Integers]:
    """The integer outputs by name, under a contract's coarsest rounding.

    Raises:
        Raises: the definition raises.
    """
    given = {name: tensor.detach().to("cpu") for name, tensor in sample.inputs.items()}
    given = {name: x.double() if x.is_floating_point() else x for name, x in given.items()}
    formats = (contract.operand, contract.accumulate, contract.elementwise, contract.output, contract.constants)
    unit = max(FORMATS[each].unit_roundoff for each in formats)
    tiny = max(FORMATS[each].smallest_normal for each in formats)
    plain = _Choosing()
    with plain:
        exact = _returned(family, given, sample.options)
    chosen = {name: plain.choice(value) for name, value in exact.items()}
    undecided = {name: torch.zeros_like(value, dtype=torch.bool) for name, value in exact.items()}
    squares = [torch.zeros_like(choice.values) for choice in plain.choices]
    for probe in range(PROBES):
        if any(found is None for found in chosen.values()):
            rounding = _Rounding(unit, probe)
            moved = {name: rounding.off(x) if x.is_floating_point() else x for name, x in given.items()}
            with rounding:
                found = _returned(family, moved, sample.options)
            for name, value in found.items():
                undecided[name] |= value != exact[name]
        if squares and any(chosen.values()):  # values that are given, and not computed, have no rounding
            with (rounding := _Rounding(unit, PROBES + probe)):
                _returned(family, given, sample.options)
            for total, own, other in zip(squares, plain.choices, rounding.choices, strict=True):
                apart = torch.where(own.values == other.values, 0.0, own.values - other.values)
                total += torch.nan_to_num(apart).square()
    rooms = [torch.where(total > 0, LOCAL_SIGMA * (total / PROBES).sqrt() + tiny, 0.0) for total in squares]
    results = {}
    for name, value in exact.items():
        if (found_in := chosen[name]) is None:
            results[name] = Integers(value, undecided[name])
            continue
        number, at = found_in
        none = torch.zeros_like(undecided[name])
        results[name] = Integers(value, none, (replace(plain.choices[number], room=rooms[number]), at))
    return results


def _returned(family: Family, inputs: Mapping[str, Tensor], options: Mapping[str, Any]) -> dict[str, Tensor]:
    found = evaluated(replace(family, definition=family), inputs, options)  # called, it gives its integers too
    by_name = dict(zip(family.signature.all_returned(options), as_tuple(found), strict=True))
    return {spec.name: by_name[spec.name] for spec in family.signature.whole if spec.name in by_name}


class _Choosing(TorchDispatchMode):
    """Keeps the choices that a definition makes, and which tensors hold nothing but indices of one.

    Attributes:
        choices: in the order in which they are made, without any room.
    """

    def __init__(self) -> None:
        super().__init__()
        self.choices: list[Choice] = []
        self._places: dict[int, tuple[Tensor, int, Tensor]] = {}  # id -> that tensor, its choice, places in its index

    def choice(self, value: Tensor) -> tuple[int, Tensor] | None:
        """Which choice a tensor holds indices of, and their places there; None where it holds anything else."""
        known = self._places.get(id(value))
        return None if known is None else known[1:]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """What an operation gives."""
        return self._seen(func, args, kwargs or {}, func(*args, **kwargs or {}))

    def _seen(self, func: Any, args: Any, kwargs: Any, found: Any) -> Any:
        name = func._schema.name.removeprefix("aten::")
        index = found[1] if isinstance(found, (tuple, list)) and len(found) == 2 else found
        if name in _CHOOSING and isinstance(index, Tensor) and index.dtype is torch.int64:
            self._choose(func, args, kwargs, index)
        elif name in _MOVING and isinstance(found, Tensor) and isinstance(args[0], Tensor):
            known = self._places.get(id(args[0]))
            if known is not None and sum(isinstance(x, Tensor) for x in tree_leaves((args, kwargs))) == 1:
                places = known[2] if name == "_to_copy" else func(known[2], *args[1:], **kwargs)
                self._places[id(found)] = found, known[1], places
        return found

    def _choose(self, func: Any, args: Any, kwargs: Any, index: Tensor) -> None:
        """Keep a choice; its dim becomes the last."""
        x = args[0].detach()
        given = {each.name: value for each, value in zip(func._schema.arguments, args, strict=False)} | kwargs
        dim = given.get("dim", None if "arg" in func._schema.name else -1)
        if not x.is_floating_point() or not x.dim() or not x.numel():
            return
        at = torch.arange(index.numel())
        if dim is None:
            values, chosen, places = x.reshape(1, -1), index.reshape(1, 1), at.view(index.shape)
        else:
            keeps = index.dim() == x.dim()
            own = index if keeps else index.unsqueeze(dim)
            values, chosen = x.movedim(dim, -1), own.movedim(dim, -1)
            places = at.view(chosen.shape).movedim(-1, dim)
            places = places if keeps else places.squeeze(dim)
        stable = given.get("stable") is True
        number = len(self.choices)
        self.choices.append(Choice(values.clone(), torch.zeros_like(values), chosen.clone(), stable))
        self._places[id(index)] = index, number, places


class _Rounding(_Choosing):
    """Each float result that an operation computes is off by up to a rounding.

    What only moves values is exact, and so are integers that the format holds, as sums, products and whole parts.
    """

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
        self._seen(func, args, kwargs or {}, found)
        given = [x.reshape(-1) for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor) and x.is_floating_point()]
        known = torch.cat(given) if given else None
        whole = func._schema.name.removeprefix("aten::") in _WHOLE

        def rounded(value: Any) -> Any:
            if known is None or not isinstance(value, Tensor) or not value.is_floating_point():
                return value
            exact = torch.isin(value, known)
            if whole:
                exact |= (value == value.round()) & (value.abs() * self._unit <= 1)
            return torch.where(exact, value, self.off(value))

        return tree_map(rounded, found)
