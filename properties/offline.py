"""Offline: how much shared memory a Triton kernel takes on GPUs that this machine does not have.

Run as a program in a process of its own, since TRITON_INTERPRET decides at import whether a kernel can be compiled at
all. Compiling stops where Triton has allotted shared memory: neither ptxas nor a GPU is needed.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping
from typing import Any

Compilation = tuple[str, Any, Mapping[str, str], Mapping[str, Any], Mapping[str, Any]]
"""(name, a @triton.jit function, its signature, its constants, launch options), as ``triton.compile`` takes them:
signature names each argument's type (``"*bf16"``, ``"i32"``, ``"constexpr"``), options are num_warps and the like."""

SHARED_MEMORY: Mapping[int, int] = {80: 166_912, 90: 232_448, 100: 232_448, 120: 101_376}
"""Bytes of shared memory that one program can have, by compute capability (CUDA programming guide, "Compute
capabilities": 163, 227, 227 and 99 KiB)."""

TIME_LIMIT = 600.0  # seconds, for all compilations of one call


class Uncompiled(Exception):
    """The compilations could not be made here, with the reason in one sentence."""


def shared_memory(compilations: Callable[[str], Iterable[Compilation]], dtype: str) -> dict[tuple[str, int], int | str]:
    """Compile what ``compilations(dtype)`` names for each architecture, in another process.

    Args:
        compilations: a function of a module, called there with ``dtype``.
        dtype: such as "bfloat16".

    Returns:
        For each name and compute capability the bytes of shared memory, or why it does not compile.

    Raises:
        Uncompiled: Triton is missing, or the process failed as a whole.
    """
    if importlib.util.find_spec("triton") is None:
        raise Uncompiled("Triton is not installed")
    where = {
        "module": compilations.__module__,
        "file": inspect.getsourcefile(compilations),
        "function": compilations.__qualname__,
        "dtype": dtype,
        "path": [entry for entry in sys.path if isinstance(entry, str)],
    }
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    with tempfile.TemporaryDirectory() as cache:
        environment["TRITON_CACHE_DIR"] = cache
        command = [sys.executable, __file__, json.dumps(where)]
        try:
            ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=TIME_LIMIT)
        except subprocess.TimeoutExpired:
            raise Uncompiled(f"compiling took more than {TIME_LIMIT:.0f} seconds") from None
    lines = ran.stdout.strip().splitlines()
    if ran.returncode != 0 or not lines:
        reason = (ran.stderr.strip().splitlines() or [f"exit code {ran.returncode}"])[-1]
        raise Uncompiled(f"the process that compiles failed: {reason}")
    return {(name, capability): found for name, capability, found in json.loads(lines[-1])}


class _Allotted(Exception):
    """Raised inside a compilation once its shared memory is known."""


def _bytes(compilation: Compilation, capability: int) -> int | str:
    """The bytes that one compilation takes, or the first line of what stops it."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    _, function, signature, constants, options = compilation
    source = ASTSource(fn=function, constexprs=dict(constants), signature=dict(signature))
    try:
        compiled = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=dict(options))
    except _Allotted as allotted:
        return int(allotted.args[0])
    except Exception as error:
        return (str(error).strip().splitlines() or [type(error).__name__])[0]
    return int(compiled.metadata.shared)


def _stop_early() -> None:
    """Have compilations end after the stage that allots shared memory, without LLVM's optimiser, which changes none."""
    from triton._C.libtriton import llvm
    from triton.backends.nvidia.compiler import CUDABackend

    llvm.optimize_module = lambda *arguments, **keywords: None
    whole = CUDABackend.add_stages

    def add_stages(self: Any, stages: dict[str, Any], *arguments: Any, **keywords: Any) -> None:
        whole(self, stages, *arguments, **keywords)
        after = stages.get("ptx")
        if after is not None:

            def ptx(source: Any, metadata: dict[str, Any]) -> Any:
                if "shared" in metadata:
                    raise _Allotted(metadata["shared"])
                return after(source, metadata)

            stages["ptx"] = ptx

    CUDABackend.add_stages = add_stages


def _program(where: Mapping[str, Any]) -> list[tuple[str, int, int | str]]:
    sys.path[:] = where["path"]
    try:
        module = importlib.import_module(where["module"])
    except ModuleNotFoundError:  # a user's file, which has a private name in the process that asks
        spec = importlib.util.spec_from_file_location("compiled_target", where["file"])
        if spec is None or spec.loader is None:
            raise
        module = importlib.util.module_from_spec(spec)
        sys.modules["compiled_target"] = module
        spec.loader.exec_module(module)
    found: Any = module
    for part in where["function"].split("."):
        found = getattr(found, part)
    _stop_early()
    compilations = list(found(where["dtype"]))
    return [(one[0], capability, _bytes(one, capability)) for one in compilations for capability in SHARED_MEMORY]


if __name__ == "__main__":
    print(json.dumps(_program(json.loads(sys.argv[1]))))
