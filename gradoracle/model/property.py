"""Property: what must hold of every correct kernel, judged on evidence.

It is written as a function of one Evidence that yields Findings. Its docstring has four parts: the statement, why it
holds, what it catches and what it cannot::

    @property(needs=(Derivative.VJP,))
    def one_dv_sums_to_g(evidence):
        \"\"\"The column sums of dV equal those of the cotangent.

        Holds because: each row of P sums to 1, so 1^T dV = 1^T P^T G = 1^T G.
        Catches: a row of P that does not sum to 1, a dropped query tile, a cotangent counted twice.
        Cannot catch: errors that move mass between keys; vjp_matches_the_oracle does.
        \"\"\"
        yield ...
"""

from __future__ import annotations

import fnmatch
import inspect
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from gradoracle.model.case import Case
from gradoracle.model.derivative import Derivative
from gradoracle.model.finding import Finding
from gradoracle.model.kernel import Kernel
from gradoracle.model.severity import Severity
from gradoracle.model.signature import Defined

Judge = Callable[[Any], Iterable[Finding]]


class PropertyKind(str, Enum):
    """What a property compares; the engine distinguishes properties by nothing else.

    ORACLE: a derivative with the truth, tensor by tensor; errors are measured in sigma.
    DEFINITION: a derivative of the widened kernel with the truth: what is wrong however exactly it is computed.
    RELATION: tensors of one sample, or of samples whose difference has a known effect.
    LAYOUT: the same sample in other layouts.
    MEMORY: what programs read, write, leave unwritten and change in all runs of the kernel; judged after all other
        universal properties.
    REPETITION: the same call, repeated.
    ARGUMENTS: which invalid arguments are refused, and how.
    SUPPORT: whether what a kernel supports is accepted, and what it lacks raises.
    COMPILATION: what a compiled kernel needs of a GPU with what the GPU has. No case changes it: the gate judges it,
        and a check where it is named (``Request.asks_for``).
    """

    ORACLE = "oracle"
    DEFINITION = "definition"
    RELATION = "relation"
    LAYOUT = "layout"
    MEMORY = "memory"
    REPETITION = "repetition"
    ARGUMENTS = "arguments"
    SUPPORT = "support"
    COMPILATION = "compilation"


DIRECT = (PropertyKind.ORACLE, PropertyKind.DEFINITION)  # kinds that compare tensors with the truth
_SECTIONS = ("Holds because", "Catches", "Cannot catch")


@dataclass(frozen=True)
class Families:
    """The families that a property belongs to: in words, and as a predicate of the family."""

    words: str
    hold: Callable[[Defined], bool] = field(compare=False)


EVERY = Families("every family", lambda family: True)


@dataclass(frozen=True)
class Property:
    """One property.

    Attributes:
        name: a sentence in snake case.
        statement: the same in words.
        because: why it holds.
        catches: the faults that it sees.
        cannot_catch: faults that it cannot see, and the property that does.
        judge: a function that yields at least one Finding on evidence it applies to; none is an error of gradoracle.
        needs: the derivatives of the kernel that it evaluates.
        extras: the names of ``Kernel.extras`` that it uses; it does not apply to kernels without them.
        applies: a function that returns None where it applies to a case and kernel, else the reason why not.
        one_in: it is judged on one case in this many, chosen by the case, because its variants cost kernel calls.
        rank: the highest (most specific) of several violated properties leads the report, where none compares a tensor
            with the truth.
        scope: "case" (once a case) or "kernel" (once a kernel and dtype, on the first case).
        decisive: each of its tensors must be decided on some case of each dtype, or the run is inconclusive.
        families: the families it applies to.
        kind: what it compares.
        cause: a name of ``fault.CAUSES`` that it points at where it alone is violated; "" for none.
        severity: the severity of each violation; None: that of the same property on the widened kernel.
        derivative: the one that it is about, by default the highest of ``needs``; None: it is about none of them.
    """

    name: str
    statement: str
    because: str
    catches: str
    cannot_catch: str
    judge: Judge = field(compare=False)
    needs: tuple[Derivative, ...] = ()
    extras: tuple[str, ...] = ()
    applies: Callable[[Case, Kernel], str | None] = field(default=lambda case, kernel: None, compare=False)
    one_in: int = 1
    rank: int = 0
    scope: str = "case"
    decisive: bool = False
    families: Families = EVERY
    kind: PropertyKind = PropertyKind.RELATION
    cause: str = ""
    severity: Severity | None = None
    derivative: Derivative | None = None

    def lacks(self, kernel: Kernel) -> str | None:
        """Which of ``extras`` a kernel lacks, as a sentence; None where it has all."""
        return lacking(self.extras, kernel)

    def falls_on(self, case: Case) -> bool:
        """Whether the property is judged on this case; the same on every machine."""
        if self.one_in == 1:
            return True
        mark = sum((position + 1) * ord(letter) for position, letter in enumerate(self.name))
        return (case.seed * 2654435761 + mark) % 4294967296 // 7 % self.one_in == 0

    def __repr__(self) -> str:
        return f"<property {self.name}>"


def property(
    *,
    needs: tuple[Derivative, ...] = (),
    extras: tuple[str, ...] = (),
    applies: Callable[[Case, Kernel], str | None] | None = None,
    one_in: int = 1,
    rank: int = 0,
    scope: str = "case",
    decisive: bool = False,
    families: Families = EVERY,
    kind: PropertyKind = PropertyKind.RELATION,
    cause: str = "",
    severity: Severity | None = None,
    derivative: Derivative | None = None,
) -> Callable[[Judge], Property]:
    """Make a Property of a function whose docstring has the four parts; the arguments are fields of ``Property``.

    Raises:
        TypeError: a part is missing.
    """

    def build(function: Judge) -> Property:
        name = getattr(function, "__name__", "property").lstrip("_")
        text = inspect.cleandoc(function.__doc__ or "")
        statement = re.split(r"\n\s*\n", text)[0].replace("\n", " ")
        parts = {}
        for section in _SECTIONS:
            found = re.search(rf"^{section}:\s*(.+?)(?=^(?:{'|'.join(_SECTIONS)}):|\Z)", text, re.M | re.S)
            if found is None:
                raise TypeError(
                    f"property {name}: its docstring lacks the part {section!r}; expected: {', '.join(_SECTIONS)}"
                )
            parts[section] = " ".join(found.group(1).split())

        about = derivative or max(needs, key=lambda each: each.order, default=None)
        concerned = needs if about is None or about in needs else (*needs, about)

        def where(case: Case, kernel: Kernel) -> str | None:
            unclaimed = next((each for each in concerned if not kernel.is_judged(each)), None)
            if unclaimed is not None:
                return f"the kernel does not claim {unclaimed.named}"
            return lacking(extras, kernel) or (applies(case, kernel) if applies else None)

        because, catches, cannot_catch = (parts[section] for section in _SECTIONS)
        contract = (name, statement, because, catches, cannot_catch)
        return Property(
            *contract, function, needs, extras, where, one_in, rank, scope, decisive, families, kind, cause, severity,
            about,
        )  # fmt: skip

    return build


def lacking(extras: Iterable[str], kernel: Kernel) -> str | None:
    """Which of some extras a kernel lacks, as a sentence; None where it has all."""
    missing = next((name for name in extras if name not in kernel.extras), None)
    return None if missing is None else f"the kernel has no {missing!r} among its extras"


def matches(name: str, globs: str) -> bool:
    """Whether a property's name matches one of some globs, separated by commas."""
    return any(fnmatch.fnmatchcase(name, glob) for glob in globs.split(","))
