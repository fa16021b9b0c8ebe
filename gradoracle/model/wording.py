"""Wording: numbers and lists in sentences."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable


def counted(number: int, noun: str) -> str:
    """A number and a noun, in the plural unless the number is 1: "2 properties"."""
    several = f"{noun[:-1]}ies" if noun.endswith("y") else f"{noun}s"
    return f"{number} {noun if number == 1 else several}"


def printable(text: str, most: int = 2048) -> str:
    """A text of a stranger: of a limited length, and without characters that a terminal would act on."""
    cut = text if len(text) <= most else f"{text[: most - 1]}…"
    return "".join(c if c.isprintable() or c in "\n\t" else ascii(c)[1:-1] for c in cut)


def number(value: float) -> str:
    """A float with all the digits of a float32."""
    return f"{value:.9g}"


def factor(value: float) -> str:
    """A factor in six digits, by its distance from 1 where these do not show it: "1 + 2e-07"."""
    shown = f"{value:.6g}"
    return shown if shown != "1" or value == 1 else f"1 {'+' if value > 1 else '-'} {abs(value - 1):.1g}"


def difference(got: float, true: float) -> str:
    """How far two numbers are apart, with its sign, where their digits do not tell them apart; "" where they do."""
    if number(got) != number(true) or not math.isfinite(got):
        return ""
    return f"{got - true:+.3g}" if got != true else "less than float64 shows"


def got_and_true(got: float, true: float) -> str:
    """What a kernel gave and what is true, in words; with the difference where they look alike."""
    apart = difference(got, true)
    return f"got {number(got)}, true {number(true)}{f', difference {apart}' if apart else ''}"


def without_numbers(text: str) -> str:
    """Text with # for each number and address, to compare messages of cases that differ in sizes and values."""
    return re.sub(r"0x[0-9a-f]+|\d[\d.e+-]*", "#", text)


def either(names: Iterable[str]) -> str:
    """Alternatives in a sentence: "a, b or c"."""
    *others, last = names
    return f"{', '.join(others)} or {last}" if others else last
