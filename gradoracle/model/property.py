"""Property: a named law, judged on evidence. Its docstring is its contract: statement, why, what it can and cannot see.

A law is a function of one Evidence that yields Findings::

    @law(needs=(Derivative.VJP,))
    def one_dv_sums_to_g(evidence):
        \"\"\"The column sums of dV equal those of the cotangent.

        Holds because: each row of P sums to 1, so 1^T dV = 1^T P^T G = 1^T G.
        Catches: a row of P that does not sum to 1, a dropped query tile, a cotangent counted twice.
        Cannot catch: errors that move mass between keys; vjp_matches_the_oracle does.
        \"\"\"
        yield ...
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from gradoracle.model.case import Case
from gradoracle.model.derivative import Derivative
from gradoracle.model.finding import Finding

Law = Callable[[Any], Iterable[Finding]]


class PropertyKind(str, Enum):
    """What a property compares: all that the engine must know of it.

    ORACLE: a derivative with the truth, tensor by tensor; errors are measured in sigma.
    RELATION: tensors of one sample, or of samples that differ in a way that says what must come of it.
    LAYOUT: the same sample in other layouts.
    MEMORY: what programs read, write, leave unwritten and change, in all that other properties had the kernel do: of
        the universal properties these are judged last.
    REPETITION: the same call, made again.
    ARGUMENTS: what is taken, and what is refused.
    COMPILATION: what a compiled kernel takes of a GPU, with what there is.
    """

    ORACLE = "oracle"
    RELATION = "relation"
    LAYOUT = "layout"
    MEMORY = "memory"
    REPETITION = "repetition"
    ARGUMENTS = "arguments"
    COMPILATION = "compilation"


_SECTIONS = ("Holds because", "Catches", "Cannot catch")


@dataclass(frozen=True)
class Families:
    """Which families a law belongs to: in words, and as a test of a Family's signature."""

    words: str
    hold: Callable[[Any], bool] = field(compare=False)


EVERY = Families("every family", lambda family: True)


@dataclass(frozen=True)
class Property:
    """One law with its contract.

    Attributes:
        name: a sentence in snake case.
        statement: the same in words.
        because: why it holds.
        catches: which faults it sees.
        cannot_catch: which it cannot, and which law does.
        law: yields at least one Finding on evidence that it applies to; none is an error of gradoracle.
        needs: which derivatives of the kernel it looks at.
        applies: None where it applies to a case and kernel, else the reason why not.
        one_in: it is judged on one case in so many (its variants cost kernel calls); which ones, the case decides.
        rank: the more specific of two violated laws leads a report; higher leads.
        scope: "case" (once a case) or "kernel" (once a kernel and dtype, on the first case).
        decisive: each of its tensors must be decided on some case of each dtype, or the run is inconclusive.
        families: those it belongs to; where the signature rules it out for every case, a family has no such law.
        kind: what it compares.
        cause: what it points at where it is violated alone, a name of ``causes.CAUSES``; "" at nothing.
    """

    name: str
    statement: str
    because: str
    catches: str
    cannot_catch: str
    law: Law = field(compare=False)
    needs: tuple[Derivative, ...] = ()
    applies: Callable[[Case, Any], str | None] = field(default=lambda case, kernel: None, compare=False)
    one_in: int = 1
    rank: int = 0
    scope: str = "case"
    decisive: bool = False
    families: Families = EVERY
    kind: PropertyKind = PropertyKind.RELATION
    cause: str = ""

    def falls_on(self, case: Case) -> bool:
        """Whether this case is among those that the law is judged on; the same on every machine."""
        if self.one_in == 1:
            return True
        mark = sum((position + 1) * ord(letter) for position, letter in enumerate(self.name))
        return (case.seed * 2654435761 + mark) % 4294967296 // 7 % self.one_in == 0

    def __repr__(self) -> str:
        return f"<law {self.name}>"


def law(
    *,
    needs: tuple[Derivative, ...] = (),
    applies: Callable[[Case, Any], str | None] | None = None,
    one_in: int = 1,
    rank: int = 0,
    scope: str = "case",
    decisive: bool = False,
    families: Families = EVERY,
    kind: PropertyKind = PropertyKind.RELATION,
    cause: str = "",
) -> Callable[[Law], Property]:
    """Make a Property of a law function; its docstring must hold the four parts of the contract.

    Raises:
        TypeError: a part is missing; it names which, and of which law.
    """

    def build(function: Law) -> Property:
        name = getattr(function, "__name__", "law").lstrip("_")
        text = inspect.cleandoc(function.__doc__ or "")
        statement = re.split(r"\n\s*\n", text)[0].replace("\n", " ")
        parts = {}
        for section in _SECTIONS:
            found = re.search(rf"^{section}:\s*(.+?)(?=^(?:{'|'.join(_SECTIONS)}):|\Z)", text, re.M | re.S)
            if found is None:
                raise TypeError(
                    f"law {name}: its docstring lacks the part {section!r}; expected: {', '.join(_SECTIONS)}"
                )
            parts[section] = " ".join(found.group(1).split())
        always = applies or (lambda case, kernel: None)
        because, catches, cannot_catch = (parts[section] for section in _SECTIONS)
        contract = (name, statement, because, catches, cannot_catch)
        return Property(*contract, function, needs, always, one_in, rank, scope, decisive, families, kind, cause)

    return build
