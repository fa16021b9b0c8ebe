"""The semi-CRF by hand in eager PyTorch in float64, correct or with one named fault."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import torch
from gradoracle.properties.semicrf import FAMILY, KERNELS
from torch import Tensor

from gradoracle.model.contract import Contract
from gradoracle.model.kernel import Kernel
from gradoracle.oracle.truth import Oracle
from tests.properties import judging
from tests.properties.faults import CORRECT, ByHand

ORACLE = Oracle(FAMILY)
(SHIPPED,) = KERNELS
CONTRACTS = {
    dtype: Contract(f"float32 inside {dtype}", dtype, operand="float32", output=dtype)
    for dtype in ("float32", "bfloat16", "float16")
}
evidence = functools.partial(judging.evidence, oracle=ORACLE)
judge = functools.partial(judging.judge, oracle=ORACLE)
SIZES = "case:1 semicrf cpu float32 B=3 T=9 C=3 K=4"
PLAIN = f"{SIZES} transition~normal seed=11"
PROJECTED = f"{SIZES} transition~normal proj_start~normal proj_end~normal seed=12"


class _Raised(torch.autograd.Function):
    """Numbers that are at least -30, with the gradient of what they stand for."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor) -> Tensor:
        return tensor.clamp_min(-30.0)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient


def lse(x: Tensor, dim: int) -> Tensor:
    """logsumexp whose derivatives are 0, and not NaN, where all is -inf."""
    top = x.detach().amax(dim, keepdim=True)
    top = torch.where(top == -torch.inf, 0.0, top)
    total = (x - top).exp().sum(dim)
    some = total != 0  # NaN stays NaN
    return torch.where(some, torch.where(some, total, 1.0).log() + top.squeeze(dim), -torch.inf)


class Segmentations(ByHand):
    """One implementation, position by position; ``fault`` names what is wrong with it."""

    def __call__(self, cum_scores, transition, duration_bias, lengths, *, proj_start=None, proj_end=None) -> Tensor:
        """log Z [B] in float32; in float64 for float64."""
        none = torch.zeros_like(cum_scores[:, 1:])
        start, end = (none if each is None else each for each in (proj_start, proj_end))
        given = (cum_scores, start, end, transition, duration_bias)
        cum, start, end, tables, duration = self.inputs(lengths, *(t.double() for t in given))
        lengths = self.lengths(lengths, cum.shape[1] - 1)
        alphas = [self.first(cum[:, 0])]
        for t in range(1, cum.shape[1]):
            alphas.append(self.step(t, alphas, cum, start, end, tables, duration))
        last = torch.stack(alphas, 1)[torch.arange(len(cum)), lengths]
        total = torch.logsumexp(last, 1) if self.has("NaN where nothing is left") else lse(last, 1)
        return self.result(total, cum).to(torch.float64 if cum_scores.dtype == torch.float64 else torch.float32)

    def inputs(
        self, lengths: Tensor, cum: Tensor, start: Tensor, end: Tensor, table: Tensor, duration: Tensor
    ) -> tuple[Tensor, ...]:
        """Scores without what lies past the lengths, a transition for each duration; with the faults before alpha."""
        cum = self.backward_changed("dcum one percent large", cum, lambda g: 1.01 * g)
        cum = self.backward_changed("dcum one quarter large", cum, lambda g: 1.25 * g)
        cum = self.backward_changed("dcum past the length", cum, lambda g: g + 1e-6)
        table = self.backward_changed("dtransition averaged over the batch", table, lambda g: g / len(cum))
        duration = self.backward_changed("what is forbidden has a gradient", duration, lambda g: g + 1e-9)
        dropped = ("cum_scores", "proj_start", "proj_end", "transition", "duration_bias")
        given = (cum, start, end, table, duration)
        cum, start, end, table, duration = (
            torch.where(t.isnan(), 0.0, t) if self.has(f"NaN dropped from {name}") else t
            for name, t in zip(dropped, given, strict=True)
        )
        if self.has("-30 for -inf"):
            table, duration = _Raised.apply(table), _Raised.apply(duration)
        if self.has("starts one place late"):
            start = start.roll(1, 1)
        if self.has("transposed transition"):
            table = table.transpose(-1, -2)
        cleaned = []
        for tensor, more in ((cum, 1), (start, 0), (end, 0)):
            inside = (torch.arange(tensor.shape[1]) < (lengths + more)[:, None])[:, :, None]
            cleaned.append(
                tensor * inside if self.has("masked by multiplication") else torch.where(inside, tensor, 0.0)
            )
        tables = table.expand(len(duration), *table.shape[-2:])
        return (*cleaned, tables, duration)

    def lengths(self, lengths: Tensor, positions: int) -> Tensor:
        """Where each sequence ends."""
        if self.has("one step at least"):
            lengths = lengths.clamp_min(1)
        if self.has("length of the first sequence"):
            lengths = lengths[:1].expand(len(lengths))
        if self.has("T for the length"):
            lengths = torch.full_like(lengths, positions)
        if self.has("int32 lengths out of order") and lengths.dtype == torch.int32:
            lengths = lengths.roll(1)
        return lengths.long()

    def first(self, like: Tensor) -> Tensor:
        """Alpha at 0."""
        if self.has("label before the first segment is the first label"):
            return torch.where(torch.arange(like.shape[1]) == 0, torch.zeros_like(like), -torch.inf)
        return torch.zeros_like(like)

    def step(
        self, t: int, alphas: list[Tensor], cum: Tensor, start: Tensor, end: Tensor, tables: Tensor, duration: Tensor
    ) -> Tensor:
        """Alpha at t."""
        terms = []
        longest = max(len(duration) - int(self.has("last duration dropped")), 1)
        for k in range(1, longest + 1):
            begin = t - k
            if begin < 0 and self.has("segments begin before 0"):
                begin = 0
            elif begin < 0:
                break
            sources = alphas[begin][:, :, None] + tables[k - 1]
            if begin == 0 and self.has("padded label") and sources.shape[1] % 2:
                sources = torch.cat([sources, torch.zeros_like(sources[:, :1])], 1)
            inside = torch.logsumexp(sources, 1) if self.has("NaN where nothing is left") else lse(sources, 1)
            terms.append(inside + (cum[:, t] - cum[:, begin]) + duration[k - 1] + start[:, begin] + end[:, t - 1])
        alpha = torch.stack(terms, 1)
        return torch.logsumexp(alpha, 1) if self.has("NaN where nothing is left") else lse(alpha, 1)

    def result(self, total: Tensor, cum: Tensor) -> Tensor:
        """log Z with the faults behind alpha."""
        total = self.backward_changed("cotangent applied twice", total, lambda g: g * g.abs())
        total = self.backward_changed("the mean of the cotangents", total, lambda g: g.mean().expand_as(g))
        if self.has("sequences share a peak"):
            total = total + 0.0 * total.sum()
        if self.has("Hessian with the wrong sign"):
            total = total - 10.0 * (cum - cum.detach()).square().sum((1, 2))
        if self.has("negated"):
            total = -total
        return total


def _paths(dims: Mapping[str, int]) -> tuple[str, ...]:
    return ("sequential", "parallel")


def _scheme(fault: str) -> Any:
    """Paths of a kernel, both the same but for a fault of one path or of short chunks."""

    def run(
        inputs: Mapping[str, Tensor], cotangent: Tensor, path: str, chunk: int | None, *_: Any
    ) -> dict[str, Tensor]:
        own = Segmentations("transposed transition" if (fault, path) == ("parallel transposed", "parallel") else "")
        leaves = {n: t.detach().requires_grad_(t.is_floating_point()) for n, t in inputs.items()}
        given = [leaf for name, leaf in leaves.items() if not name.startswith("proj")]
        with torch.enable_grad():
            log_z = own(*given, **{n: leaf for n, leaf in leaves.items() if n.startswith("proj")})
        expected = [name for name, leaf in leaves.items() if leaf.requires_grad]
        found = torch.autograd.grad(log_z, [leaves[name] for name in expected], cotangent)
        gradients = {f"d{name}": tensor for name, tensor in zip(expected, found, strict=True)}
        positions = inputs["cum_scores"].shape[1] - 1
        if fault == "a state twice" and chunk is not None and chunk < positions:
            gradients["dcum_scores"][:, chunk] *= 1.001
        return {"log_z": log_z.detach()} | gradients

    return run


def kernel(fault: str = CORRECT) -> Kernel:
    """The kernel with a fault, or without."""
    extras = {"paths": _paths, "scheme": _scheme(fault)}
    own = Segmentations(fault)
    return Kernel(fault or "correct", "semicrf", own, contracts=CONTRACTS, deterministic=True, extras=extras)
