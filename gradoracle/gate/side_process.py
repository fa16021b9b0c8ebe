"""Side process: the gate's handle on a side: which gradoracle it runs, where its modules come from, what it answers."""

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
from pathlib import Path

from gradoracle.execution import fork_server
from gradoracle.gate import side
from gradoracle.gate.side import PROTOCOL, Assignment, Task
from gradoracle.gate.snapshot import Snapshot
from gradoracle.gate.tree import Tree
from gradoracle.model import serialize
from gradoracle.model.location import is_source
from gradoracle.project.base_overlay import import_folders

_PAUSE = 0.05  # seconds
_PROGRAM = f"""
import sys
try:
    from {side.__name__} import main
except ModuleNotFoundError as error:
    sys.exit(f"its gradoracle has no gate: {{error}}")
main(sys.argv[1:])
"""


class SideProcess:
    """A process that looks at targets in one tree.

    Args:
        folder: of the project, the process's current folder.
        path: its search path of modules, from ``search_path``.
        checks: whether it checks, or only takes fingerprints of what judges.
        tasks: by the names of the targets.
        stage: a folder for the files that are exchanged.
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
        self._tasks = tasks
        order, self._errors = _write_order(stage, Assignment(PROTOCOL, dict(tasks), checks))
        self._answer, self._early = order.with_name("answer.json"), order.with_name("early.json")
        self._seen = (0, 0)
        with self._errors.open("wb") as errors:
            self._process = fork_server.run(
                _PROGRAM,
                [str(order), str(self._answer), str(self._early)],
                has_engine=fork_server.is_of(path),
                path=path,
                folder=str(folder),
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=None if shows and checks and sys.stderr.isatty() else errors,
                name="gradoracle-side",
            )

    def news(self) -> dict[str, Snapshot] | None:
        """Wait for the next report of failures; None: the process has ended.

        There is one once every case is judged, and there are earlier ones if a task is ``early``.
        """
        while True:
            has_ended = self._process.poll() is not None
            with contextlib.suppress(FileNotFoundError):
                found = self._early.stat()
                if (seen := (found.st_ino, found.st_mtime_ns)) != self._seen:
                    self._seen = seen
                    return self._read(self._early)
            if has_ended:
                return None
            time.sleep(_PAUSE)

    def stop(self) -> None:
        """Stop it after the current case; it answers with its results so far."""
        if self._process.stdin is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.write(b"s")
                self._process.stdin.flush()

    def answer(self) -> dict[str, Snapshot]:
        """Wait for its end; the snapshot of each target, with an error where there is no other."""
        try:
            code = self._process.wait()
            if code == -signal.SIGINT:
                raise KeyboardInterrupt
            if self._answer.is_file():
                return self._read(self._answer)
            if code < 0:
                is_lost = code in (-signal.SIGKILL, -signal.SIGTERM)
                return self._failed(f"its process was killed by signal {-code} ({signal.Signals(-code).name})", is_lost)
            return self._failed(_last_line(self._errors) or f"its process ended with exit code {code}")
        finally:
            self.close()

    def close(self) -> None:
        """Kill it if it still runs; its workers end with it."""
        if self._process.stdin is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.close()
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()

    def _read(self, file: Path) -> dict[str, Snapshot]:
        """The snapshots in a file, which is complete once it exists."""
        document = json.loads(file.read_text(encoding="utf-8"))
        if document.get("protocol") != PROTOCOL:
            return self._failed(f"its gradoracle speaks protocol {document.get('protocol')!r}; expected {PROTOCOL!r}")
        try:
            return serialize.from_plain(dict[str, Snapshot], document["snapshots"], "snapshots")
        except (KeyError, serialize.Unreadable) as error:
            return self._failed(f"the answer of its gradoracle cannot be read: {error}")

    def _failed(self, error: str, is_lost: bool = True) -> dict[str, Snapshot]:
        return {name: Snapshot(task.target, error=error, is_lost=is_lost) for name, task in self._tasks.items()}


def _write_order(stage: Path, order: Assignment) -> tuple[Path, Path]:
    """Write an order into a folder of its own: its file, and another for the standard error of the process."""
    file = Path(tempfile.mkdtemp(dir=stage)) / "order.json"
    file.write_text(json.dumps(serialize.to_plain(order)), encoding="utf-8")
    return file, file.with_name("stderr.txt")


def _last_line(file: Path) -> str:
    """The last line of a text that is not blank; "" where there is none."""
    lines = [line.strip() for line in file.read_text("utf-8", "replace").splitlines() if line.strip()]
    return lines[-1] if lines else ""


def search_path(judge: Tree, kernels: Tree, here: Tree, stage: Path) -> list[str]:
    """The search path of a side: the engine and properties of one tree, the kernels of another, and what is installed.

    Where a tree is gradoracle's own, a folder of links puts its packages together as setup.py does.

    Args:
        judge: whose engine, properties and declarations judge.
        kernels: whose kernels are judged.
        here: the working tree that the gate runs in; its entries of the search path are replaced by the judge's.
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
