"""Scalars: number fields, and what rules for the operators of a graph over any field are made of.

A real tensor is a numpy object array of the field's numbers; integer and boolean bookkeeping, and constants that have
not met a computed number, stay torch tensors and cost nothing. The meaning of an operator is written once, in the
``operators_*`` files; a number system supplies a ``Field``.
"""

from __future__ import annotations

import functools
import math
import operator
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.fx import Node

Array = NDArray[Any]  # of the field's numbers, dtype object
LESS, EQUAL, GREATER, UNKNOWN, UNORDERED = -1, 0, 1, 2, 3  # UNKNOWN at this precision; UNORDERED: one is NaN


class Undecided(Exception):
    """A comparison that a shape or an index depends on cannot be decided at this precision."""


@dataclass(frozen=True)
class Truths:
    """A boolean tensor with unknown elements: ``values`` is valid where ``unknown`` is False."""

    values: Tensor
    unknown: Tensor


def truths(values: Any, unknown: Any) -> Tensor | Truths:
    """Booleans (arrays or tensors): a plain tensor where all of them are known."""
    known, open_ = torch.as_tensor(values), torch.as_tensor(unknown)
    return Truths(known, open_) if bool(open_.any()) else known


class Field(ABC):
    """A number system: what a reading must supply, and what follows from it for arrays.

    A number is finite, +-inf, NaN (as in PyTorch: -inf - -inf) or unknown at this precision. Zero has no sign. Where an
    operation leaves the finite numbers, its value is that of PyTorch in float64 for operands of the same kind:
    log 0 = -inf, 1/0 = inf, 0 * inf = NaN.
    """

    reading: str
    functions: Mapping[str, Callable[..., Any]]  # operator -> on numbers: correct for finite operands
    unknown: Any

    @abstractmethod
    def context(self) -> AbstractContextManager[Any]:
        """Sets the precision, and restores the previous one."""

    @abstractmethod
    def exact(self, x: float | int | bool) -> Any:
        """The number that a float64 (inf and NaN too) or an integer is."""

    @abstractmethod
    def constant(self, name: str) -> Any:
        """``ln2``, ``ln10``, ``2/sqrt(pi)``, ``pi`` to the working precision."""

    @abstractmethod
    def is_finite(self, x: Any) -> bool:
        """Whether x is known to be finite."""

    @abstractmethod
    def kind(self, x: Any) -> float | None:
        """0.0 for a finite number, inf, -inf or nan for those, None for unknown."""

    @abstractmethod
    def order(self, x: Any, y: Any) -> int:
        """LESS, EQUAL or GREATER; UNKNOWN if that is not decided; UNORDERED if x or y is NaN."""

    @abstractmethod
    def hull(self, x: Any, y: Any) -> Any:
        """A number that stands for either of the two."""

    @abstractmethod
    def midpoint(self, x: Any) -> Any:
        """An exact number in x."""

    @abstractmethod
    def floor(self, x: Any) -> int | None:
        """The largest integer that is at most the finite x; None if that is not decided."""

    @abstractmethod
    def product(self, a: Array, b: Array) -> Array:
        """[n, k] times [k, m], n, k, m >= 1."""

    # What follows.

    @functools.cached_property
    def _ufuncs(self) -> dict[str, tuple[Any, int]]:
        return {}

    @functools.cached_property
    def _finite(self) -> Any:
        return np.frompyfunc(self.is_finite, 1, 1)

    def finite(self, x: Array) -> NDArray[np.bool_]:
        """Which elements are known to be finite."""
        return np.asarray(self._finite(x), dtype=np.bool_)

    def apply(self, name: str, *operands: Array) -> Array:
        """The operator ``name`` element by element, with broadcasting."""
        if name not in self._ufuncs:
            self._ufuncs[name] = (np.frompyfunc(self.functions[name], len(operands), 1), len(operands))
        out = boxed(self._ufuncs[name][0](*operands))
        good = self.finite(out)
        if not good.all():
            spread = np.broadcast_arrays(*operands)
            for index in _where(~good):
                out[index] = self.special(name, *(operand[index] for operand in spread))
        return out

    def special(self, name: str, *operands: Any) -> Any:
        """The result of an operation that does not give a finite number by arithmetic."""
        kinds = [self.kind(x) for x in operands]
        if None in kinds:
            return self.unknown
        likes = self._alike(name, operands, [float(k) for k in kinds if k is not None])
        if likes is None:
            return self.unknown
        if name == "atan" and math.isinf(likes[0]):
            return self.constant("pi") * self.exact(math.copysign(0.5, likes[0]))
        value = _ieee(name, *likes)
        if math.isfinite(value) and not any(kinds):
            return self.unknown  # precision or range ran out
        return self.exact(value)

    def _alike(self, name: str, operands: Sequence[Any], kinds: list[float]) -> list[float] | None:
        """float64 numbers for which PyTorch's operator has the same special value; None if that is not decided."""
        if name in ("add", "sub"):
            return [1.0 if kind == 0.0 else kind for kind in kinds]
        if name == "pow":
            return self._alike_pow(operands, kinds)
        likes = []
        for x, kind in zip(operands, kinds, strict=True):
            edge = -1.0 if name == "log1p" else 0.0
            side = self.order(x, self.exact(edge)) if kind == 0.0 else EQUAL
            if side == UNKNOWN:
                return None
            likes.append(edge + side if kind == 0.0 else kind)
        return likes

    def _alike_pow(self, operands: Sequence[Any], kinds: list[float]) -> list[float] | None:
        (x, y), (kx, ky) = operands, kinds
        if kx == 0.0:
            sides = [self.order(x, self.exact(edge)) for edge in (-1.0, 0.0, 1.0)]
            if UNKNOWN in sides:
                return None
            kx = {-3: -2.0, -2: -1.0, -1: -0.5, 0: 0.0, 1: 0.5, 2: 1.0, 3: 2.0}[sum(sides)]
        if ky == 0.0:
            side, low = self.order(y, self.exact(0.0)), self.floor(y)
            above = UNKNOWN if low is None else self.order(y, self.exact(low))
            if side == UNKNOWN or (above == UNKNOWN and kx <= 0):
                return None
            # between two integers; an even integer; an odd one
            ky = side * (0.5 if low is None or above != EQUAL else 2.0 if low % 2 == 0 else 1.0)
        return [kx, ky]

    def lift(self, x: Tensor | Truths | float | int | bool) -> Array:
        """A torch tensor or a Python number as an array of the field's numbers."""
        if isinstance(x, Truths):
            known = self.lift(x.values)
            known = known.copy()
            zero, one = self.exact(0.0), self.exact(1.0)
            for index in _where(x.unknown.numpy()):
                known[index] = self.hull(zero, one)
            return known
        if not isinstance(x, Tensor):
            return boxed(self.literal(x))
        values = x.detach().cpu()
        if values.numel() > 1 and values.is_floating_point() and bool((values == values.flatten()[0]).all()):
            return np.broadcast_to(boxed(self.exact(float(values.flatten()[0]))), tuple(values.shape))
        values = values.double() if values.is_floating_point() else values
        return boxed(np.frompyfunc(self.exact, 1, 1)(values.numpy().astype(object)))

    def literal(self, x: float | int | bool) -> Any:
        """A number written in a graph; a literal of PyTorch's derivative formulas is the constant it stands for."""
        name = LITERALS.get(x) if isinstance(x, float) else None
        return self.exact(x) if name is None else self.constant(name)

    def orders(self, x: Array, y: Array) -> NDArray[np.int8]:
        """``order`` element by element, with broadcasting."""
        return np.asarray(boxed(np.frompyfunc(self.order, 2, 1)(x, y)), dtype=np.int8)

    def sum(self, x: Array, axes: tuple[int, ...], keepdims: bool = False) -> Array:
        """Sums over ``axes``; the empty sum is 0."""
        return self._reduced("add", np.add, x, axes, keepdims, 0.0)

    def prod(self, x: Array, axes: tuple[int, ...], keepdims: bool = False) -> Array:
        """Products over ``axes``; the empty product is 1."""
        return self._reduced("mul", np.multiply, x, axes, keepdims, 1.0)

    def _reduced(self, name: str, ufunc: Any, x: Array, axes: tuple[int, ...], keepdims: bool, empty: float) -> Array:
        if any(x.shape[axis] == 0 for axis in axes):
            shape = ufunc.reduce(np.zeros(x.shape), axis=axes, keepdims=keepdims).shape
            return np.broadcast_to(boxed(self.exact(empty)), shape)
        if not axes:
            return x
        out = boxed(ufunc.reduce(x, axis=axes, keepdims=keepdims))
        good = self.finite(out)
        if not good.all():
            bad = out if keepdims else np.expand_dims(out, axes)
            lines = np.moveaxis(x, axes, range(x.ndim - len(axes), x.ndim))
            for index in _where(~self.finite(bad)):
                line = lines[tuple(i for axis, i in enumerate(index) if axis not in axes)].ravel()
                bad[index] = functools.reduce(lambda a, b: self.total(name, a, b), line)
        return out

    def total(self, name: str, a: Any, b: Any) -> Any:
        """One operation on two numbers of any kind."""
        value = self.functions[name](a, b)
        return value if self.is_finite(value) else self.special(name, a, b)

    def matmul(self, a: Array, b: Array) -> Array:
        """[n, k] times [k, m]."""
        (n, k), m = a.shape, b.shape[1]
        if 0 in (n, k, m):
            return np.broadcast_to(boxed(self.exact(0.0)), (n, m))
        out = self.product(a, b)
        for i, j in _where(~self.finite(out)):
            terms = (self.total("mul", x, y) for x, y in zip(a[i], b[:, j], strict=True))
            out[i, j] = functools.reduce(lambda x, y: self.total("add", x, y), terms)
        return out


# float64 literals of PyTorch's derivative formulas, and the constants they stand for.
LITERALS: dict[float, str] = {
    math.log(2): "ln2",
    math.log(10): "ln10",
    2.3025850929940456: "ln10",  # as derivatives.yaml writes it
    2 / math.sqrt(math.pi): "2/sqrt(pi)",
    math.pi: "pi",
}


@functools.lru_cache(maxsize=4096)
def _ieee(name: str, *operands: float) -> float:
    return float(getattr(torch, name)(*(torch.tensor(x, dtype=torch.float64) for x in operands)))


def boxed(x: Any) -> Array:
    """A numpy object array, also of one number (numpy hands that back bare)."""
    if isinstance(x, np.ndarray):
        return x
    box = np.empty((), dtype=object)
    box[()] = x
    return box


def _where(mask: NDArray[np.bool_]) -> Iterator[tuple[int, ...]]:
    return zip(*(axis.tolist() for axis in np.nonzero(mask)), strict=True) if mask.ndim else iter([()] if mask else [])


Value = Any  # Array | Tensor | Truths | list of them | Python number
Rule = Callable[..., Value]


@dataclass
class Reader:
    """The first argument of a rule: the field, and the node to compute."""

    field: Field
    node: Node

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the node's value."""
        return tuple(self.node.meta["val"].shape)

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the node's value."""
        dtype: torch.dtype = self.node.meta["val"].dtype
        return dtype

    def real(self, x: Value) -> Array:
        """A value as an array of the field's numbers."""
        return x if isinstance(x, np.ndarray) else self.field.lift(x)


RULES: dict[str, Rule] = {}

# What both number systems compute alike; each adds its own functions.
ARITHMETIC: Mapping[str, Callable[..., Any]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "div": operator.truediv,
    "neg": operator.neg,
    "abs": abs,
    "reciprocal": lambda x: 1 / x,
}


def rule(*operators: str) -> Callable[[Rule], Rule]:
    """Registers a rule ``f(reader, *args, **kwargs)`` for ATen operators, as ``aten.mul.Tensor`` names them."""

    def register(function: Rule) -> Rule:
        RULES.update(dict.fromkeys(operators, function))
        return function

    return register


def names(text: str) -> list[str]:
    """The words of a text, for tables of operators."""
    return text.split()


# Operators that only move numbers, or make new ones exactly: constants stay torch tensors through them.
CONSTANT: set[str] = set()
