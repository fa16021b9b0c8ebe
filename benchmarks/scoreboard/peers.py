"""Peers: the rules by which other projects accept a kernel's tensors, each written from its source.

A rule compares one tensor with a reference, as most peers do, or judges a function by differences, as gradcheck and JAX
do. The reference is part of the rule: the truth, the truth rounded to the kernel's dtype, and for some also the result
of eager PyTorch in that dtype.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import torch
from torch import Tensor
from torch.autograd.gradcheck import GradcheckError, gradcheck

_LOW = (torch.float16, torch.bfloat16)


@dataclass(frozen=True)
class Compared:
    """One tensor of a kernel and what it is compared with.

    Attributes:
        got: the kernel's tensor, of any dtype.
        truth: its true value in float64.
        eager: the result of eager PyTorch in the dtype of the kernel's inputs.
        dtype: of the kernel's inputs.
        gradient: whether it is a gradient rather than an output.
    """

    got: Tensor
    truth: Tensor
    eager: Tensor
    dtype: torch.dtype
    gradient: bool

    @property
    def reference(self) -> Tensor:
        """The truth as an upcasting reference returns it: rounded to the kernel's dtype, for comparison in float64."""
        return self.truth.to(self.dtype).double()


@dataclass(frozen=True)
class Run:
    """A kernel to be judged as a function.

    Attributes:
        call: maps the float inputs to the output tensors.
        inputs: the float inputs.
    """

    call: Callable[..., Tensor | Sequence[Tensor]]
    inputs: tuple[Tensor, ...]


Judged = TypeVar("Judged", Compared, Run)


@dataclass(frozen=True)
class Rule(Generic[Judged]):
    """An acceptance rule: whose it is, its source file, its statement in words, and itself."""

    name: str
    source: str
    statement: str
    accepts: Callable[[Judged], bool]


def _largest(difference: Tensor) -> float:
    return float(difference.abs().max()) if difference.numel() else 0.0


def _root_mean_square(x: Tensor) -> float:
    return float(x.square().mean().sqrt()) if x.numel() else 0.0


def _assert_close(seen: Compared) -> bool:
    tolerance = {torch.float16: 1e-3, torch.bfloat16: 1.6e-2, torch.float32: 1.3e-6, torch.float64: 1e-7}
    atol = 1e-7 if seen.dtype is torch.float64 else 1e-5
    return torch.allclose(seen.got.double(), seen.reference, rtol=tolerance[seen.dtype], atol=atol)


def _flash_2(seen: Compared) -> bool:
    own, peer = _largest(seen.got.double() - seen.reference), _largest(seen.eager.double() - seen.reference)
    return own <= (3 * peer + 1e-5 if seen.gradient else 2 * peer)


def _flash_4(seen: Compared) -> bool:
    rounded = seen.truth.to(seen.dtype)
    noise = 2 * _largest(((rounded + 0.3) - 0.3).double() - rounded.double())
    own, peer = _largest(seen.got.double() - seen.reference), _largest(seen.eager.double() - seen.reference)
    return own <= 2 * peer + noise


def _fla_error(seen: Compared) -> tuple[float, float] | None:
    """(largest error, ratio of root mean squares); None where either tensor has a NaN."""
    got, reference = seen.got.double(), seen.reference
    if bool(got.isnan().any()) or bool(reference.isnan().any()):
        return None
    difference = reference - got
    return _largest(difference), _root_mean_square(difference) / (_root_mean_square(reference) + 1e-8)


def _fla(seen: Compared) -> bool:
    found = _fla_error(seen)
    return found is not None and (found[0] <= 1e-6 or found[1] < 0.005)


def _fla_in_ci(seen: Compared) -> bool:
    found = _fla_error(seen)
    return found is not None and (found[0] <= 1e-6 or found[1] < 0.01 or found[0] <= 0.3)


def _cross_entropy(seen: Compared) -> bool:
    slack = {torch.float32: 5e-4, torch.float16: 1e-3, torch.bfloat16: 1e-2, torch.float64: 5e-4}[seen.dtype]
    off = (seen.truth - seen.got.double()).abs()
    return bool((off <= (seen.truth - seen.eager.double()).abs() + slack).all())


def _kernel_bench(seen: Compared) -> bool:
    tolerance = 1e-2 if seen.dtype in _LOW else 1e-4
    return torch.allclose(seen.got.double(), seen.reference, rtol=tolerance, atol=tolerance)


def _tutorial(seen: Compared) -> bool:
    return torch.allclose(seen.got.double(), seen.reference, rtol=0.0, atol=1e-2)


RULES: tuple[Rule[Compared], ...] = (
    Rule(
        "torch.testing.assert_close",
        "torch/testing/_comparison.py",
        "|got - reference| <= atol + rtol |reference|: rtol float16 1e-3, bfloat16 1.6e-2, float32 1.3e-6, float64 "
        "1e-7; atol 1e-5, float64 1e-7",
        _assert_close,
    ),
    Rule(
        "flash-attention 2",
        "tests/test_flash_attn.py",
        "largest error at most 2 times that of eager PyTorch in the kernel's dtype, of gradients 3 times and 1e-5",
        _flash_2,
    ),
    Rule(
        "flash-attention 4",
        "tests/cute/test_flash_attn.py",
        "largest error at most 2 times that of eager PyTorch and 2 max |ref + 0.3 - 0.3 - ref| in the kernel's dtype",
        _flash_4,
    ),
    Rule(
        "flash-linear-attention",
        "fla/utils/testing.py",
        "largest error at most 1e-6, or rms(error) / (rms(reference) + 1e-8) < 0.005, the ratio most used; no NaN",
        _fla,
    ),
    Rule(
        "flash-linear-attention in CI",
        "fla/utils/testing.py with FLA_CI_ENV=1",
        "as without, but a ratio below 0.01 or a largest error up to 0.3 is a warning only; no NaN",
        _fla_in_ci,
    ),
    Rule(
        "ml-cross-entropy",
        "tests/test_cce_loss_backward.py",
        "each element off by no more than eager PyTorch in the kernel's dtype, and 5e-4 (float32), 1e-3 (float16) or "
        "1e-2 (bfloat16)",
        _cross_entropy,
    ),
    Rule(
        "KernelBench",
        "src/kernelbench/eval.py",
        "allclose with atol = rtol = 1e-4 in float32, 1e-2 in 16 bits",
        _kernel_bench,
    ),
    Rule(
        "Triton tutorial",
        "python/tutorials/06-fused-attention.py",
        "allclose with atol = 1e-2, rtol = 0",
        _tutorial,
    ),
)
"""Rules on tensors, by name."""


def _gradcheck(run: Run) -> bool:
    inputs = tuple(x.detach().double().requires_grad_() for x in run.inputs)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return bool(gradcheck(run.call, inputs))
    except GradcheckError:
        return False


_JAX_STEP = 1e-4
_JAX_TOLERANCE = {torch.float64: 1e-5, torch.float32: 2e-3, torch.float16: 1e-2, torch.bfloat16: 1e-1}


def _check_grads(run: Run) -> bool:
    """First order, reverse mode: <tangent, vjp> against <numerical jvp, cotangent> along one direction, seed 0."""
    generator = torch.Generator().manual_seed(0)

    def like(x: Tensor) -> Tensor:
        return torch.randn(x.shape, generator=generator, dtype=torch.float32).to(x)

    leaves = [x.detach().requires_grad_() for x in run.inputs]
    found = run.call(*leaves)
    outputs = [found] if isinstance(found, Tensor) else list(found)
    tangents, cotangents = [like(x) for x in leaves], [like(o) for o in outputs]
    gradients = torch.autograd.grad(outputs, leaves, cotangents, allow_unused=True)

    def moved(sign: float) -> list[Tensor]:
        with torch.no_grad():
            ahead = run.call(
                *(x.detach() + (sign * _JAX_STEP * t).to(x) for x, t in zip(leaves, tangents, strict=True))
            )
        return [ahead] if isinstance(ahead, Tensor) else list(ahead)

    slopes = [(a - b) * (0.5 / _JAX_STEP) for a, b in zip(moved(1.0), moved(-1.0), strict=True)]
    one = sum(float((t.double() * g.double()).sum()) for t, g in zip(tangents, gradients, strict=True) if g is not None)
    other = sum(float((s.double() * c.double()).sum()) for s, c in zip(slopes, cotangents, strict=True))
    tolerance = max(_JAX_TOLERANCE[x.dtype] for x in leaves)
    return math.isfinite(one) and abs(one - other) <= tolerance + tolerance * abs(other)


FUNCTION_RULES: tuple[Rule[Run], ...] = (
    Rule(
        "gradcheck",
        "torch/autograd/gradcheck.py",
        "analytical Jacobian within rtol 1e-3, atol 1e-5 of central differences with a step of 1e-6, in float64",
        _gradcheck,
    ),
    Rule(
        "JAX check_grads",
        "jax/_src/public_test_util.py",
        "one random direction: <tangent, vjp> against central differences with a step of 1e-4, rtol = atol = 1e-5 in "
        "float64, 2e-3 in float32, 1e-2 in float16, 1e-1 in bfloat16",
        _check_grads,
    ),
)
"""Rules on functions, by name."""
