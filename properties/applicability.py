"""Applicability: when a property does not apply to a case and kernel, as a reason; None where it applies."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from math import prod

from gradoracle.model.case import Case
from gradoracle.model.formats import FORMATS
from gradoracle.model.kernel import Kernel
from gradoracle.model.property import Families
from gradoracle.model.signature import Defined

Applies = Callable[[Case, Kernel], "str | None"]

LONGEST_DIM = 10_000
LARGEST_PROBLEM = 2_000_000 * 128 * 128  # two million scores of two widths of 128, as the product of all dims


def _has_several_outputs(family: Defined) -> bool:
    return sum(spec.kind == "float" for spec in family.signature.outputs) > 1


def _has_several_primals(family: Defined) -> bool:
    return len(family.signature.primals) > 1


def _has_a_dim_of_all_outputs(family: Defined) -> bool:
    widest = family.signature.at()
    always = [set(spec.dims) & set(widest.dims) for spec in widest.outputs if not spec.asked_by]
    return any(dim in spec.dims for spec in widest.primals for dim in set.intersection(*always))


OF_SEVERAL_OUTPUTS = Families("every family with two or more float outputs", _has_several_outputs)
OF_SEVERAL_PRIMALS = Families("every family with two or more float inputs", _has_several_primals)
OF_A_DIM_OF_ALL_OUTPUTS = Families(
    "every family with a dim that all its outputs and some float input have", _has_a_dim_of_all_outputs
)


def small_enough(case: Case, kernel: Kernel) -> str | None:
    """Whether a case is small enough for properties that run the kernel or the oracle again."""
    longest = max(case.dims.values(), default=1)
    if longest > LONGEST_DIM:
        return f"a dim of {longest} is too large for this property: at most {LONGEST_DIM}"
    size = prod(case.dims.values())
    if size > LARGEST_PROBLEM:
        return f"the product {size:.1e} of all dims is too large for this property: at most {LARGEST_PROBLEM:.1e}"
    return None


def through_autograd(case: Case, kernel: Kernel) -> str | None:
    """Whether the kernel's VJP is that of ``torch.autograd``."""
    return None if kernel.vjp is None else "its VJP is an explicit function, not that of torch.autograd"


def every_input_has_a_gradient(case: Case, kernel: Kernel) -> str | None:
    """Whether no float input is declared to have no gradient."""
    missing = ", ".join(kernel.no_gradient)
    return f"{missing} is declared to have no gradient" if missing else None


def has_block_configurations(case: Case, kernel: Kernel) -> str | None:
    """Whether the kernel has named block configurations."""
    return None if kernel.blocks else "the kernel has no named block configurations"


def may_take_float64(case: Case, kernel: Kernel) -> str | None:
    """Whether float64 is among the dtypes that the kernel declares; a kernel that declares none is asked later."""
    if kernel.dtypes is None or "float64" in kernel.dtypes:
        return None
    return "the kernel does not declare float64"


def all_of(*conditions: Applies) -> Applies:
    """The first reason of several, None where all apply."""

    def applies(case: Case, kernel: Kernel) -> str | None:
        return next((reason for reason in (one(case, kernel) for one in conditions) if reason is not None), None)

    return applies


def supports(kernel: Kernel, **sizes: int) -> bool:
    """Whether a kernel takes such sizes."""
    return all(name not in kernel.dims or size in kernel.dims[name] for name, size in sizes.items())


def takes(kernel: Kernel, option: str, value: object) -> bool:
    """Whether a kernel may be called with that value of an option."""
    return option not in kernel.options or value in kernel.options[option]


def starts_from_a_state(case: Case, kernel: Kernel) -> str | None:
    """Why properties that give a kernel an initial state whatever the case do not apply; None where they do."""
    try:
        parameters = inspect.signature(kernel.call).parameters
    except (TypeError, ValueError):
        return None
    open_ended = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    return None if open_ended or "initial_state" in parameters else "the kernel takes no initial state"


def gives_the_state(case: Case, kernel: Kernel) -> str | None:
    """Why properties that ask a kernel for the state whatever the case do not apply; None where they do."""
    return None if takes(kernel, "return_state", True) else "the kernel does not return the state"


def causal(case: Case, kernel: Kernel) -> str | None:
    """Why properties of causal cases do not apply; None where they do."""
    return None if case.options.get("causal", False) else "the case is not causal"


def bidirectional(case: Case, kernel: Kernel) -> str | None:
    """Why properties of cases in which every query sees every key do not apply; None where they do."""
    return "the case is causal" if case.options.get("causal", False) else None


def has_a_later_query(case: Case, kernel: Kernel) -> str | None:
    """Why properties of what comes after a query do not apply; None where they do."""
    return None if case.dims["T"] > 1 else "there is no later query"


def bidirectional_too(case: Case, kernel: Kernel) -> str | None:
    """Why properties that call the kernel with one query that is not causal do not apply; None where they do."""
    if takes(kernel, "causal", False) and supports(kernel, T=1):
        return None
    return "the kernel does not take a single query without a causal mask"


def may_have_twice_the_keys(case: Case, kernel: Kernel) -> str | None:
    """Why properties that call the kernel with every key twice do not apply; None where they do."""
    return None if supports(kernel, M=2 * case.dims["M"]) else "the kernel does not take twice as many keys"


def exact_operands(case: Case, kernel: Kernel) -> str | None:
    """Why properties in bits do not apply: the contract rounds the inputs themselves (tf32)."""
    contract = kernel.contract(case.dtype)
    if FORMATS[contract.operand].unit_roundoff <= FORMATS[case.dtype].unit_roundoff:
        return None
    return f"the contract {contract.name} rounds the inputs to {contract.operand}"
