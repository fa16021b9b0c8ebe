"""Properties of second derivatives in mixed modes are not checked on a kernel without them."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from gradoracle.model.verdict import Status
from tests.properties.judging import PROPERTIES
from tests.properties.toys import CASE, judged, kernel, right
from tests.properties.universal.wrong import MODES


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


class OnceSoftmax(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        p = torch.softmax(x, -1)
        ctx.save_for_backward(p)
        return p

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, g: Any) -> Any:
        (p,) = ctx.saved_tensors
        return p * (g - (g * p).sum(-1, keepdim=True))


def followed(x: Any, y: Any) -> Any:
    """With operations of PyTorch behind it, whose second derivatives reach some inputs and miss others."""
    return OnceSoftmax.apply(x) * y * y, torch.logsumexp(x, -1)


@pytest.mark.parametrize("call", [Once.apply, followed], ids=["alone", "followed by operations"])
@pytest.mark.parametrize("name", [*dict.fromkeys(row.property_name for row in MODES), "hvp_matches_the_oracle"])
def test_a_kernel_without_such_derivatives_is_not_checked(name: str, call: Any) -> None:
    found = judged(PROPERTIES[name], kernel(call), CASE)
    assert found.status is Status.NOT_CHECKED and found.reason.startswith("no "), found


def test_a_second_derivative_that_is_cut_in_silence_is_wrong() -> None:
    class Cut(OnceSoftmax):
        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            p = ctx.saved_tensors[0].detach()
            return p * (g.detach() - (g.detach() * p).sum(-1, keepdim=True))

    def cut(x: Any, y: Any) -> Any:
        return Cut.apply(x) * y * y, torch.logsumexp(x, -1)

    assert judged(PROPERTIES["hvp_matches_the_oracle"], kernel(cut), CASE).status is Status.VIOLATED
