"""Small families and correct kernels of them, for the tests of properties that every family has."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

import gradoracle
from gradoracle.check.evidence import Evidence
from gradoracle.model.case import Case, Draw
from gradoracle.model.job import PropertyResult
from gradoracle.model.kernel import Kernel
from gradoracle.model.property import Property
from gradoracle.oracle.truth import Oracle
from tests.properties import judging


@gradoracle.family(outputs=("p", "s"), dtypes=("float32", "float64"))
def pick(x: Float[Tensor, "B N"], y: Float[Tensor, "B N"]) -> tuple[Float[Tensor, "B N"], Float[Tensor, "B"]]:
    """softmax(x) y^2 and logsumexp(x): two inputs that meet, two outputs, a batch, a dim that is summed over."""
    return torch.softmax(x, -1) * y * y, torch.logsumexp(x, -1)


@gradoracle.family(outputs=("o",))
def weigh(x: Float[Tensor, "B N"], w: Float[Tensor, "N"]) -> Float[Tensor, "B N"]:
    """sin(x) w: a weight that all members of the batch share."""
    return torch.sin(x) * w


@gradoracle.family(outputs=("o",))
def total(x: Float[Tensor, "B N"], w: Float[Tensor, "N"]) -> Float[Tensor, "B N"]:
    """Running sums of sin(x) w: the order along N matters, and what comes later leaves what was before."""
    return torch.cumsum(torch.sin(x) * w, -1)


def right(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """The definition of ``pick`` in eager PyTorch, with the argument checks of a shipped kernel."""
    checked(x=x, y=y)
    return torch.softmax(x, -1) * y * y, torch.logsumexp(x, -1)


def gradients(x: Tensor, y: Tensor, dp: Tensor, ds: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """The VJP of ``pick``, written out."""
    p = torch.softmax(x, -1)
    inner = dp * y * y
    dx = p * (inner - (inner * p).sum(-1, keepdim=True))
    return dx if ds is None else dx + ds[:, None] * p, 2 * dp * p * y


def checked(**tensors: Tensor) -> None:
    """What guardrails of a kernel do."""
    first, pattern = next(iter(tensors.items()))
    for name, tensor in tensors.items():
        if tensor.dim() != 2:
            raise ValueError(f"{name} has shape {tuple(tensor.shape)}: expected [B, N]")
        if tensor.dtype not in (torch.float32, torch.float64):
            raise ValueError(f"{name} has dtype {tensor.dtype}: expected float32 or float64")
        if tensor.device.type == "meta":
            raise ValueError(f"{name} is on meta: expected cpu or cuda")
        if tensor.dtype != pattern.dtype:
            raise ValueError(f"{name} has dtype {tensor.dtype}: expected that of {first}, {pattern.dtype}")
        if tensor.shape != pattern.shape:
            raise ValueError(
                f"{name} has shape {tuple(tensor.shape)}: expected that of {first}, {tuple(pattern.shape)}"
            )


RIGHT = Kernel("right", "pick", right, deterministic=True, dtypes=("float32", "float64"))
WEIGH = Kernel("weigh", "weigh", lambda x, w: torch.sin(x) * w)
TOTAL = Kernel("total", "total", lambda x, w: torch.cumsum(torch.sin(x) * w, -1))
ORACLES: dict[str, Oracle] = {}
CASE = Case("pick", {"B": 3, "N": 7}, seed=1)


def kernel(call: Callable[..., Any], **fields: Any) -> Kernel:
    """A kernel of ``pick`` like the right one but for what is given."""
    return replace(RIGHT, name=getattr(call, "__name__", "wrong"), call=call, **fields)


def evidence(kernel: Kernel, case: Case = CASE, family: Any = pick, device: str = "cpu") -> Evidence:
    """Evidence of a kernel on a case."""
    return judging.evidence(case, kernel, ORACLES.setdefault(family.name, Oracle(family, "float64")), device)


def judged(prop: Property, kernel: Kernel, case: Case = CASE, family: Any = pick) -> PropertyResult:
    """The result of a property for a kernel on a case, as the engine judges it."""
    return judging.judge_on(prop, evidence(kernel, case, family))


def drawn(**recipes: str) -> Case:
    """The usual case with other recipes for some tensors."""
    return CASE.with_draws(**{name: Draw(recipe) for name, recipe in recipes.items()})
