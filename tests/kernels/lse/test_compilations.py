"""How many times Triton compiles the LSE kernels: options, dims and strides start no compilation of their own."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from gradoracle.kernels import lse as kernels
from gradoracle.kernels.lse import blocks, factors, fused, hessian, output, separate, sinks, tangents
from gradoracle.kernels.lse.compilations import PASSES
from programs import compiling, specialising
from sweeps import slow

from tests.kernels.lse.watching import watch

MODULES = (output, factors, separate, fused, tangents, hessian, sinks)
Q, K = torch.randn(1, 2, 5, 3), torch.randn(1, 2, 7, 3)
IDS = {"q_segments": torch.zeros(1, 5, dtype=torch.int64), "kv_segments": torch.zeros(1, 7, dtype=torch.int64)}


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> set[tuple[Any, ...]]:
    """What Triton would compile: for each launch the kernel, its constants, and the type of every argument."""
    seen: set[tuple[Any, ...]] = set()

    def note(name: str, args: tuple[Any, ...], constants: dict[str, Any]) -> None:
        types = (str(getattr(argument, "dtype", type(argument).__name__)) for argument in args)
        seen.add((name, *types, *constants.items()))

    watch(monkeypatch, MODULES, note)
    return seen


def every_derivative(**options: Any) -> None:
    """Run every kernel: forward, both backwards, JVP and HVP."""
    for backward in ("fused", "separate"):
        q, k = Q.clone().requires_grad_(), K.clone().requires_grad_()
        result = kernels.lse(q, k, backward=backward, blocks=kernels.BLOCKS["small"], **options)
        first = torch.autograd.grad(result.sum(), (q, k), create_graph=True)
        torch.autograd.grad(sum(each.sum() for each in first), (q, k))


@pytest.mark.parametrize("precision", ["ieee", "bf16x6"])
def test_all_options_together_compile_each_kernel_twice(precision: str, compiled: set[tuple[Any, ...]]) -> None:
    for softcap in (None, 2.0, 30.0):
        for segments in ({}, IDS):
            for sink in ({}, {"sinks": torch.zeros(2)}):
                for causal in (False, True):
                    every_derivative(softcap=softcap, causal=causal, precision=precision, **segments, **sink)
    names = [name for name, *_ in compiled]
    counts = {name: names.count(name) for name in names}
    seven = ("forward", "query", "key", "fused", "tangent", "query_hvp", "key_hvp")
    assert counts == {f"{name}_kernel": 2 for name in seven} | {"sum_kernel": 1, "factors_kernel": 1}


def test_only_the_type_of_segment_ids_starts_another(compiled: set[tuple[Any, ...]]) -> None:
    every_derivative(**IDS)
    before = len(compiled)
    every_derivative(softcap=2.0)
    assert len(compiled) == before
    every_derivative(**{name: ids.int() for name, ids in IDS.items()})
    assert len(compiled) == before + 7


def test_compiled_widths_are_few() -> None:
    widths = {
        name: {blocks.padded_features(features, each) for features in range(1, 257)}
        for name, each in kernels.BLOCKS.items()
    }
    many, few = {32, 64, 128, 256}, {64, 256}
    assert widths == {"small": few, "wide": few, "tall": few, "medium": many, "large": many}
    for each in kernels.BLOCKS.values():
        assert all(blocks.padded_features(features, each) >= features for features in range(1, 257))


def test_no_dim_stride_or_pointer_starts_a_compilation() -> None:
    found = specialising(*(module.__name__.removeprefix("gradoracle.kernels.") for module in MODULES))
    assert len(found) == 10 and {name for names in found.values() for name in names} == {"scale", "softcap", "rate"}, (
        found
    )


LOADS = """
import json
import sys
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from gradoracle.kernels.lse.compilations import compilations
found = {}
for name, kernel, signature, constants, options in compilations("bfloat16"):
    if name.endswith("128, plain"):
        for aligned in (True, False) if name.split(",")[0] in sys.argv[1:] else (True,):
            source = ASTSource(fn=kernel, constexprs=constants | {"ALIGNED": aligned}, signature=signature)
            ptx = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options).asm["ptx"]
            found[f"{name}, {aligned}"] = ptx.count("ld.global.b16")
print(json.dumps(found))
"""


@pytest.mark.parametrize("unaligned", [("forward", "dq"), slow(PASSES)])
def test_every_load_of_an_aligned_tile_is_a_vector(unaligned: tuple[str, ...]) -> None:
    found = json.loads(compiling(LOADS, *unaligned))
    sinks = {"forward": 1, "jvp": 2}  # one number each: of sinks, of their tangent
    aligned = {name.split(",")[0]: count for name, count in found.items() if name.endswith("True")}
    assert aligned == {name: sinks.get(name, 0) for name in aligned} and len(aligned) == 7
    others = [count for name, count in found.items() if name.endswith("False")]
    assert len(others) == len(unaligned) and min(others) > 8, found


SPLIT = """
import json
import sys
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from gradoracle.kernels.lse.compilations import compilation
width, capability = map(int, sys.argv[1:3])
found = {}
for name in sys.argv[3:]:
    _, kernel, signature, constants, options = compilation(
        name, "float32", width, precision="bf16x6", capability=divmod(capability, 10)
    )
    source = ASTSource(fn=kernel, constexprs=constants, signature=signature)
    compiled = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
    found[name] = compiled.metadata.shared
print(json.dumps(found))
"""


@pytest.mark.parametrize(("width", "capability", "limit"), [(64, 90, 232_448), (128, 90, 232_448), (128, 120, 101_376)])
def test_passes_in_bf16x6_fit_in_shared_memory(width: int, capability: int, limit: int) -> None:
    names = tuple(PASSES) if capability == 90 else ("forward", "dq", "fused")
    found = json.loads(compiling(SPLIT, str(width), str(capability), *names))
    assert set(found) == set(names) and 0 < max(found.values()) <= limit, found
