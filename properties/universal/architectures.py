"""The property of architectures: a kernel fits every GPU that it is meant for."""

from __future__ import annotations

from collections.abc import Iterator

from gradoracle.properties.offline import SHARED_MEMORY, shared_memory

from gradoracle.check.acceptance import exactly
from gradoracle.check.evidence import Evidence
from gradoracle.model.call_errors import Unavailable
from gradoracle.model.finding import Finding
from gradoracle.model.property import PropertyKind, property
from gradoracle.model.severity import Severity


@property(extras=("compilations",), scope="kernel", kind=PropertyKind.COMPILATION, severity=Severity.WRONG)
def shared_memory_fits_each_architecture(evidence: Evidence) -> Iterator[Finding]:
    """Each compilation that the kernel names compiles for sm_80, sm_90, sm_100 and sm_120 and fits their shared memory.

    Holds because: a launch that asks for more shared memory than a program can have fails on that GPU; how much it
    asks for is known once Triton has compiled, which needs no GPU.
    Catches: tiles that fit the author's GPU alone, one more pipeline stage than there is room for, an allocation that
    grows with two block lengths, code that an architecture does not compile.
    Cannot catch: registers that spill, what the lowering of TTGIR to LLVM or ptxas alone refuses, compilations that the
    kernel does not name, and kernels that name none (in ``extras["compilations"]``), to which it does not apply.
    """
    found = shared_memory(evidence.kernel.extras["compilations"], evidence.case.dtype)
    if not found:
        raise Unavailable("the kernel names no compilation for this dtype")
    for (name, capability), taken in found.items():
        shown = f"{name} on sm_{capability}"
        if isinstance(taken, str):
            yield exactly(shown, True, f"does not compile: {taken}")
        else:
            room = SHARED_MEMORY[capability]
            yield exactly(shown, taken > room, f"takes {taken} bytes of shared memory, a program can have {room}")
