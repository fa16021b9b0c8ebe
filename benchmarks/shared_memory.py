"""Shared memory: docs/background/shared_memory.md, a table of every family that declares its compilations.

`python benchmarks/shared_memory.py` prints the page, in some minutes. Needs no GPU. A heading names the hash of the
family's kernels, so that `pytest tests/kernels/test_compilations.py` knows, without compiling, whose tables they are.
"""

from __future__ import annotations

from collections.abc import Iterator

from gradoracle.properties.offline import SHARED_MEMORY, Allotments, allotments
from kernel_speed.content import content

from gradoracle.execution.device import prepare
from gradoracle.model.kernel import Kernel
from gradoracle.project.target import shipped

INTRODUCTION = """# Shared memory

Do the shipped kernels fit the shared memory of each architecture? The tables list the bytes that one program of each
compilation uses, and the limit of each architecture. Kernels are compiled offline; `make shared-memory` rewrites this
page. **Bold**: more than the limit; "–": not launched there. The property `shared_memory_fits_each_architecture` checks
the same in `gradoracle gate` and in tests/kernels; of the semi-CRF it checks the compilations that use most. A heading
has the hash of the kernels: a test says when they have changed.
"""


def page() -> Iterator[str]:
    """The page, part by part."""
    yield INTRODUCTION
    for name, target in shipped().items():
        for kernel in target.kernels:
            if "compilations" in kernel.extras:
                own = name if len(target.kernels) == 1 else f"{name}: {kernel.name}"
                yield f"## {own} ({content(name, every_gpu=True)})\n"
                yield from table(kernel)


def table(kernel: Kernel) -> Iterator[str]:
    """The rows of one kernel, one for each compilation and dtype, below the limits of the architectures."""
    yield "| dtype | compilation | " + " | ".join(f"sm_{capability}" for capability in SHARED_MEMORY) + " |"
    yield "|---|---|" + "--:|" * len(SHARED_MEMORY)
    yield "| | *limit* | " + " | ".join(f"*{limit}*" for limit in SHARED_MEMORY.values()) + " |"
    for dtype in kernel.dtypes or ():
        found = allotments(kernel.extras.get("all compilations", kernel.extras["compilations"]), dtype)
        for name in dict.fromkeys(name for name, _ in found):
            cells = " | ".join(_cell(found, name, capability) for capability in SHARED_MEMORY)
            yield f"| {dtype} | {name} | {cells} |"
    yield ""


def _cell(found: Allotments, name: str, capability: int) -> str:
    taken = found.get((name, capability))
    if taken is None:
        return "–"
    if isinstance(taken, str):
        return "does not compile"
    return f"**{taken.bytes}**" if taken.bytes > SHARED_MEMORY[capability] else str(taken.bytes)


if __name__ == "__main__":
    prepare("cpu")
    for part in page():
        print(part)
