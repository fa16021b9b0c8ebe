"""Memory estimate: the least memory that a case needs, known before any tensor is built."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from gradoracle.execution.environment import memory
from gradoracle.model.case import Case
from gradoracle.model.errors import UsageError
from gradoracle.model.family import Family
from gradoracle.model.formats import DTYPES
from gradoracle.model.recurrence import one_step, read_by
from gradoracle.model.signature import TensorSpec, cotangent_name, tangent_name
from gradoracle.oracle.exact.definition import called

_ORACLE_WIDTH = 8  # the oracle computes in float64
_MOST_OPERATORS = 20_000  # operators of a definition that are looked at; later ones are not counted
_UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")


@dataclass(frozen=True)
class Demand:
    """Bytes held at one time whatever is judged, and the largest tensor among them in words."""

    held: int
    largest: str


def require(case: Case, family: Family, there: int | None = None, where: str = "here") -> None:
    """Check that a case, which fits its family, fits into ``there`` bytes, by default this machine's memory.

    Nothing is allocated.

    Raises:
        UsageError: what it needs at the very least, what there is, and what to do.
    """
    there = memory() if there is None else there
    needed = demand(case, family, there)
    if needed.held > there:
        sizes = " ".join(f"{dim}={size}" for dim, size in case.dims.items())
        raise UsageError(
            f"a {case.dtype} case of {sizes} needs at least {_text(needed.held)} of memory ({needed.largest}); "
            f"available {where}: {_text(there)}; choose smaller sizes, or a machine with more memory"
        )


def demand(case: Case, family: Family, there: int) -> Demand:
    """The least that a case needs: its own tensors; or the oracle's inputs and the largest tensor of the definition.

    Args:
        case: a case that fits the family.
        family: its definition is run on tensors without storage, at the sizes of the case.
        there: bytes. A definition whose tensors cannot come near it is not run: none is taken to have more elements
            than the product of two of the case's.
    """
    present = [spec for spec in family.signature.inputs if not spec.optional or spec.name in case.draws]
    outputs = [spec for spec in family.signature.returned(case.options) if spec.kind == "float"]
    own = {spec.name: (_elements(spec, case), _width(spec, case)) for spec in present}
    own |= {tangent_name(s.name): own[s.name] for s in present if s.kind == "float"}
    own |= {cotangent_name(s.name): (_elements(s, case), _width(s, case)) for s in outputs}
    name, (count, width) = max(own.items(), key=lambda item: math.prod(item[1]))
    given = Demand(sum(map(math.prod, own.values())), f"{name} alone {_text(count * width)}")
    if family.scalable is not None and family.scalable.outgrown(case.dims):
        return given
    if given.held > there or max(count for count, _ in own.values()) ** 2 * _ORACLE_WIDTH < there:
        return given
    inside, shape = _inside(family, present, case)
    oracle = inside + _ORACLE_WIDTH * sum(own[spec.name][0] for spec in present)
    words = f"a tensor {list(shape)} inside the definition, in float64, {_text(inside)}"
    return Demand(oracle, words) if oracle > given.held else given


class _Largest(TorchDispatchMode):
    """Notes the largest storage that an operator gives."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes, self.operators = 0, 0
        self.shape: tuple[int, ...] = ()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.operators += 1
        if self.operators > _MOST_OPERATORS:
            raise StopIteration
        given = func(*args, **(kwargs or {}))
        for tensor in given if isinstance(given, (tuple, list)) else (given,):
            if isinstance(tensor, Tensor) and (size := tensor.untyped_storage().nbytes()) > self.bytes:
                self.bytes, self.shape = size, tuple(tensor.shape)
        return given


def _inside(family: Family, present: list[TensorSpec], case: Case) -> tuple[int, tuple[int, ...]]:
    """(bytes, shape) of the largest tensor that the definition makes; 0 bytes where it cannot be run without values."""
    options: Mapping[str, Any] = {spec.name: spec.default for spec in family.signature.options} | dict(case.options)
    largest = _Largest()
    with torch.device("meta"), torch.no_grad():
        dtypes = {"float": torch.float64, "int": torch.int64}
        inputs = {spec.name: torch.empty(spec.shape(case.dims), dtype=dtypes[spec.kind]) for spec in present}
        try:
            with largest, read_by(one_step):
                called(family, inputs, options)
        except Exception:  # it reads values, or is wrong: that is reported where the definition is tried
            pass
    return largest.bytes, largest.shape


def _elements(spec: TensorSpec, case: Case) -> int:
    return math.prod(spec.shape(case.dims))


def _width(spec: TensorSpec, case: Case) -> int:
    return DTYPES[spec.held(case.dtype)].itemsize if spec.kind == "float" else 8  # at most


def _text(count: int) -> str:
    """Bytes in the unit that leaves one to four digits."""
    unit = min(max(count.bit_length() - 1, 0) // 10, len(_UNITS) - 1)
    return f"{count / (1 << 10 * unit):.3g} {_UNITS[unit]}"
