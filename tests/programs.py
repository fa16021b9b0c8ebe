"""Programs that tests run in processes of their own: Python's or the command line's, by the session's fork server."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from gradoracle.execution import fork_server

_COMMAND = "import sys; from gradoracle.__main__ import main; sys.argv[0] = 'gradoracle'; main()"
LIMIT = 600.0  # seconds
Run = Callable[..., "tuple[int, str, str]"]  # of a command line: exit code, standard output and standard error


def until(condition: Callable[[], object], seconds: float = 20.0) -> bool:
    """Whether a condition comes true within so many seconds."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def python(
    program: str,
    *arguments: str,
    cwd: Path | str | None = None,
    env: Mapping[str, str] | None = None,
    has_engine: bool = False,
) -> subprocess.CompletedProcess[str]:
    """What ``python -c PROGRAM ARGUMENTS...`` comes to, with torch and the like imported already, or gradoracle too."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        child = fork_server.run(
            program,
            arguments,
            has_engine=has_engine,
            env=env,
            folder=None if cwd is None else str(cwd),
            stdout=out,
            stderr=err,
        )
        try:
            code = child.wait(LIMIT)
        finally:
            child.kill()
        texts = []
        for stream in (out, err):
            stream.seek(0)
            texts.append(stream.read().decode("utf-8"))
    return subprocess.CompletedProcess([program, *arguments], code, *texts)


def gradoracle(
    *words: str, cwd: Path | str | None = None, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """What the command line ``gradoracle WORDS...`` comes to in a folder."""
    return python(_COMMAND, *words, cwd=cwd, env=env, has_engine=True)


def compiling(program: str, *arguments: str, **environment: str) -> str:
    """What a Python program prints in a process where Triton compiles unless ``environment`` says otherwise.

    TRITON_INTERPRET decides when triton is imported, for the whole process.
    """
    variables = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"} | environment
    ran = python(program, *arguments, env=variables)
    assert ran.returncode == 0, ran.stderr[-2000:]
    return ran.stdout


_SPECIALISING = """
import importlib, json, sys
modules = [importlib.import_module("gradoracle.kernels." + name) for name in sys.argv[1:]]
kernels = [getattr(module, name) for module in modules for name in vars(module) if name.endswith("_kernel")]
print(json.dumps({
    kernel.__name__: [p.name for p in kernel.params
        if not (p.is_constexpr or p.do_not_specialize or p.do_not_specialize_on_alignment)]
    for kernel in kernels
}))
"""


def specialising(*modules: str) -> dict[str, list[str]]:
    """By kernel of some modules of gradoracle.kernels: the parameters whose values start a compilation."""
    found: dict[str, list[str]] = json.loads(compiling(_SPECIALISING, *modules))
    return found
