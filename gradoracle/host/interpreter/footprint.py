"""Footprints: who read and wrote each element of a launch's memory last, where and when."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from triton.tools.tensor_descriptor import TensorDescriptor

from gradoracle.host.interpreter.values import Array

Tensor = Any  # of torch, which is not imported before a kernel brings one
_SPARSE = 64  # places per element of a tensor above which elements are searched for instead of marked
_BASE = "base"  # in a path: of a tensor descriptor
MANY = -1  # instead of the number of a program: more than one


class Footprint:
    """The last accesses of each element of a storage in one launch; programs are numbered in the grid from 1.

    Args:
        base, extent: the storage's address and bytes.
        unit: bytes of an element.
        tracked: True if the launch may write to it at all.
        places: the elements of the storage that are tracked, in ascending order; None for all.

    Attributes:
        tracked: True if the launch may write to it.
        written: True once an element was written.
        base, end: the addresses of the storage's first byte and of the one past its last.
    """

    def __init__(self, base: int, extent: int, unit: int, tracked: bool, places: Array | None = None) -> None:
        self.base, self.end = base, base + extent
        self._unit, self._places = unit, places
        self.tracked, self.written = tracked, False
        every = -(-extent // unit) if places is None else places.size
        count = every if tracked else 0
        self.writer, self.reader = np.zeros(count, np.int32), np.zeros(count, np.int32)
        self.when_written, self.when_read = np.zeros(count, np.int64), np.zeros(count, np.int64)
        self.where_written, self.where_read = np.zeros(count, np.int16), np.zeros(count, np.int16)
        self.lane = np.zeros(count, np.int64)  # that has loaded it (record.Lanes)
        self.atomic = np.zeros(count, np.bool_)

    def elements(self, view: View, offsets: Array) -> Array:
        """The elements at byte offsets from a view's first element."""
        found: Array = (offsets + (view.base - self.base)) // self._unit
        return found if self._places is None else np.searchsorted(self._places, found).clip(max=self._places.size - 1)

    def addresses(self, elements: Array) -> Array:
        """The addresses of elements."""
        places = elements if self._places is None else self._places[elements]
        return places.astype(np.uint64) * np.uint64(self._unit) + np.uint64(self.base)


@dataclass
class View:
    """One tensor argument: its name and, in bytes, where its elements lie.

    Attributes:
        name: the kernel's argument.
        base, extent: the address of its first element, and the bytes from there to the end of its last.
        itemsize: the bytes of an element.
        unwritten: the bits of an element that was allocated and not written; None if it was allocated with values.
    """

    name: str
    path: tuple[Any, ...]
    base: int
    extent: int
    itemsize: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dense: bool
    footprint: Footprint
    unwritten: int | None
    _own: Array | None = field(default=None)

    def handle_in(self, values: Mapping[str, Any]) -> Any:
        """The handle of this argument among the converted arguments of a launch."""
        found: Any = values[self.path[0]]
        for place in self.path[1:]:
            if place == _BASE:
                return found.handle.base
            found = found[place]
        return found.handle

    def outside(self, offsets: Array, lowest: int, highest: int, width: int) -> Array | None:
        """Which byte offsets from the first element belong to no element; None if all do."""
        within = lowest >= 0 and highest + width <= self.extent
        if within and (self.dense or width != self.itemsize):
            return None
        bad = (offsets < 0) | (offsets + width > self.extent)
        if not self.dense and width == self.itemsize:
            bad = bad | ~self._are_elements(np.where(bad, 0, offsets // self.itemsize))
        return bad if bad.any() else None

    def beyond_storage(self, offsets: Array, lowest: int, highest: int, width: int) -> Array | None:
        """Which byte offsets from the first element lie outside of the storage; None if none does."""
        first, end = self.footprint.base - self.base, self.footprint.end - self.base
        if lowest >= first and highest + width <= end:
            return None
        return (offsets < first) | (offsets + width > end)

    def index(self, address: int) -> tuple[int, ...] | int:
        """The index of the element at an address; its distance from the first, in elements, if there is none."""
        place = (address - self.base) // self.itemsize
        index = index_at(place, self.shape, self.strides) if self.extent else None
        return place if index is None else index

    def _are_elements(self, places: Array) -> Array:
        """Which places, counted in elements from the first, belong to an element."""
        count = self.extent // self.itemsize
        if self._own is None:
            at = _places(self.shape, self.strides)
            if count > _SPARSE * at.size:
                self._own = np.sort(at)
            else:
                self._own = np.zeros(count, np.bool_)
                self._own[at] = True
        if self._own.dtype == np.bool_:
            found: Array = self._own[places]
            return found
        nearest = np.minimum(np.searchsorted(self._own, places), self._own.size - 1)
        return np.equal(self._own[nearest], places)


def views_of(
    given: Mapping[str, Any], stored: frozenset[str] | None, unwritten: Callable[[Tensor], int | None]
) -> list[View]:
    """The tensors among a launch's arguments, those that share memory with one footprint.

    Args:
        given: the arguments by name; tuples and tensor descriptors are searched, too.
        stored: the names of those that the kernel may write to; None for all.
        unwritten: the bits of a tensor's elements that were allocated and not written, None if it has values.
    """
    found = [(path, tensor) for name, value in given.items() for path, tensor in _tensors((name,), value)]
    storages: dict[int, list[tuple[tuple[Any, ...], Tensor]]] = {}
    for path, tensor in found:
        storages.setdefault(tensor.untyped_storage().data_ptr(), []).append((path, tensor))
    views = []
    for address, members in storages.items():
        unit = min(tensor.element_size() for _, tensor in members)
        tracked = stored is None or any(path[0] in stored for path, _ in members)
        extent = members[0][1].untyped_storage().nbytes()
        places = None
        if tracked and extent // unit > _SPARSE * sum(tensor.numel() for _, tensor in members):
            own = [_places(t.shape, t.stride()) * t.element_size() + t.data_ptr() - address for _, t in members]
            places = np.unique(np.concatenate(own) // unit)
        footprint = Footprint(address, extent, unit, tracked, places)
        views += [_view(path, tensor, footprint, unwritten(tensor)) for path, tensor in members]
    return views


def nowhere() -> View:
    """Stands for the tensor of a pointer that has moved by so much that its number is lost: nothing is inside."""
    return View("a pointer that left its tensor", (), 0, 0, 1, (), (), True, Footprint(0, 0, 1, False), None)


def index_at(place: int, shape: Sequence[int], strides: Sequence[int]) -> tuple[int, ...] | None:
    """The index of the element that lies ``place`` elements from a tensor's first; None if there is none."""
    rest, index = place, [0] * len(shape)
    for axis in sorted(range(len(shape)), key=lambda axis: -strides[axis]):
        if strides[axis] and shape[axis] > 1:
            index[axis] = min(rest // strides[axis], shape[axis] - 1)
            rest -= index[axis] * strides[axis]
    return tuple(index) if rest == 0 <= place else None


def _places(shape: Sequence[int], strides: Sequence[int]) -> Array:
    """The distances of a tensor's elements from its first, in elements, each address once."""
    at: Array = np.zeros((), np.int64)
    for size, stride in zip(shape, strides, strict=True):
        at = at[..., None] + np.arange(size if stride else 1) * stride
    return at.reshape(-1)


def _tensors(path: tuple[Any, ...], value: Any) -> Iterator[tuple[tuple[Any, ...], Tensor]]:
    if hasattr(value, "untyped_storage"):
        yield path, getattr(value, "carried", value)  # of a widened tensor its float64 values
    elif isinstance(value, TensorDescriptor):
        yield from _tensors((*path, _BASE), value.base)
    elif isinstance(value, tuple):
        for place, member in enumerate(value):
            yield from _tensors((*path, place), member)


def _view(path: tuple[Any, ...], tensor: Tensor, footprint: Footprint, unwritten: int | None) -> View:
    name = str(path[0]) + "".join(f"[{place}]" for place in path[1:] if place != _BASE)
    shape, strides = tuple(tensor.shape), tuple(tensor.stride())
    last = sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True)) if tensor.numel() else -1
    distinct = 1
    for size, stride in zip(shape, strides, strict=True):
        distinct *= size if stride or not size else 1
    return View(
        name, path, tensor.data_ptr(), (last + 1) * tensor.element_size(), tensor.element_size(), shape, strides,
        distinct == last + 1, footprint, unwritten,
    )  # fmt: skip
