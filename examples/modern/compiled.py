"""A callable that torch.compile compiles: a gated activation with a norm after it.

gradoracle check examples/modern/compiled.py:right --dtype float32
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

import gradoracle


@gradoracle.family(dims={"B": gradoracle.sizes(1, 9), "N": gradoracle.sizes(1, 40)})
def gated_norm(x: Float[Tensor, "B N"], gate: Float[Tensor, "B N"], w: Float[Tensor, "N"]) -> Float[Tensor, "B N"]:
    """y / rms(y) w with y = silu(gate) x."""
    y = torch.nn.functional.silu(gate) * x
    return y * torch.rsqrt(y.square().mean(-1, keepdim=True) + 1e-6) * w


def _written(x, gate, w, bug):
    y = torch.nn.functional.silu(gate.float()) * x.float()
    squares = y.detach().square() if bug else y.square()
    return (y * torch.rsqrt(squares.mean(-1, keepdim=True) + 1e-6) * w.float()).to(x.dtype)


_compiled = torch.compile(_written, dynamic=True)


@gradoracle.kernel(gated_norm)
def right(x, gate, w):
    return _compiled(x, gate, w, False)


@gradoracle.kernel(gated_norm)
def wrong(x, gate, w):
    """The norm is taken for a constant."""
    return _compiled(x, gate, w, True)
