"""Accuracy: the page's table of errors, and which peers are ahead of ours at which accuracy."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from .cells import named, reasons, tabled
from .rows import Line

UNIT = {"bfloat16": 2.0**-8, "float16": 2.0**-11, "float32": 2.0**-24, "float64": 2.0**-53}
"""The unit roundoff u of a dtype: 2^-p with p bits of significand, the hidden one counted."""
EQUAL = 1.1  # times our error: at most this is equal accuracy
EQUALLY, LESS, UNKNOWN = "at equal or better accuracy", "less accurate", "accuracy not known"


@dataclass(frozen=True)
class Ahead:
    """A peer that none of our entries matches in time and accuracy; ``ours``: the fastest that it is faster than."""

    peer: Line
    ours: Line
    how: str


def ahead(work: Sequence[Line]) -> Iterator[Ahead]:
    """Of the rows of one work: peers faster than an entry of ours, unless another is as fast and as accurate.

    ``how``: EQUALLY where the peer is as accurate as one of ours, LESS where it is less accurate than each.
    """
    ours = [line for line in work if line.ours and line.best is not None]
    for peer in work:
        if peer.ours or peer.best is None:
            continue
        slower = [line for line in ours if _time(line) > peer.best]
        matched = (is_as_accurate(line, peer) is not False for line in ours if line not in slower)
        if slower and not any(matched):
            than = [is_as_accurate(peer, line) for line in ours]
            how = EQUALLY if True in than else UNKNOWN if None in than else LESS
            yield Ahead(peer, min(slower, key=_time), how)


def is_as_accurate(one: Line, other: Line) -> bool | None:
    """Whether one's errors (rms) are at most ``EQUAL`` times the other's on both inputs; None: one is not known.

    Where neither has an error of a stress, that on the timed inputs decides.
    """
    if one.error_rms is None or other.error_rms is None or (one.sharp_rms is None) != (other.sharp_rms is None):
        return None
    return one.error_rms <= EQUAL * other.error_rms and (one.sharp_rms or 0.0) <= EQUAL * (other.sharp_rms or 0.0)


def accuracy(lines: Sequence[Line], command: str) -> Iterator[str]:
    """A family's table of errors, and the lists of who is ahead; ``command`` takes the errors."""
    own = tabled(lines)
    tried = [line for line in own if line.is_compared]
    if not tried:
        yield f"Results are not compared with float64 yet; `{command}` does that.\n"
        return
    yield from _table([line for line in tried if line.error_rms is not None])
    yield f"Compared on: {' and '.join(dict.fromkeys(line.errors_on for line in tried))}.\n"
    missing = (line for line in own if line.best is not None and (line.error_rms is None or line.errors_missing))
    yield from reasons("Without an error", ((line, line.errors_missing or "not compared yet") for line in missing))
    found = [each for work in _works(own) for each in ahead(work)]
    for how in (EQUALLY, LESS, UNKNOWN):
        listed = [each for each in found if each.how == how]
        if listed:
            yield f"Ahead of ours, {how}:\n"
            yield from (_listed(each) for each in listed)
            yield ""
        elif how == EQUALLY:
            yield f"Ahead of ours, {how}: none.\n"


def _table(compared: Sequence[Line]) -> Iterator[str]:
    """Works by entries, a line for each of the inputs."""
    entries = list(dict.fromkeys(line.entry for line in compared))
    yield "| work, error in u | inputs | " + " | ".join(entries) + " |"
    yield "|---" * (len(entries) + 2) + "|"
    for work in _works(compared):
        row = {line.entry: line for line in work}
        yield (
            f"| {named(work[0])} | timed | "
            + " | ".join(_cell(row[who]) if who in row else "" for who in entries)
            + " |"
        )
        if any(line.sharp_rms is not None for line in work):
            sharp = (_sharp(row[who]) if who in row else "" for who in entries)
            yield f"| {named(work[0])} | {work[0].sharp} | " + " | ".join(sharp) + " |"
    yield ""


def _works(lines: Sequence[Line]) -> list[list[Line]]:
    found: dict[str, list[Line]] = {}
    for line in lines:
        found.setdefault(line.work, []).append(line)
    return list(found.values())


def _time(line: Line) -> float:
    return line.best or 0.0


def _listed(each: Ahead) -> str:
    peer, ours = each.peer, each.ours
    said = f"- {named(peer)}: {peer.entry} {peer.best:.4g} ms, {ours.entry} {ours.best:.4g} ms"
    for label, one, other in (
        ("", peer.error_rms, ours.error_rms),
        (f" at {peer.sharp}", peer.sharp_rms, ours.sharp_rms),
    ):
        if one is not None and other is not None:
            said += f"; error{label} {_number(one, peer)} u, {_number(other, ours)} u"
    return said


def _cell(line: Line) -> str:
    return _said(line, line.error_rms, line.error_largest, line.error_of)


def _sharp(line: Line) -> str:
    return _said(line, line.sharp_rms, line.sharp_largest, line.sharp_of)


def _said(line: Line, rms: float | None, largest: float | None, of: str) -> str:
    if rms is None or largest is None:
        return "–"
    said = f"{_number(rms, line)} / {_number(largest, line)}"
    return (f"**{said}**" if line.ours else said) + f" {of}"


def _number(error: float, line: Line) -> str:
    units = error / UNIT[line.dtype]
    return f"{units:.0f}" if units >= 100 else f"{units:.2g}"
