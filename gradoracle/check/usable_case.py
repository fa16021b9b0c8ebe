"""Usable case: whether a case, which a user may have written, fits its family, the kernel and the memory."""

from __future__ import annotations

from gradoracle.cases.saved_tensors import sample_of
from gradoracle.check import memory_estimate
from gradoracle.model.case import Case, require_fit
from gradoracle.model.derivative import Derivative
from gradoracle.model.errors import UsageError, out_of_memory
from gradoracle.model.family import Family
from gradoracle.model.kernel import Kernel
from gradoracle.oracle.exact.definition import Raises, Undefined, require
from gradoracle.oracle.truth import Oracle

_LARGEST_TRIED = 512  # sizes up to which a definition is tried before the run


def require_case(
    case: Case, family: Family, kernel: Kernel, inputs: str | None = None, memory: tuple[int, str] | None = None
) -> None:
    """Check that a case, possibly written by a user, fits the family, the kernel and the memory.

    ``memory``: the bytes available, and where; by default on this machine.

    Raises:
        UsageError: another family, a dim, option, tensor or block configuration that is missing or unknown; a
            definition that raises, gives what its annotations do not say, or cannot be traced; sizes that need more
            memory than there is.
    """
    if case.family != family.name:
        raise UsageError(f"the case belongs to family {case.family!r}, but its target is checked against {family.name}")
    if case.blocks and case.blocks not in kernel.blocks:
        known = ", ".join(kernel.blocks) or "none"
        raise UsageError(f"{kernel.name} has no block configuration {case.blocks!r}; it has {known}")
    defaults = {spec.name: spec.default for spec in family.signature.options}
    for name, value in case.options.items():
        if kernel.options.get(name) == () and value != defaults.get(name):
            raise UsageError(f"the case gives option {name}, which {kernel.name} does not take; expected none")
    for name in case.draws:
        if kernel.options.get(name) == ():
            raise UsageError(f"the case draws {name}, which {kernel.name} does not take; expected none")
    try:
        require_fit(case, family.signature)
        memory_estimate.require(case, family, *memory or ())
        if is_tried(case):
            sample = sample_of(case, family, inputs)
            oracle = Oracle(family).at(case.dims)
            if oracle.scalable(sample) is None:
                require(oracle.family, sample)
                oracle.graph(sample, Derivative.VJP if sample.tangents else Derivative.FORWARD)
    except Raises as error:
        unwritten = isinstance(error.__cause__, NotImplementedError)  # as ``gradoracle new`` leaves it
        raise UsageError(str(error) if unwritten else f"{error}; {sizes_wanted(family)}") from None
    except (ValueError, Undefined) as error:
        raise UsageError(str(error)) from None
    except (RuntimeError, MemoryError) as error:
        if not out_of_memory(error):  # lack of memory is reported case by case
            raise


def is_tried(case: Case) -> bool:
    """Whether a case is small enough for its definition to be tried first."""
    return all(size <= _LARGEST_TRIED for size in case.dims.values())


def sizes_wanted(family: Family) -> str:
    """How to declare the sizes that a definition is meant for, as advice in an error message."""
    if not family.signature.dims:
        return "expected a definition that takes every case of its family"
    dim, wanted, only = family.signature.dims[-1], "multiples(16)", "sizes"
    if family.signature.spreads:
        dim, wanted, only = min(family.signature.spreads), "sizes(1, 3)", "sizes or numbers of dims"
    example = f"@gradoracle.family(dims={{{dim!r}: gradoracle.{wanted}}})"
    return f"where it takes some {only} only, declare them, as in {example}"
