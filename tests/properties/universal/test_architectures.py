"""The property of architectures: a kernel that fits each GPU, one that fits some, and one that does not compile."""

from __future__ import annotations

import json

import pytest
from gradoracle.kernels.sdpa.compilations import compilations as sdpa
from gradoracle.properties.offline import SHARED_MEMORY, shared_memory
from gradoracle.properties.universal.architectures import shared_memory_fits_each_architecture as prop
from programs import python

from gradoracle.model.call_errors import Unavailable
from gradoracle.model.finding import Outcome
from gradoracle.model.reason import Reason
from gradoracle.model.verdict import Status
from tests.properties.toys import CASE, RIGHT, judged, kernel, right
from tests.properties.universal import compiled

WHOLE = """
import json, os, sys
os.environ.pop("TRITON_INTERPRET", None)
os.environ["TRITON_CACHE_DIR"] = sys.argv[1]
import triton
from gradoracle.kernels.sdpa.compilations import compilations
from triton._C.libtriton import llvm
from triton.backends.nvidia.compiler import CUDABackend

def ptx(self, source, metadata, *rest):
    raise KeyboardInterrupt(metadata["shared"])

CUDABackend.make_ptx, llvm.optimize_module = ptx, lambda *arguments: None
found = []
for capability in (80, 90, 100, 120):
    for name, kernel, signature, constants, options in compilations("bfloat16", divmod(capability, 10))[:2]:
        source = triton.compiler.ASTSource(fn=kernel, constexprs=constants, signature=signature)
        try:
            triton.compile(source, target=triton.backends.compiler.GPUTarget("cuda", capability, 32), options=options)
        except KeyboardInterrupt as known:
            found.append((name, capability, known.args[0]))
print(json.dumps(found))
"""  # to the end of the lowering to LLVM, but for its optimiser, which knows nothing of shared memory


def naming(compilations):
    return kernel(right, extras={"compilations": compilations})


def test_a_kernel_that_names_no_compilations_is_not_concerned():
    assert prop.applies(CASE, RIGHT) is not None
    assert prop.applies(CASE, naming(compiled.fitting)) is None


def test_tiles_that_fit_hold_and_tiles_that_do_not_are_named_with_the_gpu():
    assert judged(prop, naming(compiled.fitting)).status is Status.HOLDS
    found = judged(prop, naming(compiled.too_large))
    assert found.status is Status.VIOLATED
    wrong = {f.tensor: f.message for f in found.findings if f.outcome is Outcome.VIOLATED}
    assert set(wrong) == {"tile 128 on sm_90", "tile 128 on sm_100", "tile 128 on sm_120"}  # it fits sm_80
    assert "a program can have 101376" in wrong["tile 128 on sm_120"]
    assert len(found.findings) == 2 * len(SHARED_MEMORY)


def test_tensor_memory_is_as_limited_where_there_is_any():
    found = judged(prop, naming(compiled.too_wide))
    wrong = {f.tensor: f.message for f in found.findings if f.outcome is Outcome.VIOLATED}
    assert "columns of tensor memory" in wrong["tile 512 on sm_100"] and "have 512" in wrong["tile 512 on sm_100"]
    assert not any("tensor memory" in wrong.get(f"tile 512 on sm_{other}", "") for other in (80, 90, 120))


def test_what_does_not_compile_is_a_violation_in_words():
    found = judged(prop, naming(compiled.uncompilable))
    assert found.status is Status.VIOLATED
    assert all(f.message.startswith("does not compile: ") for f in found.findings)


def test_a_dtype_without_compilations_is_not_checked():
    found = judged(prop, naming(compiled.nothing))
    assert (found.status, found.why) == (Status.NOT_CHECKED, Reason.LACKING)
    assert "no compilation" in found.reason


def test_a_process_that_fails_says_why():
    def local(dtype):
        return []

    with pytest.raises(Unavailable, match="the compiling process failed: "):
        shared_memory(local, "float32")


def test_bytes_are_those_of_a_whole_compilation(tmp_path):
    ran = python(WHOLE, str(tmp_path))
    assert ran.returncode == 0, ran.stderr
    whole = {(name, capability): shared for name, capability, shared in json.loads(ran.stdout)}
    stopped = shared_memory(sdpa, "bfloat16")
    assert len(whole) == 2 * len(SHARED_MEMORY)
    assert whole == {key: stopped[key] for key in whole}
    assert len(set(whole.values())) > 4
