"""Correct SDPA kernels, emulated in torch with explicit roundings, and the inputs that broke simpler budgets.

Every kernel takes ``(q, k, v, do)``, [B H n D], and gives ``(o, dq, dk, dv)`` in their dtype. ``slip`` multiplies
gradients before they are rounded to that dtype: the wrong kernels.
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from types import ModuleType

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from gradoracle.model.contract import contract, default_contract
from gradoracle.model.derivative import Derivative, program
from gradoracle.oracle.exact.graph import Graph
from gradoracle.oracle.exact.trace import trace
from gradoracle.oracle.rounding.reading import Budget, budgets

Kernel = Callable[..., tuple[Tensor, ...]]
NAMES = ("o", "dq", "dk", "dv")


@cache
def algorithms() -> ModuleType:
    """The module of SDPA's algorithms, from its file: the engine's tests do not import the judges' package."""
    path = Path(__file__).parents[2] / "properties" / "sdpa" / "algorithms.py"
    spec = importlib.util.spec_from_file_location("sdpa_algorithms_under_test", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def definition(q: Tensor, k: Tensor, v: Tensor, causal: bool = False) -> Tensor:
    """softmax(q k^T / sqrt(D)) v; causal with the last query aligned with the last key."""
    s = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
    if not causal:
        return torch.softmax(s, -1) @ v
    hidden = ~visible_to(q, k)
    blind = hidden.all(-1, keepdim=True)
    p = torch.softmax(s.masked_fill(hidden & ~blind, -torch.inf), -1)
    return p.masked_fill(hidden, 0.0) @ v


def visible_to(q: Tensor, k: Tensor) -> Tensor:
    """[T M]: which keys each query sees."""
    queries, keys = q.shape[-2], k.shape[-2]
    return torch.arange(keys)[None, :] <= torch.arange(queries)[:, None] + (keys - queries)


@cache
def graph(algorithm: str, causal: bool, shapes: tuple[torch.Size, ...]) -> Graph:
    """The traced VJP of the definition or of an algorithm."""
    examples = [torch.zeros(shape, dtype=torch.float64) for shape in shapes]
    if algorithm == "definition":
        return trace(program(lambda q, k, v: definition(q, k, v, causal), Derivative.VJP, 3), *examples)
    own = getattr(algorithms(), algorithm)
    return trace(lambda q, k, v, do: own(q, k, v, do, causal=causal), *examples)


def budgets_of(
    inputs: Sequence[Tensor], *, preset: str | None = None, algorithm: str = "definition", causal: bool = False,
    worst: bool = False, probes: int = 16,
) -> list[Budget]:  # fmt: skip
    """The budgets of o, dq, dk, dv at these inputs, under the default contract of their dtype or a preset."""
    dtype = str(inputs[0].dtype).removeprefix("torch.")
    chosen = default_contract(dtype) if preset is None else contract(preset, dtype)
    exact = [x.double() for x in inputs]
    return budgets(graph(algorithm, causal, tuple(x.shape for x in inputs)), exact, chosen, worst=worst, probes=probes)


def normal(shape: tuple[int, int, int], dtype: torch.dtype, seed: int = 0, heads: int = 2) -> list[Tensor]:
    """q, k, v, do of (T, M, D), standard normal."""
    queries, keys, width = shape
    generator = torch.Generator().manual_seed(seed)
    sizes = (queries, keys, keys, queries)
    return [torch.randn(1, heads, n, width, generator=generator, dtype=torch.float64).to(dtype) for n in sizes]


RECIPES: dict[str, Callable[[Tensor], Tensor]] = {
    "normal": lambda x: x,
    "normal 1e-3": lambda x: 1e-3 * x,
    "normal 3": lambda x: 3 * x,
    "normal 10": lambda x: 10 * x,
    "normal 30": lambda x: 30 * x,
    "positive": lambda x: x.abs(),
    "mean 1": lambda x: 1 + x / 10,
    "mean 10": lambda x: 10.3 + x / 100,
    "outlier": lambda x: torch.where(x == x.amax(), 50 * x, x),
    "tiny": lambda x: 1e-30 * x,
}
REPEATING: dict[str, Callable[[Tensor], Tensor]] = {
    "constant": lambda x: torch.full_like(x, 0.3),
    "alternating": lambda x: 0.7 * (1 - 2 * (torch.arange(x.shape[-1]) % 2)).expand_as(x).to(x.dtype),
    "ties": lambda x: (2 * x).round() / 2,
    "powers of two": lambda x: torch.exp2(x.round()) * x.sign(),
    "mean 100": lambda x: 100.3 + x / 10,
    "zeros": lambda x: 0 * x,
}


def torch_sdpa(backend: SDPBackend) -> Kernel:
    """PyTorch's own kernel."""

    def kernel(q: Tensor, k: Tensor, v: Tensor, do: Tensor, causal: bool = False) -> tuple[Tensor, ...]:
        with sdpa_kernel(backend):
            leaves = [x.clone().requires_grad_() for x in (q, k, v)]
            o = torch.nn.functional.scaled_dot_product_attention(*leaves, is_causal=causal)
            return (o.detach(), *torch.autograd.grad(o, leaves, do))

    return kernel


torch_math, torch_flash = torch_sdpa(SDPBackend.MATH), torch_sdpa(SDPBackend.FLASH_ATTENTION)


def eager(q: Tensor, k: Tensor, v: Tensor, do: Tensor, causal: bool = False) -> tuple[Tensor, ...]:
    """The definition in the inputs' dtype, every operation's result stored in it."""
    leaves = [x.clone().requires_grad_() for x in (q, k, v)]
    o = definition(*leaves, causal)
    return (o.detach(), *torch.autograd.grad(o, leaves, do))


def cut_to_tf32(x: Tensor) -> Tensor:
    """Float32 cut (not rounded) to the 10 explicit bits of TF32, as tensor cores read their operands."""
    return (x.contiguous().view(torch.int32) & ~0x1FFF).view(torch.float32)


def rounded_to_tf32(x: Tensor) -> Tensor:
    """Float32 rounded to TF32, as kernels do that convert first (ties away from zero)."""
    return ((x.contiguous().view(torch.int32) + 0x1000) & ~0x1FFF).view(torch.float32)


def fused(
    q: Tensor, k: Tensor, v: Tensor, do: Tensor, causal: bool = False, *, block: int = 64, z_from: str = "P",
    base_two: bool = True, log_sum_exp: bool = False, split: int | None = None,
    tf32: Callable[[Tensor], Tensor] | None = None, slip: float = 0.0,
) -> tuple[Tensor, ...]:  # fmt: skip
    """A fused kernel: float32 inside, online softmax over blocks of keys, P kept unnormalised as the operand for O.

    Args:
        q: [B H T D]; k, v, do follow.
        k: [B H M D]
        v: [B H M D]
        do: [B H T D]
        causal: mask.
        block: keys at once.
        z_from: "P": z = rowsum(dP * P); "O": z = rowsum(dO * O) from the O that was stored.
        base_two: exp2, with log2 e folded into the scale.
        log_sum_exp: backward takes P from a stored log-sum-exp and not from m and l.
        split: sum the gradients in parts of so many terms, added in another order.
        tf32: what is done to the operands of every product.
        slip: dq, dk, dv times 1 + slip before they are rounded.
    """
    dtype = q.dtype
    operand = tf32 or (lambda x: x.to(dtype).float())
    q32, k32, v32, g32 = (operand(x.float()) for x in (q, k, v, do))
    scale = q.shape[-1] ** -0.5
    power = torch.exp2 if base_two else torch.exp
    s = q32 @ k32.transpose(-1, -2) * torch.tensor(scale * math.log2(math.e) if base_two else scale)
    if causal:
        s = torch.where(visible_to(q, k), s, -torch.inf)
    top = torch.full((*s.shape[:-1], 1), -torch.inf)
    total, o = torch.zeros_like(top), torch.zeros(*s.shape[:-1], v.shape[-1])
    for first in range(0, k.shape[-2], block):
        part = s[..., first : first + block]
        new = torch.maximum(top, part.amax(-1, keepdim=True))
        shift = torch.where(new == -torch.inf, 0.0, new)
        fade, p = power(top - shift), power(part - shift)
        total = total * fade + p.sum(-1, keepdim=True)
        o = o * fade + operand(p) @ v32[..., first : first + block, :]
        top = new
    top, total = torch.where(top == -torch.inf, 0.0, top), torch.where(total == 0, 1.0, total)
    o = (o / total).to(dtype)
    log = torch.log2 if base_two else torch.log
    p = power(s - (top + log(total))) if log_sum_exp else power(s - top) / total
    dp = g32 @ v32.transpose(-1, -2)
    z = ((dp * p) if z_from == "P" else do.float() * o.float()).sum(-1, keepdim=True)
    ds = p * (dp - z)

    def times(a: Tensor, b: Tensor) -> Tensor:
        if split is None:
            return operand(a) @ b
        pieces = [operand(a[..., i : i + split]) @ b[..., i : i + split, :] for i in range(0, a.shape[-1], split)]
        return sum(pieces[-2::-1], pieces[-1])

    dq, dk = times(ds, k32) * scale, times(ds.transpose(-1, -2), q32) * scale
    dv = times(p.transpose(-1, -2), g32)
    return (o, *((g * (1 + slip)).to(dtype) for g in (dq, dk, dv)))


def one_key_after_another(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """o of float32 inputs: all products and sums in float32, and each weighted value added onto the sum so far."""
    scores = (q @ k.mT) / k.shape[-1] ** 0.5
    weights = torch.exp(scores - scores.amax(-1, keepdim=True))
    total = torch.zeros_like(q[..., :1] * v[..., :1, :])
    for key in range(k.shape[-2]):
        total = total + weights[..., key : key + 1] * v[..., key, :].unsqueeze(-2)
    return total / weights.sum(-1, keepdim=True)


def in_sigma(got: Tensor, budget: Budget) -> float:
    """The worst error in sigma; infinite where there is an error and no budget."""
    error = (got.double() - budget.value).abs()
    compared = budget.value.isfinite() & (error > 0)
    return float((error / budget.sigma)[compared].max()) if compared.any() else 0.0


def of_worst(got: Tensor, budget: Budget) -> float:
    """The worst error in units of the worst-case bound."""
    assert budget.worst is not None
    error = (got.double() - budget.value).abs()
    compared = budget.value.isfinite() & (error > 0)
    return float((error / budget.worst)[compared].max()) if compared.any() else 0.0


def slope(got: Tensor, budget: Budget) -> tuple[float, float]:
    """The slope of the error on the truth, and the limit that the probes set it: the rule bias."""
    weight = budget.value / budget.sigma**2
    bottom = (budget.value * weight).sum()
    null = ((budget.errors * weight).flatten(1).sum(1) / bottom).square().mean().sqrt()
    found = ((got.double() - budget.value) * weight).sum() / bottom
    return float(found), 8 * max(float(null), float(bottom**-0.5))
