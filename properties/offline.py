"""Offline: how much shared memory a Triton kernel takes on GPUs that this machine does not have, and for which tiles.

Run as a program in a process of its own, since TRITON_INTERPRET decides at import whether a kernel can be compiled at
all. Compiling stops where Triton has allotted shared memory, before TTGIR is lowered to LLVM, which changes none of it:
neither ptxas nor a GPU is needed. The passes take most of the time: what came of some TTIR is kept in the cache, at
whatever lines of source it came up and by whatever names; and what came of a source.
"""

from __future__ import annotations

import functools
import gc
import importlib
import importlib.util
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gradoracle.properties.compilations_kept import Again, Kept

from gradoracle.execution import fork_server
from gradoracle.model.call_errors import Unavailable
from gradoracle.model.errors import tell
from gradoracle.model.location import place_of

Compilation = tuple[str, Any, Mapping[str, str], Mapping[str, Any], Mapping[str, Any]]
"""(name, a @triton.jit function, its signature, its constants, launch options), as ``triton.compile`` takes them:
signature names each argument's type (``"*bf16"``, ``"i32"``, ``"constexpr"``), options are num_warps and the like."""

SHARED_MEMORY: Mapping[int, int] = {80: 166_912, 90: 232_448, 100: 232_448, 120: 101_376}
"""Bytes of shared memory that one program can have, by compute capability (CUDA programming guide, "Compute
capabilities": 163, 227, 227 and 99 KiB)."""

TENSOR_MEMORY = 512
"""Columns of tensor memory, where a GPU has it: sm_100 (PTX ISA, "Tensor Memory Addressing")."""

TIME_LIMIT = 600.0  # seconds, for all compilations of one call


@dataclass(frozen=True)
class Allotment:
    """What one compilation puts into shared memory: how many bytes, and the shape of each tile, scratch included.

    Attributes:
        bytes: the most bytes at a time. Tiles may lie at the same place at different times.
        tiles: the shape of each tile. Pipelined tiles have a leading axis of stages.
        origins: the operation, element type and line of source of each tile. They are the same at other sizes.
        shapes: by origin, all shapes, in shared memory or not. Only changed compilations have it.
    """

    bytes: int
    tiles: tuple[Shape, ...]
    origins: tuple[str, ...] = ()
    shapes: Mapping[str, tuple[Shape, ...]] = field(default_factory=dict)


Shape = tuple[int, ...]
Allotments = dict[tuple[str, int], "Allotment | str"]


def of_each_architecture(
    compilations: Callable[..., Iterable[Compilation]], dtype: str
) -> Iterator[tuple[int, Compilation]]:
    """What ``compilations`` names for each compute capability: called with that, such as (9, 0), if it takes it."""
    own = place_of(compilations).parameters
    by_capability = own is not None and len(own.names) > 1
    for capability in SHARED_MEMORY:
        for one in compilations(dtype, divmod(capability, 10)) if by_capability else compilations(dtype):
            yield capability, one


def shared_memory(compilations: Callable[..., Iterable[Compilation]], dtype: str) -> dict[tuple[str, int], int | str]:
    """Compile what ``compilations(dtype)`` names for each architecture, in another process.

    Args:
        compilations: a function of a module, called there with ``dtype``; one with a second parameter is called for
            each architecture, with its capability, such as (9, 0).
        dtype: such as "bfloat16".

    Returns:
        For each name and compute capability the bytes of shared memory, or why it does not compile.

    Raises:
        Unavailable: Triton is missing, or the process failed as a whole.
    """
    found = allotments(compilations, dtype)
    return {key: taken if isinstance(taken, str) else taken.bytes for key, taken in found.items()}


def allotments(
    compilations: Callable[..., Iterable[Compilation]],
    dtype: str,
    changed: Mapping[str, Mapping[str, int]] | None = None,
) -> Allotments:
    """As ``shared_memory``, with the shapes of the tiles; what was compiled once in this process is kept.

    Args:
        compilations: a function of a module, called there with ``dtype``.
        dtype: such as "bfloat16".
        changed: compile those named alone, with other values of some constants.

    Raises:
        Unavailable: Triton is missing, or the process failed as a whole.
    """
    compiled = _compiled(compilations, dtype, json.dumps(changed or {}, sort_keys=True), False)
    return {key: found if isinstance(found, str) else _read(found) for key, found in compiled.items()}


def shapes_by_line(
    compilations: Callable[..., Iterable[Compilation]], dtype: str, changed: Mapping[str, Mapping[str, int]]
) -> dict[tuple[str, int], Mapping[str, tuple[Shape, ...]]]:
    """The shapes of all that each line of source reads or makes, for the compilations named in ``changed``.

    Read off TTIR, before layouts and shared memory: a small part of a compilation. Arguments and errors are those of
    ``allotments``. What does not come as far has no lines.
    """
    compiled = _compiled(compilations, dtype, json.dumps(changed, sort_keys=True), True)
    return {key: {} if isinstance(found, str) else _shapes(found["shapes"]) for key, found in compiled.items()}


@functools.lru_cache(maxsize=64)
def _compiled(
    compilations: Callable[..., Iterable[Compilation]], dtype: str, changed: str, by_line: bool
) -> dict[tuple[str, int], Mapping[str, Any] | str]:
    if importlib.util.find_spec("triton") is None:
        raise Unavailable("Triton is not installed")
    own = place_of(compilations)
    where = {
        "module": own.module,
        "file": own.file,
        "function": own.name,
        "dtype": dtype,
        "changed": json.loads(changed),
        "by_line": by_line,
    }
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    with tempfile.TemporaryDirectory() as cache:
        own = {**environment, "TRITON_CACHE_DIR": cache, "TRITON_STORE_BINARY_ONLY": "1"}
        code, output, errors = _run(json.dumps(where), own, Path(cache))
    lines = output.strip().splitlines()
    if code != 0 or not lines:
        reason = (errors.strip().splitlines() or [f"exit code {code}"])[-1]
        raise Unavailable(f"the compiling process failed: {reason}")
    answer = json.loads(lines[-1])
    for sentence in answer["said"]:
        tell(sentence)
    return {(name, capability): reason or found for name, capability, found, reason in answer["found"]}


def _run(where: str, environment: Mapping[str, str], folder: Path) -> tuple[int, str, str]:
    """Run this file as a program: its exit code, and both output streams, kept in files of a folder meanwhile."""
    program = "import runpy, sys; runpy.run_path(sys.argv.pop(1), run_name='__main__')"
    with (folder / "stdout").open("wb") as out, (folder / "stderr").open("wb") as err:
        child = fork_server.run(program, [__file__, where], env=environment, stdout=out, stderr=err)
        try:
            code = child.wait(TIME_LIMIT)
        except subprocess.TimeoutExpired:
            raise Unavailable(f"compiling took more than {TIME_LIMIT:.0f} seconds") from None
        finally:
            child.kill()
    return code, *((folder / name).read_text("utf-8", "replace") for name in ("stdout", "stderr"))


def _read(found: Mapping[str, Any]) -> Allotment:
    return Allotment(
        found["bytes"], tuple(map(tuple, found["tiles"])), tuple(found["origins"]), _shapes(found["shapes"])
    )


def _shapes(found: Mapping[str, Any]) -> dict[str, tuple[Shape, ...]]:
    return {origin: tuple(map(tuple, every)) for origin, every in found.items()}


class _Known(Exception):
    """Raised inside a compilation once what is asked of it is known, with what ``read`` takes."""


def _compile(
    compilation: Compilation, capability: int, read: Callable[..., dict[str, Any]], kept: Kept | None
) -> tuple[Any, str]:
    """What ``read`` says of the module with which one compilation ends, or the first line of what stops it before."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    if kept is not None and (found := kept.look_up_source(compilation, capability)) is not None:
        return found, ""
    _, function, signature, constants, options = compilation
    source = ASTSource(fn=function, constexprs=dict(constants), signature=dict(signature))
    try:
        triton.compile(source, target=GPUTarget("cuda", capability, 32), options=dict(options))
    except Again as again:
        return again.args[0], ""
    except _Known as known:
        if (columns := int(known.args[0].get_int_attr("ttg.tensor_memory_size") or 0)) > TENSOR_MEMORY:
            return {}, f"takes {columns} columns of tensor memory, a program can have {TENSOR_MEMORY}"
        found = read(*known.args)
        if kept is not None:
            kept.keep(found)
        return found, ""
    except Exception as error:
        return {}, (str(error).strip().splitlines() or [type(error).__name__])[0]
    raise RuntimeError("this version of Triton lowers TTGIR in an unknown way")


_TYPE = re.compile(r"(?:memdesc|tensor)<((?:\d+x)+)([a-z]+\d+)")
_SHAPE = re.compile(r"<((?:\d+x)+)")  # of pointers and descriptors too
_PLACE = re.compile(r"loc\((#loc\d*)\)\s*$")


def _places(text: str) -> Callable[[str], str]:
    """The line of source, with names and callers, at which a line of IR stands: "?" where it says none."""
    places = dict(re.findall(r"^(#loc\d*) = loc\((.*)\)$", text, re.MULTILINE))

    @functools.cache
    def resolved(place: str) -> str:
        return re.sub(r"#loc\d*", lambda inner: resolved(inner[0]), places.get(place, "?"))

    def place(line: str) -> str:
        found = _PLACE.search(line)
        return resolved(found[1]) if found else "?"

    return place


def _sizes(shape: str) -> Shape:
    return tuple(int(size) for size in shape.split("x")[:-1])


def _values(text: str, mark: str) -> Iterator[tuple[str, str, Shape]]:
    """Each line of TTGIR with a tile and this mark: the line, its origin, and the shape of what it makes."""
    place = _places(text)
    for line in (line for line in text.splitlines() if mark in line):
        kind, of = re.search(r"\b(ttn?g|tt)\.\w+", line), _TYPE.findall(line)
        if kind and of:
            shape, element = of[-1]  # an operation's result is written last
            yield line, f"{kind[0]} {element} {place(line)}", _sizes(shape)


def _allotment(module: Any, least: int, with_shapes: bool) -> dict[str, Any]:
    """The fields of Allotment, from TTGIR in which each operation that takes shared memory says where.

    ``least``: how many bytes are asked for whatever is needed.
    """
    mark = "allocation.offset"
    values = list(_values(str(module), "" if with_shapes else mark))
    shared = [(origin, shape) for line, origin, shape in values if mark in line]
    shapes: dict[str, list[Shape]] = {}
    for _, origin, shape in values if with_shapes else ():
        shapes.setdefault(origin, []).append(shape)
    found = {"tiles": [shape for _, shape in shared], "origins": [origin for origin, _ in shared]}
    return {"bytes": max(least, int(module.get_int_attr("ttg.shared"))), "shapes": shapes, **found}


def _by_line(module: Any) -> dict[str, Any]:
    """The shapes of operands and results, by line of source. What a loop or a branch carries stands in its first line.

    An operation with a region has its place where the region ends.
    """
    text = str(module)
    place = _places(text)
    found: dict[str, set[Shape]] = {}
    regions: list[set[Shape]] = []
    for line in map(str.strip, text.splitlines()):
        shapes = {_sizes(shape) for shape in _SHAPE.findall(line)}
        if line.startswith("}") and regions:
            shapes |= regions.pop()
        if line.endswith("{"):
            regions.append(shapes)
        elif shapes:
            found.setdefault(place(line), set()).update(shapes)
    found.pop("?", None)
    return {"shapes": {line: sorted(shapes) for line, shapes in found.items()}}


def _stop_early(kept: Kept | None) -> None:
    """Have compilations end with TTIR, or where the passes of the backend itself come to the lowering to LLVM.

    With TTIR: where it came up before, or where nothing is ``kept`` since no more is asked for.

    By then they have allotted shared memory; the lowering, slow where products are unrolled, changes none of it.
    """
    from triton._C.libtriton import nvidia
    from triton.backends.nvidia.compiler import CUDABackend

    whole = CUDABackend.add_stages
    lowered: list[Any] = []

    def to_llvm(manager: Any, *arguments: Any, **keywords: Any) -> None:
        manager.run(lowered[0], "allotment")
        raise _Known(*lowered)

    def add_stages(self: Any, stages: dict[str, Any], options: Any, *arguments: Any, **keywords: Any) -> None:
        whole(self, stages, options, *arguments, **keywords)
        first, last = stages["ttir"], stages["llir"]

        def ttir(source: Any, metadata: dict[str, Any]) -> Any:
            module = first(source, metadata)
            if kept is None:
                raise _Known(module)
            kept.look_up(module, f"{self.target} {options.hash()}")
            return module

        def llir(source: Any, metadata: dict[str, Any]) -> Any:
            lowered[:] = source, getattr(options, "min_shared_mem", None) or 0
            return last(source, metadata)

        stages |= {"ttir": ttir, "llir": llir}

    CUDABackend.add_stages, nvidia.passes.ttgpuir.add_to_llvmir = add_stages, to_llvm


def _program(where: Mapping[str, Any]) -> dict[str, Any]:
    try:
        module = importlib.import_module(where["module"])
    except ModuleNotFoundError:  # a user's file, which has a private name in the process that asks
        spec = importlib.util.spec_from_file_location("compiled_target", where["file"])
        if spec is None or spec.loader is None:
            raise
        module = importlib.util.module_from_spec(spec)
        sys.modules["compiled_target"] = module
        spec.loader.exec_module(module)
    function: Any = module
    for part in where["function"].split("."):
        function = getattr(function, part)
    changed = where["changed"]
    kept = None if where["by_line"] else Kept(__file__, f"with shapes: {bool(changed)}")
    read = _by_line if kept is None else functools.partial(_allotment, with_shapes=bool(changed))
    _stop_early(kept)
    gc.freeze()  # what the imports made stays
    made: dict[str, tuple[Any, str]] = {}  # compilations of other names may have the same arguments
    found = []
    for capability, one in of_each_architecture(function, where["dtype"]):
        if changed:
            if one[0] not in changed:
                continue
            one = (*one[:3], {**one[3], **changed[one[0]]}, one[4])
        key = repr((capability, id(one[1]), *(sorted(part.items()) for part in one[2:])))
        made[key] = made.get(key) or _compile(one, capability, read, kept)
        found.append((one[0], capability, *made[key]))
    return {"found": found, "said": [] if kept is None else kept.said}


if __name__ == "__main__":
    print(json.dumps(_program(json.loads(sys.argv[1]))))
