"""One table of small problems, each run in three places: the interpreter layer, Triton's own interpreter, a GPU.

`python scenarios.py stock|gpu FILE` writes what Triton's own interpreter or a GPU computes.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import torch
from places import TESTS, loaded

F16, BF16, F32, F64 = torch.float16, torch.bfloat16, torch.float32, torch.float64
I32, I64 = torch.int32, torch.int64
TRITON_NAMES = {F16: "float16", BF16: "bfloat16", F32: "float32", F64: "float64", I32: "int32", I64: "int64"}
Scenario = Callable[[str], torch.Tensor]


def kernels() -> ModuleType:
    return loaded("host.interpreter.kernels")


def values(dtype: torch.dtype) -> torch.Tensor:
    """[N] every 16-bit pattern, or 4096 of a wider dtype: random bits, ordinary numbers, ties, extremes."""
    generator = torch.Generator().manual_seed(20260)

    def bits(low: int, high: int, n: int, kind: torch.dtype) -> torch.Tensor:
        return torch.randint(low, high, (n,), generator=generator, dtype=kind)

    if dtype in (F16, BF16):
        return torch.arange(-(2**15), 2**15, dtype=torch.int16).view(dtype)
    if dtype == F32:
        ties16 = bits(0, 2**15, 512, I32) * 2**16 + 2**15  # between two bfloat16, both parities, subnormal to overflow
        near = ties16[:256] + bits(-1, 2, 256, I32)
        ties13 = bits(0, 2**18, 256, I32) * 2**13 + 2**12  # between two TF32 or float16
        edges = [0x7F7F8000, 0x7F7F7FFF, 0x7F7FFFFF, 0x7F800000, 0x7F800001, 0x7FFFFFFF, 0x477FF000, 0x477FEFFF, 0, 1]
        extremes = torch.tensor([e for e in edges for _ in range(2)], dtype=torch.int64).to(I32)
        extremes[1::2] |= -(2**31)
        ordinary = torch.randn(2048, generator=generator).view(I32)
        subnormal = bits(1, 2**23, 256, I32)
        rest = bits(-(2**31), 2**31, 4096 - 512 - 256 - 256 - 20 - 2048 - 256, I32)
        return torch.cat([ties16, near, ties13, extremes, ordinary, subnormal, rest]).view(F32)
    if dtype == F64:
        wide = values(F32).to(F64)
        beside = wide * (1 + torch.randint(-1, 2, (4096,), generator=generator) * 2.0**-45)  # rounds twice through fp32
        random = bits(-(2**63), 2**63 - 1, 512, I64).view(F64)
        return torch.cat([beside[:3584], random])
    if dtype == I32:
        return torch.cat([bits(-(2**31), 2**31, 2048, I32), bits(-600, 600, 2048, I32)])
    ties = bits(128, 256, 1024, I64) * 2**20 + 2**19 + bits(-1, 2, 1024, I64)
    far = bits(128, 256, 1024, I64) * 2**55 + 2**54 + bits(-1, 2, 1024, I64)
    return torch.cat([bits(-(2**63), 2**63 - 1, 1024, I64), ties, -far, bits(-600, 600, 1024, I64)])


def partners(dtype: torch.dtype) -> torch.Tensor:
    """`values(dtype)` in another order, a third of them near their partner so that sums cancel."""
    x = values(dtype)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(7))
    y = x[order]
    if dtype.is_floating_point:
        third = len(x) // 3
        y = torch.cat([-x[:third].flip(0).flip(0) * 1.01, y[third:]]).to(dtype)
    return y


def _of(dtype: torch.dtype) -> object:
    import triton.language as tl

    return getattr(tl, TRITON_NAMES[dtype])


def cast(source: torch.dtype, target: torch.dtype, kernel: str = "cast") -> Scenario:
    def run(device: str) -> torch.Tensor:
        x = values(source).to(device)
        out = torch.empty(len(x), dtype=target, device=device)
        getattr(kernels(), kernel)[(1,)](x, out, N=len(x), TO=_of(target))
        return out

    return run


def arithmetic(dtype: torch.dtype, op: str) -> Scenario:
    def run(device: str) -> torch.Tensor:
        x, y = values(dtype).to(device), partners(dtype).to(device)
        out = torch.empty_like(x)
        kernels().arithmetic[(1,)](x, y, out, N=len(x), OP=op)
        return out

    return run


def compare(dtype: torch.dtype, op: str) -> Scenario:
    def run(device: str) -> torch.Tensor:
        x, y = values(dtype).to(device), partners(dtype).to(device)
        out = torch.empty(len(x), dtype=I32, device=device)
        kernels().compare[(1,)](x, y, out, N=len(x), OP=op)
        return out

    return run


def operands(dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """a [32 32] and b [32 32] whose product has one non-zero term an element, so that no order of summation shows."""
    generator = torch.Generator().manual_seed(5)
    a, b = torch.zeros(32, 32, dtype=F64), torch.zeros(32, 32, dtype=F64)
    a[:, 3] = torch.randn(32, generator=generator, dtype=F64)
    b[3, :] = torch.randn(32, generator=generator, dtype=F64)
    return a.to(dtype), b.to(dtype)


def dot(dtype: torch.dtype, precision: str, accumulator: torch.dtype = F32, dense: bool = False) -> Scenario:
    def run(device: str) -> torch.Tensor:
        a, b = operands(dtype)
        if dense:
            generator = torch.Generator().manual_seed(6)
            a, b = (torch.randn(32, 32, generator=generator, dtype=F64).to(dtype) for _ in range(2))
        a, b = a.to(device), b.to(device)
        c = torch.zeros(32, 32, dtype=accumulator, device=device)
        out = torch.empty_like(c)
        kernels().dot[(1,)](a, b, c, out, 32, 32, 32, precision, _of(accumulator))
        return out

    return run


def reduce(dtype: torch.dtype, op: str, out_dtype: torch.dtype | None = None) -> Scenario:
    def run(device: str) -> torch.Tensor:
        x = torch.randn(16, 64, generator=torch.Generator().manual_seed(8), dtype=F64).to(dtype).to(device)
        shape = {"sum_columns": (64,), "cumsum": (16, 64)}.get(op, (16,))
        out = torch.empty(shape, dtype=out_dtype or dtype, device=device)
        kernels().reduce[(1,)](x, out, 16, 64, op)
        return out

    return run


def masked(dtype: torch.dtype) -> Scenario:
    def run(device: str) -> torch.Tensor:
        x = values(dtype).to(device)
        out = torch.empty_like(x)
        kernels().masked_copy[(1,)](x, out, len(x) - 100, N=len(x))
        return out

    return run


def atomic(dtype: torch.dtype, kernel: str) -> Scenario:
    def run(device: str) -> torch.Tensor:
        x = torch.randn(64, generator=torch.Generator().manual_seed(9), dtype=F64).to(dtype).to(device)
        out = torch.zeros(4, dtype=dtype, device=device)
        getattr(kernels(), kernel)[(1,)](x, out, N=64)
        return out

    return run


FLOATS = {"fp16": F16, "bf16": BF16, "fp32": F32, "fp64": F64}
OPERATIONS = ("add", "sub", "mul", "neg", "abs", "maximum", "minimum", "maximum_nan", "clamp", "where_less")
OPERATIONS += ("less_as_number", "scaled", "plus_full", "plus_zeros", "fma")
COMPARISONS = ("lt", "le", "gt", "ge", "eq", "ne")

SCENARIOS: dict[str, Scenario] = {}
for _a, _source in FLOATS.items():
    for _b, _target in {**FLOATS, "int32": I32, "int64": I64}.items():
        if _a != _b:
            SCENARIOS[f"cast {_a} {_b}"] = cast(_source, _target)
    for _b, _integer in (("int32", I32), ("int64", I64)):
        SCENARIOS[f"cast {_b} {_a}"] = cast(_integer, _source)
    for _op in OPERATIONS:
        SCENARIOS[f"{_op} {_a}"] = arithmetic(_source, _op)
    for _op in COMPARISONS:
        SCENARIOS[f"{_op} {_a}"] = compare(_source, _op)
    SCENARIOS[f"masked {_a}"] = masked(_source)
for _b, _target in (("fp16", F16), ("bf16", BF16)):
    SCENARIOS[f"rtz fp32 {_b}"] = cast(F32, _target, "cast_toward_zero")
    SCENARIOS[f"dot {_b}"] = dot(_target, "ieee")
    SCENARIOS[f"dense dot {_b}"] = dot(_target, "ieee", dense=True)
SCENARIOS["bitcast bf16 int16"] = lambda device: _bitcast(BF16, torch.int16, "int16", device)
SCENARIOS["bitcast int16 bf16"] = lambda device: _bitcast(torch.int16, BF16, "bfloat16", device)
SCENARIOS["dot fp16 in fp16"] = dot(F16, "ieee", F16)
for _precision in ("ieee", "tf32", "tf32x3"):
    SCENARIOS[f"dot fp32 {_precision}"] = dot(F32, _precision)
    SCENARIOS[f"dense dot fp32 {_precision}"] = dot(F32, _precision, dense=True)
SCENARIOS["dot fp64"] = dot(F64, "ieee", F64)
for _op in ("sum", "sum_columns", "max", "min", "cumsum"):
    for _a, _source in FLOATS.items():
        SCENARIOS[f"{_op} of {_a}"] = reduce(_source, _op)
SCENARIOS["argmax of bf16"] = reduce(BF16, "argmax", I32)
for _a, _source in FLOATS.items():
    SCENARIOS[f"atomic_add {_a}"] = atomic(_source, "atomic_add")
SCENARIOS["atomic_max fp32"] = atomic(F32, "atomic_max")


def _bitcast(source: torch.dtype, target: torch.dtype, name: str, device: str) -> torch.Tensor:
    import triton.language as tl

    x = torch.arange(-(2**15), 2**15, dtype=torch.int16).view(source).to(device)
    out = torch.empty(len(x), dtype=target, device=device)
    kernels().bitcast[(1,)](x, out, N=len(x), TO=getattr(tl, name))
    return out


def in_subprocess(where: str, folder: Path) -> dict[str, torch.Tensor | str]:
    """What ``run_all`` gives in a process of its own: with "stock" Triton's interpreter, with "gpu" a GPU."""
    path = folder / f"{where}.pt"
    variables = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"} | {"PYTHONPATH": str(TESTS)}
    words = [sys.executable, __file__, where, str(path)]
    subprocess.run(words, check=True, capture_output=True, env=variables, timeout=300)
    return torch.load(path)


def run_all(device: str) -> dict[str, torch.Tensor | str]:
    """What each scenario gives, or the error that it raised."""
    results: dict[str, torch.Tensor | str] = {}
    for name, scenario in SCENARIOS.items():
        try:
            results[name] = scenario(device).cpu()
        except Exception as error:
            results[name] = f"{type(error).__name__}: {str(error)[:300]}"
    return results


if __name__ == "__main__":
    where, path = sys.argv[1:]
    if where == "gpu":
        os.environ.pop("TRITON_INTERPRET", None)
    else:
        os.environ["TRITON_INTERPRET"] = "1"
    torch.save(run_all("cuda" if where == "gpu" else "cpu"), path)
