"""The row of ``gradoracle bench`` that measures the cost of recording memory accesses, for any family; on the CPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from gradoracle.cases.sample import build
from gradoracle.execution.bench import Row
from gradoracle.execution.guard_memory import Memory
from gradoracle.execution.kernel_runner import KernelRunner, Tensors
from gradoracle.model.case import Case, Draw
from gradoracle.model.family import Family
from gradoracle.model.kernel import Kernel


def recorded_vjp(family: Family, kernel: Kernel, dims: Mapping[str, int], given: Sequence[str] = ()) -> Row:
    """One float32 VJP of a kernel in gradoracle's interpreter, with and without the record of accesses.

    Args:
        family, kernel: for which a normal case is drawn.
        dims: sizes of the case.
        given: optional inputs of the case.
    """
    case = Case(family.name, dict(dims), "float32").with_draws(**{name: Draw() for name in given})
    sample = build(case, family.signature, domains=family.domains)

    def said(found: tuple[Tensors, Memory]) -> str:
        memory = found[1]
        return f"{memory.launches} launches, {len(memory.faults)} faults"

    sizes = " ".join(f"{dim}{size}" for dim, size in dims.items())
    plain, recorded = "interpreter", "interpreter with the record of accesses"
    return Row(
        f"one {kernel.name} VJP in the interpreter float32 {sizes}",
        {plain: lambda: partial(KernelRunner(family, kernel, records=False).vjp, sample),
         recorded: lambda: partial(KernelRunner(family, kernel).vjp, sample)},
        describe={recorded: said},
    )  # fmt: skip
