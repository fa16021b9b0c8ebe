"""``gradoracle.gradcheck``: correct and wrong kernels on the same inputs, and inputs that cannot be used."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.gradcheck import GradcheckError as TorchGradcheckError  # type: ignore[attr-defined]

import gradoracle
from gradoracle.execution import device
from gradoracle.model.errors import LostPrecision, UsageError
from gradoracle.model.severity import Severity

device.prepare("cpu")
import triton  # noqa: E402
import triton.language as tl  # noqa: E402

EPS = 1e-6
DTYPES = (torch.float32, torch.bfloat16, torch.float64)


def reference(x: Tensor, w: Tensor, eps: float = EPS) -> Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * w


class RMSNorm(torch.autograd.Function):
    """Written out in float32, or in float64 of float64 inputs; ``factor`` scales one term of dx."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor, eps: float, factor: float) -> Tensor:
        wide = x.double() if x.dtype is torch.float64 else x.float()
        r = torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
        ctx.save_for_backward(x, w, r)
        ctx.factor = factor
        return (wide * r * w.to(r.dtype)).to(x.dtype)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, g: Tensor) -> Any:
        x, w, r = ctx.saved_tensors
        x_, w_, g_ = (t.to(r.dtype) for t in (x, w, g))
        mean = (g_ * w_ * x_).mean(-1, keepdim=True) * ctx.factor
        return (r * g_ * w_ - x_ * r**3 * mean).to(x.dtype), (g_ * x_ * r).sum(0).to(w.dtype), None, None


def right(x: Tensor, w: Tensor, eps: float = EPS) -> Tensor:
    return RMSNorm.apply(x, w, eps, 1.0)


def wrong(x: Tensor, w: Tensor, eps: float = EPS) -> Tensor:
    return RMSNorm.apply(x, w, eps, 1.001)


def made(dtype: torch.dtype = torch.float32, grad: bool = True) -> tuple[Tensor, Tensor]:
    made = torch.Generator().manual_seed(0)
    x, w = torch.randn(5, 37, generator=made), torch.randn(37, generator=made)
    return x.to(dtype).requires_grad_(grad), w.to(dtype).requires_grad_(grad)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_correct_kernel_passes_and_a_wrong_one_is_reported_on_the_same_inputs(dtype: torch.dtype) -> None:
    inputs = made(dtype)
    with warnings.catch_warnings():
        warnings.simplefilter("error", LostPrecision)  # the correct kernel loses none
        assert gradoracle.gradcheck(right, inputs, reference=reference) is True
    assert gradoracle.gradcheck(wrong, inputs, reference=reference, raise_exception=False) is False
    with pytest.raises(gradoracle.GradcheckError) as caught:
        gradoracle.gradcheck(wrong, inputs, reference=reference)
    text, report = str(caught.value), caught.value.report
    assert "the tensors x, w of this call" in text and "1.001 should be 1" in text and "test_gradcheck.py" in text
    assert report.exit_code == 1
    assert [(each.verdicts[0].property_name, each.severity) for each in report.faults] == [
        ("vjp_matches_the_oracle", Severity.WRONG)
    ]


def bag(table: Tensor, index: Tensor, offsets: Tensor) -> Tensor:
    place = torch.arange(index.shape[0])
    member = (place >= offsets[:-1, None]) & (place < offsets[1:, None])
    return torch.where(member[..., None], table[index], 0.0).sum(1)


@pytest.mark.parametrize("rows", [5, 3])  # 3: as many as there are sequences
def test_offsets_are_one_more_than_the_sequences(rows: int) -> None:
    table, index = torch.randn(rows, 6, requires_grad=True), torch.arange(9) % rows
    for last in (9, 7):
        given = (table, index, torch.tensor([0, 3, 3, last]))
        assert gradoracle.gradcheck(bag, given, reference=bag)
        said = {"table": "V,D", "offsets": "N+1", "out": "N,D"}
        assert gradoracle.gradcheck(bag, given, reference=bag, dims=said)
        shifted = lambda table, index, offsets: bag(table, index.clamp(max=rows - 2), offsets)  # noqa: E731
        assert not gradoracle.gradcheck(shifted, given, reference=bag, dims=said, raise_exception=False)


def test_dims_that_do_not_fit_are_one_sentence() -> None:
    given = (torch.randn(5, 6, requires_grad=True), torch.arange(9) % 5, torch.tensor([0, 3, 3, 9]))
    for dims, says in (
        ({"offsets": "N*2+1"}, "dims offsets=N*2+1 has no size of N with which N*2+1 is 4"),
        ({"offsets": "N,1"}, "dims offsets=N,1 names 2 dims, but offsets has shape (4,) in the example"),
        ({"ends": "N"}, "dims names the tensor 'ends', which is none of table, index, offsets, out"),
    ):
        with pytest.raises(UsageError) as caught:
            gradoracle.gradcheck(bag, given, reference=bag, dims=dims)
        assert str(caught.value).startswith(says)


def test_its_error_is_that_of_torch_and_an_assertion() -> None:
    for kind in (AssertionError, TorchGradcheckError, RuntimeError):
        with pytest.raises(kind):
            gradoracle.gradcheck(wrong, made(), reference=reference)


def test_the_inputs_are_left_as_they_are() -> None:
    x, w = made()
    before, threads = x.detach().clone(), torch.get_num_threads()
    gradoracle.gradcheck(right, (x, w), reference=reference)
    assert x.requires_grad and x.grad is None and torch.equal(x, before) and torch.get_num_threads() == threads


def test_only_what_requires_grad_is_differentiated() -> None:
    def no_dw(x: Tensor, w: Tensor) -> Tensor:
        return RMSNorm.apply(x, w.detach(), EPS, 1.0)

    x, w = made()
    assert gradoracle.gradcheck(no_dw, (x, w.detach()), reference=reference)
    with pytest.raises(gradoracle.GradcheckError, match="dw is None"):
        gradoracle.gradcheck(no_dw, (x, w), reference=reference)


def test_other_arguments_are_passed_on() -> None:
    x, w = made()
    assert gradoracle.gradcheck(right, (x, w, 0.5), reference=reference)
    assert gradoracle.gradcheck(right, {"x": x, "w": w, "eps": 0.5}, reference=reference)
    with pytest.raises(gradoracle.GradcheckError):
        gradoracle.gradcheck(lambda x, w, eps: right(x, w), (x, w, 0.5), reference=reference)


def test_strides_and_mixed_dtypes_are_kept() -> None:
    seen = []

    def kernel(x: Tensor, w: Tensor) -> Tensor:
        seen.append((x.stride(), w.dtype))
        return (x.float() * w).to(x.dtype)

    x, w = torch.randn(7, 5).bfloat16().T.requires_grad_(), torch.randn(7, requires_grad=True)
    assert gradoracle.gradcheck(kernel, (x, w), reference=lambda x, w: (x * w).to(x.dtype))
    assert (x.stride(), torch.float32) in seen


def test_integers_and_bools_are_passed_as_they_are() -> None:
    def kernel(table: Tensor, index: Tensor, keep: Tensor) -> Tensor:
        assert index.dtype is torch.int32 and keep.dtype is torch.bool
        return torch.where(keep[:, None], table[index.long()], 0.0)

    def twice(table: Tensor, index: Tensor, keep: Tensor) -> Tensor:
        return torch.where(keep[:, None], table[(index.long() + 1) % len(table)], 0.0)

    table = torch.randn(6, 4, requires_grad=True)
    index, keep = torch.tensor([5, 0, 0, 3], dtype=torch.int32), torch.tensor([True, True, False, True])
    plain: Callable[..., Tensor] = lambda table, index, keep: torch.where(keep[:, None], table[index.long()], 0.0)  # noqa: E731
    assert gradoracle.gradcheck(kernel, (table, index, keep), reference=plain)
    assert not gradoracle.gradcheck(twice, (table, index, keep), reference=plain, raise_exception=False)


def ranked(x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return x.amax(-1), x.argmax(-1), x.sum(-1) > 0, x.abs().amax(-1).detach()


@pytest.mark.parametrize("dtype", DTYPES)
def test_outputs_of_integers_and_those_without_gradient_are_compared(dtype: torch.dtype) -> None:
    x = made(dtype)[0]
    assert gradoracle.gradcheck(ranked, x, reference=ranked)
    assert gradoracle.gradcheck(lambda x: (*ranked(x)[:3], x.abs().amax(-1)), x, reference=ranked)
    for place, wrong in ((1, lambda t: t + 1), (2, torch.logical_not), (3, lambda t: 1.1 * t)):

        def kernel(x: Tensor) -> tuple[Tensor, ...]:
            return tuple(wrong(t) if n == place else t for n, t in enumerate(ranked(x)))  # noqa: B023

        with pytest.raises(gradoracle.GradcheckError, match="1 fault, ") as caught:
            gradoracle.gradcheck(kernel, x, reference=ranked)
        assert f"\n  out{place} " in str(caught.value)


def test_an_index_among_equals_is_not_decided_and_no_failure() -> None:
    x = torch.ones(3, 4, requires_grad=True)
    assert gradoracle.gradcheck(
        lambda x: (x.sum(-1), x.argmax(-1) + 1), x, reference=lambda x: (x.sum(-1), x.argmax(-1))
    )


class Layer(nn.Module):
    """Linear and scaled; the factor of the gradient of the scale is 1 where it is right."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.inner = nn.Linear(7, 3)
        self.scale = nn.Parameter(torch.randn(3))
        self.frozen = nn.Parameter(torch.randn(3), requires_grad=False)
        self.register_buffer("shift", torch.randn(3))
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        scale = self.scale.detach() + self.factor * (self.scale - self.scale.detach())
        return self.inner(x) * scale + self.frozen + self.shift


def test_the_parameters_of_a_module_are_inputs() -> None:
    x = torch.randn(4, 7)
    assert gradoracle.gradcheck(Layer(1.0), x, reference=Layer(1.0))
    with pytest.raises(gradoracle.GradcheckError, match="dscale"):
        gradoracle.gradcheck(Layer(1.01), x, reference=Layer(1.0))


def test_a_function_takes_the_parameters_of_a_module_by_keyword() -> None:
    layer, x = nn.Linear(7, 3), torch.randn(4, 7, requires_grad=True)
    assert gradoracle.gradcheck(layer, x, reference=lambda x, weight, bias: x @ weight.T + bias)
    with pytest.raises(gradoracle.GradcheckError, match="dbias"):
        gradoracle.gradcheck(layer, x, reference=lambda x, weight, bias: x @ weight.T + 2 * bias - bias.detach())


@triton.jit
def _scale(X, W, Y, N, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    n = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x, w = tl.load(X + n, mask=n < N), tl.load(W + n, mask=n < N)
    tl.store(Y + n, x * w, mask=n < N)


@triton.jit
def _scale_outside(X, W, Y, N, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    n = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x, w = tl.load(X + n, mask=n < N + 1), tl.load(W + n, mask=n < N)
    tl.store(Y + n, x * w, mask=n < N)


def _launched(kernel: Any) -> Callable[[Tensor, Tensor], Tensor]:
    class Scale(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
            ctx.save_for_backward(x, w)
            return run(x, w)

        @staticmethod
        @torch.autograd.function.once_differentiable
        def backward(ctx: Any, g: Tensor) -> Any:
            x, w = ctx.saved_tensors
            return run(g.contiguous(), w), run(g.contiguous(), x)

    def run(x: Tensor, w: Tensor) -> Tensor:
        y = torch.empty_like(x)
        kernel[(triton.cdiv(x.numel(), 16),)](x, w, y, x.numel(), BLOCK=16)
        return y

    return lambda x, w: Scale.apply(x, w)


@pytest.mark.parametrize("dtype", DTYPES)
def test_triton_kernels_are_interpreted_and_their_accesses_judged(dtype: torch.dtype) -> None:
    x, w = (torch.randn(35).to(dtype).requires_grad_() for _ in range(2))
    assert gradoracle.gradcheck(_launched(_scale), (x, w), reference=torch.mul)
    with pytest.raises(gradoracle.GradcheckError, match="every_access_stays_inside_its_tensor"):
        gradoracle.gradcheck(_launched(_scale_outside), (x, w), reference=torch.mul)


def test_a_kernel_that_raises_is_no_success() -> None:
    def raising(x: Tensor, w: Tensor) -> Tensor:
        raise ValueError("N must be a multiple of 16")

    with pytest.raises(gradoracle.GradcheckError, match="N must be a multiple of 16"):
        gradoracle.gradcheck(raising, made(), reference=reference)


def test_a_declared_contract_counts_lost_precision() -> None:
    def rounded(x: Tensor, w: Tensor) -> Tensor:
        return (x.bfloat16() * w.bfloat16()).float()

    inputs = made()
    with pytest.warns(UserWarning, match="PRECISION"):
        assert gradoracle.gradcheck(rounded, inputs, reference=torch.mul)
    assert not gradoracle.gradcheck(rounded, inputs, reference=torch.mul, contract="ieee32", raise_exception=False)


@pytest.mark.parametrize(
    ("kernel", "inputs", "reference", "says"),
    [
        (right, made(grad=False), reference, "none of the inputs of right requires grad; expected requires_grad=True"),
        (right, (), reference, "cannot be called with these inputs: missing a required argument: 'x'"),
        (right, 3.0, reference, "the inputs of right are of type float; expected a tensor, a tuple of arguments"),
        (right, (1.0, 2.0), reference, "hold no tensor"),
        (right, (torch.ones(2, 3).long(), torch.ones(3).long()), reference, "hold no float tensor"),
        (right, (list(made()), 1.0), reference, "argument 'x' of right is a list of tensors; expected tensors as"),
        (right, (torch.ones(2, 0, requires_grad=True), torch.ones(0)), reference, "expected at least one element"),
        (right, {"x": made()[0], "v": made()[1]}, reference, "cannot be called with these inputs"),
        (right, made(), lambda x, w: (x @ w).sum().item(), "returns float; expected a tensor or a tuple of tensors"),
        (right, made(), lambda x, w: x.detach(), "returns no tensor that depends on 'w', 'x'"),
        (right, made(), lambda x: x, "raises TypeError on x [5, 37], w [37]"),
        (right, made(), lambda x, w: w @ x, "raises RuntimeError on x [5, 37], w [37]"),
        (RMSNorm, made(), reference, "RMSNorm is a class; expected a function of tensors, or an instance of it"),
        (right, made(), 7, "is of type int and not callable"),
        (nn.Linear(37, 3), made()[0], lambda x, weight: x @ weight.T, "does not take 'bias', parameters of the module"),
        (nn.Linear(37, 3), made()[0], nn.Linear(37, 3, bias=False), "has the parameters 'weight', the kernel"),
    ],
)
def test_a_mistake_is_one_sentence(kernel: Any, inputs: Any, reference: Any, says: str) -> None:
    with pytest.raises(UsageError) as caught:
        gradoracle.gradcheck(kernel, inputs, reference=reference)
    assert says in str(caught.value) and "\n" not in str(caught.value)


def test_an_unknown_contract_is_one_sentence() -> None:
    with pytest.raises(UsageError, match="for float32 choose one of"):
        gradoracle.gradcheck(right, made(), reference=reference, contract="bf16")


def test_a_reference_of_another_shape_fails() -> None:
    with pytest.raises(gradoracle.GradcheckError, match=r"out has shape \(5, 37\), expected \(5,\)"):
        gradoracle.gradcheck(right, made(), reference=lambda x, w: x @ w)


def without_a_graph(x: Tensor, w: Tensor, eps: float = EPS) -> Tensor:
    return reference(x, w, eps).detach()


def test_an_input_that_requires_grad_asks_for_a_gradient() -> None:
    assert gradoracle.gradcheck(without_a_graph, made(), reference=reference, claims=("forward",))
    with pytest.raises(gradoracle.GradcheckError, match="an input requires grad, and no output does"):
        gradoracle.gradcheck(without_a_graph, made(), reference=reference)
    assert not gradoracle.gradcheck(without_a_graph, made(), reference=reference, raise_exception=False)


def test_claims_say_what_is_judged() -> None:
    for claims in (None, ("forward", "vjp")):
        assert gradoracle.gradcheck(right, made(), reference=reference, claims=claims)
    with pytest.raises(gradoracle.GradcheckError, match="claims an HVP and has none"):
        gradoracle.gradcheck(right, made(), reference=reference, claims=("vjp", "hvp"))
    with pytest.raises(UsageError, match="claims: 'gradient' cannot be claimed"):
        gradoracle.gradcheck(right, made(), reference=reference, claims=("gradient",))
