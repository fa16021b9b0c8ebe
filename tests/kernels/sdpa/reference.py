"""SDPA in float64 PyTorch, and how far a correct kernel can be from it: every rounding at its worst, to all orders.

A `Bounded` is a tensor of float64 values with, per element, the largest error that the roundings so far can have made.
The formulas below run the kernels' order of operations on it, so a bound is arithmetic and has no free constant but
two: an exponential and a reciprocal are taken to be within 4 units roundoff.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
UNIT = {torch.float64: 2.0**-53, torch.float32: 2.0**-24, torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}
SMALLEST = {torch.float64: 2.0**-1022, torch.float32: 2.0**-126, torch.float16: 2.0**-24, torch.bfloat16: 2.0**-126}
Triple = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def visible(queries: int, keys: int, causal: bool) -> torch.Tensor:
    """[T, M] whether query i sees key j: all, or j <= i + M - T."""
    everywhere = torch.ones(queries, keys, dtype=torch.bool, device=DEVICE)
    return everywhere.tril(keys - queries) if causal else everywhere


def definition(q, k, v, *, scale=None, causal=False):
    """softmax(scale q k^T) v, with zero rows where a query sees no key; finite in every derivative."""
    seen = visible(q.shape[-2], k.shape[-2], causal)
    scores = (q @ k.mT) * (1 / math.sqrt(q.shape[-1]) if scale is None else scale)
    p = torch.softmax(torch.where(seen, scores, -1e300), dim=-1)
    return torch.where(seen, p, 0.0) @ v


def problem(dims, dtype, *, seed=0, spread=1.0, mean=0.0):
    """Return primals, tangents and a cotangent of dims (B, H, T, M, D, Dv), rounded to dtype."""
    b, h, t, m, d, e = dims
    generator = torch.Generator().manual_seed(seed)

    def draw(rows, columns, factor=1.0, shift=0.0):
        x = torch.randn(b, h, rows, columns, generator=generator, dtype=torch.float64) * factor + shift
        return x.to(dtype).to(DEVICE)

    primals = draw(t, d, spread, mean), draw(m, d, spread, mean), draw(m, e, 1.0, mean)
    return primals, (draw(t, d), draw(m, d), draw(m, e)), draw(t, e)


def doubled(*tensors):
    """Return the tensors in float64: the truth is that of the rounded inputs."""
    return tuple(tensor.double() for tensor in tensors)


@dataclass(frozen=True)
class Bounded:
    """Values and, per element, the worst error; `unit` is the unit roundoff of the arithmetic."""

    value: torch.Tensor
    error: torch.Tensor
    unit: float

    def _rounded(self, value, error):
        floor = 2.0**-126 if self.unit > 2.0**-50 else 2.0**-1022  # underflow, flushed to zero or not
        return Bounded(value, error + self.unit * (value.abs() + error) + floor, self.unit)

    def __add__(self, other: Bounded) -> Bounded:
        return self._rounded(self.value + other.value, self.error + other.error)

    def __sub__(self, other: Bounded) -> Bounded:
        return self._rounded(self.value - other.value, self.error + other.error)

    def __mul__(self, other: Bounded) -> Bounded:
        error = self.error * (other.value.abs() + other.error) + self.value.abs() * other.error
        return self._rounded(self.value * other.value, error)

    def __matmul__(self, other: Bounded) -> Bounded:
        terms = self.value.shape[-1]
        absolute = (self.value.abs() + self.error) @ (other.value.abs() + other.error)
        exact = self.value.abs() @ other.value.abs()
        return self._rounded(self.value @ other.value, absolute - exact + terms * self.unit * absolute)

    def scaled(self, number: float) -> Bounded:
        return self._rounded(self.value * number, self.error * number + self.unit * (self.value * number).abs())

    def row_sum(self) -> Bounded:
        absolute = (self.value.abs() + self.error).sum(-1, keepdim=True)
        terms = self.value.shape[-1]
        error = self.error.sum(-1, keepdim=True) + terms * self.unit * absolute
        return self._rounded(self.value.sum(-1, keepdim=True), error)

    def exp(self) -> Bounded:
        value = self.value.exp()
        return self._rounded(value, value * torch.expm1(self.error) + 4 * self.unit * value)

    def reciprocal(self) -> Bounded:
        value = torch.where(self.value == 0, 0.0, 1 / self.value)
        return self._rounded(value, self.error * value * value * 2 + 4 * self.unit * value)

    def mT(self) -> Bounded:
        return Bounded(self.value.mT, self.error.mT, self.unit)

    def to(self, dtype: torch.dtype) -> Bounded:
        """Round to dtype, as operand of a dot or as output."""
        error = self.error + UNIT[dtype] * (self.value.abs() + self.error) + SMALLEST[dtype]
        return Bounded(self.value, error, self.unit)

    def where(self, condition: torch.Tensor) -> Bounded:
        return Bounded(torch.where(condition, self.value, 0.0), torch.where(condition, self.error, 0.0), self.unit)


class Attention:
    """The kernels' quantities, each with the worst error that a kernel of this dtype can make in it."""

    def __init__(self, primals, dtype, *, g=None, tangents=None, scale=None, causal=False):
        unit = max(UNIT[dtype], 2.0**-53) if dtype == torch.float64 else 2.0**-24

        def exact(x):
            return Bounded(x.double(), torch.zeros_like(x, dtype=torch.float64), unit)

        self.dtype = dtype
        self.scale = 1 / math.sqrt(primals[0].shape[-1]) if scale is None else scale
        self.q, self.k, self.v = (exact(x) for x in primals)
        seen = visible(primals[0].shape[-2], primals[1].shape[-2], causal)
        s = (self.q @ self.k.mT()).scaled(self.scale)
        # m shifts weights and l alike, so that its own error cancels: it is exact here
        m = torch.where(seen, s.value, -torch.inf).amax(-1, keepdim=True)
        weights = (s - exact(torch.where(m == -torch.inf, 0.0, m))).exp().where(seen)
        self.weights, self.inverse_sum = weights, weights.row_sum().reciprocal()
        self.p = self.weights * self.inverse_sum
        if g is not None:
            self.g = exact(g)
            self.dp = self.g @ self.v.mT()
            self.z = (self.p * self.dp).row_sum()
            self.ds = self.p * (self.dp - self.z)
        if tangents is not None:
            self.tq, self.tk, self.tv = (exact(x) for x in tangents)
            self.ts = (self.tq @ self.k.mT() + self.q @ self.tk.mT()).scaled(self.scale)
            self.r = (self.p * self.ts).row_sum()
            self.tp = self.p * (self.ts - self.r)
        if g is not None and tangents is not None:
            tdp = self.g @ self.tv.mT()
            centred = (self.dp - self.z) * (self.ts - self.r)
            self.tds = self.p * (centred + (tdp - (self.p * (tdp + centred)).row_sum()))

    def _output(self, x: Bounded, scale: float | None = None) -> Bounded:
        return (x if scale is None else x.scaled(scale)).to(self.dtype)

    def output(self) -> Bounded:
        return self._output((self.weights.to(self.dtype) @ self.v) * self.inverse_sum)

    def gradients(self) -> tuple[Bounded, Bounded, Bounded]:
        ds, p = self.ds.to(self.dtype), self.p.to(self.dtype)
        dq, dk = ds @ self.k, ds.mT() @ self.q
        return self._output(dq, self.scale), self._output(dk, self.scale), self._output(p.mT() @ self.g)

    def tangent(self, *, frozen: bool = False) -> Bounded:
        tp = self.p * self.ts if frozen else self.tp
        return self._output(tp.to(self.dtype) @ self.v + self.p.to(self.dtype) @ self.tv)

    def second(self) -> tuple[Bounded, Bounded, Bounded]:
        tds, ds, tp = self.tds.to(self.dtype), self.ds.to(self.dtype), self.tp.to(self.dtype)
        hq = tds @ self.k + ds @ self.tk
        hk = tds.mT() @ self.q + ds.mT() @ self.tq
        return self._output(hq, self.scale), self._output(hk, self.scale), self._output(tp.mT() @ self.g)


def excess(got: torch.Tensor, bounded: Bounded, truth: torch.Tensor) -> float:
    """Return the largest error of got over its bound: a correct kernel is at most 1. NaN counts as infinite.

    In float64 the truth is as inexact as the kernel, so that its error is allowed once more.
    """
    assert got.shape == truth.shape, f"shape {tuple(got.shape)} for {tuple(truth.shape)}"
    allowed = bounded.error * (2 if got.dtype == torch.float64 else 1)
    error = (got.double() - truth).abs()
    ratio = torch.where(error == 0, 0.0, error / allowed)
    return float(torch.where(ratio.isnan(), torch.inf, ratio).max())
