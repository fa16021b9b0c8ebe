"""tl.dot: how operands are rounded, what is exact, and what Triton emits for real GPUs."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import interpreted
import pytest
import torch
from jaxtyping import Float
from places import TESTS, loaded
from torch import bfloat16, float16, float32, float64

import gradoracle
from gradoracle.cases.sample import build
from gradoracle.execution.kernel_runner import KernelRunner
from gradoracle.host import interpreter
from gradoracle.host.interpreter import launch_hooks
from gradoracle.model.case import Case

pytestmark = [pytest.mark.xdist_group("interpreter"), interpreted.NEEDED]


interpreter.activate()
reference = loaded("host.interpreter.reference")
scenarios = loaded("host.interpreter.scenarios")


def dot(a: torch.Tensor, b: torch.Tensor, precision: str = "ieee", c: torch.Tensor | None = None) -> torch.Tensor:
    """a [M K] @ b [K N] + c [M N] through the interpreter; c float32 zeros unless given."""
    (m, k), n = a.shape, b.shape[1]
    if c is None:
        c = torch.zeros(m, n, dtype=float64 if a.dtype == float64 else float32)
    out = torch.empty_like(c)
    scenarios.kernels().dot[(1,)](a, b, c, out, m, n, k, precision, scenarios._of(c.dtype))
    return out


def awkward(seed: int) -> torch.Tensor:
    """[1024] float32 of every size of float32 whose squares neither overflow nor vanish, with TF32 ties among them."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(1024, generator=generator) * 2.0 ** torch.randint(-50, 50, (1024,), generator=generator)
    bits = x.view(torch.int32)
    bits[:256] = (bits[:256] & ~0x1FFF) | 0x1000  # half way between two TF32
    bits[256:384] = (bits[256:384] & ~0x1FFF) | 0x0FFF
    bits[384:512] = (bits[384:512] & ~0x1FFF) | 0x1001
    return bits.view(float32)


def one_term(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """a [32 16], b [16 32] from x [32], y [32] with one non-zero term in every element of their product."""
    a, b = torch.zeros(32, 16, dtype=x.dtype), torch.zeros(16, 32, dtype=x.dtype)
    a[:, 5], b[5, :] = x, y
    return a, b


@pytest.mark.parametrize("seed", range(4))
def test_tf32_truncates_the_operands(seed):
    x, y = awkward(seed)[::32], awkward(seed + 100)[::32]
    expected = torch.outer(reference.tf32_truncated(x), reference.tf32_truncated(y)).to(float32)
    got = dot(*one_term(x, y), "tf32")
    assert torch.equal(got, expected)
    assert not torch.equal(got, dot(*one_term(x, y), "ieee"))


@pytest.mark.parametrize("seed", range(4))
def test_tf32x3_adds_three_products_of_parts(seed):
    x, y = awkward(seed)[::32], awkward(seed + 100)[::32]
    big_x, big_y = reference.tf32_nearest_away(x), reference.tf32_nearest_away(y)
    small_x = reference.tf32_truncated((x.double() - big_x).to(float32))
    small_y = reference.tf32_truncated((y.double() - big_y).to(float32))
    expected = torch.zeros(32, 32)
    for i in range(32):
        for j in range(32):
            for a, b in ((small_x[i], big_y[j]), (big_x[i], small_y[j]), (big_x[i], big_y[j])):
                expected[i, j] = reference.tensor_core([float(a)], [float(b)], float(expected[i, j]), block=8)
    assert torch.equal(dot(*one_term(x, y), "tf32x3"), expected)


def test_tf32x3_keeps_infinities():
    a, b = torch.ones(16, 16), torch.full((16, 16), torch.inf)  # the small part of inf is NaN
    assert torch.equal(dot(a, b, "tf32x3"), b)


@pytest.mark.parametrize("dtype", [bfloat16, float16, float32])
def test_products_are_exact_and_rounded_to_float32_once(dtype):
    x, y = (awkward(seed)[::32].to(dtype).nan_to_num(1, 1, 1) for seed in (1, 2))  # float16 overflows
    assert torch.equal(dot(*one_term(x, y)), torch.outer(x.double(), y.double()).to(float32))


def test_float64_products_are_rounded_once():
    x, y = awkward(3)[::32].double() / 3, awkward(4)[::32].double() / 7
    assert torch.equal(dot(*one_term(x, y)), torch.outer(x, y))


@pytest.mark.parametrize("dtype", [bfloat16, float16, float32])
@pytest.mark.parametrize("k", [16, 128])
def test_sums_are_float32_sums(dtype, k):
    generator = torch.Generator().manual_seed(k)
    a, b = (torch.randn(s, generator=generator).to(dtype) for s in ((64, k), (k, 32)))
    c = torch.randn(64, 32, generator=generator)
    exact = a.double() @ b.double() + c
    scale = a.double().abs() @ b.double().abs() + c.abs()
    assert ((dot(a, b, "ieee", c) - exact).abs() <= (k + 1) * 2.0**-24 * scale).all()


def test_float16_accumulator_is_rounded_to_float16():
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(32, generator=generator).half(), torch.randn(32, generator=generator).half()
    a, b = one_term(x, y)
    c = torch.randn(32, 32, generator=generator).half()
    expected = (torch.outer(x.double(), y.double()) + c.double()).half()
    assert torch.equal(dot(a, b, "ieee", c), expected)


def test_repeated_operand_is_multiplied_like_any_other():
    a = torch.full((32, 16), 1.5, dtype=bfloat16)
    assert torch.equal(dot(a, torch.full((16, 32), 2.0, dtype=bfloat16)), torch.full((32, 32), 48.0))


@pytest.fixture(scope="module")
def stock(tmp_path_factory):
    return scenarios.in_subprocess("stock", tmp_path_factory.mktemp("stock"))


@pytest.mark.parametrize("name", ["dot bf16", "dense dot bf16", "dot fp32 tf32", "dense dot fp32 tf32"])
def test_tritons_own_interpreter_gets_it_wrong(name, stock):
    right = scenarios.SCENARIOS[name]("cpu").double()
    a, b = scenarios.operands(bfloat16 if "bf16" in name else float32)
    if "dense" not in name:
        a, b = (a, b) if "bf16" in name else (_truncated(a), _truncated(b))
        assert torch.equal(right, (a.double() @ b.double()).float().double())
    wrong = stock[name].double()
    assert (wrong - right).abs().max() > 1e-4 * right.abs().max()


def _truncated(x: torch.Tensor) -> torch.Tensor:
    return reference.tf32_truncated(x.reshape(-1)).reshape(x.shape)


COMPILE = """
import sys
import triton, triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from host.interpreter.kernels import dot
for capability in (80, 90):
    for precision in ("tf32", "tf32x3", "ieee"):
        constants = dict(M=16, N=16, K=16, PRECISION=precision, OUT=tl.float32)
        signature = {**dict.fromkeys("ABCZ", "*fp32"), **dict.fromkeys(constants, "constexpr")}
        source = ASTSource(fn=dot, constexprs=constants, signature=signature)
        print("@", capability, precision)
        print(triton.compile(source, target=GPUTarget("cuda", capability, 32)).asm["ptx"])
"""


def test_what_triton_emits_for_gpus_is_what_is_modelled(tmp_path):
    """No cvt.rna before a tf32 product; for tf32x3 the rest x - cvt.rna(x) is left raw; ieee multiplies in fma."""
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    environment |= {"PYTHONPATH": str(TESTS), "TRITON_CACHE_DIR": str(tmp_path)}
    out = subprocess.run(
        [sys.executable, "-c", COMPILE], check=True, capture_output=True, text=True, env=environment, timeout=120
    ).stdout
    for text in out.split("@ ")[1:]:
        heading, ptx = text.split("\n", 1)
        rounded = re.findall(r"cvt\.rna\.tf32\.f32 (%r\d+), (%r\d+);", ptx)  # (big, x)
        rests = re.findall(r"sub\.f32\s+(%r\d+), (%r\d+), (%r\d+);", ptx)  # (small, x, big)
        products = re.findall(r"mma\.\S*tf32\S*", ptx)
        if heading.endswith("ieee"):
            assert not rounded and not products and "fma.rn.f32" in ptx
        elif heading.endswith("x3"):
            assert rests and all((big, x) in rounded for _, x, big in rests)
            assert not {small for small, _, _ in rests} & {x for _, x in rounded}
            assert products and len(products) % 3 == 0
        else:
            assert products and not rounded


def split(x: torch.Tensor, count: int) -> list[torch.Tensor]:
    """float64 values of the bfloat16 parts of float32 numbers: the nearest one, that of what it leaves, and so on."""
    parts = []
    for _ in range(count):
        parts.append(x.to(bfloat16).to(float32))
        x = x - parts[-1]
    return [part.to(float64) for part in parts]


@pytest.mark.parametrize(("precision", "count"), [("bf16x3", 2), ("bf16x6", 3)])
def test_split_bf16_multiplies_the_largest_parts(precision, count):
    x, y = awkward(7)[::32], awkward(107)[::32]
    products = [[torch.outer(a, b) for b in split(y, count)] for a in split(x, count)]
    expected = sum(products[i][j] for i in range(count) for j in range(count) if i + j < count)
    got = dot(*one_term(x, y), precision)
    error = (got.to(float64) - expected).abs() / expected.abs()
    assert error.max() < 4 * torch.finfo(float32).eps
    exact = torch.outer(x.to(float64), y.to(float64))
    lost = ((got.to(float64) - exact).abs() / exact.abs()).max()
    assert (1e-6 < lost < 2**-14) if count == 2 else lost < 1e-6
    assert not torch.equal(got, dot(*one_term(x, y), "tf32"))


@pytest.mark.parametrize("precision", ["bf16x3", "bf16x6"])
def test_split_bf16_keeps_infinities(precision):
    a, b = torch.zeros(16, 16), torch.zeros(16, 16)
    a[0, 0], b[0, 0] = torch.inf, 2.0
    assert dot(a, b, precision)[0, 0] == torch.inf


@pytest.mark.parametrize("precision", ["tf32", "tf32x3", "bf16x3", "bf16x6"])
def test_a_switch_makes_every_dot_ieee(precision):
    a, b = torch.randn(32, 32), torch.randn(32, 32)
    with launch_hooks.dots_in_ieee(), launch_hooks.dots_in_ieee(wanted=False):
        assert torch.equal(dot(a, b, precision), dot(a, b, "ieee"))
    assert not torch.equal(dot(a, b, precision), dot(a, b, "ieee"))


def test_a_kernel_that_declares_ieee_dots_has_the_error_of_float32_alone():
    @gradoracle.family(dims={"N": gradoracle.choices(16)}, dtypes=("float32",))
    def product(a: Float[torch.Tensor, "N N"], b: Float[torch.Tensor, "N N"]) -> Float[torch.Tensor, "N N"]:
        return a @ b

    def multiply(a, b):
        return dot(a, b, "tf32")

    sample = build(Case("product", {"N": 16}), product.signature)
    exact = sample.inputs["a"].double() @ sample.inputs["b"].double()
    errors = []
    for ieee in (False, True):
        kernel = gradoracle.kernel(product, ieee_dots=ieee)(multiply)
        found, _ = KernelRunner(product, kernel).forward(sample)
        errors.append(float((found["out"].double() - exact).abs().max()))
    assert errors[1] < 1e-5 < 1e-3 < errors[0]
