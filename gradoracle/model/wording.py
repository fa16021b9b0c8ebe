"""Wording: numbers and lists in sentences."""

from __future__ import annotations

import re
from collections.abc import Iterable


def counted(number: int, noun: str) -> str:
    """A number and a noun, in the plural unless the number is 1: "2 properties"."""
    several = f"{noun[:-1]}ies" if noun.endswith("y") else f"{noun}s"
    return f"{number} {noun if number == 1 else several}"


def without_numbers(text: str) -> str:
    """Text with # for each number and address, to compare messages of cases that differ in sizes and values."""
    return re.sub(r"0x[0-9a-f]+|\d[\d.e+-]*", "#", text)


def either(names: Iterable[str]) -> str:
    """Alternatives in a sentence: "a, b or c"."""
    *others, last = names
    return f"{', '.join(others)} or {last}" if others else last
