"""Two families with Triton kernels that touch what they should, or not: interpreted, so that accesses are recorded."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

import gradoracle
from gradoracle.host import interpreter
from gradoracle.model.kernel import Kernel

if interpreter.explain_unavailable() is None:
    interpreter.activate()
from tests import recorded_kernels as launched

BLOCK = 16


@gradoracle.family(outputs=("o",))
def sums(x: Float[Tensor, "B N"]) -> Float[Tensor, "N"]:
    """Sums over the first dim."""
    return x.sum(0)


@gradoracle.family(outputs=("o",))
def double(x: Float[Tensor, "B N"]) -> Float[Tensor, "B N"]:
    """2 x."""
    return 2 * x


def summing(how: str = "atomic", more: int = 0, empty: bool = False):
    def call(x: Tensor) -> Tensor:
        o = torch.empty(x.shape[1]) if empty else torch.zeros(x.shape[1])
        launched.summed[(x.shape[0] + more,)](x.contiguous(), o, x.shape[1], how, BLOCK)
        return o

    return call


def by_parts(missing: int = 0, zeroed: bool = False):
    """Partial sums that PyTorch adds up; some were never written."""

    def call(x: Tensor) -> Tensor:
        rows, columns = x.shape
        partials = torch.zeros(rows, columns) if zeroed else torch.empty(rows, columns)
        launched.gathered[(rows - missing,)](x, partials, rows, columns, *x.stride(), BLOCK)
        return partials.sum(0)

    return call


def doubling(order: str):
    def call(x: Tensor) -> Tensor:
        o, spare = x.clone(), torch.zeros(x.shape)
        launched.neighbours[(x.shape[0],)](o, spare, torch.zeros(x.shape), order, x.shape[1])
        return o if order == "in place" else 2 * x

    return call


def clearing(order: str):
    def call(x: Tensor) -> Tensor:
        o = torch.empty(x.shape)
        launched.cleared[(x.shape[0],)](2 * x, o, order, x.shape[1])
        return o

    return call


def placeholding(how: str):
    """A bias that is not given: memory that nothing wrote, and that the kernel masks, discards or uses."""

    def call(x: Tensor) -> Tensor:
        o, bias = torch.empty(x.shape), torch.empty(x.shape[1])
        launched.biased[(x.shape[0],)](x.contiguous(), bias, o, x.shape[1], 0, how, BLOCK)
        return o

    return call


def of_sums(call, outside: bool = False) -> Kernel:
    return Kernel("sums", "sums", call, vjp=lambda x, g, *_: (g["o"].expand_as(x["x"]).clone(),), outside=outside)


def of_double(call, outside: bool = False) -> Kernel:
    return Kernel("double", "double", call, vjp=lambda x, g, *_: (2 * g["o"],), outside=outside)
