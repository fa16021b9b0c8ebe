"""Scores: what SDPA laws know of a sample without any kernel: who sees whom, and P and its derivatives in float64."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from gradoracle.properties.applicability import Applies
from torch import Tensor

from gradoracle.case import Case, Sample
from gradoracle.contract import LARGEST, SMALLEST_NORMAL, UNIT_ROUNDOFF, Contract
from gradoracle.kernel import Kernel


@dataclass(frozen=True)
class Scores:
    """One sample's attention in float64 on the CPU, for the sizes that sensitivities are measured against.

    Not a truth: truths come from the oracle.
    """

    sample: Sample

    def tensor(self, group: str, name: str) -> Tensor:
        """An input, tangent or cotangent of the sample in float64."""
        return getattr(self.sample, group)[name].detach().to("cpu", torch.float64)

    @property
    def q(self) -> Tensor:
        """[B, H, T, D]."""
        return self.tensor("inputs", "q")

    @property
    def k(self) -> Tensor:
        """[B, H, M, D]."""
        return self.tensor("inputs", "k")

    @property
    def v(self) -> Tensor:
        """[B, H, M, Dv]."""
        return self.tensor("inputs", "v")

    @property
    def g(self) -> Tensor:
        """The cotangent of o [B, H, T, Dv]."""
        return self.tensor("cotangents", "o")

    @property
    def scale(self) -> float:
        """The factor of q k^T."""
        return scale_of(self.sample)

    @property
    def queries(self) -> int:
        """T."""
        return self.sample.inputs["q"].shape[2]

    @property
    def keys(self) -> int:
        """M."""
        return self.sample.inputs["k"].shape[2]

    @cached_property
    def seen(self) -> Tensor:
        """[T] how many keys each query sees: the first so many."""
        return seen(self.queries, self.keys, self.sample.options["causal"])

    @property
    def first(self) -> int:
        """The first query that sees a key."""
        return int((self.seen == 0).sum())

    @cached_property
    def visible(self) -> Tensor:
        """[T, M] whether query i sees key j."""
        return torch.arange(self.keys)[None, :] < self.seen[:, None]

    @cached_property
    def p(self) -> Tensor:
        """[B, H, T, M] softmax of the scores, 0 where a query does not see a key."""
        return softmax(self.q @ self.k.transpose(-1, -2) * self.scale, self.visible)

    @cached_property
    def ds(self) -> Tensor:
        """[B, H, T, M] the gradient of <g, o> in the scores."""
        dp = self.g @ self.v.transpose(-1, -2)
        return self.p * (dp - (dp * self.p).sum(-1, keepdim=True))

    @cached_property
    def s_tangent(self) -> Tensor:
        """[B, H, T, M] the tangent of the scores."""
        tq, tk = self.tensor("tangents", "q"), self.tensor("tangents", "k")
        return (tq @ self.k.transpose(-1, -2) + self.q @ tk.transpose(-1, -2)) * self.scale

    @cached_property
    def p_tangent(self) -> Tensor:
        """[B, H, T, M] the tangent of P."""
        return self.p * (self.s_tangent - (self.p * self.s_tangent).sum(-1, keepdim=True))


def scale_of(sample: Sample) -> float:
    """The factor of q k^T: the option, or 1 / sqrt(D)."""
    scale = sample.options["scale"]
    return 1 / math.sqrt(sample.inputs["q"].shape[-1]) if scale is None else float(scale)


def seen(queries: int, keys: int, causal: bool) -> Tensor:
    """[T] how many keys each query sees."""
    if not causal:
        return torch.full((queries,), keys)
    return (torch.arange(queries) + keys - queries + 1).clamp(0, keys)


def softmax(s: Tensor, visible: Tensor) -> Tensor:
    """Softmax over the visible keys [.., T, M]; 0 in rows that see none. Traceable."""
    sees = visible.any(-1, keepdim=True)
    masked = torch.where(sees, torch.where(visible, s, -torch.inf), 0.0)
    return torch.where(sees, torch.softmax(masked, -1), 0.0)


def pointwise(tensor: Tensor, change: Callable[[Tensor], Tensor]) -> Tensor:
    """``change`` of every element, in the very layout of the tensor (its storage is copied whole)."""
    elements = tensor.untyped_storage().nbytes() // tensor.element_size()
    storage = tensor.detach().as_strided((elements,), (1,), 0)
    return change(storage.clone()).as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())


def times(tensor: Tensor, factor: float) -> Tensor | None:
    """The tensor times a power of two, in its layout; None where that is not exact."""
    changed = pointwise(tensor, lambda t: t * factor)
    exact = tensor.double() * factor == changed.double()
    return changed if bool(exact.all()) else None


def causal(case: Case, kernel: Kernel) -> str | None:
    """A reason against laws of causal cases."""
    return None if case.options.get("causal", False) else "it is not causal"


def bidirectional(case: Case, kernel: Kernel) -> str | None:
    """A reason against laws of cases in which every query sees every key."""
    return "it is causal" if case.options.get("causal", False) else None


def has(extra: str) -> Applies:
    """A reason against laws of an entry point that the kernel does not have."""
    return lambda case, kernel: None if extra in kernel.extras else f"the kernel has no entry point {extra!r}"


def supports(kernel: Kernel, **sizes: int) -> bool:
    """Whether a kernel takes such sizes."""
    return all(name not in kernel.dims or size in kernel.dims[name] for name, size in sizes.items())


def takes(kernel: Kernel, option: str, value: object) -> bool:
    """Whether a kernel may be called with that value of an option."""
    return option not in kernel.options or value in kernel.options[option]


def exact_operands(case: Case, kernel: Kernel) -> str | None:
    """A reason against laws in bits: a contract that rounds the inputs themselves (tf32)."""
    contract = kernel.contract(case.dtype)
    if UNIT_ROUNDOFF[contract.operand] <= UNIT_ROUNDOFF[case.dtype]:
        return None
    return f"the contract {contract.name} rounds the inputs to {contract.operand}"


def scores_overflow(scores: Scores, contract: Contract) -> bool:
    """Whether a score, or a partial sum of one, may be beyond the format that the contract keeps it in."""
    largest = LARGEST[contract.output if contract.store_all else contract.accumulate]
    size = scores.q.abs().amax((-1, -2), keepdim=True) * scores.k.abs().amax((-1, -2), keepdim=True)
    return bool((size * scores.q.shape[-1] * max(scores.scale, 1.0)).max() > largest / 4)


def smallest_exact(dtype: str) -> float:
    """A magnitude above which neither a result in ``dtype`` nor what it is summed from underflows."""
    return SMALLEST_NORMAL[dtype] * (4.0 if dtype == "float16" else 2.0**40)


def differ(got: Tensor, wanted: Tensor) -> Tensor:
    """Where two tensors have other values; NaN equals NaN."""
    return (got != wanted) & ~(got.isnan() & wanted.isnan())
