"""Compiled: whether a mutant of a jitted function compiles to the same code as the function itself.

Runs in processes of its own, since TRITON_INTERPRET decides at import whether a kernel can be compiled at all; neither
ptxas nor a GPU is needed. With locations stripped, the optimised TTIR is compared and, where that differs, the PTX for
one architecture, in every specialisation: those that a family ships and those that were launched.
"""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import re
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from gradoracle.execution import fork_server
from gradoracle.mutation.install import install
from gradoracle.mutation.mutant import Mutant
from gradoracle.mutation.sources import Source, innermost

CAPABILITY = 90
STAGES = ("ttir", "ptx")
Question = tuple[Mutant, Source]
TIME_LIMIT = 1800.0  # seconds, for all mutants of one call; what is known by then is returned
_STRIPPED = {  # locations and what follows from them
    "ttir": re.compile(r"\s*loc\(.*\)\s*$|^#loc.*$", re.MULTILINE),
    "ptx": re.compile(r"^\s*(\.loc|\.file|//).*$|^\s*\.section\s+\.debug(.|\n)*", re.MULTILINE),
}


@dataclass(frozen=True)
class Asked:
    """What to compare.

    Attributes:
        path: search path of modules.
        target: as given.
        family: as given.
        dtypes: of the cases; None: those that the kernel supports.
        sources: names of the modules whose functions may be mutated.
        questions: the mutants, each with the loaded module that it goes into.
        specialisations: those that were launched.
    """

    path: tuple[str, ...]
    target: str
    family: str | None
    dtypes: tuple[str, ...] | None
    sources: tuple[str, ...]
    questions: tuple[Question, ...]
    specialisations: tuple[Any, ...]


def equivalents(asked: Asked, processes: int = 1) -> dict[str, str]:
    """By key, why a mutant is equivalent: in how many specialisations which IR is the same.

    "" for those that differ in one, or do not compile. Mutants for which there was no time are missing, and all of them
    where Triton cannot compile here.

    Args:
        asked: what to compare.
        processes: how many work at once.
    """
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        environment |= {"TRITON_CACHE_DIR": name, "TRITON_ALWAYS_COMPILE": "1", "OMP_NUM_THREADS": "1"}
        started = []
        for part in range(min(processes, len(asked.questions))):
            given, found = folder / f"asked{part}", folder / f"found{part}"
            given.write_bytes(pickle.dumps(replace(asked, questions=asked.questions[part::processes])))
            program = "import sys; from gradoracle.mutation.compiled import answer; answer(*sys.argv[1:])"
            words, nowhere = [str(given), str(found)], subprocess.DEVNULL
            started.append(
                fork_server.run(program, words, path=asked.path, env=environment, stdout=nowhere, stderr=nowhere)
            )
        _ended(started, time.monotonic() + TIME_LIMIT)
        lines = "".join(found.read_text(encoding="utf-8") for found in sorted(folder.glob("found*"))).split("\n")
    return dict(json.loads(line) for line in lines if line.endswith("]"))


def _ended(processes: Sequence[fork_server.Child | subprocess.Popen[bytes]], deadline: float) -> None:
    """Wait for processes until a deadline, and kill those that still run then."""
    for process in processes:
        try:
            process.wait(max(deadline - time.monotonic(), 0.0))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        except BaseException:
            for each in processes:
                each.kill()
            raise


def answer(given: str, found: str) -> None:
    """The other process: read what is asked from one file, append each answer to another."""
    asked: Asked = pickle.loads(Path(given).read_bytes())
    units = _Units(asked)
    with Path(found).open("w", encoding="utf-8") as written:
        for question in asked.questions:
            written.write(json.dumps([question[0].key, units.same(question)]) + "\n")
            written.flush()


class _Known(Exception):
    """Ends a compilation; its text is the IR of the stage that was asked for."""


class _Units:
    """Every compilation of a target's jitted functions, and the unmutated results."""

    def __init__(self, asked: Asked) -> None:
        from gradoracle.project.target import resolve

        target = resolve(asked.target, asked.family)
        self._sources = asked.sources
        self._units: list[tuple[Any, Mapping[str, str], Mapping[str, Any], Mapping[str, Any]]] = []
        for kernel in target.kernels:
            listed: Callable[[str], Sequence[Any]] | None = kernel.extras.get("compilations")
            for dtype in (asked.dtypes or kernel.dtypes or target.family.dtypes) if listed is not None else ():
                self._units += [tuple(each[1:]) for each in listed(dtype)]  # type: ignore[misc]
        functions = {(f.fn.__module__, f.fn.__name__): f for f in _jitted(asked.sources)}
        for module, name, types, constants, options in asked.specialisations:
            if (module, name) in functions:
                self._units.append((functions[module, name], dict(types), dict(constants), dict(options)))
        self._made: dict[tuple[int, str], str] = {}
        _stop_early()

    def same(self, question: Question) -> str:
        """Why the mutant is equivalent; "" where it is not, or that is unknown."""
        before = [unit[0].cache_key for unit in self._units]
        ours, theirs = Pipe()
        child = os.fork()
        if child == 0:
            ours.close()
            try:
                self._mutated(question, before, theirs)
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(0)
        theirs.close()
        try:
            changed: list[int] = ours.recv()
            levels = [self._level(number, ours) for number in changed]
        except EOFError:
            return ""
        finally:
            ours.close()
            os.waitpid(child, 0)
        if not changed:
            return ""
        return f"the same {'PTX' if 'ptx' in levels else 'TTIR'} in {len(changed)} specialisations"

    def _level(self, number: int, pipe: Connection) -> str:
        """The stage at which a compilation of the mutant, made by the fork, is the same as the kernel's.

        Raises:
            EOFError: it differs at every stage, or the fork has ended.
        """
        for stage in STAGES:
            pipe.send((number, stage))
            if pipe.recv() == self._digest(number, stage) != "":
                return stage
        raise EOFError

    def _mutated(self, question: Question, before: Sequence[str], pipe: Connection) -> None:
        """In a fork: send which compilations the mutant changes, then the result of each that is asked for."""
        install(*question)
        for function in [*_jitted(self._sources), *(unit[0] for unit in self._units)]:
            function.hash = None  # which has the dependencies' in it
        pipe.send([n for n, unit in enumerate(self._units) if unit[0].cache_key != before[n]])
        self._made = {}
        with suppress(EOFError):
            while True:
                pipe.send(self._digest(*pipe.recv()))

    def _digest(self, number: int, stage: str) -> str:
        """Of the result of a compilation at a stage; "" where it fails before."""
        if (number, stage) not in self._made:
            text = self._compiled(number, stage)
            self._made[number, stage] = hashlib.sha256(text.encode()).hexdigest() if text else ""
        return self._made[number, stage]

    def _compiled(self, number: int, stage: str) -> str:
        import triton
        from triton.backends.compiler import GPUTarget
        from triton.compiler import ASTSource

        function, types, constants, options = self._units[number]
        source = ASTSource(fn=function, constexprs=dict(constants), signature=dict(types))
        _last[:] = [stage]
        try:
            triton.compile(source, target=GPUTarget("cuda", CAPABILITY, 32), options=dict(options))
        except _Known as known:
            return str(known)
        except Exception:
            return ""
        raise RuntimeError("this version of Triton compiles in stages that are not known here")


def _jitted(sources: Sequence[str]) -> list[Any]:
    """The jitted functions of some modules, without their wrappers."""
    found = {}
    for name in sources:
        for value in map(innermost, vars(sys.modules[name]).values()):
            if hasattr(value, "fn") and hasattr(value, "cache_key"):
                found[id(value)] = value
    return list(found.values())


_last: list[str] = []  # the stage at which the running compilation ends


def _stop_early() -> None:
    """Make compilations end at the stage in ``_last``."""
    from triton.backends.nvidia.compiler import CUDABackend

    whole = CUDABackend.add_stages

    def ending(name: str, stage: Callable[..., Any]) -> Callable[..., Any]:
        def run(source: Any, metadata: dict[str, Any]) -> Any:
            made = stage(source, metadata)
            if _last == [name]:
                raise _Known(_STRIPPED[name].sub("", str(made)))
            return made

        return run

    def add_stages(self: Any, stages: dict[str, Any], options: Any, *arguments: Any, **keywords: Any) -> None:
        whole(self, stages, options, *arguments, **keywords)
        stages |= {name: ending(name, stages[name]) for name in STAGES}

    CUDABackend.add_stages = add_stages
