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

from gradoracle.kernels.sdpa import blocks, gradients, hessian, launch, moments, output, tangents

PASSES = {
    "forward": (0, output.forward_kernel, {}, ()),
    "z": (1, moments.moments_kernel, {"COTANGENT": True, "TANGENT": False}, ("r", "z_tangent")),
    "r": (1, moments.moments_kernel, {"COTANGENT": False, "TANGENT": True}, ("z", "z_tangent")),
    "dq": (1, gradients.query_kernel, {}, ()),
    "dk, dv": (1, gradients.key_kernel, {"NEEDS_K": True, "NEEDS_V": True}, ()),
    "jvp": (1, tangents.tangent_kernel, {"CENTRED": True, "PRIMAL": True}, ()),
    "z'": (2, moments.moments_kernel, {"COTANGENT": True, "TANGENT": True}, ()),
    "hq": (2, hessian.query_hvp_kernel, {}, ()),
    "hk, hv": (2, hessian.key_hvp_kernel, {"NEEDS_K": True, "NEEDS_V": True}, ()),
}
NAMES = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}


def shared(name, dtype, width, capability, aligned):
    derivative, kernel, flags, absent = PASSES[name]
    chosen = blocks.choose(derivative, dtype, width, 4096, 4096)
    constants = dict.fromkeys(absent) | flags | {
        "BLOCK_QUERY": chosen.query, "BLOCK_KEY": chosen.key, "WIDTH": width, "ALIGNED": aligned,
        "ACCUMULATE": tl.float32, "PRECISION": "ieee",
    }
    signature = {}
    for argument in kernel.arg_names:
        if argument in constants:
            signature[argument] = "constexpr"
        elif argument == "scale":
            signature[argument] = "fp32"
        elif argument in launch.SCALARS or argument[-2:] in ("_b", "_h", "_r", "_c"):
            signature[argument] = "i32"
        else:
            statistic = argument in ("m", "l", "z", "r", "z_tangent")
            signature[argument] = "*fp32" if statistic else "*" + NAMES[dtype]
    source = ASTSource(fn=kernel, constexprs=constants, signature=signature)
    options = {"num_warps": chosen.num_warps, "num_stages": chosen.num_stages}
    compiled = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
    for parameter in kernel.params:
        free = parameter.do_not_specialize or parameter.do_not_specialize_on_alignment
        assert free or parameter.is_constexpr or parameter.name == "scale", f"{parameter.name} starts compilations"
    vectors = any(word in compiled.asm["ptx"] for word in ("ld.global.v4", "ld.global.v2", "cp.async.cg"))
    assert vectors == aligned, f"{name}: vector loads {vectors}, aligned {aligned}"
    if dtype != torch.float32:  # whose row statistics are 4 bytes, as its elements are
        narrow = compiled.asm["ptx"].count("ld.global.b16")
        assert (narrow == 0) == aligned, f"{name}: {narrow} loads of one element, aligned {aligned}"
    return compiled.metadata.shared


dtype, width, capability, aligned, *names = sys.argv[1:]
found = {
    name: shared(name, getattr(torch, dtype), int(width), int(capability), aligned == "True")
    for name in names or PASSES
}
print(json.dumps(found))
"""

LEAST = 101_376  # bytes a program can have on sm_86, sm_89 and sm_120


# the widest tiles of each dtype; of float32, slow to compile, only what takes most shared memory
CASES = {
    "bfloat16 D 64": ("bfloat16", 64, 90, True, []),
    "bfloat16 D 128": ("bfloat16", 128, 90, True, []),
    "float16 D 3": ("float16", 16, 80, False, ["forward", "dk, dv", "jvp", "hk, hv"]),
    "float32 D 128": ("float32", 128, 90, True, ["jvp", "hk, hv"]),
}


@pytest.mark.parametrize("case", [slow(case) if case == "bfloat16 D 64" else case for case in CASES])
def test_every_pass_compiles_and_fits_in_shared_memory(case):
    *arguments, names = CASES[case]
    found = json.loads(compiling(PROGRAM, *map(str, arguments), *names))
    assert len(found) == (len(names) or 9)
    assert 0 < max(found.values()) <= LEAST, found
