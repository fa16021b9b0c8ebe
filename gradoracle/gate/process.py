"""Process: the gate's end of a side: the gradoracle that it runs, where its modules come from, and what it answers."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gradoracle.execution import fork_server
from gradoracle.gate import side
from gradoracle.gate.side import PROTOCOL, Order, Task
from gradoracle.gate.snapshot import Snapshot
from gradoracle.gate.tree import Tree
from gradoracle.model import serialize
from gradoracle.model.location import is_source
from gradoracle.project.base_overlay import import_folders

_PAUSE = 0.05  # seconds
_PROGRAM = """
import sys
try:
    from {module} import main
except ModuleNotFoundError as error:
    sys.exit(f"its gradoracle knows no {what}: {{error}}")
main(sys.argv[1:])
"""


@dataclass(frozen=True)
class Answer:
    """What a side said: snapshots by target; or, in a sentence, why there are none.

    ``is_lost``: that says nothing of the kernels, since the system killed the process or its gradoracle is another.
    """

    snapshots: Mapping[str, Snapshot]
    error: str = ""
    is_lost: bool = True


class Side:
    """A process that looks at targets in one tree.

    Args:
        folder: of the project whose current folder it is.
        path: where it finds modules, as ``search_path`` has it.
        checks: whether it is to check, or to see what judges.
        tasks: by the names of the targets.
        stage: a folder for what they write to each other.
        shows: whether a terminal shows the progress of a check.
    """

    def __init__(
        self,
        folder: Path,
        path: Sequence[str],
        checks: bool,
        tasks: Mapping[str, Task],
        stage: Path,
        shows: bool = True,
    ):
        own = Path(tempfile.mkdtemp(prefix="side-", dir=stage))
        self._answer, self._early, self._said = own / "answer.json", own / "early.json", own / "stderr.txt"
        self._told = (0, 0)
        order = own / "order.json"
        text = json.dumps(serialize.to_plain(Order(PROTOCOL, str(folder), checks, dict(tasks))))
        order.write_text(text, encoding="utf-8")
        with self._said.open("wb") as said:
            self._process = fork_server.run(
                program(side.__name__),
                [str(order), str(self._answer), str(self._early)],
                has_engine=fork_server.is_of(path),
                path=path,
                folder=str(folder),
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=None if shows and checks and sys.stderr.isatty() else said,
                name="gradoracle-side",
            )

    def news(self) -> Answer | None:
        """Wait until it tells more of what fails, and read that; None: it has ended.

        It tells so when it has judged every case, and as it goes where its task says so.
        """
        while True:
            has_ended = self._process.poll() is not None
            with contextlib.suppress(FileNotFoundError):
                found = self._early.stat()
                if (told := (found.st_ino, found.st_mtime_ns)) != self._told:
                    self._told = told
                    return self._read(self._early)
            if has_ended:
                return None
            time.sleep(_PAUSE)

    def stop(self) -> None:
        """Have it begin no further case, and answer with what it knows."""
        if self._process.stdin is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.write(b"s")
                self._process.stdin.flush()

    def answer(self) -> Answer:
        """Wait for it, and read what it wrote."""
        try:
            code = self._process.wait()
            if code == -signal.SIGINT:
                raise KeyboardInterrupt
            if self._answer.is_file():
                return self._read(self._answer)
            return Answer({}, self._why(code), is_lost=code >= 0 or code in (-signal.SIGKILL, -signal.SIGTERM))
        finally:
            self.end()

    def end(self) -> None:
        """Kill it, where it still runs: its workers end with it."""
        if self._process.stdin is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.close()
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()

    def _read(self, file: Path) -> Answer:
        """What a file says, which is there whole or not at all."""
        document = json.loads(file.read_text(encoding="utf-8"))
        if document.get("protocol") != PROTOCOL:
            return Answer({}, f"its gradoracle answers by {document.get('protocol')!r}; expected {PROTOCOL!r}")
        try:
            return Answer(serialize.from_plain(dict[str, Snapshot], document["snapshots"], "snapshots"))
        except (KeyError, serialize.Unreadable) as error:
            return Answer({}, f"its gradoracle's answer cannot be read: {error}")

    def _why(self, code: int) -> str:
        """Why a process left no answer."""
        said = self._said.read_text("utf-8", "replace") if self._said.is_file() else ""
        lines = [line.strip() for line in said.splitlines() if line.strip()]
        if code < 0:
            return f"its process was killed by signal {-code} ({signal.Signals(-code).name})"
        return lines[-1] if lines else f"its process ended with exit code {code}"


def program(module: str, what: str = "gate") -> str:
    """A program that runs ``main`` of a module, which does ``what``, on its arguments."""
    return _PROGRAM.format(module=module, what=what)


def search_path(judge: Tree, kernels: Tree, here: Tree, stage: Path) -> list[str]:
    """Where a side finds modules: the engine and laws of one tree, the kernels of another, and what is installed.

    Where a tree is gradoracle's own, a folder of links puts its packages together as setup.py does.

    Args:
        judge: whose engine, laws and declarations judge.
        kernels: whose kernels are judged.
        here: the working tree that the gate runs in; what it adds to the search path is taken from the judge's tree.
        stage: a folder for the links.
    """
    own = []
    if judge.is_gradoracle:
        view = Path(tempfile.mkdtemp(prefix="view-", dir=stage))
        package = view / "gradoracle"
        package.mkdir()
        for entry in (judge.root / "gradoracle").iterdir():
            if entry.name not in ("kernels", "properties", "__pycache__"):
                (package / entry.name).symlink_to(entry)
        (package / "properties").symlink_to(judge.root / "properties")
        (package / "kernels").symlink_to(kernels.root / "kernels")
        own.append(str(view))
    inherited = [_moved(os.path.abspath(entry), here.root, judge.root) for entry in sys.path if entry]
    return list(dict.fromkeys([*own, *import_folders(judge.folder), *inherited]))


def _moved(entry: str, here: Path, there: Path) -> str:
    """An entry of the search path; a folder of sources in one tree is that of the other tree, an environment stays."""
    return str(there / Path(entry).relative_to(here)) if is_source(entry, str(here)) else entry
