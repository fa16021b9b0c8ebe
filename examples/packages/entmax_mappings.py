r"""Mappings of entmax: sparsemax, 1.5-entmax, alpha-entmax, alpha-normmax, and sparsemax with a budget.

pip install --no-deps entmax==1.3
gradoracle check examples/packages/entmax_mappings.py:sparsemax --dtype float32
"""

from __future__ import annotations

import entmax
import torch
from entmax_terms import budgeted
from entmax_terms import entmax as entmax_of
from entmax_terms import normmax as normmax_of
from jaxtyping import Float
from torch import Tensor

import gradoracle

# of the bisections: 50, the default, end at 4e-15 of an interval of 4, which float64 tells from its rounding
STEPS = 70
SIZES = {"B": gradoracle.sizes(1, 6), "H": gradoracle.sizes(1, 4), "N": gradoracle.sizes(1, 70)}
ROWS = {"B": gradoracle.sizes(1, 6), "N": gradoracle.sizes(1, 40)}


@gradoracle.family(dims=SIZES)
def alpha_two(x: Float[Tensor, "B H N"]) -> Float[Tensor, "B H N"]:
    return entmax_of(x, 2.0)


@gradoracle.kernel(alpha_two)
def sparsemax(x):
    return entmax.sparsemax(x)


@gradoracle.kernel(alpha_two)
def sparsemax_of_largest(x):
    return entmax.sparsemax(x, k=3)


@gradoracle.kernel(alpha_two)
def sparsemax_bisect(x):
    return entmax.sparsemax_bisect(x)


@gradoracle.family(dims=SIZES)
def alpha_one_and_a_half(x: Float[Tensor, "B H N"]) -> Float[Tensor, "B H N"]:
    return entmax_of(x, 1.5)


@gradoracle.kernel(alpha_one_and_a_half)
def entmax15(x):
    return entmax.entmax15(x)


@gradoracle.kernel(alpha_one_and_a_half)
def entmax15_of_largest(x):
    return entmax.entmax15(x, k=3)


@gradoracle.family(dims=ROWS, options={"alpha": (1.5, 1.25, 2.0)})
def any_alpha(x: Float[Tensor, "B N"], *, alpha: float = 1.5) -> Float[Tensor, "B N"]:
    return entmax_of(x, alpha)


@gradoracle.kernel(any_alpha)
def entmax_bisect(x, *, alpha=1.5):
    return entmax.entmax_bisect(x, alpha, n_iter=STEPS)


@gradoracle.family(dims=ROWS)
def alpha_of_rows(x: Float[Tensor, "B N"], a: Float[Tensor, "B 1"]) -> Float[Tensor, "B N"]:
    """With an alpha between 1.25 and 2 for each row, which is differentiated too."""
    return entmax_of(x, 1.25 + 0.75 * torch.sigmoid(a))


@gradoracle.kernel(alpha_of_rows)
def entmax_bisect_of_rows(x, a):
    return entmax.entmax_bisect(x, 1.25 + 0.75 * torch.sigmoid(a), n_iter=STEPS)


@gradoracle.family(dims=ROWS, options={"alpha": (2.0, 1.5, 3.0)})
def any_norm(x: Float[Tensor, "B N"], *, alpha: float = 2.0) -> Float[Tensor, "B N"]:
    return normmax_of(x, alpha)


@gradoracle.kernel(any_norm)
def normmax_bisect(x, *, alpha=2.0):
    return entmax.normmax_bisect(x, alpha, n_iter=STEPS)


@gradoracle.family(dims={**SIZES, "N": gradoracle.sizes(2, 70)}, options={"budget": (2.0, 1.0, 1.5)})
def budget_of(x: Float[Tensor, "B H N"], *, budget: float = 2.0) -> Float[Tensor, "B H N"]:
    return budgeted(x, budget)


@gradoracle.kernel(budget_of)
def budget_bisect(x, *, budget=2.0):
    return entmax.budget_bisect(x, budget, n_iter=STEPS)
