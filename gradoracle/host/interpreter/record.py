"""The record of a launch: the elements that each program read, wrote and added to, in order, and what is wrong.

    with recording() as record:
        kernel[grid](...)
    record.faults()

Programs are interpreted one after the other or in lockstep, so a race gives the same correct or wrong numbers every
time; it shows in who touched which element. A pointer argument carries the number of its tensor in the 16 bits of an
address that no process uses, through any arithmetic that a kernel does with it, so that an access is checked against
the tensor it was meant for and not against whatever lies there. An access outside that tensor is not made: a load gives
0.

These are faults (`Kind`): an element outside the tensor, in its storage or beyond; two programs at one element if one
writes it, unless both do so atomically or an atomic orders them; one program that loads what it stored, or stores what
it loaded, with no barrier between, since its threads may do that in either order; one that stores an element at two
lines, likewise; a load of memory that was allocated and never written, by a program or, after `watch`, by an operator
of PyTorch (operators.py).

A store of what was loaded has two kinds. If the place in its block that stores an element also loaded it, or threads
exchanged values between the two (a reduction, a dot, ...), the store may have to wait for the load. If another place
loaded it and nothing was exchanged, nothing makes the store wait.

Programs that run again after lockstep diverged repeat their accesses: those recorded before stay true except for their
order, so that within a program only accesses of one run (one `stamp`) are compared.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeVar

import numpy as np
import triton

from gradoracle.host.interpreter import launch_hooks
from gradoracle.host.interpreter.footprint import MANY, View, nowhere, views_of
from gradoracle.host.interpreter.lockstep import BLOCK_RANK, PROGRAM_RANK, Index
from gradoracle.host.interpreter.values import Array
from gradoracle.host.interpreter.written_parameters import written_parameters
from gradoracle.model.wrong_accesses import Kind, SourceLine, WrongAccess, called_from

_TAG_BITS = np.uint64(48)
_ADDRESS = np.uint64((1 << 48) - 1)
_MOST_TENSORS = (1 << 16) - 2
_OWN = (os.path.dirname(os.path.abspath(__file__)) + os.sep, os.path.dirname(os.path.abspath(triton.__file__)) + os.sep)
_MOST_PLACES = 1 << 15

_FORM, _EXCHANGES = np.int64(32), np.int64(48)  # the bits below are the place, and the form
_SCALAR, _SEVERAL, _MOST_FORMS = 0, 0xFFFF, 0xFFFE
_COUNT = (1 << 15) - 1


class Touch(NamedTuple):
    """One access of elements `at` of a view's footprint, by the programs numbered `who`.

    Either `several` programs in lockstep make the same access, or `who` is one program, or one per element. `lanes`:
    of each element, which place of the block accesses it.
    """

    view: View
    at: Array
    who: Any
    several: bool
    place: int
    lanes: Array | None = None

    @property
    def each(self) -> bool:
        """Whether each element has a program of its own."""
        return isinstance(self.who, np.ndarray) and self.who.ndim > 0


Track = Callable[[Touch], None]


def part(values: Array | None, on: Array) -> Array | None:
    """The values of some elements; None if all have the same."""
    return None if values is None else values[on]


class Lanes:
    """The lanes of the accesses of a record: which place of a block accesses an element.

    So a store to what the same thread loaded differs from one to what others loaded. A lane is one number: how often
    threads have exchanged values, the form of the block, the place in it. Blocks of one form are distributed over the
    threads alike, so that equal lanes are one thread; a scalar is loaded by all threads."""

    def __init__(self) -> None:
        self._exchanges = 0
        self._forms: dict[tuple[int, ...], int] = {(): _SCALAR}
        self._places: dict[tuple[int, ...], Array] = {}

    def exchange(self) -> None:
        """Threads of a program exchange values: the loads before are done before the stores after."""
        self._exchanges = self._exchanges % _COUNT + 1

    def of(self, block: tuple[int, ...]) -> Array:
        """The lanes of an access by a block, in its shape."""
        if block not in self._places:
            own = block[next((axis for axis, size in enumerate(block) if size > 1), len(block)) :]
            form = self._forms.setdefault(own, min(len(self._forms), _MOST_FORMS))
            self._places[block] = (np.int64(form) << _FORM) + np.arange(math.prod(block)).reshape(block)
        return self._places[block] + (np.int64(self._exchanges) << _EXCHANGES)

    def readers(self, lanes: Array, before: Array, again: Array) -> Array:
        """The lanes that have loaded elements, after these have.

        Args:
            lanes: the lanes of this load.
            before: the note on each element.
            again: the elements that this program has loaded before, with no barrier since.
        """
        others = again & (before != lanes) & (before >> _EXCHANGES == self._exchanges)
        return np.where(others, self._several(), lanes)

    def several(self, noted: Array, lanes: Array, at: Array) -> None:
        """Note, of the elements that a load has at several places of its block, that it is several."""
        noted[at[noted[at] != lanes]] = self._several()

    def apart(self, lanes: Array, readers: Array) -> Array:
        """Where a store is by another thread than a load, with no exchange between."""
        now = readers >> _EXCHANGES == self._exchanges
        forms = (readers >> _FORM) & 0xFFFF, (lanes >> _FORM) & 0xFFFF
        all_threads = (forms[0] == _SCALAR) & (forms[1] != _SCALAR)
        found: Array = now & (readers != lanes) & ((forms[0] == _SEVERAL) | (forms[0] == forms[1]) | all_threads)
        return found

    def _several(self) -> np.int64:
        return (np.int64(self._exchanges) << _EXCHANGES) + (np.int64(_SEVERAL) << _FORM)


class AccessRecord:
    """The accesses of launches while it is the current record; see the module."""

    def __init__(self, unwritten: Callable[[Any], int | None]) -> None:
        self._unwritten = unwritten
        self._faults: dict[tuple[Any, ...], WrongAccess] = {}
        self._places: dict[tuple[Any, int], int] = {}
        self._where: list[SourceLine] = []
        self.launches = 0
        self._stamp = 0
        self._kernel, self._grid = "", (1, 1, 1)
        self._views: list[View] = []
        self._ids = np.zeros(0, np.int32)
        self._known: dict[int, dict[int, int]] = {}  # by program: the stamp up to which it synchronised with another
        self._released: dict[int, dict[int, int]] = {}  # by address of an atomic: the knowledge it passes on
        self._lanes, self._tracks = Lanes(), False
        self._operators: Any = None  # imported with PyTorch only

    def faults(self) -> list[WrongAccess]:
        """Every fault once per kind, tensor and place in the source, with the number of elements concerned."""
        return list(self._faults.values())

    def watch(self) -> None:
        """Check operators of PyTorch for reads of unwritten memory, from now to the end of the recording."""
        if self._operators is None:
            from gradoracle.host.interpreter.operators import Operators

            self._operators = Operators(self._unwritten, self._enter)
        self._operators.enter()

    def close(self) -> None:
        """The recording is over."""
        if self._operators is not None:
            self._operators.leave()

    def begin(self, fn: Callable[..., Any], grid: Sequence[int], given: Any, values: dict[str, Any]) -> None:
        """A launch begins: number its tensors in the addresses of its pointer arguments.

        Args:
            fn: the kernel's function.
            grid: the numbers of programs along up to three axes.
            given: the caller's arguments, by name.
            values: the same as Triton's own values; their pointers are changed in place.
        """
        self.launches += 1
        self._kernel = getattr(fn, "__name__", "kernel")
        self._grid = (grid[0], grid[1] if len(grid) > 1 else 1, grid[2] if len(grid) > 2 else 1)
        self._views = views_of(given, self._tracked(fn), self._unwritten)
        if len(self._views) > _MOST_TENSORS:
            raise ValueError(f"{self._kernel} has {len(self._views)} tensors; at most {_MOST_TENSORS} are recorded")
        self._known, self._released = {}, {}
        self._tracks = any(view.footprint.tracked for view in self._views)
        for number, view in enumerate(self._views):
            handle = view.handle_in(values)
            handle.data = handle.data + (np.uint64(number + 1) << _TAG_BITS)

    def end(self) -> None:
        """The launch is over."""
        self._views = []

    def attempt(self, programs: Sequence[Index]) -> None:
        """These programs start from their beginning, in lockstep if there are several."""
        nx, ny, _ = self._grid
        self._ids = np.array([x + nx * (y + ny * z) + 1 for x, y, z in programs], np.int32)
        self._stamp += 1

    def barrier(self) -> None:
        """The running programs wait for all their threads."""
        self._stamp += 1

    def exchange(self) -> None:
        """The threads of the running programs exchange values."""
        self._lanes.exchange()

    def load(self, addresses: Array, on: Array | None, width: int) -> tuple[Array, Array | None]:
        """A load of elements of `width` bytes, where `on`: their plain addresses, and which lie outside, if any."""
        return self._access(addresses, on, width, self._read)

    def store(self, addresses: Array, on: Array | None, width: int) -> tuple[Array, Array | None]:
        """A store, as `load`."""
        return self._access(addresses, on, width, self._write)

    def atomic(self, addresses: Array, on: Array | None, width: int) -> tuple[Array, Array | None]:
        """An atomic operation, which reads and writes; if it is of one element, it orders the accesses around it."""
        plain, outside = self._access(addresses, on, width, self._update)
        if plain.size == 1:
            mine, there = self._knowledge(), self._released.setdefault(int(plain.reshape(-1)[0]), {})
            for one, other in ((mine, there), (there, mine)):
                for program, stamp in other.items():
                    one[program] = max(one.get(program, -1), stamp)
            there[int(self._ids[0])] = self._stamp
            self._stamp += 1
        return plain, outside

    def loaded(self, addresses: Array, bits: Array) -> None:
        """These bits were loaded from plain addresses: memory allocated and never written holds a pattern."""
        view = self._view_of(0, int(addresses.min())) if addresses.size else None
        if view is None or view.unwritten is None or bits.dtype.itemsize != view.itemsize:
            return
        unwritten = bits.view(f"u{view.itemsize}") == view.unwritten
        if unwritten.any():
            who = self._ids if len(self._ids) == 1 else np.array([MANY])
            self._fault(Kind.UNWRITTEN, view, addresses[unwritten], who, self._place(), None, None)

    def _access(self, addresses: Array, on: Array | None, width: int, track: Track) -> tuple[Array, Array | None]:
        plain = addresses & _ADDRESS
        if on is not None and on.shape != addresses.shape:
            on, addresses = np.broadcast_arrays(on, addresses)
        programs = None
        if len(self._ids) > 1 and addresses.ndim == PROGRAM_RANK:
            programs = np.broadcast_to(self._ids.reshape(-1, *(1,) * BLOCK_RANK), addresses.shape)
        lanes = None
        if self._tracks:
            block = addresses.shape if programs is None else addresses.shape[1:]
            lanes = np.broadcast_to(self._lanes.of(block), addresses.shape)
        if on is not None:
            addresses, programs, lanes = addresses[on], part(programs, on), part(lanes, on)
        if not addresses.size:
            return plain, None
        outside = self._of_tensors(addresses, programs, lanes, width, track)
        if on is None or outside is None:
            return plain, outside
        everywhere = np.zeros(on.shape, np.bool_)
        everywhere[on] = outside
        return plain, everywhere

    def _of_tensors(
        self, addresses: Array, programs: Array | None, lanes: Array | None, width: int, track: Track
    ) -> Array | None:
        """Check accesses against the tensors whose numbers they carry; which are outside, None if none is."""
        lowest, highest = int(addresses.min()), int(addresses.max())
        if lowest >> 48 == highest >> 48:
            return self._of_one_tensor(addresses, programs, lanes, lowest, highest, width, track)
        outside, tags = np.zeros(addresses.shape, np.bool_), addresses >> _TAG_BITS
        for tag in np.unique(tags):  # a pointer chosen among several
            own = tags == tag
            its, who = addresses[own], (part(programs, own), part(lanes, own))
            bad = self._of_one_tensor(its, *who, int(its.min()), int(its.max()), width, track)
            outside[own] = False if bad is None else bad
        return outside if outside.any() else None

    def _of_one_tensor(
        self,
        addresses: Array,
        programs: Array | None,
        lanes: Array | None,
        lowest: int,
        highest: int,
        width: int,
        track: Track,
    ) -> Array | None:
        """Check accesses against the tensor whose number they carry; which of them are outside, None if none is."""
        tag = lowest >> 48
        view = self._view_of(tag, lowest)
        if view is None:  # memory of no argument, through a loaded pointer
            return None
        base = np.uint64((tag << 48) + view.base)
        offsets = (addresses - base).view(np.int64)
        outside = self._outside(view, offsets, lowest - int(base), highest - int(base), width)
        place = self._place() if outside is not None or view.footprint.tracked else -1
        if outside is not None:
            at = addresses[outside] & _ADDRESS
            who = self._ids[:1] if programs is None else programs[outside]
            kind = Kind.READ_OUTSIDE if track == self._read else Kind.WRITTEN_OUTSIDE
            self._fault(kind, view, at, who, place, None, None)
            offsets = offsets[~outside]
            programs, lanes = part(programs, ~outside), part(lanes, ~outside)
        if view.footprint.tracked and offsets.size:
            several = programs is None and len(self._ids) > 1
            who = self._ids[0] if programs is None else programs
            track(Touch(view, view.footprint.elements(view, offsets), who, several, place, lanes))
        return outside

    def _tracked(self, fn: Callable[..., Any]) -> frozenset[str] | None:
        """The arguments whose elements are tracked; None for all."""
        return written_parameters(fn)

    def _outside(self, view: View, offsets: Array, lowest: int, highest: int, width: int) -> Array | None:
        """Which byte offsets from a view's first element no access may have, None if all may be."""
        return view.outside(offsets, lowest, highest, width)

    def _read(self, touch: Touch) -> None:
        seen, at, who = touch.view.footprint, touch.at, touch.who
        if seen.written:
            writer = seen.writer[at]
            touched = writer != 0
            if touched.any():
                own = touched & (writer == who)
                if not touch.several:
                    now = own & (seen.when_written[at] == self._stamp)
                    self._same(Kind.STORED_AND_LOADED, touch, now, seen.where_written)
                    touched = touched & ~own
                self._others(touch, touched, writer, seen.when_written, seen.where_written)
        if touch.several:
            seen.reader[at] = MANY
        else:
            before = seen.reader[at]
            if touch.lanes is not None:
                again = (before == who) & (seen.when_read[at] == self._stamp)
                seen.lane[at] = lanes = self._lanes.readers(touch.lanes, seen.lane[at], again)
                self._lanes.several(seen.lane, lanes, at)
            many = (before != 0) & (before != who)
            if self._known and many.any():  # reads that an atomic orders before this one need not be remembered
                many &= ~self._ordered(before, seen.when_read[at])
            readers = np.where(many, MANY, who)
            seen.reader[at] = readers
            if touch.each:
                seen.reader[at[seen.reader[at] != readers]] = MANY  # two in lockstep at one element
        seen.when_read[at], seen.where_read[at] = self._stamp, touch.place

    def _write(self, touch: Touch, atomic: bool = False) -> None:
        seen, at, who = touch.view.footprint, touch.at, touch.who
        writer, reader = seen.writer[at], seen.reader[at]
        if not atomic:
            own = (reader == who) & (seen.when_read[at] == self._stamp)
            if own.any() and touch.lanes is not None:
                apart = own & self._lanes.apart(touch.lanes, seen.lane[at])
                self._same(Kind.LOADED_APART_AND_STORED, touch, apart, seen.where_read)
                own &= ~apart
            self._same(Kind.LOADED_AND_STORED, touch, own, seen.where_read)
        again = writer == who
        if again.any():
            again &= (seen.when_written[at] == self._stamp) & (seen.where_written[at] != touch.place)
            self._same(Kind.STORED_AND_STORED, touch, again & ~seen.atomic[at] if atomic else again, seen.where_written)
        self._others(touch, (reader != 0) & (reader != who), reader, seen.when_read, seen.where_read)
        written = (writer != 0) & (writer != who)
        if atomic:
            written &= ~seen.atomic[at]
        self._others(touch, written, writer, seen.when_written, seen.where_written)
        seen.writer[at] = who
        seen.when_written[at], seen.where_written[at], seen.atomic[at] = self._stamp, touch.place, atomic
        seen.written = True
        if touch.several:
            self._others(touch, np.ones(at.shape, np.bool_), np.broadcast_to(self._ids[1], at.shape),
                         seen.when_written, seen.where_written)  # fmt: skip
        elif touch.each:  # programs in lockstep at one element: the last one is noted
            last = seen.writer[at]
            self._others(touch, last != who, last, seen.when_written, seen.where_written)

    def _update(self, touch: Touch) -> None:
        self._write(touch, atomic=True)

    def _same(self, kind: Kind, touch: Touch, bad: Array, where: Array) -> None:
        """A fault of one program that touched the elements before."""
        if bad.any():
            at, who = touch.at[bad], np.broadcast_to(touch.who, touch.at.shape)[bad]
            self._fault(kind, touch.view, touch.view.footprint.addresses(at), who, touch.place, None, int(where[at][0]))

    def _others(self, touch: Touch, bad: Array, others: Array, when: Array, where: Array) -> None:
        """A race with other programs, unless an atomic orders them."""
        if bad.any() and self._known:
            bad = bad & ~self._ordered(others, when[touch.at])
        if bad.any():
            at, who = touch.at[bad], np.broadcast_to(touch.who, touch.at.shape)[bad]
            addresses = touch.view.footprint.addresses(at)
            self._fault(Kind.RACE, touch.view, addresses, who, touch.place, others[bad], int(where[at][0]))

    def _knowledge(self) -> dict[int, int]:
        return self._known.setdefault(int(self._ids[0]), {})

    def _ordered(self, others: Array, when: Array) -> Array:
        """Where an atomic orders the other program's access before this one."""
        mine = self._knowledge()
        known = np.array([mine.get(int(program), -1) for program in others.reshape(-1)], np.int64)
        return known.reshape(others.shape) >= when

    def _view_of(self, tag: int, address: int) -> View | None:
        if 0 < tag <= len(self._views):
            return self._views[tag - 1]
        if tag:  # an offset has changed the number itself
            return nowhere()
        return next((view for view in self._views if view.base <= address < view.base + view.extent), None)

    def _place(self) -> int:
        """The number of the current line: the innermost one outside Triton and gradoracle."""
        frame: Any = sys._getframe(2)
        while frame is not None and frame.f_code.co_filename.startswith(_OWN):
            frame = frame.f_back
        if frame is None:
            return self._number((None, 0), SourceLine("", 0, ""))
        key = (frame.f_code, frame.f_lineno)
        number = self._places.get(key)
        return self._number(key, SourceLine.of(frame)) if number is None else number

    def _number(self, key: Any, place: SourceLine) -> int:
        if key not in self._places:
            if len(self._where) >= _MOST_PLACES:
                return 0
            self._places[key] = len(self._where)
            self._where.append(place)
        return self._places[key]

    def _fault(
        self, kind: Kind, view: View, addresses: Array, who: Array, place: int, other: Array | None, earlier: int | None
    ) -> None:
        first = int(addresses.reshape(-1)[0])
        programs = [self._index(who)]
        if other is not None and kind is Kind.RACE:
            programs.append(self._index(other))
        self._enter(WrongAccess(
            kind, self._kernel, self._where[place], view.name, view.index(first), tuple(programs),
            None if earlier is None else self._where[earlier], addresses.size, view.shape, called_from(_OWN),
        ))  # fmt: skip

    def _enter(self, fault: WrongAccess) -> None:
        """Enter a fault, or add its elements to a known one of the same kind, tensor and lines."""
        key = (fault.kind, fault.kernel, fault.tensor, fault.place, fault.called, fault.earlier)
        known = self._faults.setdefault(key, fault)
        if known is not fault:
            known.count += fault.count

    def _index(self, programs: Array) -> Index | None:
        """A program's index in the grid; None if it is one of several."""
        number = int(np.asarray(programs).reshape(-1)[0])
        if number == MANY:
            return None
        nx, ny, _ = self._grid
        return (number - 1) % nx, (number - 1) // nx % ny, (number - 1) // (nx * ny)


R = TypeVar("R", bound=AccessRecord)


@contextmanager
def recording(unwritten: Callable[[Any], int | None] = lambda tensor: None) -> Iterator[AccessRecord]:
    """Record every launch of interpreted kernels, for the length of a `with`; not to be nested.

    Args:
        unwritten: the bits, as an unsigned number, of elements of a tensor that were allocated and not written; None
            for a tensor that was allocated with values.

    Raises:
        RuntimeError: launches are recorded already.
    """
    if launch_hooks.record is not None:
        raise RuntimeError("launches are recorded already; expected one recording at a time")
    with _current(AccessRecord(unwritten)) as record:
        yield record


@contextmanager
def _current(record: R) -> Iterator[R]:
    launch_hooks.record = record
    try:
        yield record
    finally:
        launch_hooks.record = None
        record.close()


class Fence(AccessRecord):
    """The accesses outside of every storage while it is the current record: these are not made.

    A record knows who touched which element, which takes time, and accepts what lies in a tensor alone. A fence only
    keeps a wrong kernel from the memory of this process, in calls whose accesses are not recorded: it asks of each
    access whether it lies in the storage of the tensor whose pointer it came from.
    """

    def __init__(self) -> None:
        super().__init__(lambda tensor: None)

    def _tracked(self, fn: Callable[..., Any]) -> frozenset[str] | None:
        return frozenset()

    def atomic(self, addresses: Array, on: Array | None, width: int) -> tuple[Array, Array | None]:
        """An atomic operation, as ``store``."""
        return self._access(addresses, on, width, self._write)

    def loaded(self, addresses: Array, bits: Array) -> None:
        """What was loaded does not matter."""

    def _outside(self, view: View, offsets: Array, lowest: int, highest: int, width: int) -> Array | None:
        return view.beyond_storage(offsets, lowest, highest, width)


@contextmanager
def fencing() -> Iterator[Fence | None]:
    """Fence every launch, for the length of a `with`; None where launches are recorded already."""
    if launch_hooks.record is not None:
        yield None
        return
    with _current(Fence()) as fence:
        yield fence
