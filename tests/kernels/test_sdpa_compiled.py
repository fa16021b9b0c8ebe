"""The SDPA kernels compiled for GPUs that this machine need not have: every pass fits in shared memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

# in a process of its own, since TRITON_INTERPRET decides at import whether a kernel can be compiled
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
    signature, attributes = {}, {}
    for i, argument in enumerate(kernel.arg_names):
        if argument in constants:
            signature[argument] = "constexpr"
        elif argument == "scale":
            signature[argument] = "fp32"
        elif argument in launch.SCALARS or argument[-2:] in ("_b", "_h", "_r", "_c"):
            signature[argument] = "i32"
        else:
            statistic = argument in ("m", "l", "z", "r", "z_tangent")
            signature[argument] = "*fp32" if statistic else "*" + NAMES[dtype]
            attributes[(i,)] = [["tt.divisibility", 16]]
    source = ASTSource(fn=kernel, constexprs=constants, signature=signature, attrs=attributes)
    options = {"num_warps": chosen.num_warps, "num_stages": chosen.num_stages}
    return triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options).metadata.shared


dtype, width, capability, aligned = sys.argv[1:]
found = {
    name: shared(name, getattr(torch, dtype), int(width), int(capability), aligned == "True") for name in PASSES
}
print(json.dumps(found))
"""

LEAST = 101_376  # bytes a program can have on sm_86, sm_89 and sm_120


@pytest.mark.parametrize(
    ("dtype", "width", "capability", "aligned"),
    [
        ("float32", 128, 90, True),
        ("bfloat16", 64, 90, True),
        ("bfloat16", 128, 90, True),
        ("float16", 16, 80, False),
    ],
)
def test_every_pass_compiles_and_fits_in_shared_memory(dtype, width, capability, aligned):
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    arguments = [sys.executable, "-c", PROGRAM, dtype, str(width), str(capability), str(aligned)]
    ran = subprocess.run(arguments, env=environment, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr[-2000:]
    found = json.loads(ran.stdout)
    assert len(found) == 9
    assert 0 < max(found.values()) <= LEAST, found
