"""Properties of second derivatives in mixed modes are not checked on a kernel without them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from gradoracle.properties.universal import UNIVERSAL

from gradoracle.model.verdict import Status
from tests.properties.toys import CASE, judged, kernel, right
from tests.properties.universal.wrong import MODES

LAWS = {law.name: law for law in UNIVERSAL}


@pytest.mark.parametrize("name", dict.fromkeys(row.law for row in MODES))
def test_a_kernel_without_such_derivatives_is_not_checked(name: str) -> None:
    class Once(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any, y: Any) -> Any:
            ctx.save_for_backward(x, y)
            return right(x, y)

        @staticmethod
        @torch.autograd.function.once_differentiable
        def backward(ctx: Any, *cotangents: Any) -> Any:
            given = [tensor.detach().requires_grad_() for tensor in ctx.saved_tensors]
            with torch.enable_grad():
                return torch.autograd.grad(right(*given), given, cotangents)

    found = judged(LAWS[name], kernel(Once.apply), CASE)
    assert found.status is Status.NOT_CHECKED and found.reason.startswith("no "), found
