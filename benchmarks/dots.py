"""The interpreter's dots: whether they have the bits of this machine's GPU, and how long they take.

`python benchmarks/dots.py bits [--output FILE]` compiles each kind of dot for the GPU, computes the same one as the
interpreter does (gradoracle/host/interpreter/dot.py, accumulation.py), and counts the elements whose bits differ.
docs/background/interpreter.md reads benchmarks/results/h200/dot_bits.csv.

`python benchmarks/dots.py time [--output FILE]` times them on the CPU: compiled by numba, with numpy alone, and
`np.matmul`, which the interpreter called before and whose bits depend on the processor.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
import triton
import triton.language as tl
from triton._C.libtriton import ir

from gradoracle.execution import environment
from gradoracle.host.interpreter import accumulation, dot
from gradoracle.model import machine_code

KINDS = {
    "float32 ieee": (torch.float32, "ieee"), "float32 tf32": (torch.float32, "tf32"),
    "float32 tf32x3": (torch.float32, "tf32x3"), "float32 bf16x3": (torch.float32, "bf16x3"),
    "float32 bf16x6": (torch.float32, "bf16x6"), "bfloat16": (torch.bfloat16, "ieee"),
    "float16": (torch.float16, "ieee"), "float16 onto float16": (torch.float16, "ieee"),
    "float64": (torch.float64, "ieee"), "float8e5": (torch.float8_e5m2, "ieee"),
    "float8e4nv": (torch.float8_e4m3fn, "ieee"),
}  # fmt: skip
SHAPES = ((16, 16, 32), (16, 16, 128), (64, 64, 32), (64, 64, 128), (128, 64, 64))
RECIPES = ("normal", "positive", "wide", "subnormal", "overflowing")
NAMES = {
    torch.float32: tl.float32, torch.bfloat16: tl.bfloat16, torch.float16: tl.float16, torch.float64: tl.float64,
    torch.float8_e5m2: tl.float8e5, torch.float8_e4m3fn: tl.float8e4nv,
}  # fmt: skip


@triton.jit
def product(A, B, C, Z, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, PRECISION: tl.constexpr, OUT: tl.constexpr):
    m, n, k = tl.arange(0, M), tl.arange(0, N), tl.arange(0, K)
    a, b = tl.load(A + m[:, None] * K + k[None, :]), tl.load(B + k[:, None] * N + n[None, :])
    at = m[:, None] * N + n[None, :]
    tl.store(Z + at, tl.dot(a, b, tl.load(C + at), input_precision=PRECISION, out_dtype=OUT))


def operands(recipe: str, dtype: torch.dtype, shape: tuple[int, int, int], seed: int) -> list[torch.Tensor]:
    """a [M K], b [K N], and an accumulator [M N] of their product's size."""
    m, n, k = shape
    generator = torch.Generator().manual_seed(seed)
    found = []
    for size in ((m, k), (k, n), (m, n)):
        x = torch.randn(size, generator=generator, dtype=torch.float64)
        if recipe == "positive":
            x = x.abs() + 1
        if recipe == "wide":
            x = x * 2.0 ** torch.randint(-6, 6, size, generator=generator)
        found.append(x)
    tiny = 2.0 ** {torch.float16: -17, torch.bfloat16: -70, torch.float8_e5m2: -16, torch.float8_e4m3fn: -8}.get(
        dtype, -70
    )
    large = 2.0 ** {torch.float16: 13, torch.float8_e5m2: 12, torch.float8_e4m3fn: 6}.get(dtype, 63)
    if recipe == "subnormal":
        found = [found[0] * tiny, found[1] * (tiny if dtype == torch.bfloat16 else 1), found[2] * tiny]
    if recipe == "overflowing":
        found = [found[0] * large, found[1] * large, found[2]]
    return found


def computed(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, precision: str, most: int) -> torch.Tensor:
    """As the interpreter computes it, of tensors on the CPU."""

    def handle(x: torch.Tensor) -> Any:
        kind = NAMES[x.dtype]
        if x.dtype == torch.bfloat16:
            return SimpleNamespace(data=x.float().numpy(), dtype=kind)
        return SimpleNamespace(data=(x.view(torch.uint8) if x.element_size() == 1 else x).numpy(), dtype=kind)

    name = {"ieee": "IEEE", "tf32": "TF32", "tf32x3": "TF32x3", "bf16x3": "BF16x3", "bf16x6": "BF16x6"}[precision]
    found = dot.create_dot(None, handle(a), handle(b), handle(c), getattr(ir.INPUT_PRECISION, name), most)
    return torch.from_numpy(found.data)


def rows(seeds: int) -> Iterator[list[Any]]:
    for kind, (dtype, precision) in KINDS.items():
        if precision.startswith("bf16") and not hasattr(ir.INPUT_PRECISION, precision.replace("bf", "BF")):
            continue
        for shape in SHAPES:
            for recipe in RECIPES:
                wrong = elements = 0
                example = ""
                for seed in range(seeds):
                    a, b, c = operands(recipe, dtype, shape, seed)
                    a, b = a.to(dtype), b.to(dtype)
                    into = torch.float64 if dtype == torch.float64 else torch.float32
                    into = torch.float16 if kind.endswith("onto float16") else into
                    c = c.to(into)
                    z = torch.empty(c.shape, dtype=into, device="cuda")
                    m, n, k = shape
                    try:
                        product[(1,)](a.cuda(), b.cuda(), c.cuda(), z, m, n, k, precision, NAMES[into])
                    except Exception as error:  # a kind that this Triton has not for this GPU
                        example = (
                            f"{type(error).__name__}: {str(error).splitlines()[0][:100]}" if str(error) else "failed"
                        )
                        break
                    got = z.cpu()
                    most = 2**30 if dtype.itemsize == 1 else 0  # Triton's default on sm_90
                    expected = computed(a, b, c, precision, most)
                    apart = ~((got == expected) | (got.isnan() & expected.isnan()))
                    elements += apart.numel()
                    wrong += int(apart.sum())
                    if apart.any() and not example:
                        i = tuple(int(x) for x in apart.nonzero()[0])
                        example = f"[{i[0]}, {i[1]}] GPU {float(got[i])!r} interpreter {float(expected[i])!r}"
                yield [kind, *shape, recipe, elements, wrong, example]


TIMED = ((1, 64, 64, 64), (8, 64, 64, 64), (8, 64, 64, 16), (8, 16, 16, 16), (4, 128, 64, 128))
"""(programs in step, M, N, K)"""


def least(function: Callable[[], Any]) -> float:
    """Microseconds of the fastest of some runs."""
    function()
    best, until = float("inf"), time.perf_counter() + 0.3
    while time.perf_counter() < until:
        started = time.perf_counter()
        function()
        best = min(best, time.perf_counter() - started)
    return best * 1e6


def times() -> Iterator[list[Any]]:
    for kind in ("float32 ieee", "float32 tf32", "float32 bf16x6", "bfloat16", "float16", "float64"):
        dtype, precision = KINDS[kind]
        for programs, m, n, k in TIMED:
            a, b, c = (x.to(dtype) for x in operands("normal", dtype, (programs * m, programs * n, k), 0))
            into = torch.float64 if dtype == torch.float64 else torch.float32
            left, right = a.reshape(programs, m, k), b.T.reshape(programs, n, k).mT
            onto = c[:m, :n].to(into).expand(programs, m, n)
            wide = torch.float64 if dtype == torch.float64 else torch.float32
            x, y, z = left.to(wide).numpy(), right.to(wide).numpy(), onto.numpy()
            row = [least(lambda x=x, y=y, z=z: np.matmul(x, y) + z)]
            for compiled in (True, False):
                accumulation.HAS_NUMBA = compiled and machine_code.HAS_NUMBA
                row.append(least(lambda a=left, b=right, c=onto, p=precision: computed(a, b, c, p, 0)))
            accumulation.HAS_NUMBA = machine_code.HAS_NUMBA
            yield [kind, programs, m, n, k, *(f"{each:.0f}" for each in row), f"{row[1] / row[0]:.1f}"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("bits", "time"))
    parser.add_argument("--output", type=Path)
    parser.add_argument("--seeds", type=int, default=4, help="of the operands of one row of bits")
    given = parser.parse_args()
    with given.output.open("w", newline="") if given.output else contextlib.nullcontext(sys.stdout) as out:
        table = csv.writer(out, lineterminator="\n")
        versions = f"torch {torch.__version__}, triton {triton.__version__}"
        if given.what == "bits":
            table.writerow([f"# {torch.cuda.get_device_name()}, {versions}"])
            table.writerow(["kind", "M", "N", "K", "recipe", "elements", "differ", "first"])
        else:
            table.writerow([f"# {environment.describe('cpu')['cpu']}, numpy {np.__version__}, {versions}"])
            table.writerow(["kind", "programs", "M", "N", "K", "matmul us", "numba us", "numpy us", "numba / matmul"])
        for row in rows(given.seeds) if given.what == "bits" else times():
            table.writerow(row)
            out.flush()


if __name__ == "__main__":
    main()
