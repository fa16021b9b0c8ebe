"""Fault lines: which statement stored an element of a result."""

from __future__ import annotations

from pathlib import Path

import interpreted
import pytest
import torch
from places import loaded

from gradoracle.execution import interpreter

pytestmark = interpreted.NEEDED
interpreter.activate()

from fault_lines import Stores  # noqa: E402

from gradoracle.execution.guard_memory import poisoned, watched  # noqa: E402
from gradoracle.execution.interpreter.record import Record  # noqa: E402

kernels = loaded("execution.interpreter.kernels")


def test_the_statement_that_stored_an_element_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("end", "_place"):
        monkeypatch.setattr(Record, name, getattr(Record, name))  # as it was, after this test
    stores = Stores()
    stores.watch()
    with poisoned() as memory, watched(memory, True, True, set()):
        z = torch.empty(8, 4)
        kernels.doubled_by_block_pointers[(1,)](torch.ones(8, 4), z, 8, 4, 4)
    place = stores.of(z, (5, 2))
    assert place is not None and z[5, 2] == 2
    assert "tl.store(z, " in Path(place.file).read_text().splitlines()[place.line - 1]
    assert stores.of(torch.ones(8, 4), (0, 0)) is None
