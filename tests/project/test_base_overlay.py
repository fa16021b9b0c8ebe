"""Kernels of one project under the declarations of another: a head lets no kernel make what its base gives it."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

import gradoracle
from gradoracle.model.description import HostedTarget, described, kernel_of
from gradoracle.project.base_overlay import overlaid


@gradoracle.family(domains={"mask": gradoracle.IndexDomain(2)})
def masked(x: Float[Tensor, "N"], mask: Int[Tensor, "N"]) -> Float[Tensor, "N"]:
    """x where the mask is 1."""
    return x * mask


def target(**declared: Any) -> HostedTarget:
    kernel = gradoracle.kernel(masked, name="k", **declared)
    call = (lambda x: x) if declared else (lambda x, mask: x * mask)
    return HostedTarget((described(kernel(call)),))


def revealed(base: HostedTarget, own: HostedTarget) -> tuple[str, ...]:
    (found,) = overlaid("mine.py", base, own).target.kernels
    return kernel_of(found, lambda kernel, what, arguments: None).revealed


def test_what_a_kernel_may_reveal_is_for_its_judge_to_say() -> None:
    gives, lets = target(), target(reveals={"mask": lambda x: torch.ones_like(x)})
    assert revealed(gives, lets) == () == revealed(gives, gives)
    assert revealed(lets, lets) == ("mask",)
    assert revealed(lets, gives) == ()
