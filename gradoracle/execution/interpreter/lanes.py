"""Lanes: which place of a block accesses an element, so that a store can be told from one of what others loaded.

A lane is one number: how often threads have exchanged values, the form of the block, the place in it. Blocks of one
form are distributed over the threads alike, so that equal lanes are one thread; a scalar is loaded by all threads.
"""

from __future__ import annotations

import math

import numpy as np

from gradoracle.execution.interpreter.values import Array

_FORM, _EXCHANGES = np.int64(32), np.int64(48)  # the bits below are the place, and the form
_SCALAR, _SEVERAL, _MOST_FORMS = 0, 0xFFFF, 0xFFFE
_COUNT = (1 << 15) - 1


class Lanes:
    """The lanes of the accesses of a record."""

    def __init__(self) -> None:
        self._exchanges = 0
        self._forms: dict[tuple[int, ...], int] = {(): _SCALAR}
        self._places: dict[tuple[int, ...], Array] = {}

    def exchange(self) -> None:
        """Threads of a program exchange values: the loads before are done before the stores after."""
        self._exchanges = self._exchanges % _COUNT + 1

    def of(self, block: tuple[int, ...]) -> Array:
        """The lanes of an access by a block, in its shape."""
        if block not in self._places:
            own = block[next((axis for axis, size in enumerate(block) if size > 1), len(block)) :]
            form = self._forms.setdefault(own, min(len(self._forms), _MOST_FORMS))
            self._places[block] = (np.int64(form) << _FORM) + np.arange(math.prod(block)).reshape(block)
        return self._places[block] + (np.int64(self._exchanges) << _EXCHANGES)

    def readers(self, lanes: Array, before: Array, again: Array) -> Array:
        """The lanes that have loaded elements, after these have.

        Args:
            lanes: of this load.
            before: what was noted of each element.
            again: where this program has loaded it before, with no barrier since.
        """
        others = again & (before != lanes) & (before >> _EXCHANGES == self._exchanges)
        return np.where(others, self._several(), lanes)

    def several(self, noted: Array, lanes: Array, at: Array) -> None:
        """Note, of the elements that a load has at several places of its block, that it is several."""
        noted[at[noted[at] != lanes]] = self._several()

    def apart(self, lanes: Array, readers: Array) -> Array:
        """Where a store is by another thread than a load, with no exchange between."""
        now = readers >> _EXCHANGES == self._exchanges
        forms = (readers >> _FORM) & 0xFFFF, (lanes >> _FORM) & 0xFFFF
        all_threads = (forms[0] == _SCALAR) & (forms[1] != _SCALAR)
        found: Array = now & (readers != lanes) & ((forms[0] == _SEVERAL) | (forms[0] == forms[1]) | all_threads)
        return found

    def _several(self) -> np.int64:
        return (np.int64(self._exchanges) << _EXCHANGES) + (np.int64(_SEVERAL) << _FORM)
