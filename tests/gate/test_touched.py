"""Kernels by the files that were touched, and the hook of pre-commit that checks them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from documents import reports_in
from gate.project import CONFIG, HELPER, IDENTITY, KERNEL, Project
from programs import gradoracle

ROOT = Path(__file__).resolve().parents[2]


def check(clone: Project, *words: str) -> tuple[int, str, str]:
    """Exit code, output and errors of a check in a clone."""
    done = gradoracle("check", *words, cwd=clone.folder)
    return done.returncode, done.stdout, done.stderr


def test_a_kernel_is_checked_where_a_file_that_it_imports_was_touched(clone: Project) -> None:
    code, out, _ = check(clone, "--touched", HELPER, "--profile", "fast", "--format", "json")
    (report,) = reports_in(out)
    assert (code, report.exit_code, report.target, report.cases_run) == (0, 0, KERNEL, 30)
    (clone.folder / "notes.py").write_text("x = 1\n")
    code, out, _ = check(clone, "--touched", "notes.py", "README.md")
    assert code == 0 and out.startswith("no kernel ") and "notes.py, README.md" in out and out.count("\n") == 1
    (clone.folder / CONFIG).write_text("")
    code, _, err = check(clone, "--touched", HELPER)
    assert code == 2 and "--touched" in err and "[tool.gradoracle]" in err


def hook(clone: Project) -> tuple[int, str]:
    """What the hook says of what is staged."""
    home = clone.folder.parent / "home"
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, **IDENTITY, "PRE_COMMIT_HOME": str(home), "PATH": path}
    command = [sys.executable, "-m", "pre_commit", "try-repo", str(ROOT), "gradoracle", "--verbose"]
    done = subprocess.run(command, cwd=clone.folder, env=environment, capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.skipif(
    not (ROOT / ".git").exists(), reason="pre-commit takes the hook from a git repository: this is none"
)
def test_the_hook_checks_what_is_staged(clone: Project) -> None:
    clone.edit(HELPER, ("+ eps)", "+ 2 * eps)"))
    clone.git("add", "-A")
    code, said = hook(clone)
    assert code == 1 and "WRONG" in said and "forward_matches_the_oracle" in said, said
    clone.git("reset", "--quiet", "--hard")
    clone.edit(KERNEL, ("gw", "weighted"))
    clone.git("add", "-A")
    code, said = hook(clone)
    assert code == 0 and "every checked property holds" in said, said
