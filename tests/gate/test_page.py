"""The page that takes a kernel repository to a gate: its own blocks make one that works."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from bare_python import bare_python
from gate.project import Project
from sweeps import slow

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


@pytest.mark.parametrize("cases", ["6", slow("12")])
def test_a_refactoring_is_green_on_as_few_cases_as_the_page_advises(repository: Project, cases: str) -> None:
    """On so few cases the second derivative in bfloat16 is decided on neither side, which is a note."""
    assert f"`--examples {cases}`" in PAGE.read_text() or cases == "12"
    repository.git("switch", "--quiet", "-c", "change")
    repository.edit("my_kernels/rmsnorm.py", ("upcast", "wide"))
    code, out, _ = repository.gate("--base", "main", "--examples", cases)
    assert code == 0 and "rmsnorm: no worse than" in out and "in the base neither: " in out


TORCH = "torch.rsqrt = torch.ones_like\ntorch.Tensor.square = lambda self: self\n"
LEAVES = "import os\nos._exit(0)\n"
LEAVES_LATER = "import atexit, os, threading\natexit.register(os._exit, 0)\nthreading.Timer(2, os._exit, [0]).start()\n"
JUDGES = """
import sys
for module in list(sys.modules.values()):
    for name in ("compare", "judge_property", "report_of"):
        if hasattr(module, name):
            setattr(module, name, lambda *args, **fields: [])
"""
COLLECTED = """
import gc
for each in gc.get_objects():
    if type(each).__name__ == "Family":
        object.__setattr__(each, "definition", lambda x, w: x * x * w)
"""
SOURCE = """
import pathlib
text = pathlib.Path(__file__).read_text()
pathlib.Path(__file__).write_text(text.replace("return x * torch.rsqrt", "return x * x * torch.rsqrt"))
"""
DESCRIPTORS = """
import os
for number in range(3, 64):
    try:
        os.write(number, b"x" * 64)
    except OSError:
        pass
"""


@pytest.mark.parametrize(
    "lines",
    [TORCH, LEAVES, slow(LEAVES_LATER), slow(JUDGES), slow(COLLECTED), SOURCE, slow(DESCRIPTORS)],
    ids=["torch", "leaves", "leaves later", "judges", "collected", "source", "descriptors"],
)
def test_a_change_that_edits_its_judge_while_it_is_imported_is_no_better_for_it(
    repository: Project, lines: str
) -> None:
    repository.git("switch", "--quiet", "-c", "change")
    repository.edit(
        "my_kernels/rmsnorm.py",
        ("import gradoracle\n", f"import gradoracle\n{lines}"),
        ("(upcast * root", "(upcast * upcast"),
    )
    code, out, _ = repository.gate("--base", "main", "--examples", "6")
    assert code == 1 and "gate: rmsnorm: regression" in out


def test_packages_of_known_names_in_the_tree_are_not_imported(repository: Project) -> None:
    for name in ("typer", "torch", "numpy"):
        (repository.folder / f"{name}.py").write_text("raise SystemExit(0)\n")
    repository.edit("my_kernels/rmsnorm.py", ("(upcast * root", "(upcast * upcast"))
    code, out, _ = repository.gate("--base", "main", "--examples", "6")
    assert code == 1 and "gate: rmsnorm: regression" in out


@pytest.mark.slow
def test_a_gate_runs_the_kernels_of_both_sides_in_another_python(
    repository: Project, tmp_path_factory: pytest.TempPathFactory
) -> None:
    python = bare_python(tmp_path_factory.mktemp("bare"), has_triton=True)
    words = ("--base", "main", "--examples", "6", "--python", python)
    repository.edit("my_kernels/rmsnorm.py", ("upcast", "wide"))
    code, out, _ = repository.gate(*words)
    assert code == 0 and "rmsnorm: no worse than" in out
    repository.edit("my_kernels/rmsnorm.py", ("w.float()).to", "w.float()).bfloat16().to"))
    found = repository.answer(*words)
    assert found.code == 1 and ("forward_matches_the_oracle", "float32") in found.regressed()
