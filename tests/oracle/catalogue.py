"""The operators that every exact reading must read, each as a small function of float64 tensors.

``CATALOGUE[name]`` holds the function and, for each float input, its shape and the interval that it is drawn from.
Integer tensors are constants inside the functions, as a family's definition would have them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from gradoracle.model.derivative import Derivative, as_tuple, program
from gradoracle.oracle.exact.graph import Graph
from gradoracle.oracle.exact.trace import trace

Shape = tuple[int, ...]
Interval = tuple[float, float]
WIDE: Interval = (-2.0, 2.0)
POSITIVE: Interval = (0.25, 3.0)


def double(*values: float) -> Tensor:
    """Numbers as a float64 vector."""
    return torch.tensor(values, dtype=torch.float64)


def graph_of(function: Callable[..., Tensor], derivative: Derivative, *args: Tensor, primals: int = 1) -> Graph:
    """The traced program of a derivative of a function."""
    return trace(program(function, derivative, primals), *args)


@dataclass(frozen=True)
class Entry:
    """A function and the shapes and intervals of its float inputs."""

    function: Callable[..., Any]
    shapes: tuple[Shape, ...]
    intervals: tuple[Interval, ...]

    def inputs(self, seed: int = 0) -> list[Tensor]:
        """One float64 tensor for each float input, uniform in its interval."""
        generator = torch.Generator().manual_seed(seed)
        return [
            low + (high - low) * torch.rand(shape, dtype=torch.float64, generator=generator)
            for shape, (low, high) in zip(self.shapes, self.intervals, strict=True)
        ]

    def arguments(self, derivative: Derivative, seed: int = 0) -> list[Tensor]:
        """The inputs, then normal tangents and cotangents where the derivative takes them."""
        inputs = self.inputs(seed)
        generator = torch.Generator().manual_seed(seed + 1)
        directions = [*inputs] if derivative.takes_tangents else []
        if derivative.takes_cotangents:
            directions += as_tuple(self.function(*inputs))
        return inputs + [torch.randn(x.shape, dtype=torch.float64, generator=generator) for x in directions]

    def graph(self, derivative: Derivative) -> Graph:
        """The traced program of a derivative."""
        return graph_of(self.function, derivative, *self.arguments(derivative), primals=len(self.shapes))


def _entry(function: Callable[..., Any], *shapes: Shape, interval: Interval = WIDE) -> Entry:
    return Entry(function, shapes, (interval,) * len(shapes))


X, Y = (3, 5), (5,)
ROWS = torch.tensor([2, 0, 2, 1])
COLUMNS = torch.tensor([[4, 0, 0], [1, 1, 2], [3, 0, 4]])
MASK = torch.tensor([[True, False, True, True, False]]).expand(3, 5)


def _layer_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return functional.layer_norm(x, (5,), weight, bias)


def _masked_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    allowed = torch.ones(4, 3, dtype=torch.bool).tril()
    scores = (q @ k.mT * q.shape[-1] ** -0.5).masked_fill(~allowed, -torch.inf)
    return torch.softmax(scores, -1) @ v


def _capped_logsumexp(q: Tensor, k: Tensor) -> Tensor:
    scores = 3.0 * torch.tanh(q @ k.mT / 3.0)
    return torch.logsumexp(torch.where(torch.ones(4, 3, dtype=torch.bool).tril(-1), scores, -torch.inf)[1:], -1)


def _resolvent(a: Tensor, b: Tensor) -> Tensor:
    unit_upper = torch.eye(4, dtype=a.dtype) - torch.triu(a, 1)
    return torch.linalg.solve_triangular(unit_upper, b, upper=True, unitriangular=True)


def _shifted(x: Tensor) -> Tensor:
    """By tensors and of numbers, and of integers that comparisons made: bits of a mask."""
    powers = torch.bitwise_left_shift(1, ROWS) + torch.bitwise_right_shift(ROWS, torch.tensor(1))
    above = (x > 0).long() << torch.arange(5)
    return x[:, :4] * powers + x[:, :4] * ((above >> 1) & 1)[:, :4]


def _stepped(x: Tensor) -> Tensor:
    return (x > 0).to(x.dtype) * x + (x.round() == 1) * x.square() + torch.where((x < 1) & (x >= -1), x, x * x)


def _complex(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """A function of complex tensors, as one of real tensors whose last dim has their parts."""

    def of_parts(*tensors: Tensor) -> Tensor:
        found = function(*map(torch.view_as_complex, tensors))
        return torch.view_as_real(found.resolve_conj()) if found.is_complex() else found

    return of_parts


def _long_convolution(x: Tensor, y: Tensor) -> Tensor:
    return torch.fft.irfft(torch.fft.rfft(x, 10) * torch.fft.rfft(y, 10), 10)[..., :5]


def _turning(x: Tensor, size: Tensor, angle: Tensor) -> Tensor:
    pole, h, states = torch.polar(torch.sigmoid(size), angle), torch.zeros(5, dtype=torch.complex128), []
    for z in torch.view_as_complex(x):
        h = pole * h + z
        states.append(h)
    return torch.view_as_real(torch.stack(states))


def _written_in_place(z: Tensor) -> Tensor:
    out = torch.where(z.real > 0, z, 0.5j).clone()
    out[0] = z[1] * 1j
    out[:, 1:].mul_(z[:, :-1])
    return torch.cat([out, torch.ones_like(z)], -1)


def _ragged_sum(x: Tensor, y: Tensor) -> Tensor:
    lengths = torch.tensor([2, 0, 3])
    segment = torch.repeat_interleave(torch.arange(3), lengths)
    return torch.zeros_like(y).index_add(0, segment, x * x) / lengths.clamp(min=1)[:, None] * y


CATALOGUE: dict[str, Entry] = {
    # elementwise
    "add": _entry(lambda x, y: torch.add(x, y, alpha=0.3) + 1.5, X, Y),
    "sub": _entry(lambda x, y: torch.sub(x, y, alpha=0.3) + (1.5 - x), X, Y),
    "mul": _entry(lambda x, y: x * y * 0.1, X, Y),
    "div": _entry(lambda x, y: x / y + 2.0 / y + x / 3.0, X, Y, interval=POSITIVE),
    "neg": _entry(lambda x: -x * x, X),
    "reciprocal": _entry(torch.reciprocal, X, interval=POSITIVE),
    "exp": _entry(torch.exp, X),
    "exp2": _entry(torch.exp2, X),
    "log": _entry(torch.log, X, interval=POSITIVE),
    "log2": _entry(torch.log2, X, interval=POSITIVE),
    "log10": _entry(torch.log10, X, interval=POSITIVE),
    "log1p": _entry(torch.log1p, X, interval=(-0.5, 2.0)),
    "expm1": _entry(torch.expm1, X),
    "sqrt": _entry(torch.sqrt, X, interval=POSITIVE),
    "rsqrt": _entry(torch.rsqrt, X, interval=POSITIVE),
    "square": _entry(torch.square, X),
    "pow_integer": _entry(lambda x: x**3 + x**2, X),
    "pow_negative": _entry(lambda x: x**-2, X, interval=POSITIVE),
    "pow_fraction": _entry(lambda x: x**1.7, X, interval=POSITIVE),
    "pow_tensor": _entry(torch.pow, X, Y, interval=POSITIVE),
    "pow_of_scalar": _entry(lambda x: torch.pow(1.7, x), X),
    "tanh": _entry(torch.tanh, X),
    "sigmoid": _entry(torch.sigmoid, X),
    "logsigmoid": _entry(functional.logsigmoid, X),
    "softplus": _entry(functional.softplus, X),
    "erf": _entry(torch.erf, X),
    "erfc": _entry(torch.erfc, X),
    "sin": _entry(torch.sin, X),
    "cos": _entry(torch.cos, X),
    "tan": _entry(torch.tan, X, interval=(-1.0, 1.0)),
    "atan": _entry(torch.atan, X),
    "sinh": _entry(torch.sinh, X),
    "cosh": _entry(torch.cosh, X),
    "silu": _entry(functional.silu, X),
    "gelu": _entry(functional.gelu, X),
    "gelu_tanh": _entry(lambda x: functional.gelu(x, approximate="tanh"), X),
    "relu": _entry(torch.relu, X),
    "leaky_relu": _entry(functional.leaky_relu, X),
    "elu": _entry(functional.elu, X),
    "mish": _entry(functional.mish, X),
    "hardswish": _entry(functional.hardswish, X),
    "hardtanh": _entry(functional.hardtanh, X),
    "abs": _entry(torch.abs, X),
    "sign": _entry(lambda x: torch.sign(x) * x, X),
    "maximum": _entry(torch.maximum, X, Y),
    "minimum": _entry(torch.minimum, X, Y),
    "clamp": _entry(lambda x: x.clamp(-1.0, 1.0) + x.clamp(min=0.5) + x.clamp(max=0.5), X),
    "clamp_tensor": _entry(lambda x, y: torch.clamp(x, y - 1, y + 1), X, Y),
    "where": _entry(lambda x, y: torch.where(x > y, x * y, x + y), X, Y),
    "masked_fill": _entry(lambda x: x.masked_fill(~MASK, 0.5) * x, X),
    "comparisons": _entry(_stepped, X),
    "softcap": _entry(lambda x: 3.0 * torch.tanh(x / 3.0), X),
    "logaddexp": _entry(torch.logaddexp, X, Y),
    "lerp": _entry(lambda x, y: torch.lerp(x, y, 0.3), X, X),
    "addcmul": _entry(lambda x, y: torch.addcmul(x, x, y, value=0.5), X, X),
    "hypot": _entry(torch.hypot, X, X),
    # reductions
    "sum": _entry(lambda x: x.sum(-1) + x.sum(), X),
    "mean": _entry(lambda x: x.mean(0) + x.mean(), X),
    "amax": _entry(lambda x: x.amax(-1), X),
    "amin": _entry(lambda x: x.amin(0), X),
    "max": _entry(lambda x: x.max() + x.max(-1).values, X),
    "min": _entry(lambda x: x.min() + x.min(-1).values, X),
    "var": _entry(lambda x: x.var(-1), X),
    "var_population": _entry(lambda x: x.var(0, unbiased=False), X),
    "std": _entry(lambda x: x.std(-1), X),
    "var_mean": _entry(lambda x: torch.var_mean(x, -1), X),
    "prod": _entry(lambda x: x.prod(-1), X),
    "logsumexp": _entry(lambda x: torch.logsumexp(x, -1), X),
    "cumsum": _entry(lambda x: x.cumsum(-1), X),
    "cumprod": _entry(lambda x: x.cumprod(-1), X),
    "norm": _entry(lambda x: torch.linalg.vector_norm(x, dim=-1), X),
    # products
    "mm": _entry(torch.mm, (3, 4), (4, 2)),
    "mv": _entry(torch.mv, (3, 4), (4,)),
    "dot": _entry(torch.dot, Y, Y),
    "bmm": _entry(torch.bmm, (2, 3, 4), (2, 4, 2)),
    "matmul": _entry(torch.matmul, (2, 1, 3, 4), (3, 4, 2)),
    "addmm": _entry(lambda c, a, b: torch.addmm(c, a, b, beta=0.5, alpha=2.0), (2,), (3, 4), (4, 2)),
    "baddbmm": _entry(lambda c, a, b: torch.baddbmm(c, a, b, beta=0.5, alpha=2.0), (2, 3, 2), (2, 3, 4), (2, 4, 2)),
    "linear": _entry(functional.linear, (2, 3, 4), (5, 4), (5,)),
    "einsum": _entry(lambda a, b: torch.einsum("bij,bkj->bik", a, b), (2, 3, 4), (2, 5, 4)),
    "addmv": _entry(torch.addmv, (3,), (3, 4), (4,)),
    "einsum_chain": _entry(lambda a, b, c: torch.einsum("ij,jk,kl->il", a, b, c), (2, 3), (3, 4), (4, 2)),
    "outer": _entry(torch.outer, (3,), Y),
    "solve_triangular": _entry(_resolvent, (2, 4, 4), (2, 4, 3)),
    "solve_triangular_lower": _entry(
        lambda a, b: torch.linalg.solve_triangular(a.tril() + 4 * torch.eye(4, dtype=a.dtype), b, upper=False),
        (4, 4),
        (4, 2),
    ),
    # normalisations
    "softmax": _entry(lambda x: torch.softmax(x, -1), X),
    "softmax_rows": _entry(lambda x: torch.softmax(x, 0), X),
    "log_softmax": _entry(lambda x: torch.log_softmax(x, -1), X),
    "layer_norm": _entry(_layer_norm, X, Y, Y),
    "rms_norm": _entry(lambda x, w: functional.rms_norm(x, (5,), w), X, Y),
    "group_norm": _entry(lambda x: functional.group_norm(x, 2), (2, 4, 3)),
    "cross_entropy": _entry(lambda x: functional.cross_entropy(x, torch.tensor([1, 0, 4])), X),
    "normalize": _entry(lambda x: functional.normalize(x, dim=-1), X),
    "mse_loss": _entry(functional.mse_loss, X, X),
    "smooth_l1_loss": _entry(functional.smooth_l1_loss, X, X),
    "bce_with_logits": _entry(lambda x: functional.binary_cross_entropy_with_logits(x, MASK.double()), X),
    "kl_div": _entry(
        lambda x, y: functional.kl_div(x.log_softmax(-1), y.log_softmax(-1), reduction="sum", log_target=True), X, X
    ),
    "dropout_off": _entry(lambda x: functional.dropout(x, 0.5, training=False) * x, X),
    # shapes
    "views": _entry(lambda x: (x.reshape(5, 3).T.unsqueeze(1).expand(3, 2, 5) * 2).flatten(0, 1), X),
    "squeeze": _entry(lambda x: x[:, None].squeeze(1) * x.contiguous(), X),
    "cat": _entry(lambda x, y: torch.cat([x, y[None], x * x], 0), X, Y),
    "stack": _entry(lambda x, y: torch.stack([x, x * y], 1), X, Y),
    "slices": _entry(lambda x: x[1:, ::2] * x[:-1, 2:], X),
    "split": _entry(lambda x: torch.cat([p * (i + 1) for i, p in enumerate(x.split([2, 3], -1))], -1), X),
    "chunk": _entry(lambda x: x.chunk(2, -1)[0] * x.chunk(2, -1)[1][:, :1], X),
    "unbind": _entry(lambda x: x.unbind(0)[0] * x.unbind(0)[2], X),
    "pad": _entry(lambda x: functional.pad(x, (1, 2, 0, 1), value=0.5) ** 2, X),
    "tril": _entry(lambda x: torch.tril(x) * x, X),
    "triu": _entry(lambda x: torch.triu(x, 1) * x, X),
    "flip": _entry(lambda x: x.flip(-1) * x, X),
    "roll": _entry(lambda x: x.roll(1, -1) * x, X),
    "repeat": _entry(lambda x: x.repeat(2, 1).square(), X),
    "repeat_interleave": _entry(lambda x: x.repeat_interleave(2, 0).square(), X),
    "movedim": _entry(lambda x: x.movedim(0, -1).square(), (2, 3, 2)),
    "diagonal": _entry(lambda x: x.diagonal(dim1=-2, dim2=-1) * 2 + torch.diag_embed(x[0, 0])[0, 0], (2, 3, 3)),
    "unfold": _entry(lambda x: x.unfold(-1, 3, 1).square(), X),
    # indices
    "gather": _entry(lambda x: torch.gather(x, 1, COLUMNS).square(), X),
    "index": _entry(lambda x: x[ROWS].square() + x[ROWS, ROWS][:, None], X),
    "shifts": _entry(lambda x: x[:, (ROWS << 1) % 5] * (ROWS >> 1) + x[:, (ROWS << 1) >> ROWS], X),
    "shifts_of_tensors": _entry(_shifted, X),
    "index_select": _entry(lambda x: torch.index_select(x, 0, ROWS).square(), X),
    "index_put": _entry(lambda x, y: torch.index_put(x, (ROWS,), y * y, accumulate=True), X, Y),
    "index_put_set": _entry(lambda x, y: torch.index_put(x, (torch.tensor([2, 0]),), y * y), X, Y),
    "index_add": _entry(lambda x, y: torch.index_add(x, 0, ROWS, y * y), X, (4, 5)),
    "scatter": _entry(lambda x, y: torch.scatter(x, 1, COLUMNS[:, :1], (y * y)[:, :1]), X, (3, 3)),
    "scatter_add": _entry(lambda x, y: torch.scatter_add(x, 1, COLUMNS, y * y), X, (3, 3)),
    "index_copy": _entry(lambda x, y: torch.index_copy(x, 0, torch.tensor([2, 0]), y * y), X, (2, 5)),
    "scatter_reduce": _entry(lambda x, y: torch.scatter_reduce(x, 1, COLUMNS, y, "sum"), X, (3, 3)),
    "take_along_dim": _entry(lambda x: torch.take_along_dim(x, COLUMNS, 1).square(), X),
    "embedding": _entry(lambda w: functional.embedding(ROWS, w).square(), X),
    "topk": _entry(lambda x: x.topk(2, -1).values.square(), X),
    "sort": _entry(lambda x: x.sort(-1).values.square(), X),
    # in place, as user code has it
    "in_place": _entry(lambda x, y: (x * 2).add_(y).mul_(y).div_(3.0).exp_(), X, Y),
    "slice_assignment": _entry(lambda x, y: _assigned(x, y), X, Y),
    # integers by operators without a rule
    "ragged_sum": _entry(_ragged_sum, (5, 3), (3, 3)),
    # complex numbers
    "complex_product": _entry(_complex(lambda z, w: z * w.conj() * 2j - z + 1.5 - 3 * w.sum(-1)), (3, 2), (3, 2)),
    "complex_quotient": _entry(
        _complex(lambda z, w: z / (w + 3) + (w + 4).reciprocal() - 1j / (w + 3)), (3, 2), (3, 2)
    ),
    "complex_power": _entry(_complex(lambda z: z**3 - z.square() + (z + 3) ** -2), (3, 2)),
    "complex_exponential": _entry(_complex(lambda z: torch.exp(z * 0.5j) * z.real), (3, 2)),
    "complex_magnitude": _entry(_complex(lambda z: z.abs() * z.imag), (3, 2), interval=POSITIVE),
    "complex_sign": _entry(_complex(torch.sgn), (3, 2), interval=POSITIVE),
    "complex_matrices": _entry(_complex(lambda z, w: (z @ w).mH), (2, 3, 2), (3, 4, 2)),
    "complex_in_place": _entry(_complex(_written_in_place), (3, 2, 2), interval=POSITIVE),
    "polar": _entry(_turning, (3, 5, 2), Y, Y),
    "rfft": _entry(lambda x: torch.view_as_real(torch.fft.rfft(x, norm="ortho")) * 0.1, (2, 34)),
    "irfft": _entry(_long_convolution, X, Y),
    "fft": _entry(_complex(lambda z: torch.fft.fft(z).square()), (2, 18, 2)),
    "ifft2": _entry(_complex(lambda z: torch.fft.ifft2(z) * z), (3, 4, 2)),
    "irfft_of_odd_length": _entry(_complex(lambda z: torch.fft.irfftn(z, s=(3, 5)).square()), (3, 3, 2)),
    "hfft": _entry(_complex(lambda z: torch.fft.hfft(z, 6)), (2, 4, 2)),
    # whole definitions
    "attention": _entry(lambda q, k, v: torch.softmax(q @ k.mT * 0.5, -1) @ v, (2, 4, 3), (2, 5, 3), (2, 5, 2)),
    "masked_attention": _entry(_masked_attention, (4, 2), (3, 2), (3, 2)),
    "sdpa": _entry(functional.scaled_dot_product_attention, (1, 4, 3), (1, 5, 3), (1, 5, 2)),
    "sdpa_heads": _entry(functional.scaled_dot_product_attention, (1, 2, 4, 3), (1, 2, 5, 3), (1, 2, 5, 2)),
    "float32_inside": _entry(lambda x: torch.softmax(x.float(), -1).to(x.dtype) * x, X),
    "sdpa_causal": _entry(
        lambda q, k, v: functional.scaled_dot_product_attention(q, k, v, is_causal=True),
        (1, 4, 3),
        (1, 4, 3),
        (1, 4, 2),
    ),
    "capped_logsumexp": _entry(_capped_logsumexp, (4, 2), (3, 2)),
    "linear_attention": _entry(lambda q, k, v: torch.tril(q @ k.mT) @ v, (2, 4, 3), (2, 4, 3), (2, 4, 2)),
}


def _assigned(x: Tensor, y: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    out[1:] = x[:-1] * y
    out[0, 1] += y[0]
    return out
