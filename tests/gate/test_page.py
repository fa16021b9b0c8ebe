"""The page that takes a kernel repository to a gate: its own blocks make one that works."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from gate.project import Project

PAGE = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "gate.md"
BLOCK = re.compile(r"^```\w+\n# (\S+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
NAMED = re.compile(r"^```sh\n(gradoracle gate --base main)\n```$", re.MULTILINE)


@pytest.fixture
def repository(tmp_path: Path) -> Project:
    """What the blocks with a file's name make, committed on main."""
    made = Project(tmp_path)
    files = dict(BLOCK.findall(PAGE.read_text()))
    names = {"my_kernels/rmsnorm.py", "pyproject.toml", ".github/workflows/gate.yml", ".pre-commit-config.yaml"}
    assert set(files) == names
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    made.git("init", "--quiet", "--initial-branch=main")
    made.commit("as the page has it")
    return made


def test_the_repository_of_the_page_has_a_gate_that_works(repository: Project) -> None:
    (command,) = NAMED.findall(PAGE.read_text())
    words = command.split()[2:]
    code, out, _ = repository.gate(*words)
    assert code == 0 and "no kernel has changed" in out
    repository.git("switch", "--quiet", "-c", "change")
    repository.edit("my_kernels/rmsnorm.py", ("upcast", "wide"))
    repository.commit("a refactoring")
    code, out, _ = repository.gate(*words)
    assert code == 0 and "rmsnorm: no worse than" in out
    repository.edit("my_kernels/rmsnorm.py", ("w.float()).to", "w.float()).bfloat16().to"))
    found = repository.answer(*words)
    assert found.code == 1 and found.regressed() == {("forward_matches_the_oracle", "float32")}
