"""A kernel in C, compiled at first use and called by ctypes: a recurrence of first order.

gradoracle check examples/modern/ctypes_kernel.py:right --dtype float32
"""

from __future__ import annotations

import ctypes
import functools
import subprocess
import tempfile
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor

import gradoracle

SOURCE = """
void forward(const float *x, const float *w, float *y, long rows, long n) {
    for (long r = 0; r < rows; r++)
        for (long i = 0; i < n; i++)
            y[r * n + i] = x[r * n + i] + (i ? w[i] * y[r * n + i - 1] : 0);
}
void backward(const float *g, const float *w, const float *y, float *dx, float *dw, long rows, long n, long skip) {
    for (long i = 0; i < n; i++) dw[i] = 0;
    for (long r = 0; r < rows; r++)
        for (long i = n - 1; i >= 0; i--) {
            dx[r * n + i] = g[r * n + i] + (i + 1 < n ? w[i + skip] * dx[r * n + i + 1] : 0);
            if (i) dw[i] += dx[r * n + i] * y[r * n + i - 1];
        }
}
"""


@gradoracle.family(dims={"B": gradoracle.sizes(1, 5), "N": gradoracle.sizes(1, 12)}, dtypes=("float32",))
def recurrence(x: Float[Tensor, "B N"], w: Float[Tensor, "N"]) -> Float[Tensor, "B N"]:
    """y_i = x_i + w_i y_{i-1}."""
    y, found = torch.zeros_like(x[:, 0]), []
    for i in range(x.shape[1]):
        y = x[:, i] + w[i] * y
        found.append(y)
    return torch.stack(found, 1)


@functools.cache
def _library() -> ctypes.CDLL:
    folder = Path(tempfile.mkdtemp())
    (folder / "kernel.c").write_text(SOURCE)
    subprocess.run(["cc", "-O2", "-shared", "-fPIC", "kernel.c", "-o", "kernel.so"], cwd=folder, check=True)
    return ctypes.CDLL(str(folder / "kernel.so"))


def _at(tensor: Tensor) -> ctypes.c_void_p:
    if tensor.dtype != torch.float32 or tensor.device.type != "cpu":
        raise ValueError(f"the kernel was given {tensor.dtype} on {tensor.device}, expected torch.float32 on cpu")
    return ctypes.c_void_p(tensor.data_ptr())


class _Recurrence(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w, bug):
        if w.shape != x.shape[1:]:
            raise ValueError(f"w has shape {tuple(w.shape)}, expected {tuple(x.shape[1:])}")
        x, w = x.contiguous(), w.contiguous()
        y = torch.empty_like(x)
        _library().forward(_at(x), _at(w), _at(y), *map(ctypes.c_long, x.shape))
        ctx.save_for_backward(w, y)
        ctx.bug = bug
        return y

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, g):
        w, y = ctx.saved_tensors
        g, dx, dw = g.contiguous(), torch.empty_like(y), torch.empty_like(w)
        sizes = map(ctypes.c_long, (*y.shape, 0 if ctx.bug else 1))
        _library().backward(_at(g), _at(w), _at(y), _at(dx), _at(dw), *sizes)
        return dx, dw, None


@gradoracle.kernel(recurrence)
def right(x, w):
    return _Recurrence.apply(x, w, False)


@gradoracle.kernel(recurrence)
def wrong(x, w):
    """Its backward takes the weight of the step before."""
    return _Recurrence.apply(x, w, True)
