"""Figures: functions that measure the seeds; in float64 unless a dtype is named."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

Rows = Iterator[tuple[str, float | str]]  # a description and its figure, or several figures as text
Tensors = tuple[Tensor, ...]

normal = partial(torch.randn, dtype=torch.float64)
zeros = partial(torch.zeros, dtype=torch.float64)


def off(got: Any, true: Any) -> float:
    """The relative error in the 2-norm, over all tensors together."""
    own, whole = (
        torch.cat([torch.as_tensor(x).flatten() for x in (each if isinstance(each, tuple) else (each,))])
        for each in (got, true)
    )
    return float((own - whole).norm() / whole.norm())


def vjp(function: Callable[..., Tensor], primals: Tensors, g: Tensor) -> Tensors:
    found: Tensors = torch.func.vjp(function, *primals)[1](g)
    return found


def rounded(x: Tensor, dtype: torch.dtype) -> Tensor:
    return x.to(dtype).double()


def logits() -> Tensor:
    return (2e4 + 3 * torch.rand(64, 64, dtype=torch.float64)).float()


def rebuilt(s: Tensor, through_log: bool) -> float:
    """The error of P in float32, rebuilt from (m, l) or from the log-sum-exp."""
    m = s.amax(-1, keepdim=True)
    l = torch.exp(s - m).sum(-1, keepdim=True)
    p = torch.exp(s - (m + l.log())) if through_log else torch.exp(s - m) / l
    return off(p.double(), torch.softmax(s.double(), -1))
