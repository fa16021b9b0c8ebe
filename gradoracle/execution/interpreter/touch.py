"""Touch: one access of elements of a launch's memory, as a record takes it."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from triton._C.libtriton import interpreter as access

from gradoracle.execution.interpreter.footprint import View
from gradoracle.execution.interpreter.values import Array


class Touch(NamedTuple):
    """One access of elements `at` of a view's footprint, by the programs numbered `who`.

    Either `several` programs in lockstep make the same access, or `who` is one program, or one per element.
    """

    view: View
    at: Array
    who: Any
    several: bool
    place: int
    bits: Array | None  # what a store writes, one for each element

    @property
    def each(self) -> bool:
        """Whether each element has a program of its own."""
        return isinstance(self.who, np.ndarray) and self.who.ndim > 0

    def changes(self) -> Array:
        """Where a store writes other bits than there are, those that another program has stored."""
        if self.bits is None or self.bits.dtype.itemsize != self.view.itemsize:
            return np.ones(self.at.shape, np.bool_)
        kind = np.dtype(f"u{self.view.itemsize}")
        addresses = np.ascontiguousarray(self.view.footprint.addresses(self.at).astype(np.uint64))
        there = access.load(addresses, np.ones(self.at.shape, np.bool_), np.zeros(self.at.shape, kind), kind)
        changes: Array = there != np.ascontiguousarray(self.bits).view(kind)
        return changes


def part(array: Array | None, where: Array) -> Array | None:
    """Some elements of an array, if there is one."""
    return None if array is None else array[where]


def differ_from_the_last(at: Array, bits: Array) -> Array:
    """Where bits differ from those with which the same element stands last."""
    flat = at.reshape(-1)
    order = np.argsort(flat, kind="stable")
    last = order[np.searchsorted(flat[order], flat, side="right") - 1]
    raw = np.ascontiguousarray(bits).view(f"u{bits.dtype.itemsize}").reshape(-1)
    return (raw != raw[last]).reshape(at.shape)
