"""Programs of one launch in lockstep: an operation of many programs is one operation of numpy.

numpy's time for a tile is small compared with the Python around it, so programs share that Python.  A value that
differs among programs has an axis of programs in front and is padded to one rank,

    [program, 1, ..., block's own axes]     of PROGRAM_RANK dimensions

so that it broadcasts against values that all programs share, which stay as they are.  Shapes of blocks, which a kernel
sees, never have that axis.

If programs diverge (a loop's number of steps, an `if`), or an operation has no form for many programs (atomics, print),
their stores are undone and they run again: in groups that stay together, or one by one. The first group of a launch is
small. It shows how large its blocks are, and so how many programs run in step from then on; if it diverges, the next
groups are larger, so that the parts into which they diverge are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gradoracle.host.interpreter import launch_hooks
from gradoracle.host.interpreter.values import Array

BLOCK_RANK = 5
PROGRAM_RANK = BLOCK_RANK + 1
MOST_PROGRAMS = 32
"""How many programs run in step at first, and where their blocks are large; twice as many if no others are left."""

MOST_ELEMENTS = MOST_PROGRAMS * 64 * 64
"""How many elements the largest value of more programs has at most: such values should stay in a processor's caches."""

MOST_PARTED = 256
"""How many start in step where others of the launch diverged, so that equal ones among them run in step."""

FASTEST = 8
"""How many times larger than a group that stayed together the next one is at most, unless it is the last."""

DEEPEST = 12
"""How often a group of programs may diverge before each of them runs alone."""

Index = tuple[int, int, int]


class Parted(BaseException):
    """Programs in lockstep need different values of one Python number; `values` has each program's.

    Not an Exception: Triton wraps those of device functions in errors of its own.
    """

    def __init__(self, values: Sequence[Any]) -> None:
        super().__init__()
        self.values = values


class OneByOne(BaseException):
    """Programs in lockstep reached an operation that only one program at a time can do."""


class Crowded(BaseException):
    """The values of many programs in lockstep are larger than those of fewer were."""


class Group:
    """The programs in lockstep: their indices in the grid, and the memory that their stores have overwritten."""

    def __init__(self, programs: Sequence[Index]) -> None:
        self.programs = programs
        self._undo: list[tuple[Array, Any, Array]] = []
        self._indices = [np.array([program[axis] for program in programs], np.int32) for axis in range(3)]

    def index(self, axis: int) -> Array:
        """The programs' indices along an axis of the grid: [1] if it is the same for all."""
        values = self._indices[axis]
        return values[:1] if (values == values[0]).all() else padded(values, ())

    def keep(self, memory: Array, index: Any) -> None:
        """Remember memory[index] before it is overwritten."""
        self._undo.append((memory, index, memory[index]))

    def take_back(self) -> None:
        """Undo every store."""
        while self._undo:
            memory, index, before = self._undo.pop()
            memory[index] = before


_group: Group | None = None
_alone: set[Callable[..., Any]] = set()
largest = 0  # elements of the largest value of the programs that run


def group() -> Group | None:
    """The programs in lockstep; None if one runs alone."""
    return _group


def run(
    fn: Callable[..., Any], values: dict[str, Any], programs: Sequence[Index], alone: Callable[[Index], None]
) -> None:
    """Run programs of a kernel, in order as far as they stay together; `alone` is called with one that runs alone."""
    _in_groups(fn, values, programs, alone, 0, [MOST_PROGRAMS])


def _in_groups(
    fn: Callable[..., Any],
    values: dict[str, Any],
    programs: Sequence[Index],
    alone: Callable[[Index], None],
    depth: int,
    most: list[int],
) -> None:
    """Run programs in groups of ``most[0]``, which grows while a launch runs."""
    first = 0
    while first < len(programs):
        count, left = 1 if fn in _alone else most[0], len(programs) - first
        count = left if left < 2 * count else count  # the last two groups are one
        some = programs[first : first + count]
        parts = _together(fn, values, some, alone, depth, most)
        if len(parts) > 1 and most[0] > count and count < left:
            continue  # with some of those that follow: equal ones among them run in step
        for part in parts:
            _in_groups(fn, values, part, alone, depth + 1, most)
        first += len(some)


def _together(
    fn: Callable[..., Any],
    values: dict[str, Any],
    programs: Sequence[Index],
    alone: Callable[[Index], None],
    depth: int,
    most: list[int],
) -> list[Sequence[Index]]:
    """Run programs in lockstep; the parts into which they diverged, as if they had not run, or none."""
    global _group, largest
    if len(programs) == 1 or depth > DEEPEST or fn in _alone:
        for program in programs:
            alone(program)
            if launch_hooks.record is not None:
                launch_hooks.record.attempt((program,))
            fn(**values)
        return []
    together = _group = Group(programs)
    largest = 0
    alone(programs[0])
    if launch_hooks.record is not None:
        launch_hooks.record.attempt(programs)
    parts: dict[Any, list[Index]] = {}
    try:
        fn(**values)
    except Parted as parted:
        for program, value in zip(programs, parted.values, strict=True):
            parts.setdefault(value, []).append(program)
        most[0] = max(most[0], min(MOST_PROGRAMS * len(parts), MOST_PARTED))
    except OneByOne:
        parts[None] = list(programs)
        _alone.add(fn)
    except Crowded:
        parts[None] = list(programs)
        most[0] = _room(len(programs))
        return list(parts.values())
    finally:
        _group = None
        if parts:
            together.take_back()
    most[0] = max(most[0], min(_room(len(programs)), FASTEST * len(programs)))
    return list(parts.values())


def _room(count: int) -> int:
    """How many programs may run in step, where the values of so many were as large as they were."""
    return max(MOST_ELEMENTS * count // max(largest, 1), MOST_PROGRAMS)


def grown(size: int) -> None:
    """A value of the running programs is larger than those before. Raises Crowded if it is too large for so many."""
    global largest
    largest = size
    if size > 2 * MOST_ELEMENTS and _group is not None and len(_group.programs) > MOST_PARTED:
        raise Crowded


def differs(data: Array) -> bool:
    """Whether a value differs among the programs in lockstep."""
    return data.ndim == PROGRAM_RANK and _group is not None


def padded(data: Array, shape: Sequence[int]) -> Array:
    """[programs, *shape], or any array of its elements in that order, as a value that differs among programs.

    Raises OneByOne if a block has more axes than there is room for.
    """
    require_room(shape)
    return data.reshape((data.shape[0], *(1,) * (BLOCK_RANK - len(shape)), *shape))


def blocked(data: Array, shape: Sequence[int]) -> Array:
    """The same without padding: [programs, *shape]."""
    return data.reshape((data.shape[0], *shape))


def repeated(data: Array, shape: Sequence[int]) -> Array:
    """A value that differs among programs, broadcast to a block's shape."""
    require_room(shape)
    return np.broadcast_to(data, (data.shape[0], *(1,) * (BLOCK_RANK - len(shape)), *shape))


def agreed(data: Array) -> Any:
    """The one number that a scalar has in every program. Raises Parted if they differ."""
    values = data.reshape(-1).tolist()
    if any(value != values[0] for value in values):
        raise Parted(values)
    return values[0]


def require_room(shape: Sequence[int]) -> None:
    """Raise OneByOne if programs run in lockstep and a block of this shape could be taken for one value per program."""
    if len(shape) > BLOCK_RANK and _group is not None:
        raise OneByOne


_NAMES = """
    add addptr and ashr assert assume barrier bitcast broadcast ceil clampf cos dot dot_scaled erf exp exp2
    extern_elementwise fabs fadd fcmpOEQ fcmpOGE fcmpOGT fcmpOLE fcmpOLT fcmpONE fcmpUEQ fcmpUGE fcmpUGT fcmpULE
    fcmpULT fcmpUNE fdiv floor fma fmul fp_ext fp_to_fp fp_to_si fp_to_ui fp_trunc frem fsub get_num_programs
    get_program_id iabs icmpEQ icmpNE icmpSGE icmpSGT icmpSLE icmpSLT icmpUGE icmpUGT icmpULE icmpULT idiv int_cast
    int_to_ptr join load log log2 lshr make_range masked_load masked_store maximumf maxnumf maxsi maxui minimumf
    minnumf minsi minui mul or precise_divf precise_sqrt ptr_to_int reshape rsqrt sdiv select shl si_to_fp sin splat
    split sqrt srem store sub trans udiv ui_to_fp umulhi unsplat urem xor
"""
IN_STEP = frozenset(f"create_{name}" for name in _NAMES.split())
"""Operations of Triton's builder that accept values which differ among programs, by nature or by a replacement."""


def refusing(stock: Callable[..., Any]) -> Callable[..., Any]:
    """An operation of Triton's builder without a form for values that differ among programs."""

    def operation(self: Any, *args: Any, **kwargs: Any) -> Any:
        if _group is not None:
            raise OneByOne
        return stock(self, *args, **kwargs)

    return operation
