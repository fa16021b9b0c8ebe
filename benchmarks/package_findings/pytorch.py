"""Findings in PyTorch 2.13.0 on the CPU, and one in 2.11.0 on a GPU."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import torch
from torch import Tensor
from torch.func import grad, jvp, vjp
from torch.nn.functional import batch_norm, embedding, instance_norm, layer_norm, normalize, rms_norm

from benchmarks.package_findings.by_hand import finding, gradient, leaf, numbers, off

EPS = 1e-5
HALVES = (torch.bfloat16, torch.float16)
Function = Callable[[Tensor], Tensor]


def over_deviation(x: Tensor, dim: int) -> Tensor:
    """X without its mean, over its standard deviation."""
    centred = x - x.mean(dim, keepdim=True)
    return centred / (centred.square().mean(dim, keepdim=True) + EPS).sqrt()


def reverse_over_forward(f: Function, x: Tensor, t: Tensor, g: Tensor) -> Tensor:
    """d/dx <g, J t> by `grad(jvp)`."""
    return grad(lambda y: (jvp(f, (y,), (t,))[1] * g).sum())(x)


def forward_over_reverse(f: Function, x: Tensor, t: Tensor, g: Tensor) -> Tensor:
    """The same by `jvp(vjp)`."""
    return jvp(lambda y: vjp(f, y)[1](g)[0], (x,), (t,))[1]


def orders(norm: Function, plain: Function) -> str:
    """d/dx <t, J^T g> by three orders of differentiation, in float64, against reverse mode through the formula."""
    x, t, g = (torch.randn(2, 3, 4, dtype=torch.float64) for _ in range(3))

    def reverse(f: Function) -> Function:
        return grad(lambda y: (f(y) * g).sum())

    truth = grad(lambda y: (reverse(plain)(y) * t).sum())(x)
    difference = (reverse(plain)(x + 1e-5 * t) - reverse(plain)(x - 1e-5 * t)) / 2e-5
    found = {
        "reverse over forward": reverse_over_forward(norm, x, t, g),
        "forward over reverse": forward_over_reverse(norm, x, t, g),
        "reverse over reverse": grad(lambda y: (reverse(norm)(y) * t).sum())(x),
        "differences of the formula's gradient": difference,
    }
    return "; ".join(f"{name}: {off(value, truth)}" for name, value in found.items())


@finding("pytorch-layer-norm-reverse-over-forward", claimed=False)
def layer() -> str:
    return orders(lambda x: layer_norm(x, (4,), eps=EPS), lambda x: over_deviation(x, -1))


@finding("pytorch-batch-norm-reverse-over-forward", claimed=False)
def batch() -> str:
    def plain(x: Tensor) -> Tensor:
        return over_deviation(x.transpose(1, 2).flatten(0, 1), 0).unflatten(0, (2, 4)).transpose(1, 2)

    return orders(lambda x: batch_norm(x, None, None, training=True, eps=EPS), plain)


@finding("pytorch-instance-norm-reverse-over-forward", claimed=False)
def instance() -> str:
    return orders(lambda x: instance_norm(x, eps=EPS), lambda x: over_deviation(x, -1))


FAR = """
import mmap, torch
dtype, stride = torch.{dtype}, {stride}
memory = mmap.mmap(-1, (2 * stride + 64) * dtype.itemsize, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000)
a = torch.as_strided(torch.frombuffer(memory, dtype=dtype), (3, 4), (stride, 1))
a.copy_(torch.arange(12.0).view(3, 4))
print((a @ torch.ones({operand}, dtype=dtype)).flatten().tolist())
"""


def far_product(dtype: str, stride: int, operand: tuple[int, ...]) -> str:
    """The rows 0..3, 4..7, 8..11 times ones, in a process of its own; the pages between the rows are never touched."""
    command = [sys.executable, "-W", "ignore", "-c", FAR.format(dtype=dtype, stride=stride, operand=operand)]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    return ran.stdout.strip() or f"ends with signal {-ran.returncode}"


@finding("pytorch-matrix-vector-far-rows", claimed=False)
def far_rows() -> str:
    """True: 6, 22, 38."""
    said = []
    for dtype in ("float32", "bfloat16", "float16"):
        for name, stride in (("2^31 - 16", 2**31 - 16), ("2^31 + 16", 2**31 + 16)):
            vector, matrix = far_product(dtype, stride, (4,)), far_product(dtype, stride, (4, 1))
            said.append(f"{dtype}, rows {name} apart: times a vector {vector}, times a matrix {matrix}")
    return "; ".join(said)


@finding("pytorch-cumprod-reverse-over-forward", claimed=False)
def products() -> str:
    """d/dx <g, J t> of the products of (0, 2, 3, 5), in two orders."""
    x, t, g = torch.tensor([[0.0, 2, 3, 5], [1, -1, 2, 1], [2, 1, 1, -1]], dtype=torch.float64)

    def plain(y: Tensor) -> Tensor:
        return torch.stack([y[0], y[0] * y[1], y[0] * y[1] * y[2], y[0] * y[1] * y[2] * y[3]])

    truth = reverse_over_forward(plain, x, t, g)
    found, other = (order(lambda y: y.cumprod(0), x, t, g) for order in (reverse_over_forward, forward_over_reverse))
    return f"reverse over forward {numbers(found)}, forward over reverse {numbers(other)}, true {numbers(truth)}"


@finding("pytorch-embedding-padding", claimed=False)
def padding() -> str:
    """<g, J t> and <J^T g, t>, which are one number."""
    table, t, g = torch.randn(3, 2), torch.randn(3, 2), torch.randn(4, 2)
    index = torch.tensor([0, 1, 2, 0])
    with_padding = lambda y: embedding(index, y, padding_idx=0)  # noqa: E731
    forward = float((jvp(with_padding, (table,), (t,))[1] * g).sum())
    backward = float((vjp(with_padding, table)[1](g)[0] * t).sum())
    return f"<g, J t> = {forward:.4f}, <J^T g, t> = {backward:.4f}"


@finding("pytorch-normalize-float16", claimed=False)
def normalised() -> str:
    """A row of zeros, whose norm is clamped to eps = 1e-12, and one whose norm is above 65504."""
    rows = {"zeros": torch.zeros(1, 3), "6e4, 6e4, 1": torch.tensor([[6e4, 6e4, 1.0]])}
    said = (
        f"{name}: {numbers(normalize(x.half())[0])}, float32 {numbers(normalize(x)[0])}" for name, x in rows.items()
    )
    return "; ".join(said)


@finding("pytorch-rms-norm-tangent-dtype", claimed=False)
def tangent_dtype() -> str:
    """The dtypes of an output and of its tangent, which are one."""
    said = []
    for dtype in HALVES:
        x, t = torch.randn(2, 8, dtype=dtype), torch.randn(2, 8, dtype=dtype)
        out, tangent = jvp(lambda y: rms_norm(y, (8,)), (x,), (t,))
        said.append(f"out {out.dtype}, tangent {tangent.dtype}")
    return "; ".join(said)


@finding("pytorch-sums-in-16-bit", claimed=False)
def sums() -> str:
    """The gradients of a bias, and of a row of a table that is taken at every place: they count the rows.

    PyTorch's threads add parts of the bias's, so it runs on one.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    said = []
    for dtype in HALVES:
        for rows in (100, 300, 4096):
            w, b, table = (leaf(torch.ones(8, 8, dtype=dtype)) for _ in range(3))
            layer_norm(torch.randn(rows, 8).to(dtype), (8,), w[0], b[0]).sum().backward()
            embedding(torch.zeros(rows, dtype=torch.int64), table).sum().backward()
            counts = [float(gradient(x)[0, 0]) for x in (b, table)]
            said.append(f"{str(dtype)[6:]}, {rows} rows: layer_norm's db {counts[0]:g}, embedding's {counts[1]:g}")
    torch.set_num_threads(threads)
    weight, b = torch.ones(1, dtype=torch.bfloat16), torch.zeros(1, dtype=torch.bfloat16, requires_grad=True)
    g = torch.tensor([[[256.0, 1.0]], [[-256.0, 0.0]]], dtype=torch.bfloat16)
    instance_norm(torch.randn(2, 1, 2).bfloat16(), weight=weight, bias=b).backward(g)
    return "; ".join(said) + f"; instance_norm, members 256 + 1 and -256 + 0: db {float(gradient(b)):g}, true 1"


@finding("pytorch-logsumexp-16-bit", claimed=False)
def log_sum() -> str:
    """Its gradient is exp(x - the rounded result), so a row of it does not sum to 1."""
    said = []
    for dtype in HALVES:
        for value in (0.0, 10.0, 100.0):
            x = leaf(torch.full((1, 1000), value, dtype=dtype))
            torch.logsumexp(x, -1).sum().backward()
            plain, total = torch.softmax(x.detach(), -1).double().sum(), gradient(x).double().sum()
            said.append(f"{str(dtype)[6:]}, 1000 times {value:g}: {total:.3f} (softmax {plain:.3f})")
    return "; ".join(said)


@finding("pytorch-cumprod-float16", claimed=False)
def small_products() -> str:
    """The gradient divides products by x; those below 6e-5 have few digits in float16."""
    x = leaf(torch.full((14,), 0.4, dtype=torch.float16))
    x.cumprod(0).sum().backward()
    y = leaf(x.double())
    torch.stack([y[: n + 1].prod() for n in range(14)]).sum().backward()
    worst = ((gradient(x).double() - gradient(y)) / gradient(y)).abs()
    x = torch.tensor([0.3, 0.01], dtype=torch.float16, requires_grad=True)
    x.cumprod(0).backward(torch.tensor([0.0, 5.4e-5], dtype=torch.float16))
    return f"14 times 0.4: off by {float(worst.max()):.2g} of itself at {int(worst.argmax())}; of (0.3, 0.01), " + (
        f"cotangent (0, 5.4e-5): {float(gradient(x)[1]):.3g}, true {0.3 * 5.4e-5:.3g}"
    )
