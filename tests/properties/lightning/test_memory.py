"""The property of tile shapes: scores in registers hold, scores that go through shared memory name the GPU."""

from __future__ import annotations

import pytest
from gradoracle.properties.lightning.catalogue.tile_shapes import no_shared_allocation_has_two_chunk_axes as prop
from gradoracle.properties.offline import SHARED_MEMORY, Allotment, allotments, shapes_by_line, shared_memory

from gradoracle.model.finding import Outcome
from gradoracle.model.reason import Reason
from gradoracle.model.verdict import Status
from tests.properties.lightning import chunked_compilations as chunked
from tests.properties.toys import CASE, judged, kernel, right

AXES = {"chunk_axes": ("CHUNK",), "feature_axes": ("WIDTH",)}


def naming(compilations):
    return kernel(right, extras={"compilations": compilations, **AXES})


def test_a_kernel_that_names_no_axes_is_not_concerned():
    assert prop.applies(CASE, kernel(right, extras={"compilations": chunked.in_registers})) is not None
    assert prop.applies(CASE, naming(chunked.in_registers)) is None


def test_scores_in_registers_hold_on_every_architecture():
    found = judged(prop, naming(chunked.in_registers))
    assert found.status is Status.HOLDS
    assert len(found.findings) == 2 * len(SHARED_MEMORY)


def test_scores_that_are_turned_are_named_with_the_gpu():
    found = judged(prop, naming(chunked.turned))
    assert found.status is Status.VIOLATED
    wrong = {f.tensor: f.message for f in found.findings if f.outcome is Outcome.VIOLATED}
    assert set(wrong) == {f"turned_kernel 64 32 on sm_{capability}" for capability in SHARED_MEMORY}
    assert all("[64, 64] in shared memory" in message for message in wrong.values())


def test_features_as_long_as_a_chunk_are_told_apart():
    """Rows of [chunk, features] are no square, though both are 64; scores that are turned still are one."""
    squares = [(64, 64) in taken.tiles for taken in allotments(chunked.as_wide_as_long, "bfloat16").values()]
    assert all(squares)
    assert judged(prop, naming(chunked.as_wide_as_long)).status is Status.HOLDS
    found = judged(prop, naming(chunked.turned_as_wide_as_long))
    assert found.status is Status.VIOLATED
    assert sum(f.outcome is Outcome.VIOLATED for f in found.findings) == len(SHARED_MEMORY)


def test_compilations_of_each_gpu_have_their_own_axes():
    found = judged(prop, naming(chunked.of_its_own))
    wrong = [f.tensor for f in found.findings if f.outcome is Outcome.VIOLATED]
    assert wrong == ["turned_kernel 64 64 on sm_80"]
    held = {f.tensor for f in found.findings if f.outcome is Outcome.HOLDS}
    assert held == {f"rows on sm_{capability}" for capability in SHARED_MEMORY}


def test_scores_that_a_loop_carries_are_told_from_rows_that_it_carries():
    found = judged(prop, naming(chunked.carried))
    assert found.status is Status.VIOLATED
    assert sum(f.outcome is Outcome.VIOLATED for f in found.findings) == len(SHARED_MEMORY)


def test_the_line_of_a_loop_has_the_shapes_of_all_that_it_carries():
    """With wider features, scores are [64, 64] and rows [64, 128]: a line with both is no proof that a tile is rows."""
    lines = shapes_by_line(chunked.carried, "bfloat16", {"carried_kernel 64 64": {"WIDTH": 128}})
    assert len(lines) == len(SHARED_MEMORY)
    for of in lines.values():
        assert {(64, 64), (64, 128)} in [set(shapes) for shapes in of.values()]
        assert {(64, 128)} in [set(shapes) for shapes in of.values()]


def test_a_dtype_without_compilations_is_not_checked():
    found = judged(prop, naming(chunked.nothing))
    assert (found.status, found.why) == (Status.NOT_CHECKED, Reason.LACKING)
    assert "no compilation" in found.reason


@pytest.mark.parametrize("capability", SHARED_MEMORY)
def test_tiles_explain_the_bytes(capability):
    """The largest tile is no larger than what is allotted, and something is: bf16 has two bytes an element."""
    taken = allotments(chunked.in_registers, "bfloat16")["rows_kernel 64 32", capability]
    assert isinstance(taken, Allotment) and taken.tiles
    assert 2 * max(tile[-1] * tile[-2] for tile in taken.tiles if len(tile) > 1) <= taken.bytes
    assert shared_memory(chunked.in_registers, "bfloat16")["rows_kernel 64 32", capability] == taken.bytes
