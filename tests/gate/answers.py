"""Answers of a side, written by hand: what each property found on each case."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from gradoracle.gate.answer import Answer
from gradoracle.model.case import Case
from gradoracle.model.fault import VerdictKey
from gradoracle.model.job import PropertyResult
from gradoracle.model.ledger import (
    CaseRecord,
    EndRecord,
    Header,
    Ledger,
    LedgerKernel,
    LedgerProperty,
    Section,
    name_of,
)
from gradoracle.model.property import PropertyKind
from gradoracle.model.verdict import Report, Status

CASES = [Case("scaled", {"N": size}) for size in range(1, 9)]


def named(number: int, kernel: str = "fast") -> str:
    """The name of one of ``CASES``."""
    return name_of(kernel, CASES[number])


def answer(
    cases: Mapping[int, Sequence[PropertyResult]],
    *,
    kernel: str = "fast",
    called: Mapping[int, Sequence[str]] | None = None,
    measured: Sequence[str] = (),
    planned: int | None = None,
    report: Report | None = None,
    **fields: Any,
) -> Answer:
    """Results on ``CASES``, by number. ``report``: instead of that of these results."""
    records = [
        CaseRecord(number, kernel, CASES[number].line(), tuple(own), called=tuple((called or {}).get(number, ())))
        for number, own in cases.items()
    ]
    names = dict.fromkeys(each.property_name for own in cases.values() for each in own)
    kinds = {name: PropertyKind.ORACLE if name in measured else PropertyKind.RELATION for name in names}
    header = Header(
        "fast.py",
        "scaled",
        "cpu",
        0,
        {kernel: LedgerKernel("fast.py", {"float32": "ieee32"})},
        {name: LedgerProperty("", kind=kind) for name, kind in kinds.items()},
        tuple(VerdictKey(name, kernel, "float32") for name in names),
        Counter({f"{kernel} in float32": len(records) if planned is None else planned}),
        len(CASES),
        "",
    )
    found = Answer("fast.py", Ledger([Section(header, [*records, EndRecord()])]), **fields)
    if report is not None:
        vars(found)["report"] = report
    return found


def results(**statuses: str) -> list[PropertyResult]:
    """A result of each property, by its status."""
    return [PropertyResult(name, Status(status)) for name, status in statuses.items()]
