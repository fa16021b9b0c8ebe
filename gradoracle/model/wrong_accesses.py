"""Wrong accesses to memory that a record found, with their sentences; and the source lines that they name."""

from __future__ import annotations

import enum
import os
import sys
from dataclasses import dataclass
from typing import Any

Index = tuple[int, int, int]
_ENGINE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_SUBJECTS = tuple(os.path.join(_ENGINE, name, "") for name in ("kernels", "properties"))  # not part of the engine


def is_of_engine(file: str) -> bool:
    """Whether a file is gradoracle's own, and no kernel's or property's."""
    return file.startswith(_ENGINE) and not file.startswith(_SUBJECTS)


class Kind(enum.Enum):
    """What is wrong with an access."""

    READ_OUTSIDE = "reads outside"
    WRITTEN_OUTSIDE = "writes outside"
    RACE = "races"
    STORED_AND_LOADED = "loads what it stored without a barrier between"
    LOADED_AND_STORED = "stores what it loaded without a barrier between"
    LOADED_APART_AND_STORED = "stores what another of its threads loaded without a barrier between"
    STORED_AND_STORED = "stores twice without a barrier between"
    UNWRITTEN = "reads what nothing wrote"


@dataclass(frozen=True)
class SourceLine:
    """A line of source: its file, its number, and the function it stands in."""

    file: str
    line: int
    function: str

    @classmethod
    def of(cls, frame: Any) -> SourceLine:
        """The line at which a frame is."""
        return cls(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name)

    def __str__(self) -> str:
        return f"{self.file.rpartition('/')[2]}:{self.line}" if self.line else self.file


@dataclass
class WrongAccess:
    """One kind of fault at one line and one tensor.

    Attributes:
        kind: the fault.
        kernel: the name of the launched kernel, or of the operator of PyTorch.
        place: the line of the access.
        tensor: the name of the kernel's argument; for an operator, of the caller's variable, or of the operator's
            argument where no variable holds it.
        index: the index of the first element concerned; outside, its distance from the tensor's first, in elements.
        programs: at that element: the one that accesses it and, in a race, the other; None for one of several; empty
            for an operator.
        earlier: the line of the earlier access, for kinds that take two.
        count: the number of elements, of all programs and launches.
        shape: the shape of the tensor.
        called: the lines that call the function of ``place``, the innermost first; empty in the kernel itself.
    """

    kind: Kind
    kernel: str
    place: SourceLine
    tensor: str
    index: tuple[int, ...] | int
    programs: tuple[Index | None, ...]
    earlier: SourceLine | None
    count: int
    shape: tuple[int, ...]
    called: tuple[SourceLine, ...] = ()

    @property
    def element(self) -> str:
        """The first element concerned, as tensor[index]."""
        if isinstance(self.index, int):
            return f"{self.tensor}[{self.index:+d} elements from its first] of shape {list(self.shape)}"
        return f"{self.tensor}[{', '.join(map(str, self.index))}]"

    def __str__(self) -> str:
        one, *others = map(_program, self.programs) if self.programs else ("an operator of PyTorch",)
        names = {"element": self.element, "earlier": self.earlier, "other": others[0] if others else ""}
        more = f" ({self.count} elements in all)" if self.count > 1 else ""
        calls = f", called at {', '.join(map(str, self.called))}" if self.called else ""
        return f"{self.place}{calls}: {self.kernel}, {one}, {_SENTENCES[self.kind].format(**names)}{more}"


_SENTENCES = {
    Kind.READ_OUTSIDE: "reads {element}, outside the tensor",
    Kind.WRITTEN_OUTSIDE: "writes {element}, outside the tensor",
    Kind.RACE: "and {other} at {earlier}, touch {element} in one launch, and one of them writes it",
    Kind.STORED_AND_LOADED: "loads {element}, which it stored at {earlier}, with no barrier in between",
    Kind.LOADED_AND_STORED: "stores {element}, which it loaded at {earlier}, with no barrier in between",
    Kind.LOADED_APART_AND_STORED: (
        "stores {element}, which another of its threads loaded at {earlier}, with no barrier in between"
    ),
    Kind.STORED_AND_STORED: "stores {element}, which it also stored at {earlier}, with no barrier in between",
    Kind.UNWRITTEN: "reads {element}, which was allocated and never written",
}


def _program(index: Index | None) -> str:
    return "several programs" if index is None else f"program {index}"


def called_from(own: tuple[str, str]) -> tuple[SourceLine, ...]:
    """Where the current line's function is called from, up to the kernel itself; between them are frames of Triton.

    Args:
        own: the folders of this interpreter and of Triton.
    """
    interpreter, triton = own
    frame: Any = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(own):
        frame = frame.f_back
    found: list[SourceLine] = []
    while frame is not None and (frame := frame.f_back) is not None:
        file = frame.f_code.co_filename
        if file.startswith(interpreter):
            return tuple(found)
        if not file.startswith(triton):
            found.append(SourceLine.of(frame))
    return ()  # no launch of ours
