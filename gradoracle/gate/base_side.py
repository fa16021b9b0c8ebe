"""Base side: what is known of the base on the cases of a change: kept from an earlier gate, or asked of processes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from gradoracle.gate.snapshot import Snapshot

Laws = dict[str, list[str]]  # by case
Wait = Callable[[], Snapshot]  # waits for a process, and returns what it found


class Base:
    """The base of one target.

    Args:
        begin: starts a process that judges some laws on some cases; None: that measures errors on all of them.
        kept: the snapshot of an earlier gate; None: there is none.

    Attributes:
        kept: as given.
        is_measured: whether its errors are known on all cases.
    """

    def __init__(self, begin: Callable[[Laws | None], Wait], kept: Snapshot | None) -> None:
        self._begin, self.kept, self._known = begin, kept, kept
        self.is_measured = kept is not None
        self._measuring: Wait | None = None
        self._asking: list[Wait] = []
        self._asked: set[tuple[str, str]] = set()

    @property
    def is_asked(self) -> bool:
        """Whether an answer is pending."""
        return bool(self._asking) or not self.is_measured

    def measure(self) -> None:
        """Start measuring its errors on all cases, unless they are known or being measured."""
        if not self.is_measured and self._measuring is None:
            self._measuring = self._begin(None)

    def ask(self, laws: Mapping[str, Sequence[str]], measured: Collection[str], soon: bool = False) -> None:
        """Start judging what is not known yet.

        Args:
            laws: by case.
            measured: those that the measuring judges anyway.
            soon: whether to judge these too, since the measuring takes longer.
        """
        known = {} if self._known is None else self._known.cases
        new: Laws = {}
        for line, names in laws.items():
            own = known[line].laws if line in known else {}
            left = [name for name in names if (line, name) not in self._asked and name not in own]
            if left := [name for name in left if soon or name not in measured]:
                new[line] = left
        self._asked |= {(line, name) for line, names in new.items() for name in names}
        if new:
            self._asking.append(self._begin(new))

    def answers(self) -> Snapshot | None:
        """Wait for what was asked: all that is known by then, or an error; None: nothing was asked or known."""
        while self._asking:
            found = self._asking.pop(0)()
            if found.error:
                return found
            self._known = found if self._known is None else self._known.merged(found)
        return self._known

    def snapshot(self) -> Snapshot:
        """Wait for everything: all that is known, or an error."""
        self.measure()
        found = self.answers()
        if found is not None and found.error:
            return found
        if self._measuring is not None:
            measured, self._measuring = self._measuring(), None
            if measured.error:
                return measured
            self._known, self.is_measured = measured if found is None else measured.merged(found), True
        assert self._known is not None
        return self._known
