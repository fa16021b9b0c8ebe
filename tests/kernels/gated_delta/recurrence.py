"""The gated delta rule as a loop over tokens in float64, and how far roundings at each step move what it gives.

What a right kernel may be off by has no closed form: a step multiplies what earlier steps are off by. It is measured on
the loop itself: probes run it with every value that a kernel rounds off by a random share of the unit roundoff, and its
cotangent too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

NAMES = ("o", "state", "dq", "dk", "dv", "dg", "dbeta", "dinitial_state")
ACCUMULATED = 2.0**-24
UNITS = {torch.float32: 4 * ACCUMULATED, torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}
"""What a value of a step is off by, at most. A kernel adds up the keys of a chunk, up to 64, where the loop has a step
each: what is rounded once a step there is rounded 64 times at the size of the sum, the root of which is 8, and half of
that where the terms decay. In 16 bits the rounding of operands, which is as large in both, hides it."""
FLOORS = {torch.float32: 2.0**-120, torch.bfloat16: 2.0**-120, torch.float16: 2.0**-24}
"""What an element may be off by because a value of it is below the normal numbers of the dtype."""
PROBES = 16
LARGEST = 8.0  # standard deviations of an element
TYPICAL = 2.0  # those of a tensor, root mean square

Tensors = Sequence[torch.Tensor]


class Exact:
    """How the loop rounds, sums and spreads values: not at all, and exactly."""

    def rounded(self, x: torch.Tensor) -> torch.Tensor:
        return x

    def total(self, x: torch.Tensor, dim: int) -> torch.Tensor:
        """The sum over a dim."""
        return x.sum(dim)

    def spread(self, x: torch.Tensor, dim: int, size: int) -> torch.Tensor:
        """As many equal values along a new dim; the cotangent is their sum."""
        return x.unsqueeze(dim).expand(*x.shape[: dim % (x.dim() + 1)], size, *x.shape[dim % (x.dim() + 1) :])


def loop(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, g: torch.Tensor, beta: torch.Tensor, initial: torch.Tensor,
    scale: float, how: Exact | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """o [B, H, T, Dv] and the last state [B, H, D, Dv], by the definition."""
    how = how or Exact()
    state, rows, (features, values) = initial, [], initial.shape[2:]
    for t in range(q.shape[2]):
        decay = how.spread(how.spread(how.rounded(g[:, :, t].exp()), -1, features), -1, values)
        state = how.rounded(state * decay)
        key, query = (how.spread(x[:, :, t], -1, values) for x in (k, q))
        error = how.rounded(v[:, :, t] - how.rounded(how.total(state * key, -2)))
        update = how.rounded(how.rounded(how.spread(beta[:, :, t], -1, values) * error))
        state = how.rounded(state + key * how.spread(update, -2, features))
        rows.append(how.rounded(scale * how.total(state * query, -2)))
    return torch.stack(rows, 2), state


def results(function: Callable[..., Any], given: Tensors, cotangents: Tensors) -> list[torch.Tensor]:
    """o, the last state, and the gradients of all six inputs, of a function of these."""
    leaves = [x.detach().requires_grad_() for x in given]
    out = function(*leaves)
    gradients = torch.autograd.grad(out, leaves, list(cotangents), allow_unused=True, materialize_grads=True)
    return [*(x.detach() for x in out), *gradients]


def truth(given: Tensors, cotangents: Tensors, scale: float) -> list[torch.Tensor]:
    """Results of the loop in float64."""
    return results(lambda *x: loop(*x, scale), [x.double() for x in given], [x.double() for x in cotangents])


def deviations(given: Tensors, cotangents: Tensors, scale: float, dtype: torch.dtype) -> list[torch.Tensor]:
    """How far `PROBES` runs are off, elementwise: root mean square, with a step for the result's own rounding."""
    exact = truth(given, cotangents, scale)
    how = Rough(UNITS[dtype], torch.Generator().manual_seed(5))
    many = [x.double().repeat(PROBES, *[1] * (x.dim() - 1)) for x in (*given, *cotangents)]
    found = results(lambda *x: loop(*x, scale, how), many[:6], many[6:])
    return [
        ((each.unflatten(0, (PROBES, -1)) - true).square().mean(0) + (UNITS[dtype] * true).square() / 3).sqrt()
        + FLOORS[dtype]
        for each, true in zip(found, exact, strict=True)
    ]


def failures(found: Tensors, exact: Tensors, sigmas: Tensors) -> list[str]:
    """The results that are off by more than rounding explains, and by how many standard deviations.

    That of an element is known from a few probes: a quarter of its tensor's is added to it.
    """
    wrong = []
    for name, each, true, sigma in zip(NAMES, found, exact, sigmas, strict=True):
        error, typical = (each.double() - true).abs(), sigma.square().mean().sqrt()
        worst = float((error / (sigma.square() + typical.square() / 16).sqrt().clamp_min(1e-300)).max())
        whole = float(error.square().mean().sqrt() / typical.clamp_min(1e-300))
        if not (worst <= LARGEST and whole <= TYPICAL):
            wrong.append(f"{name}: {worst:.3g} sigma, root mean square {whole:.3g}")
    return wrong


class Rough(Exact):
    """Each value is off by up to a share `unit` of it, and its cotangent; sums are float32's, in turn, of either."""

    def __init__(self, unit: float, generator: torch.Generator) -> None:
        self.unit, self.generator = unit, generator

    def noise(self, x: torch.Tensor, unit: float) -> torch.Tensor:
        """What values are off by."""
        return x * unit * (2 * torch.rand(x.shape, generator=self.generator, dtype=torch.float64) - 1)

    def summed(self, x: torch.Tensor, dim: int) -> torch.Tensor:
        return x.sum(dim) + self.noise(x.cumsum(dim), ACCUMULATED).sum(dim)

    def rounded(self, x: torch.Tensor) -> torch.Tensor:
        return _Linear.apply(x, lambda y: y + self.noise(y, self.unit), lambda y: y + self.noise(y, self.unit))

    def total(self, x: torch.Tensor, dim: int) -> torch.Tensor:
        size = x.shape[dim]
        return _Linear.apply(x, lambda y: self.summed(y, dim), lambda y: Exact.spread(self, y, dim, size))

    def spread(self, x: torch.Tensor, dim: int, size: int) -> torch.Tensor:
        return _Linear.apply(x, lambda y: Exact.spread(self, y, dim, size), lambda y: self.summed(y, dim))


class _Linear(torch.autograd.Function):
    """A function and its transpose, which are as rough as they are."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, function: Callable[..., Any], transpose: Callable[..., Any]) -> torch.Tensor:
        ctx.transpose = transpose
        return function(x)

    @staticmethod
    def backward(ctx: Any, dx: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        return ctx.transpose(dx), None, None
