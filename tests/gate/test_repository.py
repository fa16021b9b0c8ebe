"""Git around a gate: a message for each thing that can be wrong, and no worktree left behind, however it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
from gate.project import IDENTITY, KERNEL, Project, project

from gradoracle.gate import repository as repositories
from gradoracle.gate.repository import repository
from gradoracle.model.errors import UsageError

HOLDING = """
import sys, time
from pathlib import Path
from gradoracle.gate.repository import repository
found = repository(Path(sys.argv[1]))
with found.worktree(found.commit("HEAD")) as tree:
    print(tree, flush=True)
    time.sleep(60)
"""


def left(clone: Project) -> list[str]:
    """The worktrees that git knows of, without the clone itself."""
    lines = clone.git("worktree", "list", "--porcelain").splitlines()
    found = [line.removeprefix("worktree ") for line in lines if line.startswith("worktree ")]
    return [each for each in found if Path(each).resolve() != clone.folder.resolve()]


def until(condition: object, seconds: float = 20.0) -> bool:
    """Whether a condition comes true within so many seconds."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():  # type: ignore[operator]
            return True
        time.sleep(0.05)
    return False


def test_a_worktree_holds_the_commit_and_goes_at_the_end(clone: Project) -> None:
    before = (clone.folder / KERNEL).read_text()
    clone.edit(KERNEL, ("gw", "weighted"))
    found = repository(clone.folder)
    assert not found.is_shallow()
    with found.worktree(found.base("main")) as tree:
        assert (tree / KERNEL).read_text() == before
        assert left(clone) == [str(tree)]
    assert left(clone) == [] and not tree.parent.exists()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL, signal.SIGINT])
def test_one_that_is_killed_leaves_no_worktree(clone: Project, number: signal.Signals) -> None:
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDING, str(clone.folder)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert holder.stdout is not None
    tree = Path(holder.stdout.readline().strip())
    assert tree.is_dir() and left(clone) == [str(tree)]
    holder.send_signal(number)
    holder.wait()
    assert until(lambda: left(clone) == [] and not tree.parent.exists())


def test_what_died_with_its_guard_is_swept_by_the_next_and_a_living_one_is_not(clone: Project) -> None:
    found = repository(clone.folder)
    with found.worktree(found.commit("HEAD")) as living:
        dead = living.parent.parent / "gradoracle-gate-of-a-machine-that-stopped"
        dead.mkdir()
        (dead / "lock").write_text("the folder of a gradoracle gate\n")
        clone.git("worktree", "add", "--detach", str(dead / "base"))
        assert len(left(clone)) == 2
        with found.worktree(found.commit("HEAD")) as second:
            assert sorted(left(clone)) == sorted([str(living), str(second)]) and not dead.exists()
        assert left(clone) == [str(living)]


def test_nothing_but_a_gate_s_own_folder_is_swept(tmp_path: Path) -> None:
    clone = project(tmp_path / "gradoracle-gate-mine" / "base")
    mine = tmp_path / "gradoracle-gate-mine" / "precious.txt"
    other = tmp_path / "gradoracle-gate-other" / "base"
    mine.write_text("mine")
    clone.git("worktree", "add", "--detach", str(other))
    found = repository(clone.folder)
    with found.worktree(found.commit("HEAD")):
        assert mine.is_file() and (clone.folder / KERNEL).is_file() and (other / KERNEL).is_file()


def test_hooks_of_the_clone_are_not_run(clone: Project) -> None:
    hook = clone.folder / ".git/hooks/post-checkout"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text(f"#!/bin/sh\ntouch {clone.folder}/hooked\n")
    hook.chmod(0o755)
    found = repository(clone.folder)
    with found.worktree(found.commit("HEAD")):
        assert not (clone.folder / "hooked").exists()


def test_a_hook_s_own_variables_do_not_lead_it_astray(clone: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_DIR", "/nowhere")
    monkeypatch.setenv("GIT_INDEX_FILE", "/nowhere/index")
    assert repository(clone.folder).root == clone.folder.resolve()


def test_a_base_is_where_the_branches_part(clone: Project) -> None:
    first = clone.git("rev-parse", "HEAD").strip()
    clone.git("switch", "--quiet", "-c", "change")
    clone.commit()
    clone.git("switch", "--quiet", "main")
    clone.commit("main went on")
    clone.git("switch", "--quiet", "change")
    assert repository(clone.folder).base("main") == first


def test_each_mistake_has_its_own_message(clone: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = repository(clone.folder)
    with pytest.raises(UsageError, match=r"--base nowhere is not a commit of this repository$"):
        found.base("nowhere")
    with pytest.raises(UsageError, match="--base --help is not a commit"):
        found.base("--help")
    clone.git("switch", "--quiet", "--orphan", "apart")
    with pytest.raises(UsageError, match="no commit yet"):
        found.base("main")
    clone.commit("apart")
    with pytest.raises(UsageError, match="HEAD and --base main have no commit in common"):
        found.base("main")
    (tmp_path / "none").mkdir()
    with pytest.raises(UsageError, match="this folder is not in one"):
        repository(tmp_path / "none")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UsageError, match="git is not installed"):
        repository(clone.folder)


def test_a_shallow_clone_says_what_it_lacks(clone: Project, tmp_path: Path) -> None:
    clone.git("switch", "--quiet", "-c", "change")
    clone.commit()
    clone.git("switch", "--quiet", "main")
    clone.commit("main went on")
    shallow = Project(tmp_path / "shallow")
    subprocess.run(
        ["git", "clone", "--quiet", "--depth=1", "--no-single-branch", f"file://{clone.folder}", str(shallow.folder)],
        check=True, env={**os.environ, **IDENTITY},
    )  # fmt: skip
    shallow.git("switch", "--quiet", "change")
    with pytest.raises(UsageError, match=r"this clone is too shallow to contain the merge base .* --unshallow"):
        repository(shallow.folder).base("origin/main")
    with pytest.raises(UsageError, match="is not a commit of this repository; this clone is shallow"):
        repository(shallow.folder).base("HEAD~1")


def test_a_worktree_that_cannot_be_made_is_one_sentence(clone: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    found = repository(clone.folder)
    with pytest.raises(UsageError, match="git cannot make a worktree of the base: "), found.worktree("0" * 40):
        pass
    assert left(clone) == []
    assert repositories._last("") == "no reason is given"


def test_two_gates_in_one_clone_do_not_meet(clone: Project) -> None:
    clone.edit(KERNEL, ("gw", "weighted"))
    command = [sys.executable, "-m", "gradoracle", "gate", "--base", "main"]
    both = [subprocess.Popen(command, cwd=clone.folder, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    outs = [each.communicate()[0] for each in both]
    assert [each.returncode for each in both] == [0, 0] and all("rmsnorm: no regression" in out for out in outs)
    assert left(clone) == []


def sides_in(folder: Path) -> list[int]:
    """The pids of a gate's sides that work in a folder."""
    found = subprocess.run(["pgrep", "-x", "gradoracle-side"], capture_output=True, text=True).stdout.split()
    with suppress(OSError):  # one that has ended
        return [int(pid) for pid in found if os.path.samefile(f"/proc/{pid}/cwd", folder)]
    return []


def test_a_side_that_the_system_kills_is_an_open_question(clone: Project) -> None:
    clone.edit(KERNEL, ("gw", "weighted"))
    command = [sys.executable, "-m", "gradoracle", "gate", "--base", "main"]
    gate = subprocess.Popen(command, cwd=clone.folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert gate.stderr is not None
    while "the change, judged by" not in gate.stderr.readline():
        assert gate.poll() is None
    while not (sides := sides_in(clone.folder)):
        assert gate.poll() is None
    for pid in sides:
        os.kill(pid, signal.SIGKILL)
    out, _ = gate.communicate()
    assert gate.returncode == 4 and "signal 9 (SIGKILL)" in " ".join(out.split())
    assert left(clone) == []
