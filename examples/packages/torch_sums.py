r"""PyTorch's own running sums and products, distances and rows of a table.

gradoracle check examples/packages/torch_sums.py:cumprod --dtype float32
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

import gradoracle

ROWS = {"B": gradoracle.sizes(1, 12), "N": gradoracle.sizes(1, 90)}


@gradoracle.family(dims=ROWS)
def sums(x: Float[Tensor, "B N"]) -> Float[Tensor, "B N"]:
    n = torch.arange(x.shape[-1])
    return torch.where(n <= n[:, None], x[:, None], 0.0).sum(-1)


@gradoracle.kernel(sums)
def cumsum(x):
    return torch.cumsum(x, -1)


@gradoracle.family(dims={**ROWS, "N": gradoracle.sizes(1, 30)})
def products(x: Float[Tensor, "B N"]) -> Float[Tensor, "B N"]:
    y = [x[:, 0]]
    for n in range(1, x.shape[-1]):
        y.append(y[-1] * x[:, n])
    return torch.stack(y, -1)


@gradoracle.kernel(products)
def cumprod(x):
    return torch.cumprod(x, -1)


@gradoracle.family(
    dims={"P": gradoracle.sizes(1, 40), "R": gradoracle.sizes(1, 40), "N": gradoracle.sizes(1, 20)},
    options={"p": (2.0, 1.0)},
)
def distances(x: Float[Tensor, "P N"], y: Float[Tensor, "R N"], *, p: float = 2.0) -> Float[Tensor, "P R"]:
    return torch.linalg.vector_norm(x[:, None] - y, p, -1)


@gradoracle.kernel(distances)
def cdist(x, y, *, p=2.0):
    return torch.cdist(x, y, p)


@gradoracle.family(
    dims={"V": gradoracle.sizes(1, 40), "N": gradoracle.sizes(1, 40), "T": gradoracle.sizes(1, 30)},
    domains={"t": gradoracle.IndexDomain("V")},
    options={"padded": (False, True)},
)
def rows(table: Float[Tensor, "V N"], t: Int[Tensor, "T"], *, padded: bool = False) -> Float[Tensor, "T N"]:
    """The rows t of a table; with padding, row 0 has no gradient."""
    picked = table[t]
    return torch.where(t[:, None] == 0, picked.detach(), picked) if padded else picked


@gradoracle.kernel(rows)
def embedding(table, t, *, padded=False):
    return F.embedding(t, table, 0 if padded else None)
