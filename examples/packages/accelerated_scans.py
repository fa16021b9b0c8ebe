r"""The linear recurrences of accelerated-scan, in real and complex numbers: its Triton scans; the other one is CUDA.

pip install --no-deps accelerated-scan==0.3.1
gradoracle check examples/packages/accelerated_scans.py:real_scan --dtype float32
"""

from __future__ import annotations

import accelerated_scan.complex as complex_scans
import accelerated_scan.scalar as scans
import torch
from jaxtyping import Float
from torch import Tensor

import gradoracle

SIZES = {"B": gradoracle.sizes(1, 3), "C": gradoracle.sizes(1, 3), "T": gradoracle.sizes(1, 24)}


@gradoracle.family(dims=SIZES)
def recurrence(gate: Float[Tensor, "B C T"], x: Float[Tensor, "B C T"]) -> Float[Tensor, "B C T"]:
    """h[t] = gate[t] h[t - 1] + x[t]."""
    h = [x[..., 0]]
    for t in range(1, x.shape[-1]):
        h.append(gate[..., t] * h[-1] + x[..., t])
    return torch.stack(h, -1)


@gradoracle.kernel(recurrence)
def real_scan(gate, x):
    return scans.scan(gate.contiguous(), x.contiguous())


@gradoracle.family(dims=SIZES, dtypes=("float32",), outputs=("h_re", "h_im"))
def complex_recurrence(
    gate_re: Float[Tensor, "B C T"],
    gate_im: Float[Tensor, "B C T"],
    x_re: Float[Tensor, "B C T"],
    x_im: Float[Tensor, "B C T"],
) -> tuple[Float[Tensor, "B C T"], Float[Tensor, "B C T"]]:
    """The same in complex numbers, by their real and imaginary parts."""
    re, im = [x_re[..., 0]], [x_im[..., 0]]
    for t in range(1, x_re.shape[-1]):
        a, b, c, d = gate_re[..., t], gate_im[..., t], re[-1], im[-1]
        re.append(a * c - b * d + x_re[..., t])
        im.append(a * d + b * c + x_im[..., t])
    return torch.stack(re, -1), torch.stack(im, -1)


@gradoracle.kernel(complex_recurrence)
def complex_scan(gate_re, gate_im, x_re, x_im):
    h = complex_scans.scan(torch.complex(gate_re, gate_im), torch.complex(x_re, x_im))
    return h.real, h.imag
