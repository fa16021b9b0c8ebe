r"""The package sparsemax: its module, along each dim.

pip install --no-deps sparsemax==0.1.9
gradoracle check examples/packages/sparsemax_module.py:last_dim --dtype float32
"""

from __future__ import annotations

from entmax_terms import entmax
from jaxtyping import Float
from sparsemax import Sparsemax
from torch import Tensor

import gradoracle

SIZES = {"B": gradoracle.sizes(1, 5), "H": gradoracle.sizes(1, 4), "N": gradoracle.sizes(1, 40)}


@gradoracle.family(dims=SIZES)
def nearest(x: Float[Tensor, "B H N"]) -> Float[Tensor, "B H N"]:
    """The p >= 0 of sum 1 along the last dim that is nearest to x."""
    return entmax(x, 2.0)


@gradoracle.kernel(nearest)
def last_dim(x):
    return Sparsemax(-1)(x)


@gradoracle.kernel(nearest)
def middle_dim(x):
    return Sparsemax(1)(x.mT).mT


@gradoracle.family(dims={"B": SIZES["B"], "N": SIZES["N"]})
def nearest_of_columns(x: Float[Tensor, "N B"]) -> Float[Tensor, "N B"]:
    return entmax(x.mT, 2.0).mT


@gradoracle.kernel(nearest_of_columns)
def first_dim(x):
    return Sparsemax(0)(x)
