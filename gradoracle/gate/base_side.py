"""Base side: how the base stands on the cases of a change: what is kept of it, and what its processes say."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

from gradoracle.gate.process import Side
from gradoracle.gate.snapshot import Snapshot

Asked = dict[str, list[str]]  # case -> laws


class Base:
    """The base of one target.

    Args:
        begin: begins a process that judges some laws on some cases; None: that measures errors on all of them.
        read: what a process said, once it has ended.
        kept: how it stood in an earlier gate; None: not known.

    Attributes:
        kept: as it was given.
        is_measured: whether its errors are known on all cases.
    """

    def __init__(
        self, begin: Callable[[Asked | None], Side], read: Callable[[Side], Snapshot], kept: Snapshot | None
    ) -> None:
        self._begin, self._read, self.kept, self._known = begin, read, kept, kept
        self.is_measured = kept is not None
        self._measuring: Side | None = None
        self._asking: list[Side] = []
        self._asked: set[tuple[str, str]] = set()

    @property
    def is_asked(self) -> bool:
        """Whether something is asked that it has not answered yet."""
        return bool(self._asking) or not self.is_measured

    def measure(self) -> None:
        """Begin to measure its errors on all cases, unless they are known or being measured."""
        if not self.is_measured and self._measuring is None:
            self._measuring = self._begin(None)

    def ask(self, laws: Mapping[str, Sequence[str]], measured: Collection[str], soon: bool = False) -> None:
        """Begin to judge what is not known yet.

        Args:
            laws: by case.
            measured: those that come of the measuring.
            soon: whether to judge these too, since the measuring takes longer.
        """
        known = {} if self._known is None else self._known.cases
        new: Asked = {}
        for line, names in laws.items():
            own = known[line].laws if line in known else {}
            expected = [name for name in names if (line, name) not in self._asked and name not in own]
            expected = [name for name in expected if soon or name not in measured]
            if expected:
                new[line] = expected
        self._asked |= {(line, name) for line, names in new.items() for name in names}
        if new:
            self._asking.append(self._begin(new))

    def answers(self) -> Snapshot | None:
        """Wait for what it was asked: all that is known by now, or why nothing is; None: it was asked nothing yet."""
        while self._asking:
            found = self._read(self._asking.pop(0))
            if found.error:
                return found
            self._known = found if self._known is None else together(self._known, found)
        return self._known

    def snapshot(self) -> Snapshot:
        """Wait for everything: all that is known, or why nothing is."""
        self.measure()
        found = self.answers()
        if found is not None and found.error:
            return found
        if self._measuring is not None:
            measured, self._measuring = self._read(self._measuring), None
            if measured.error:
                return measured
            self._known, self.is_measured = together(measured, found) if found is not None else measured, True
        assert self._known is not None
        return self._known


def together(one: Snapshot, other: Snapshot) -> Snapshot:
    """What two runs of one target found, on whatever cases and by whatever laws."""
    cases = dict(one.cases)
    for line, case in other.cases.items():
        if (there := cases.get(line)) is None:
            cases[line] = case
            continue
        cases[line] = replace(
            there,
            laws={**there.laws, **case.laws},
            reasons={**there.reasons, **case.reasons},
            rms={**there.rms, **case.rms},
            worst={**there.worst, **case.worst},
            called=tuple(sorted({*there.called, *case.called})),
        )
    pooled = list(dict.fromkeys((*one.pooled, *other.pooled)))
    return replace(one, cases=cases, pooled=pooled, is_whole=one.is_whole and other.is_whole)
