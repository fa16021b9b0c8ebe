"""The SDPA kernels compiled for GPUs that this machine need not have: every pass fits in shared memory."""

from __future__ import annotations

import json

import pytest
from programs import compiling
from sweeps import slow

PROGRAM = """
import json
import sys

import torch
import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from gradoracle.kernels.sdpa.compilations import PASSES, compilation
from gradoracle.kernels.sdpa.launch import FLOATS


def shared(name, dtype, width, precision, capability, aligned):
    part, _, known = name.partition(" of ")
    _, kernel, signature, constants, options = compilation(
        part, dtype, width, precision=precision, capability=divmod(capability, 10), aligned=aligned, known=bool(known)
    )
    source = ASTSource(fn=kernel, constexprs=constants, signature=signature)
    compiled = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
    for parameter in kernel.params:
        free = parameter.do_not_specialize or parameter.do_not_specialize_on_alignment
        assert free or parameter.is_constexpr or parameter.name in FLOATS, f"{parameter.name} starts compilations"
    vectors = any(word in compiled.asm["ptx"] for word in ("ld.global.v4", "ld.global.v2", "cp.async.cg"))
    assert vectors == aligned, f"{name}: vector loads {vectors}, aligned {aligned}"
    if dtype != "float32":  # whose row statistics are 4 bytes, as its elements are
        narrow = compiled.asm["ptx"].count("ld.global.b16")
        assert (narrow == 0) == aligned, f"{name}: {narrow} loads of one element, aligned {aligned}"
    return compiled.metadata.shared


dtype, width, precision, capability, aligned, *names = sys.argv[1:]
found = {
    name: shared(name, dtype, int(width), precision, int(capability), aligned == "True")
    for name in names or PASSES
}
print(json.dumps(found))
"""

LIMITS = {
    80: 101_376,
    90: 232_448,
    100: 232_448,
    120: 101_376,
}  # bytes of a program; sm_86 and sm_89 have sm_80's blocks


# the widest tiles of each kind of dots; of ieee, slow to compile, only what takes most shared memory
CASES = {
    "bfloat16 D 64": ("bfloat16", 64, "ieee", 90, True, []),
    "bfloat16 D 128": ("bfloat16", 128, "ieee", 90, True, []),
    "bfloat16 D 128 on sm_80": ("bfloat16", 128, "ieee", 80, True, []),
    "float16 D 3": ("float16", 16, "ieee", 80, False, ["forward", "dk, dv", "jvp", "hk, hv"]),
    "float32 D 128": ("float32", 128, "ieee", 90, True, ["jvp", "hk, hv"]),
    "bf16x6 D 64": ("float32", 64, "bf16x6", 90, True, ["forward", "z", "dq", "dk, dv", "jvp", "jvp of m, l"]),
    "bf16x6 D 128": ("float32", 128, "bf16x6", 90, True, ["forward", "dq", "dk, dv", "jvp", "z'", "hk, hv"]),
    "bf16x6 D 128, m and l given": ("float32", 128, "bf16x6", 90, True, ["r of m, l", "jvp of m, l"]),
    "bf16x6 D 64 on sm_120": ("float32", 64, "bf16x6", 120, True, ["forward", "dq", "dk, dv"]),
    "bf16x6 D 128 on sm_120": ("float32", 128, "bf16x6", 120, True, ["forward", "z", "dk, dv"]),
}
SLOW = ("bfloat16 D 64", "bfloat16 D 128 on sm_80")


@pytest.mark.parametrize("case", [slow(case) if case in SLOW else case for case in CASES])
def test_every_pass_compiles_and_fits_in_shared_memory(case):
    *arguments, names = CASES[case]
    found = json.loads(compiling(PROGRAM, *map(str, arguments), *names))
    assert len(found) == (len(names) or 9)
    assert 0 < max(found.values()) <= LIMITS[arguments[3]], found
