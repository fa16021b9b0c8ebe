"""The semi-CRF kernels as a compiler sees them: every pass compiles for GPUs that are not here; few compilations."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from gradoracle.kernels.semicrf.compilations import Compilation, compilations, deciding
from gradoracle.properties.offline import SHARED_MEMORY, shared_memory
from programs import compiling, specialising
from sweeps import slow


def with_other_positions(dtype: str) -> list[Compilation]:
    """Those that decide, and what one of them must take at least as much as: the same kernel on the other path."""
    other = "positions, K = 8, C = 4, parallel, [C, C], long"
    return [*deciding(dtype), *(each for each in compilations(dtype) if each[0] == other)]


@pytest.mark.parametrize("passes", [with_other_positions, slow(compilations, marks=[pytest.mark.timeout(1800)])])
def test_every_pass_compiles_and_fits_the_smallest_shared_memory(passes: Callable[[str], list[Compilation]]) -> None:
    found = shared_memory(passes, "float32")
    names = {name for name, _ in found}
    kernels = {name.split(",")[0] for name in names}
    assert kernels == {"forward", "backward", "positions", "durations", "far", "scan"}
    assert {capability for _, capability in found} == set(SHARED_MEMORY)
    failed = {key: value for key, value in found.items() if isinstance(value, str)}
    assert not failed, next(iter(failed.items()))
    assert all(0 <= value <= min(SHARED_MEMORY.values()) // 2 for value in found.values() if not isinstance(value, str))
    few = shared_memory(deciding, "float32")  # what the property compiles

    def most(taken: dict[tuple[str, int], int | str]) -> dict[tuple[str, int], int]:
        largest: dict[tuple[str, int], int] = {}
        for (name, capability), value in taken.items():
            key = name.split(",")[0], capability
            largest[key] = max(largest.get(key, 0), int(value))
        return largest

    assert few.items() < found.items() and most(few) == most(found)


def test_no_dim_stride_or_pointer_starts_a_compilation() -> None:
    found = specialising(*(f"semicrf.{name}" for name in ("far", "posteriors", "recursion", "scan")))
    assert len(found) == 5 and not any(found.values()), found


# lowered to PTX, for what the property of shared memory stops before
WHOLE = """
import sys
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from gradoracle.kernels.semicrf.compilations import compilations
count = 0
for name, kernel, signature, constants, options in compilations("bfloat16"):
    if any(name.endswith(end) for end in sys.argv[1:]):
        source = ASTSource(fn=kernel, constexprs=constants, signature=signature)
        ptx = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options).asm["ptx"]
        assert "atom." not in ptx, name
        count += 1
print(count)
"""


TANGENTS, VALUES = "parallel, [C, C], tangents, long", "sequential, [C, C], long"  # each path, each with and without


@pytest.mark.parametrize(
    ("ends", "count"), [((TANGENTS, VALUES), 9), slow(("[C, C], long", "[C, C], tangents, long"), 18)]
)
def test_passes_compile_to_the_end_and_take_no_atomics(ends: tuple[str, ...], count: int) -> None:
    assert int(compiling(WHOLE, *ends)) == count
