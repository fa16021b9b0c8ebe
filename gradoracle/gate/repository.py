"""Repository: the gate's use of git, and a worktree of the base that is removed when the gate ends, however it ends."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from gradoracle.model.errors import UsageError

_PREFIX = "gradoracle-gate-"
_LOCK, _MARK = "lock", "the folder of a gradoracle gate\n"  # locked by the gate that owns the folder, while it runs
_TREE = "base"
_OWN = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_PREFIX")  # set in hooks, for the hook's repository


@dataclass(frozen=True)
class Repository:
    """A git working tree; ``root`` is its top folder."""

    root: Path

    def commit(self, ref: str) -> str:
        """The commit that a ref names.

        Raises:
            UsageError: it names none.
        """
        found = _git(self.root, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{ref}^{{commit}}")
        if found.returncode:
            shallow = "; this clone is shallow: fetch more of its history" if self.is_shallow() else ""
            raise UsageError(f"--base {ref} is not a commit of this repository{shallow}")
        return found.stdout.strip()

    def base(self, ref: str) -> str:
        """The commit that HEAD and a ref have in common.

        Raises:
            UsageError: the ref names no commit, HEAD has none, or their common commit is not in this clone.
        """
        commit = self.commit(ref)
        if _git(self.root, "rev-parse", "--verify", "--quiet", "HEAD^{commit}").returncode:
            raise UsageError("this repository has no commit yet, so there is no base to compare with")
        found = _git(self.root, "merge-base", commit, "HEAD")
        if found.returncode:
            if self.is_shallow():
                raise UsageError(
                    f"this clone is too shallow to contain the merge base of HEAD and {ref}; expected the whole "
                    "history (git fetch --unshallow, or fetch-depth: 0 of actions/checkout)"
                )
            raise UsageError(f"HEAD and --base {ref} have no commit in common")
        return found.stdout.split()[0]

    def is_shallow(self) -> bool:
        """Whether its history is truncated."""
        return _git(self.root, "rev-parse", "--is-shallow-repository").stdout.strip() == "true"

    def short(self, commit: str) -> str:
        """An abbreviated commit."""
        return _git(self.root, "rev-parse", "--short", commit).stdout.strip() or commit[:12]

    @contextlib.contextmanager
    def worktree(self, commit: str) -> Iterator[Path]:
        """A commit's files in a folder of their own, removed at the end; by a guard process if this one is killed.

        Raises:
            UsageError: git cannot make it.
        """
        self._sweep()
        folder = Path(tempfile.mkdtemp(prefix=_PREFIX)).resolve()
        tree = folder / _TREE
        with contextlib.ExitStack() as stack:
            lock = stack.enter_context((folder / _LOCK).open("w"))
            fcntl.flock(lock, fcntl.LOCK_EX)
            lock.write(_MARK)
            lock.flush()
            guard = _guard(self.root, folder)
            stack.callback(_end, guard)  # which removes the folder, as it does when this process dies
            made = _git(
                self.root, "-c", "core.hooksPath=/dev/null", "worktree", "add", "--detach", "--force", str(tree), commit
            )
            if made.returncode:
                raise UsageError(f"git cannot make a worktree of the base: {_last(made.stderr)}")
            yield tree

    def _sweep(self) -> None:
        """Remove what was left by gates that were killed together with their guards."""
        lines = _git(self.root, "worktree", "list", "--porcelain").stdout.splitlines()
        trees = [Path(line.removeprefix("worktree ")) for line in lines if line.startswith("worktree ")]
        for tree in trees[1:]:  # the first is the clone itself
            if tree.name == _TREE and tree.parent.name.startswith(_PREFIX) and _is_abandoned(tree.parent):
                remove(self.root, tree.parent)


def repository(folder: Path) -> Repository:
    """The git working tree around a folder.

    Raises:
        UsageError: git is not installed, or there is no working tree.
    """
    found = _git(folder, "rev-parse", "--show-toplevel")
    if found.returncode:
        why = _last(found.stderr)
        if "not a git repository" in why:
            raise UsageError("the gate compares a git working tree with its base, and this folder is not in one")
        raise UsageError(f"git cannot read this folder's repository: {why}")
    top = found.stdout.rstrip("\n")
    if not top:
        raise UsageError("this repository is bare: it has no working tree to compare")
    return Repository(Path(top).resolve())


def _is_abandoned(folder: Path) -> bool:
    """Whether a folder belongs to a gate that is dead: it has the mark, and no process locks it."""
    try:
        with (folder / _LOCK).open() as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return lock.read() == _MARK
    except OSError:  # the gate lives, the folder is gone, or is no gate's
        return False


def remove(root: Path, folder: Path) -> None:
    """Remove a gate's folder with the worktree in it, and git's record of that."""
    _git(root, "worktree", "remove", "--force", "--force", str(folder / _TREE))
    shutil.rmtree(folder, ignore_errors=True)


def _git(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run git in a folder, with English messages and without prompts."""
    environment = {key: value for key, value in os.environ.items() if key not in _OWN}
    environment |= {"LC_ALL": "C", "GIT_TERMINAL_PROMPT": "0"}
    try:
        return subprocess.run(
            ["git", "-C", str(folder), *words],
            capture_output=True,
            text=True,
            errors="replace",
            stdin=subprocess.DEVNULL,
            env=environment,
        )
    except FileNotFoundError:
        raise UsageError("git is not installed; the gate needs it, unless --baseline FILE is given") from None


def _last(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return (lines or ["no reason is given"])[-1].removeprefix("fatal: ")


def _guard(root: Path, folder: Path) -> subprocess.Popen[bytes]:
    """A separate process that removes a gate's folder once the gate's end of its pipe closes."""
    program = "import sys; from gradoracle.gate.repository import guard; guard(*sys.argv[1:])"
    path = os.pathsep.join(entry for entry in sys.path if entry)
    return subprocess.Popen(
        [sys.executable, "-c", program, str(root), str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd="/",
        env={**os.environ, "PYTHONPATH": path},
        start_new_session=True,  # out of reach of signals to the gate's process group
    )


def guard(root: str, folder: str) -> None:
    """Wait until the gate is done or dead, then remove its folder; a ``git worktree add`` may still be running."""
    import signal
    import time

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    while os.read(0, 1):
        pass
    for _ in range(100):
        remove(Path(root), Path(folder))
        if not Path(folder).exists() and folder not in _git(Path(root), "worktree", "list", "--porcelain").stdout:
            return
        time.sleep(0.1)


def _end(guard: subprocess.Popen[bytes]) -> None:
    """Have the guard remove the folder, and wait for it."""
    if guard.stdin is not None:
        with contextlib.suppress(OSError):
            guard.stdin.close()
    with contextlib.suppress(subprocess.TimeoutExpired):
        guard.wait(30.0)
