"""The property of tile shapes: what a chunked kernel keeps in shared memory is linear in the chunk, not quadratic."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from gradoracle.properties.offline import (
    Allotment,
    Allotments,
    Shape,
    allotments,
    of_each_architecture,
    shapes_by_line,
)

from gradoracle.check.acceptance import exactly, not_checked
from gradoracle.check.evidence import Evidence
from gradoracle.model.call_errors import Unavailable
from gradoracle.model.finding import Finding
from gradoracle.model.property import PropertyKind, property
from gradoracle.model.severity import Severity

Lengths = Mapping[tuple[str, int], set[int]]
"""The lengths of a chunk, by name and compute capability of a compilation."""


@property(
    extras=("compilations", "chunk_axes", "feature_axes"),
    scope="kernel",
    kind=PropertyKind.COMPILATION,
    severity=Severity.WRONG,
)
def no_shared_allocation_has_two_chunk_axes(evidence: Evidence) -> Iterator[Finding]:
    """No tile in shared memory has two axes of a chunk's length, in any compilation for sm_80, 90, 100 and 120.

    Holds because: scores of a chunk against itself stay in registers, or exist for a part of its keys at a time; shared
    memory keeps rows of a chunk by features, and states. Tiles are read from the compiled TTGIR, scratch of layout
    changes included. Where a feature axis is as long as a chunk, the same line of source in a
    compilation with wider features shows which a tile is: not a square where nothing that the line reads or makes is.
    Catches: scores of [chunk, chunk] in shared memory, a transposition or a layout change of them.
    Cannot catch: the number of bytes in total; shared_memory_fits_each_architecture does. A square of a chunk in
    registers.
    """
    kernel, dtype = evidence.kernel, evidence.case.dtype
    compilations = kernel.extras["compilations"]
    chunks, features = kernel.extras["chunk_axes"], kernel.extras["feature_axes"]
    lengths, wide = {}, {}
    for capability, (name, _, _, constants, _) in of_each_architecture(compilations, dtype):
        lengths[name, capability] = _lengths(constants, chunks)
        wide[name, capability] = _told_apart(constants, chunks, features)
    found = allotments(compilations, dtype)
    wider: dict[str, dict[str, int]] = {}
    for name, capability in _suspects(found, lengths):
        if constants := wide[name, capability]:
            wider.setdefault(name, {}).update(constants)
    lines = shapes_by_line(compilations, dtype, wider) if wider else {}
    undecided = {name: wider[name] for name in _undecided(found, lines, lengths)}
    again = allotments(compilations, dtype, undecided) if undecided else {}
    if not found:
        raise Unavailable("the kernel names no compilation for this dtype")
    for (name, capability), taken in found.items():
        shown, own = f"{name} on sm_{capability}", lengths[name, capability]
        if isinstance(taken, str):  # whether it compiles, the property of architectures judges
            yield not_checked(shown, "it does not compile")
            continue
        others = [other for (of, _), other in again.items() if of == name and isinstance(other, Allotment)]
        answers = [
            (tile, _is_square(others, origin, own) if wide[name, capability] else True)
            for tile, origin in _squares(taken, own)
            if not _is_clear(lines.get((name, capability), {}), origin, own)
        ]
        wrong = ", ".join(dict.fromkeys(str(list(tile)) for tile, is_square in answers if is_square))
        if not wrong and any(is_square is None for _, is_square in answers):
            yield not_checked(shown, "features are as long as a chunk, so the axes of a tile cannot be told apart")
            continue
        yield exactly(shown, bool(wrong), f"keeps {wrong} in shared memory: two axes of a chunk's length")


def _lengths(constants: Mapping[str, Any], names: Sequence[str]) -> set[int]:
    return {constants[name] for name in names if name in constants}


def _squares(taken: Allotment, chunks: set[int]) -> list[tuple[Shape, str]]:
    """The tiles with two axes of one chunk length, and their origins."""
    tiles = zip(taken.tiles, taken.origins, strict=True)
    return [(tile, origin) for tile, origin in tiles if _has_two(tile, chunks)]


def _has_two(tile: Shape, chunks: set[int]) -> bool:
    return any(tile.count(length) > 1 for length in chunks)


def _is_clear(lines: Mapping[str, Sequence[Shape]], origin: str, chunks: set[int]) -> bool:
    """Whether the line of source of this origin neither reads nor makes anything with two chunk axes."""
    shapes = lines.get(_line(origin), ())
    return bool(shapes) and not any(_has_two(shape, chunks) for shape in shapes)


def _is_square(others: Sequence[Allotment], origin: str, chunks: set[int]) -> bool | None:
    """Whether what has this origin, or else this line of source, has two chunk axes where features are wider.

    None where that is not known. What a line makes is the same on every architecture.
    """
    line = _line(origin)
    same = [shape for other in others for shape in other.shapes.get(origin, ())]
    near = [s for other in others for at, shapes in other.shapes.items() if _line(at) == line for s in shapes]
    answers = {_has_two(shape, chunks) for shape in same or near}
    return answers.pop() if len(answers) == 1 else None


def _line(origin: str) -> str:
    """The line of source of an origin, without its operation and element type."""
    return origin.split(" ", 2)[2]


def _suspects(found: Allotments, lengths: Lengths) -> list[tuple[str, int]]:
    """The compilations that have such a tile."""
    return [key for key, taken in found.items() if isinstance(taken, Allotment) and _squares(taken, lengths[key])]


def _undecided(
    found: Allotments,
    lines: Mapping[tuple[str, int], Mapping[str, Sequence[Shape]]],
    lengths: Lengths,
) -> list[str]:
    """The compilations with wider features that have such a tile, undecided by its line alone."""
    undecided = [
        key[0]
        for key, of in lines.items()
        if isinstance(taken := found[key], Allotment)
        and any(not _is_clear(of, origin, lengths[key]) for _, origin in _squares(taken, lengths[key]))
    ]
    return list(dict.fromkeys(undecided))


def _told_apart(constants: Mapping[str, Any], chunks: Sequence[str], features: Sequence[str]) -> dict[str, int]:
    """Wider features for those that are as long as a chunk."""
    lengths = _lengths(constants, chunks)
    return {name: 2 * max(lengths) for name in features if name in constants and constants[name] in lengths}


TILE_SHAPES = (no_shared_allocation_has_two_chunk_axes,)
