"""The semi-CRF's ring of positions: it is cut where K of them are too many for a tile, and holds no more than K."""

from __future__ import annotations

import pytest
import torch
from gradoracle.kernels import semicrf as kernels
from gradoracle.kernels.semicrf import sequential, tables
from gradoracle.kernels.semicrf.guardrails import Problem

from gradoracle.host.interpreter.record import recording
from gradoracle.model.wrong_accesses import Kind
from tests.kernels.semicrf.test_kernel import assert_right, computed
from tests.kernels.semicrf.test_reference import draw

SIZES = [(K, C) for K in (1, 2, 3, 5) for C in (1, 5, 17, 33)]


def problem(durations: int, labels: int, tile: int, per_duration: bool) -> Problem:
    blocks = kernels.Blocks(8, tile, num_warps=1)
    return Problem(
        2, 9, labels, durations, per_duration, "sequential", 8, 2, blocks, torch.float32, torch.device("cpu")
    )  # fmt: skip


@pytest.mark.parametrize("per_duration", [False, True])
@pytest.mark.parametrize(("durations", "labels"), SIZES)
def test_a_ring_is_cut_where_it_has_fewer_slots_than_durations(durations: int, labels: int, per_duration: bool) -> None:
    for tile in (1 << power for power in range(4, 21)):
        own = problem(durations, labels, tile, per_duration)
        assert tables.slots(own) == 1 or tables.slots(own) * tables.width(own) <= tile
        assert tables.needs_far(own) == (tables.slots(own) < durations)
        assert tables.needs_far(own) == (durations > max(1, tile // tables.width(own)))


@pytest.mark.parametrize("per_duration", [False, True])
@pytest.mark.parametrize(("durations", "labels"), [(1, 17), (1, 33), (2, 17), (3, 5), (3, 17)])
def test_no_launch_reads_past_the_last_duration(durations: int, labels: int, per_duration: bool) -> None:
    scores = draw(2, 5, durations, labels, per_duration=per_duration)
    with recording() as record:
        assert_right(scores, blocks=kernels.BLOCKS["short"], path="sequential")
    assert record.launches and record.faults() == []


def test_the_record_sees_a_ring_of_more_slots_than_durations(monkeypatch: pytest.MonkeyPatch) -> None:
    """As it was: rings were cut by their padded extent, and the duration after the last was whatever lay there.

    One of 60 000 cases on an H200 had NaN there, and log Z was NaN.
    """
    padded = lambda own: tables.padded(own.durations) * tables.width(own) > own.blocks.tile  # noqa: E731
    monkeypatch.setattr(sequential, "needs_far", padded)
    monkeypatch.setattr(tables, "needs_far", padded)
    scores = draw(2, 1, 1, 17)
    with recording() as record:
        computed(scores, blocks=kernels.BLOCKS["short"], path="sequential")
    found = {(fault.kind, fault.tensor) for fault in record.faults()}
    assert (Kind.READ_OUTSIDE, "duration") in found
