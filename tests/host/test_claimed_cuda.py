"""A claim of CUDA: packages that refuse CPU tensors run in the interpreter, and nothing is left when it ends."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import interpreted
import pytest
import torch
from torch import Tensor

import gradoracle
from gradoracle.host import interpreter
from gradoracle.host.claimed_cuda import cuda_claimed

pytestmark = interpreted.NEEDED


interpreter.activate()
import triton  # noqa: E402
import triton.language as tl  # noqa: E402


@triton.jit
def scaled(x, y, by, n, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(y + i, tl.load(x + i, mask=i < n) * by, mask=i < n)


class Doubled(torch.autograd.Function):
    """2 x, in a package's way: it asks for CUDA everywhere."""

    @staticmethod
    def launched(x: Tensor, by: float = 2.0) -> Tensor:
        if not x.is_cuda or x.device.type != "cuda" or torch.cuda.get_device_capability(x.device)[0] < 8:
            raise ValueError(f"expected a CUDA tensor, not one on {x.device}")
        if os.environ.get("TRITON_INTERPRET") or triton.knobs.runtime.interpret:
            raise ValueError("the interpreter is not supported")
        with torch.cuda.device(x.device.index):
            y = torch.empty(x.shape, dtype=x.dtype, device="cuda")
            y = torch.empty_like(y).new_empty(x.shape)
            count = torch.cuda.get_device_properties(torch.cuda.current_device()).multi_processor_count
            target = triton.runtime.driver.active.get_current_target()
            assert (target.backend, count, y.get_device()) == ("cuda", 132, 0)
            block = triton.next_power_of_2(triton.cdiv(x.numel(), count))
            scaled[(triton.cdiv(x.numel(), block),)](x, y, by, x.numel(), block)
        torch.cuda.synchronize()
        return y + torch.zeros(1, dtype=x.dtype, device=y.device).cuda().to("cuda:0")

    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:
        return Doubled.launched(x.contiguous())

    @staticmethod
    def backward(ctx, g: Tensor) -> Tensor:
        return Doubled.launched(g.contiguous(), ctx.by if hasattr(ctx, "by") else 2.0)


def test_tensors_claim_to_be_on_cuda_within_and_are_on_the_cpu_after():
    x = torch.randn(300, requires_grad=True)
    with pytest.raises(ValueError, match="expected a CUDA tensor, not one on cpu"):
        Doubled.apply(x)
    before = dict(vars(torch.cuda))
    with cuda_claimed():
        y = Doubled.apply(x)
        (g,) = torch.autograd.grad(y, x, torch.ones_like(y))
        assert torch.cuda.is_available() and y.is_cuda and not y.is_cpu
        with cuda_claimed():
            assert y.is_cuda
        assert y.is_cuda
    assert y.device.type == g.device.type == "cpu" and not y.is_cuda
    assert torch.equal(y, 2 * x) and torch.equal(g, torch.full_like(x, 2))
    assert dict(vars(torch.cuda)) == before and os.environ["TRITON_INTERPRET"] == "1" and interpreter.is_active()


def test_a_claim_ends_with_an_error():
    with pytest.raises(KeyError), cuda_claimed():
        raise KeyError
    assert not torch.ones(1).is_cuda and os.environ["TRITON_INTERPRET"] == "1"


def test_kernels_decorated_within_are_interpreted():
    with cuda_claimed():
        made = triton.jit(scaled.fn)
        assert "TRITON_INTERPRET" not in os.environ and interpreter.is_active()
    assert type(made) is type(scaled)
    x, y = torch.randn(5), torch.zeros(5)
    made[(1,)](x, y, 3.0, 5, 8)
    assert torch.equal(y, 3 * x)


def test_nothing_is_claimed_unless_wanted():
    with cuda_claimed(wanted=False):
        assert not torch.ones(1).is_cuda


PACKAGE = """
import os
import torch, triton
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
ON_GPU = torch.cuda.is_available()
"""
ADAPTER = """
import gradoracle
from torch import Tensor
from gradoracle.host import interpreter
from jaxtyping import Float
with gradoracle.cuda_claimed():
    import claimed_package
from tests.host.test_claimed_cuda import Doubled
@gradoracle.family(dims={"N": gradoracle.sizes(1, 9)}, dtypes=("float32", "bfloat16"))
def doubled(x: Float[Tensor, "N"]) -> Float[Tensor, "N"]: return 2 * x
@gradoracle.kernel(doubled, needs_cuda=True)
def right(x): return Doubled.apply(x)
@gradoracle.kernel(doubled, needs_cuda=True)
def wrong(x): return Doubled.apply(x) * 1.01
@gradoracle.kernel(doubled)
def refuses(x): return Doubled.apply(x)
"""


@pytest.fixture
def adapter(tmp_path: Path, monkeypatch):
    (tmp_path / "claimed_package.py").write_text(PACKAGE)
    (tmp_path / "claimed_adapter.py").write_text(ADAPTER)
    monkeypatch.syspath_prepend(str(tmp_path))
    import claimed_adapter  # type: ignore[import-not-found]

    yield claimed_adapter
    for name in ("claimed_adapter", "claimed_package"):
        sys.modules.pop(name, None)


def test_a_package_imported_within_sees_a_gpu(adapter):
    assert not adapter.claimed_package.INTERPRETED and adapter.claimed_package.ON_GPU


@pytest.mark.parametrize(("name", "held"), [("right", True), ("wrong", False)])
def test_a_kernel_that_needs_cuda_is_judged_widened_too(adapter, name, held):
    from gradoracle.model.case import Case
    from gradoracle.model.verdict import Status
    from gradoracle.oracle.truth import Oracle
    from tests.properties.judging import judge

    oracle = Oracle(adapter.doubled)
    for dtype in ("float32", "bfloat16"):
        case = Case("doubled", {"N": 5}, dtype=dtype)
        for property_name in (
            "vjp_matches_the_oracle",
            "definition_is_exact_when_widened",
            "every_access_stays_inside_its_tensor",
        ):
            status = judge(property_name, case, getattr(adapter, name), oracle).status
            accesses = property_name.startswith("every")
            assert status is (Status.HOLDS if held or accesses else Status.VIOLATED), (property_name, dtype)
        assert judge("forward_matches_the_oracle", case, adapter.refuses, oracle).status is Status.REFUSED
    assert gradoracle.cuda_claimed is cuda_claimed


def test_the_first_forward_mode_of_a_process_may_be_within_a_claim() -> None:
    program = (
        "import torch\n"
        "from gradoracle.host import interpreter\n"
        "from gradoracle.host.claimed_cuda import cuda_claimed\n"
        "interpreter.activate()\n"
        "with cuda_claimed():\n"
        "    print(torch.func.jvp(torch.square, (torch.tensor(3.0),), (torch.tensor(1.0),))[1].item())\n"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert ended.stdout == "6.0\n", ended.stderr
