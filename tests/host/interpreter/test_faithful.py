"""Each corrected operation bit for bit, compared with Triton's own interpreter getting it wrong, and with a GPU."""

from __future__ import annotations

from collections.abc import Callable

import interpreted
import pytest
import torch
from places import loaded
from torch import bfloat16, float16, float32, float64, int32, int64

from gradoracle.host import interpreter

pytestmark = [pytest.mark.xdist_group("interpreter"), interpreted.NEEDED]


interpreter.activate()
reference = loaded("host.interpreter.reference")
scenarios = loaded("host.interpreter.scenarios")
DTYPES = {"fp16": float16, "bf16": bfloat16, "fp32": float32, "fp64": float64}


@pytest.fixture(scope="module")
def stock(tmp_path_factory):
    return scenarios.in_subprocess("stock", tmp_path_factory.mktemp("stock"))


@pytest.fixture(scope="module")
def gpu(tmp_path_factory):
    if not torch.cuda.is_available():
        pytest.skip("not checked: needs a GPU")
    return scenarios.in_subprocess("gpu", tmp_path_factory.mktemp("gpu"))


def number_of(choose: Callable[..., torch.Tensor], x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """PTX max and min: the number where one of two is NaN.  (torch.fmax in bfloat16 on the CPU gives NaN.)"""
    return torch.where(x.isnan(), y, torch.where(y.isnan(), x, choose(x, y)))


def arithmetic(op: str, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    tenth = torch.full_like(x, 0.1)
    by_torch: dict[str, Callable[[], torch.Tensor]] = {
        "add": lambda: x + y,
        "sub": lambda: x - y,
        "mul": lambda: x * y,
        "neg": lambda: -x,
        "abs": lambda: x.abs(),
        "maximum": lambda: number_of(torch.maximum, x, y),
        "minimum": lambda: number_of(torch.minimum, x, y),
        "maximum_nan": lambda: torch.maximum(x, y),
        "clamp": lambda: torch.where(x.isnan(), torch.full_like(x, -1), x.clamp(-1, 2)),
        "where_less": lambda: torch.where(x < y, x, y),
        "less_as_number": lambda: (x < y).to(x.dtype),
        "scaled": lambda: x * tenth,
        "plus_full": lambda: x + tenth,
        "plus_zeros": lambda: x + 0,
        "fma": lambda: reference.fused_multiply_add(x, y, x),
    }
    return by_torch[op]()


def reference_result(name: str) -> torch.Tensor:
    """What a scenario must give, from torch and fractions."""
    words = name.split()
    if words[0] == "cast":
        kinds = {**DTYPES, "int32": int32, "int64": int64}
        x, target = scenarios.values(kinds[words[1]]), kinds[words[2]]
        if not target.is_floating_point:
            return reference.to_integer(x, target)
        return x.to(target) if len(x) > 4096 else reference.convert(x, target)
    if words[0] == "rtz":
        return reference.convert(scenarios.values(float32), DTYPES[words[2]], reference.toward_zero)
    if words[0] in scenarios.OPERATIONS:
        return arithmetic(words[0], scenarios.values(DTYPES[words[1]]), scenarios.partners(DTYPES[words[1]]))
    if words[0] in scenarios.COMPARISONS:
        x, y = scenarios.values(DTYPES[words[1]]), scenarios.partners(DTYPES[words[1]])
        return getattr(torch, words[0])(x, y).to(int32)
    if words[0] == "masked":
        x = scenarios.values(DTYPES[words[1]])
        return torch.cat([x[:-100], torch.full((100,), -1.5, dtype=x.dtype)])
    if words[:2] == ["bitcast", "bf16"]:
        return torch.arange(-(2**15), 2**15, dtype=torch.int16)
    if words[:2] == ["bitcast", "int16"]:
        return torch.arange(-(2**15), 2**15, dtype=torch.int16).view(bfloat16)
    raise KeyError(name)


EXACT = [n for n in scenarios.SCENARIOS if n.split()[0] in ("cast", "rtz", "masked", "bitcast", *scenarios.COMPARISONS)]
EXACT += [n for n in scenarios.SCENARIOS if n.split()[0] in scenarios.OPERATIONS]


@pytest.mark.parametrize("name", EXACT)
def test_elementwise_operation_rounds_as_a_gpu_does(name):
    got, expected = scenarios.SCENARIOS[name]("cpu"), reference_result(name)
    differ = ~((got == expected) | (got.isnan() & expected.isnan()))
    assert reference.same(got, expected), f"{int(differ.sum())} differ: {got[differ][:3]} for {expected[differ][:3]}"


# what Triton's own interpreter gets wrong from 3.6.0 to 3.9.0 alike
WRONG_WITHOUT_THE_LAYER = [
    *(f"cast {a} bf16" for a in ("fp32", "fp64", "int32", "int64")),
    *(f"cast bf16 {b}" for b in ("fp32", "fp64", "int32", "int64")),
    *(f"{op} bf16" for op in scenarios.OPERATIONS if op != "abs" and op != "plus_zeros"),
    *(f"{op} bf16" for op in scenarios.COMPARISONS),
    "rtz fp32 bf16",
    "rtz fp32 fp16",
    "cast fp32 int32",
]


@pytest.mark.parametrize("name", WRONG_WITHOUT_THE_LAYER)
def test_tritons_own_interpreter_gets_it_wrong(name, stock):
    result = stock[name]
    assert isinstance(result, str) or not reference.same(result, reference_result(name))


@pytest.mark.parametrize("kind", ["fp16", "bf16"])
def test_sum_in_16_bits_rounds_every_addition(kind, stock):
    x = torch.randn(16, 64, generator=torch.Generator().manual_seed(8), dtype=float64).to(DTYPES[kind])
    for op, dim in (("sum", 1), ("sum_columns", 0)):
        expected = reference.halves_added(x, dim)
        assert reference.same(scenarios.SCENARIOS[f"{op} of {kind}"]("cpu"), expected)
        assert not reference.same(stock[f"{op} of {kind}"], expected)


@pytest.mark.parametrize("kind", ["fp16", "bf16", "fp32", "fp64"])
def test_maximum_and_minimum_of_rows(kind):
    x = torch.randn(16, 64, generator=torch.Generator().manual_seed(8), dtype=float64).to(DTYPES[kind])
    assert torch.equal(scenarios.SCENARIOS[f"max of {kind}"]("cpu"), x.amax(1))
    assert torch.equal(scenarios.SCENARIOS[f"min of {kind}"]("cpu"), x.amin(1))
    if kind == "bf16":
        assert torch.equal(scenarios.SCENARIOS["argmax of bf16"]("cpu"), x.argmax(1).to(int32))


@pytest.mark.parametrize("kind", ["fp32", "fp64"])
def test_sum_is_within_its_rounding(kind):
    x = torch.randn(16, 64, generator=torch.Generator().manual_seed(8), dtype=float64).to(DTYPES[kind])
    got = scenarios.SCENARIOS[f"sum of {kind}"]("cpu")
    unit = torch.finfo(x.dtype).eps / 2
    assert ((got.double() - x.double().sum(1)).abs() <= 64 * unit * x.double().abs().sum(1)).all()


def test_scan_in_bfloat16_never_holds_more_than_bfloat16(stock):
    x = torch.randn(16, 64, generator=torch.Generator().manual_seed(8), dtype=float64).to(bfloat16)
    one_by_one = [x[:, 0]]
    for j in range(1, 64):
        one_by_one.append(one_by_one[-1] + x[:, j])
    rounded_each, rounded_last = torch.stack(one_by_one, 1), x.float().cumsum(1).to(bfloat16)
    got = scenarios.SCENARIOS["cumsum of bf16"]("cpu")
    # Triton 3.8 stopped promoting a bfloat16 scan to float32
    assert reference.same(got, rounded_each) or reference.same(got, rounded_last)
    assert not reference.same(stock["cumsum of bf16"], got)


@pytest.mark.parametrize("kind", ["fp16", "bf16", "fp32", "fp64"])
def test_atomic_add_to_one_address_rounds_every_addition(kind):
    x = torch.randn(64, generator=torch.Generator().manual_seed(9), dtype=float64).to(DTYPES[kind])
    total = torch.zeros(4, dtype=x.dtype)
    for i in range(4, 64):
        total[i % 4] += x[i]
    assert reference.same(scenarios.SCENARIOS[f"atomic_add {kind}"]("cpu"), total)


def test_tritons_own_interpreter_has_no_atomic_add_in_bfloat16(stock):
    assert isinstance(stock["atomic_add bf16"], str)


@pytest.mark.parametrize("kind", ["fp32", "fp64"])
def test_atomic_exchange_of_floats(kind):
    x = torch.arange(8, dtype=DTYPES[kind])
    place, old = torch.full_like(x, 7.5), torch.empty_like(x)
    scenarios.kernels().atomic_exchange[(1,)](x, place, old, 8)
    assert torch.equal(place, x) and torch.equal(old, torch.full_like(x, 7.5))


def test_atomic_compare_and_swap_in_bfloat16():
    x = torch.tensor([1.5, -2.0, 3.0, 0.25], dtype=bfloat16)
    place, old = torch.tensor([1.0, 2.0, 1.0, 4.0], dtype=bfloat16), torch.empty(4, dtype=bfloat16)
    scenarios.kernels().atomic_cas[(1,)](torch.ones(4, dtype=bfloat16), x, place, old, 4)
    assert place.tolist() == [1.5, 2.0, 3.0, 4.0] and old.tolist() == [1.0, 2.0, 1.0, 4.0]


def test_reduction_by_a_function_of_the_user_rounds_bfloat16():
    x = torch.tensor([1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.7, 1.8], dtype=bfloat16)
    out = torch.empty(1, dtype=bfloat16)
    scenarios.kernels().reduce_by_function[(1,)](x, out, 8)
    product = x[0]
    for factor in x[1:]:
        product = product * factor
    assert out[0] == product


# sums that a GPU takes in an order of its own
ORDERED_OTHERWISE = ("sum", "sum_columns", "cumsum", "dense")


def test_a_gpu_computes_the_same_bits(gpu):
    wrong, compared = [], 0
    for name, scenario in scenarios.SCENARIOS.items():
        if name.split()[0] in ORDERED_OTHERWISE or isinstance(gpu[name], str):  # a GPU's Triton may lack a kernel
            continue
        compared += 1
        got = scenario("cpu")
        if name == "dot fp32 tf32x3":  # three terms an element, which a tensor core adds with truncation
            agrees = torch.allclose(got, gpu[name], rtol=2**-22, atol=0)
        else:
            agrees = reference.same(got, gpu[name])
        if not agrees:
            wrong.append(name)
    assert compared > 100 and not wrong, f"{wrong} of {compared} differ from {torch.cuda.get_device_name()}"
